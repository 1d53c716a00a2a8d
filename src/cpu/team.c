/* SPDX-License-Identifier: Apache-2.0
 * The one place that starts threads. */
#include "internal.h"
#include <omp.h>
#include <pthread.h>

static volatile bool forked; /* written in the child before any of its threads exists */
static pthread_once_t watch_once = PTHREAD_ONCE_INIT;

static void in_child(void) { forked = true; }

static void watch(void) { pthread_atfork(NULL, NULL, in_child); }

void attn_cpu_watch_forks(void) { pthread_once(&watch_once, watch); }

void attn_cpu_parallel(int32_t threads, int64_t tasks, attn_task *body, void *arg)
{
    if (threads > tasks) threads = (int32_t)tasks;
    if (threads > omp_get_thread_limit()) threads = omp_get_thread_limit(); /* beyond it libomp warns on stderr */
    if (threads <= 1 || forked) { /* libgomp's pool does not survive fork(): a team would wait for ever */
        for (int64_t task = 0; task < tasks; task++) body(arg, task, 0);
        return;
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t task = 0; task < tasks; task++) body(arg, task, (int32_t)omp_get_thread_num());
}
