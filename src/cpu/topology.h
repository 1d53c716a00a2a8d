/* SPDX-License-Identifier: Apache-2.0
 * What the tests ask of topologies that are nobody's machine. */
#ifndef ATTN_CPU_TOPOLOGY_H
#define ATTN_CPU_TOPOLOGY_H

#include "internal.h"
#include <hwloc.h>
#include <sched.h>

/* bound: the cpu set. */
void attn_cpu_map_nodes(hwloc_topology_t topology, hwloc_const_bitmap_t bound, attn_nodes *nodes);

/* CPUs of each physical core, cores of all NUMA nodes in turn; NULL and 0 where nobody knows. */
enum { ATTN_MAX_CORES = 1024 };
int attn_cpu_core_sets(const cpu_set_t **sets);
int attn_cpu_list_cores(hwloc_topology_t topology, const attn_nodes *nodes, cpu_set_t *sets);

#endif
