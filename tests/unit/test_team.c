/* SPDX-License-Identifier: Apache-2.0
 * attn_cpu_parallel: every task once, in a team, inside a caller's parallel region, in a forked child; and no more
 * threads than OpenMP grants. */
#include "unit.h"

#include "internal.h"

#include <omp.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_TASKS = 1000, PATIENCE = 30 /* seconds; a hang must not wait for the test's own limit */ };

typedef struct tally {
    atomic_int runs[MOST_TASKS];
    atomic_int wrong_thread, last_task, backwards;
    int32_t threads;
} tally;

static void count(void *arg, int64_t task, int32_t thread)
{
    tally *t = arg;
    atomic_fetch_add(&t->runs[task], 1);
    if (thread < 0 || thread >= t->threads) atomic_fetch_add(&t->wrong_thread, 1);
    if (atomic_exchange(&t->last_task, (int)task) > (int)task) atomic_fetch_add(&t->backwards, 1);
}

/* 1 if all was as promised. */
static int each_once(int32_t threads, int64_t tasks)
{
    tally *t = calloc(1, sizeof *t);
    if (!t) return 0;
    t->threads = threads;
    attn_cpu_parallel(NULL, threads, tasks, count, t);
    int good = t->wrong_thread == 0 && (threads > 1 || t->backwards == 0);
    for (int64_t n = 0; n < MOST_TASKS; n++) good = good && t->runs[n] == (n < tasks);
    free(t);
    return good;
}

static int many_sizes(void)
{
    const int32_t threads[] = {1, 2, 3, 8, 64};
    const int64_t tasks[] = {0, 1, 2, 7, 64, MOST_TASKS};
    int good = 1;
    for (size_t n = 0; n < sizeof threads / sizeof *threads; n++)
        for (size_t m = 0; m < sizeof tasks / sizeof *tasks; m++) good = good && each_once(threads[n], tasks[m]);
    return good;
}

static void every_task_once(void **state)
{
    (void)state;
    assert_true(many_sizes());
}

static void inside_a_parallel_region(void **state)
{
    (void)state;
    atomic_int bad = 0;
#pragma omp parallel num_threads(3)
    {
        if (!many_sizes()) atomic_fetch_add(&bad, 1);
    }
    assert_int_equal(bad, 0);
#pragma omp parallel for num_threads(2)
    for (int n = 0; n < 8; n++)
        if (!each_once(4, MOST_TASKS)) atomic_fetch_add(&bad, 1);
    assert_int_equal(bad, 0);
}

/* ---- fork ---------------------------------------------------------------------------------------------------------------- */

/* Runs body in a child; 1 if it returned 1 there in time. */
static int in_child(int (*body)(void))
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(PATIENCE); /* kills it */
        _exit(body() ? 0 : 1);
    }
    int status = 1;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static int grandchild(void) { return many_sizes() && in_child(many_sizes); }

/* The parent's team has worked, so its threads exist; the child has none of them. */
static void child_of_a_team(void **state)
{
    (void)state;
    attn_cpu_watch_forks();
    assert_true(many_sizes());
    assert_true(in_child(many_sizes));
    assert_true(in_child(grandchild));
    assert_true(many_sizes()); /* the parent goes on as before */
}

static attn_context *ctx;
static float out[3][8 * 64 * 16];

static int forward(int n)
{
    float x[8 * 64 * 16];
    uint64_t random = 6;
    for (size_t e = 0; e < sizeof x / sizeof *x; e++) x[e] = (float)unit_between(&random, -100, 100) / 50.0f;
    attn_problem p = ATTN_PROBLEM_INIT;
    p.q = p.k = p.v = attn_bhsd(x, ATTN_F32, 1, 8, 64, 16);
    p.out = attn_bhsd(out[n], ATTN_F32, 1, 8, 64, 16);
    return attn_forward(ctx, &p, NULL) == ATTN_OK;
}

