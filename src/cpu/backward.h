/* SPDX-License-Identifier: Apache-2.0
 * What backward.c, backward_padding.c and backward_bias.c share: the call and its chains. */
#ifndef ATTN_CPU_BACKWARD_H
#define ATTN_CPU_BACKWARD_H

#include "level.h"
#include "rows.h"
#include <stdatomic.h>

typedef struct hand_out { /* of steps; see next_step */
    atomic_flag taken;
    int64_t first, chain, step;
    bool any;
} hand_out;

typedef struct backward_call {
    const attn_job *job;
    const attn_cpu_level *level;
    uint64_t dropout_key;
    int64_t chains, set;   /* set: chains that are handed out together */
    attn_cpu_start *start; /* [batch] */
    float *lse, *rest;     /* of each row: LSE, +inf where there is none; dLSE - D */
    atomic_int *turn;      /* of each row block: steps that have added to its dQ */
    atomic_int *done;      /* of each chain: steps that have ended */
    float *dq;             /* [slots][slot_rows][dq_stride]; without slots the rows of all chains */
    int64_t slots, slot_rows, dq_stride;
    char *scratch;
    size_t scratch_bytes; /* of a thread: the level's, raw dS of a tile, sums of a tile of dbias */
    bool whole_bias;      /* no element of dbias sums pairs */
    hand_out next;
} backward_call;

typedef struct chain {
    attn_cpu_block block; /* without rows or keys */
    const attn_cpu_start *start;
    int64_t rows;  /* g Sq */
    int64_t index; /* of its first row in lse and rest */
    int64_t row_block;
    int64_t step_keys; /* of a step */
} chain;

/* Chain number `index`: kv heads of a sequence follow each other, sequences are in their order. */
chain attn_cpu_chain(const backward_call *call, int64_t index);

static inline int64_t chain_index(const backward_call *call, int64_t b, int64_t hkv)
{
    return call->start[b].place * call->job->heads_kv + hkv;
}

static inline void *scratch_of(const backward_call *call, int32_t thread)
{
    return call->scratch + (size_t)thread * call->scratch_bytes;
}

/* ---- rows that nothing adds to, backward_padding.c --------------------------------------------- */

void attn_cpu_clear_row(const attn_job *job, const attn_view *t, int64_t batch, int64_t h, int64_t row, int64_t n);
/* Tasks: chains. dQ of row blocks without a key, and of padding; dK and dV of padding. */
attn_task attn_cpu_query_padding, attn_cpu_key_padding;
void attn_cpu_clear_gradients(const attn_job *job); /* all of them */

/* ---- dbias, backward_bias.c ------------------------------------------------------------------ */

/* Bytes behind the level's scratch; 0 without dbias. */
size_t attn_cpu_bias_scratch_bytes(const attn_cpu_level *level, const attn_job *job);
/* Each element belongs to one pair. */
bool attn_cpu_bias_is_whole(const attn_job *job);
/* Room for raw dS of a tile. */
float *attn_cpu_bias_raw(const backward_call *call, int32_t thread);
/* dS of a tile to a dbias that is whole; elements of no tile have been cleared. */
void attn_cpu_bias_write(const backward_call *call, const attn_cpu_block *w, const float *raw);
/* Tasks: dbias of one batch and head. */
attn_task attn_cpu_bias_clear;
/* Tasks: tiles of a dbias that is not whole. */
int64_t attn_cpu_bias_tiles(const backward_call *call);
attn_task attn_cpu_bias_sum;

#endif
