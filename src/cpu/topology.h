/* SPDX-License-Identifier: Apache-2.0
 * What the tests ask of topologies that are nobody's machine. */
#ifndef ATTN_CPU_TOPOLOGY_H
#define ATTN_CPU_TOPOLOGY_H

#include "internal.h"
#include <hwloc.h>

/* bound: the cpu set. */
void attn_cpu_map_nodes(hwloc_topology_t topology, hwloc_const_bitmap_t bound, attn_nodes *nodes);

#endif
