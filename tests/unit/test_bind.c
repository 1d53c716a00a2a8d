/* SPDX-License-Identifier: Apache-2.0
 * Threads bound to cores: while a team works, distinct ones, at no other time, and not where somebody else decides. */
#include "unit.h"

#include "internal.h"

#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* In front of the C library's, for the library in this program. */
static atomic_int calls, refuse;

int sched_setaffinity(pid_t pid, size_t bytes, const cpu_set_t *set)
{
    atomic_fetch_add(&calls, 1);
    if (atomic_load(&refuse)) return -1;
    return syscall(SYS_sched_setaffinity, pid, bytes, set) < 0 ? -1 : 0;
}

static cpu_set_t mask_now(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    return set;
}

enum { MOST = 8 };

typedef struct look {
    cpu_set_t mask[MOST]; /* of each thread, while all are at work */
    atomic_int there;
    int size; /* of the team */
} look;

static void look_around(void *arg, int64_t task, int32_t thread)
{
    look *l = arg;
    (void)task;
    l->mask[thread] = mask_now();
    atomic_fetch_add(&l->there, 1);
    /* So that no thread takes two tasks. */
    while (atomic_load(&l->there) < omp_get_num_threads()) sched_yield();
}

static void team(const attn_context *ctx, int threads, look *l)
{
    memset(l, 0, sizeof *l);
    attn_cpu_parallel(ctx, threads, threads, look_around, l);
}

static attn_context *context(uint32_t flags, const char *force)
{
    attn_config config = ATTN_CONFIG_INIT;
    attn_context *ctx;
    config.backend = ATTN_BACKEND_CPU;
    config.flags = flags;
    config.force = force;
    return attn_create(&config, &ctx) == ATTN_OK ? ctx : NULL;
}

static int cores; /* that this process may use */

/* As before in all threads of the pool. */
static void all_free(int threads, const cpu_set_t *before)
{
    look l;
    team(NULL, threads, &l);
    for (int n = 0; n < threads; n++) assert_true(CPU_EQUAL(&l.mask[n], before));
}

static void on_distinct_cores(void **state)
{
    look l;
    const cpu_set_t before = mask_now();
    (void)state;
    if (cores < 2) {
        printf("SKIP: test_bind: on one core no thread is bound\n");
        skip();
    }
    const int threads = cores < MOST ? cores : MOST;
    attn_context *ctx = context(ATTN_CFG_BIND_THREADS, NULL);
    assert_true(ctx && attn_cpu_binds(ctx));
    for (int round = 0; round < 20; round++) {
        cpu_set_t any, both;
        team(ctx, threads, &l);
        CPU_ZERO(&any);
        for (int n = 0; n < threads; n++) {
            assert_true(CPU_COUNT(&l.mask[n]) >= 1 && CPU_COUNT(&l.mask[n]) < CPU_COUNT(&before));
            CPU_AND(&both, &any, &l.mask[n]);
            assert_int_equal(CPU_COUNT(&both), 0);
            CPU_OR(&any, &any, &l.mask[n]);
        }
        all_free(threads, &before);
    }
    attn_destroy(ctx);
    ctx = context(0, "bind=cores");
    assert_true(attn_cpu_binds(ctx));
    attn_destroy(ctx);
}

/* More threads than cores: those that are left over are as they were. */
static void more_threads(void **state)
{
    look l;
    const cpu_set_t before = mask_now();
    int bound = 0;
    (void)state;
    attn_context *ctx = context(ATTN_CFG_BIND_THREADS, NULL);
    if (cores >= MOST) skip();
    team(ctx, cores + 1, &l);
    for (int n = 0; n <= cores; n++) bound += !CPU_EQUAL(&l.mask[n], &before);
    assert_int_equal(bound, cores < 2 ? 0 : cores);
    all_free(cores + 1, &before);
    attn_destroy(ctx);
}

