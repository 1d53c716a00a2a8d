/* SPDX-License-Identifier: Apache-2.0
 * The one place that starts threads. */
#include "topology.h"
#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>

static volatile bool forked; /* written in the child before any of its threads exists */
static pthread_once_t watch_once = PTHREAD_ONCE_INIT;

static void in_child(void) { forked = true; }

static void watch(void) { pthread_atfork(NULL, NULL, in_child); }

void attn_cpu_watch_forks(void) { pthread_once(&watch_once, watch); }

/* ---- binding ---------------------------------------------------------------------------------- */

static atomic_bool taken[ATTN_MAX_CORES]; /* cores, by teams of this process */

typedef struct binding {
    int core;   /* -1: none */
    bool moved; /* from more CPUs than the core's */
    cpu_set_t former;
} binding;

bool attn_cpu_binds(const attn_context *ctx) { return ctx && ctx->bind && omp_get_proc_bind() == omp_proc_bind_false; }

/* To a core that nobody has taken and this thread may use, the first one from `thread` on. Where there is none, or the
 * system refuses, the thread stays as it is. */
static binding bind_thread(int32_t thread)
{
    const cpu_set_t *sets;
    binding b = {.core = -1};
    const int cores = attn_cpu_core_sets(&sets);
    if (cores < 2 || sched_getaffinity(0, sizeof b.former, &b.former) != 0) return b;
    for (int n = 0; n < cores; n++) {
        cpu_set_t mask;
        const int core = (int)((thread + n) % cores);
        CPU_AND(&mask, &sets[core], &b.former);
        if (CPU_COUNT(&mask) == 0 || atomic_exchange(&taken[core], true)) continue;
        const bool there = CPU_EQUAL(&mask, &b.former); /* it has no other; but now nobody else comes to it */
        b.moved = !there && sched_setaffinity(0, sizeof mask, &mask) == 0;
        if (there || b.moved) b.core = core;
        else atomic_store(&taken[core], false);
        break;
    }
    return b;
}

static void release_thread(const binding *b)
{
    if (b->core < 0) return;
    if (b->moved) sched_setaffinity(0, sizeof b->former, &b->former);
    atomic_store(&taken[b->core], false);
}

/* ---- the team --------------------------------------------------------------------------------- */

void attn_cpu_parallel(const attn_context *ctx, int32_t threads, int64_t tasks, attn_task *body, void *arg)
{
    if (threads > tasks) threads = (int32_t)tasks;
    if (threads > omp_get_thread_limit()) threads = omp_get_thread_limit(); /* beyond it libomp warns on stderr */
    if (threads <= 1 || forked) { /* libgomp's pool does not survive fork(): a team would wait for ever */
        for (int64_t task = 0; task < tasks; task++) body(arg, task, 0);
        return;
    }
    const bool bind = attn_cpu_binds(ctx);
#pragma omp parallel num_threads(threads)
    {
        const int32_t thread = (int32_t)omp_get_thread_num();
        binding bound = {.core = -1};
        if (bind && omp_get_num_threads() > 1) bound = bind_thread(thread);
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t task = 0; task < tasks; task++) body(arg, task, thread);
        release_thread(&bound);
    }
}
