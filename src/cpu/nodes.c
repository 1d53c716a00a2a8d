/* SPDX-License-Identifier: Apache-2.0 */
#include "nodes.h"
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- dealing --------------------------------------------------------------------------------- */

static int32_t least_loaded(const attn_nodes *nodes, const double *load, const attn_cpu_unit *unit)
{
    int32_t best = 0;
    double least = INFINITY;
    for (int32_t n = 0; n < nodes->count; n++) {
        const double then = (load[n] + (double)unit->work) / nodes->cores[n];
        if (then < least || (then == least && n == unit->node)) {
            least = then;
            best = n;
        }
    }
    return best;
}

void attn_cpu_deal(const attn_nodes *nodes, int64_t units, attn_cpu_unit *unit)
{
    double load[ATTN_MAX_NODES] = {0}, cores = 0, work = 0;
    for (int32_t n = 0; n < nodes->count; n++) cores += nodes->cores[n];
    for (int64_t n = 0; n < units; n++) work += (double)unit[n].work;
    /* First who stays at home; marked by -2 - node, so that the others can be told. */
    for (int64_t n = 0; n < units; n++) {
        const int32_t home = unit[n].node;
        if (home < 0 || load[home] + (double)unit[n].work > work * nodes->cores[home] / cores) continue;
        load[home] += (double)unit[n].work;
        unit[n].node = -2 - home;
    }
    for (int64_t n = 0; n < units; n++) {
        if (unit[n].node <= -2) {
            unit[n].node = -2 - unit[n].node;
            continue;
        }
        unit[n].node = least_loaded(nodes, load, &unit[n]);
        load[unit[n].node] += (double)unit[n].work;
    }
}

/* ---- taking ---------------------------------------------------------------------------------- */

static void run_lists(void *arg, int64_t task, int32_t thread)
{
    attn_cpu_lists *lists = arg;
    const int32_t count = lists->nodes->count;
    const int cpu = sched_getcpu();
    int32_t own = cpu >= 0 && cpu < ATTN_MAX_CPUS ? lists->nodes->of_cpu[cpu] : -1;
    if (own < 0) own = (int32_t)(task % count);
    for (int32_t n = 0; n < count; n++) {
        const int32_t at = (own + n) % count;
        int64_t next;
        while ((next = atomic_fetch_add_explicit(&lists->list[at].next, 1, memory_order_relaxed)) < lists->end[at])
            lists->body(lists->arg, next, thread);
    }
}

void attn_cpu_parallel_lists(const attn_context *ctx, int32_t threads, attn_cpu_lists *lists)
{
    const int32_t count = lists->nodes->count;
    const int64_t tasks = lists->end[count - 1];
    for (int32_t n = 0; n < count; n++) atomic_init(&lists->list[n].next, n ? lists->end[n - 1] : 0);
    /* One thread or all of them: each call takes until nothing is left. */
    attn_cpu_parallel(ctx, threads, attn_min(threads, tasks), run_lists, lists);
}

/* ---- memory ---------------------------------------------------------------------------------- */

void attn_cpu_find_memory(const attn_nodes *nodes, int count, void **address, int32_t *node)
{
    int status[ATTN_FIND_MEMORY];
    bool known = false;
#ifdef SYS_move_pages /* which moves nothing when it is given no nodes */
    known =
        nodes->real && count <= ATTN_FIND_MEMORY && syscall(SYS_move_pages, 0, count, address, NULL, status, 0) == 0;
#endif
    for (int n = 0; n < count; n++)
        node[n] = known && status[n] >= 0 && status[n] < ATTN_MAX_MEMORIES ? nodes->of_memory[status[n]] : -1;
}