/* On one CPU, in a team of one, without being asked to, and forbidden: nothing is called. */
static void nothing(void **state)
{
    look l;
    const cpu_set_t before = mask_now();
    cpu_set_t one;
    (void)state;
    attn_context *ctx = context(ATTN_CFG_BIND_THREADS, NULL), *plain = context(0, NULL);
    attn_context *never = context(ATTN_CFG_BIND_THREADS, "bind=never");
    assert_false(attn_cpu_binds(plain) || attn_cpu_binds(never));
    atomic_store(&calls, 0);
    team(ctx, 1, &l);
    team(plain, 3, &l);
    team(never, 3, &l);
    assert_int_equal(atomic_load(&calls), 0);
    CPU_ZERO(&one);
    for (size_t cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
#pragma omp parallel num_threads(2)
    syscall(SYS_sched_setaffinity, 0, sizeof one, &one);
    team(ctx, 2, &l);
    assert_int_equal(atomic_load(&calls), 0);
#pragma omp parallel num_threads(2)
    syscall(SYS_sched_setaffinity, 0, sizeof before, &before);
    attn_destroy(ctx);
    attn_destroy(plain);
    attn_destroy(never);
}

static void refused(void **state)
{
    look l;
    const cpu_set_t before = mask_now();
    (void)state;
    attn_context *ctx = context(ATTN_CFG_BIND_THREADS, NULL);
    atomic_store(&refuse, 1);
    team(ctx, 2, &l);
    atomic_store(&refuse, 0);
    for (int n = 0; n < 2; n++) assert_true(CPU_EQUAL(&l.mask[n], &before));
    if (cores >= 2) { /* and the cores are to be had again */
        team(ctx, 2, &l);
        for (int n = 0; n < 2; n++) assert_false(CPU_EQUAL(&l.mask[n], &before));
    }
    attn_destroy(ctx);
}

/* ---- two calls at once, each from a thread of its own ------------------------------------------------------------ */

static cpu_set_t everything;
static atomic_int on_cpu[CPU_SETSIZE], shared;

static void count_on_cpus(void *arg, int64_t task, int32_t thread)
{
    const cpu_set_t mask = mask_now();
    (void)arg, (void)task, (void)thread;
    if (CPU_EQUAL(&mask, &everything)) return; /* no core was left */
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &mask) && atomic_fetch_add(&on_cpu[cpu], 1)) atomic_fetch_add(&shared, 1);
    sched_yield();
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &mask)) atomic_fetch_sub(&on_cpu[cpu], 1);
}

static void *caller(void *ctx)
{
    for (int n = 0; n < 200; n++) attn_cpu_parallel(ctx, 2, 8, count_on_cpus, NULL);
    return NULL;
}

static void two_callers(void **state)
{
    pthread_t thread[2];
    (void)state;
    attn_context *ctx = context(ATTN_CFG_BIND_THREADS, NULL);
    everything = mask_now();
    for (int n = 0; n < 2; n++) assert_int_equal(pthread_create(&thread[n], NULL, caller, ctx), 0);
    for (int n = 0; n < 2; n++) assert_int_equal(pthread_join(thread[n], NULL), 0);
    assert_int_equal(atomic_load(&shared), 0);
    attn_destroy(ctx);
}

/* ---- told otherwise: another process, because OpenMP reads its environment once ----------------------------------- */

static int told(void)
{
    attn_context *ctx = context(ATTN_CFG_BIND_THREADS, NULL);
    look l;
    if (!ctx) return 1;
    const bool binds = attn_cpu_binds(ctx);
    atomic_store(&calls, 0);
    team(ctx, 2, &l);
    attn_destroy(ctx);
    return binds || atomic_load(&calls);
}

static void openmp_binds(void **state)
{
    (void)state;
    const pid_t child = fork();
    if (child == 0) {
        setenv("OMP_PROC_BIND", "true", 1);
        execl("/proc/self/exe", "test_bind", "told", (char *)NULL);
        _exit(2);
    }
    int status = 1;
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void plan_tells(void **state)
{
    static float x[8 * 128 * 32], y[8 * 128 * 32];
    attn_plan plan = ATTN_PLAN_INIT;
    attn_problem p = ATTN_PROBLEM_INIT;
    (void)state;
    p.q = p.k = p.v = attn_bhsd(x, ATTN_F32, 1, 8, 128, 32);
    p.out = attn_bhsd(y, ATTN_F32, 1, 8, 128, 32);
    attn_context *ctx = context(0, "bind=cores,threads=2");
    assert_int_equal(attn_query(ctx, ATTN_OP_FORWARD, &p, NULL, NULL, &plan), ATTN_OK);
    assert_non_null(strstr(plan.reason, "; threads bound to cores"));
    attn_destroy(ctx);
}

int main(int count, char **words)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_distinct_cores), cmocka_unit_test(more_threads), cmocka_unit_test(nothing),
        cmocka_unit_test(refused),           cmocka_unit_test(two_callers),  cmocka_unit_test(openmp_binds),
        cmocka_unit_test(plan_tells),
    };
    unsetenv("ATTN_FORCE");
    if (count > 1) return strcmp(words[1], "told") ? 2 : told();
    unsetenv("OMP_PROC_BIND");
    cores = attn_cpu_host().cores;
    return cmocka_run_group_tests_name("bind", tests, NULL, NULL);
}
