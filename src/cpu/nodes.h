/* SPDX-License-Identifier: Apache-2.0
 * Tasks by NUMA node: a list for each node, from which its threads take first. */
#ifndef ATTN_CPU_NODES_H
#define ATTN_CPU_NODES_H

#include "internal.h"
#include <stdatomic.h>

/* What is dealt whole, because its tasks read the same memory: a kv head of a sequence. Two things in one array: unit
 * number n's work and node, and which unit stands at place n of the lists, node by node. */
typedef struct attn_cpu_unit {
    int64_t work;
    int64_t index, task; /* of place n: the unit, its first task */
    int32_t node;        /* where its memory lies, -1: unknown; then who computes it */
} attn_cpu_unit;

/* Deals units to nodes, in order (heaviest first), so that each has work in proportion to its cores. A unit goes to where
 * its memory lies unless that node has its share. Depends on nothing but its arguments. */
void attn_cpu_deal(const attn_nodes *nodes, int64_t units, attn_cpu_unit *unit);

/* Tasks [end[n - 1], end[n]) are node n's. */
typedef struct attn_cpu_lists {
    const attn_nodes *nodes;
    attn_task *body;
    void *arg;
    int64_t end[ATTN_MAX_NODES];
    struct {
        _Alignas(64) atomic_llong next;
    } list[ATTN_MAX_NODES];
} attn_cpu_lists;

/* Calls body for every task once, as attn_cpu_parallel does, whose ascending order holds within a list. A thread asks
 * once on which node it is, and takes from the other lists when its own is empty. */
void attn_cpu_parallel_lists(const attn_context *ctx, int32_t threads, attn_cpu_lists *lists);

enum { ATTN_FIND_MEMORY = 64 }; /* addresses at a time */

/* The node whose memory each address lies in, -1: unknown (nobody may ask, not touched yet, of no node with cores). */
void attn_cpu_find_memory(const attn_nodes *nodes, int count, void **address, int32_t *node);

#endif