static int same_in_child(void)
{
    memset(out[1], 0xff, sizeof out[1]);
    return forward(1) && memcmp(out[0], out[1], sizeof out[0]) == 0;
}

static void context_in_a_child(void **state)
{
    (void)state;
    attn_config config = ATTN_CONFIG_INIT;
    config.num_threads = 4;
    assert_int_equal(attn_create(&config, &ctx), ATTN_OK);
    assert_true(forward(0));
    assert_true(in_child(same_in_child));
    attn_destroy(ctx);
}

/* ---- what OpenMP grants ------------------------------------------------------------------------------------------- */

static void widest(void *arg, int64_t task, int32_t thread)
{
    atomic_int *most = arg;
    const int size = omp_get_num_threads();
    (void)task, (void)thread;
    for (int seen = atomic_load(most); seen < size && !atomic_compare_exchange_weak(most, &seen, size);) continue;
}

/* The largest team that a call from within a region of two threads had. */
static int inner_team(int levels)
{
    atomic_int most = 0;
    const int before = omp_get_max_active_levels();
    omp_set_max_active_levels(levels);
#pragma omp parallel num_threads(2)
    attn_cpu_parallel(NULL, 3, 100, widest, &most);
    omp_set_max_active_levels(before);
    return most;
}

static void nesting_levels(void **state)
{
    (void)state;
    atomic_int bad = 0, most = 0;
    attn_cpu_parallel(NULL, 3, 100, widest, &most);
    assert_int_equal(most, 3);
    assert_int_equal(inner_team(1), 1);
    assert_in_range(inner_team(2), 1, 3);
    const int before = omp_get_max_active_levels();
    for (int levels = 1; levels <= 3; levels++) {
        omp_set_max_active_levels(levels);
#pragma omp parallel num_threads(2)
        if (!each_once(3, MOST_TASKS)) atomic_fetch_add(&bad, 1);
    }
    omp_set_max_active_levels(before);
    assert_int_equal(bad, 0);
}

/* Whole calls inside a region, each thread with an output of its own. */
static void forward_inside(void **state)
{
    atomic_int bad = 0;
    attn_config config = ATTN_CONFIG_INIT;
    (void)state;
    config.num_threads = 3;
    assert_int_equal(attn_create(&config, &ctx), ATTN_OK);
    assert_true(forward(0));
    const int before = omp_get_max_active_levels();
    for (int levels = 1; levels <= 2; levels++) {
        omp_set_max_active_levels(levels);
#pragma omp parallel for num_threads(2) schedule(static, 1)
        for (int n = 1; n <= 2; n++) {
            memset(out[n], 0xff, sizeof out[n]);
            if (!forward(n) || memcmp(out[0], out[n], sizeof out[0])) atomic_fetch_add(&bad, 1);
        }
    }
    omp_set_max_active_levels(before);
    assert_int_equal(bad, 0);
    attn_destroy(ctx);
}

/* In another process, because OpenMP reads its environment once. */
static int limited(void)
{
    atomic_int most = 0;
    attn_cpu_parallel(NULL, 8, 100, widest, &most);
    return omp_get_thread_limit() == 2 && most <= 2 && many_sizes();
}

static void thread_limit(void **state)
{
    (void)state;
    const pid_t child = fork();
    if (child == 0) {
        setenv("OMP_THREAD_LIMIT", "2", 1);
        execl("/proc/self/exe", "test_team", "limited", (char *)NULL);
        _exit(2);
    }
    int status = 1;
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int words, char **word)
{
    if (words > 1) return strcmp(word[1], "limited") || !limited();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_once),    cmocka_unit_test(inside_a_parallel_region),
        cmocka_unit_test(nesting_levels),     cmocka_unit_test(forward_inside),
        cmocka_unit_test(thread_limit),       cmocka_unit_test(child_of_a_team),
        cmocka_unit_test(context_in_a_child),
    };
    return cmocka_run_group_tests_name("team", tests, NULL, NULL);
}
