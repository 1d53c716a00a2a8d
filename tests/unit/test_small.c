/* SPDX-License-Identifier: Apache-2.0
 * What small calls do without: memory from anybody, and other threads. And that no call starts more threads than its
 * context may have. A process of its own, because threads that once were started stay. */
#include "unit.h"

#include "attn/attn.h"

#include <dirent.h>
#include <stdatomic.h>
#include <stdlib.h>

#if defined(__has_feature)
#  if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#    define SANITIZED
#  endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#  define SANITIZED
#endif

static atomic_long allocations;

/* In front of the C library's own: for this program, the library and OpenMP's. */
#if defined(__GLIBC__) && !defined(SANITIZED)
#  define COUNTS_ALLOCATIONS 1
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);

void *malloc(size_t bytes)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_calloc(count, bytes);
}

void *realloc(void *p, size_t bytes)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_realloc(p, bytes);
}

void *aligned_alloc(size_t align, size_t bytes)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_memalign(align, bytes);
}
#else
#  define COUNTS_ALLOCATIONS 0
#endif

/* Threads of this process; 0: nobody says. */
static int threads_now(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int count = 0;
    for (struct dirent *entry; tasks && (entry = readdir(tasks)) != NULL;) count += entry->d_name[0] != '.';
    if (tasks) closedir(tasks);
    return count;
}

enum { FLOATS = 1 << 19 };
static float memory[8][FLOATS];

static attn_problem problem(int64_t b, int64_t hq, int64_t hkv, int64_t sq, int64_t sk, int64_t d)
{
    attn_problem p = ATTN_PROBLEM_INIT;
    p.q = attn_bhsd(memory[0], ATTN_F32, b, hq, sq, d);
    p.k = attn_bhsd(memory[1], ATTN_F32, b, hkv, sk, d);
    p.v = attn_bhsd(memory[2], ATTN_F32, b, hkv, sk, d);
    p.out = attn_bhsd(memory[3], ATTN_F32, b, hq, sq, d);
    p.lse = attn_bhsd(memory[4], ATTN_F32, b, hq, sq, 1);
    return p;
}

static attn_context *context(const char *force, int32_t threads)
{
    attn_config config = ATTN_CONFIG_INIT;
    attn_context *ctx;
    config.backend = ATTN_BACKEND_CPU;
    config.num_threads = threads;
    config.force = force;
    return attn_create(&config, &ctx) == ATTN_OK ? ctx : NULL;
}

/* First, while no thread has been started. */
static void small_calls(void **state)
{
    static const int64_t sizes[][6] = {
        {1, 1, 1, 16, 16, 16}, {1, 8, 8, 1, 64, 64}, {1, 8, 2, 1, 128, 64}, {4, 2, 2, 1, 17, 32}, {1, 1, 1, 32, 32, 32},
    };
    static const char *const levels[] = {"isa=scalar", "isa=avx2", "isa=avx512"};
    (void)state;
    for (size_t n = 0; n < sizeof levels / sizeof *levels; n++) {
        attn_context *ctx = context(levels[n], 4);
        for (size_t m = 0; ctx && m < sizeof sizes / sizeof *sizes; m++) {
            const int64_t *s = sizes[m];
            attn_problem p = problem(s[0], s[1], s[2], s[3], s[4], s[5]);
            assert_int_equal(attn_forward(ctx, &p, NULL), ATTN_OK); /* what dynamic linking does at a first call */
            const long before = atomic_load(&allocations);
            assert_int_equal(attn_forward(ctx, &p, NULL), ATTN_OK);
            assert_int_equal(atomic_load(&allocations) - before, 0);
        }
        attn_destroy(ctx);
    }
    if (!COUNTS_ALLOCATIONS) printf("SKIP: test_small: allocations are not counted here\n");
    if (threads_now() == 0) printf("SKIP: test_small: nobody tells how many threads there are\n");
    else assert_int_equal(threads_now(), 1);
}

/* The queried size is enough for other offsets, on every level: sequences of one token, then one of all. */
static void packed(void **state)
{
    const int32_t each[] = {0, 1, 2, 3, 64}, one[] = {0, 0, 0, 0, 64};
    (void)state;
    attn_context *ctx = context(NULL, 1);
    assert_non_null(ctx);
    attn_problem p = problem(1, 2, 2, 64, 64, 32);
    p.q_len = p.kv_len = (attn_lengths){.offsets = each, .count = 4};
    attn_plan first = ATTN_PLAN_INIT, second = ATTN_PLAN_INIT;
    assert_int_equal(attn_query(ctx, ATTN_OP_FORWARD, &p, NULL, NULL, &first), ATTN_OK);
    p.q_len.offsets = p.kv_len.offsets = one;
    assert_int_equal(attn_query(ctx, ATTN_OP_FORWARD, &p, NULL, NULL, &second), ATTN_OK);
    assert_int_equal(first.workspace_bytes, second.workspace_bytes);
    attn_destroy(ctx);
}

static attn_status each_operation(attn_context *ctx)
{
    const int32_t used[2] = {0, 0};
    attn_problem p = problem(2, 4, 4, 128, 128, 64);
    attn_grads g = ATTN_GRADS_INIT;
    attn_append a = ATTN_APPEND_INIT;
    attn_status bad = attn_forward(ctx, &p, NULL);
    g.dout = attn_bhsd(memory[5], ATTN_F32, 2, 4, 128, 64);
    g.dq = attn_bhsd(memory[6], ATTN_F32, 2, 4, 128, 64);
    g.dk = g.dv = attn_bhsd(memory[7], ATTN_F32, 2, 4, 128, 64);
    g.dv.data = memory[7] + (FLOATS / 2);
    if (!bad) bad = attn_backward(ctx, &p, &g, NULL);
    a.k_new = a.v_new = p.k;
    a.k_cache = attn_bhsd(memory[6], ATTN_F32, 2, 4, 128, 64);
    a.v_cache = attn_bhsd(memory[7], ATTN_F32, 2, 4, 128, 64);
    a.cache_len.used = used;
    if (!bad) bad = attn_kv_append(ctx, &a, NULL);
    const attn_tensor outs[2] = {p.out, p.out}, lses[2] = {p.lse, p.lse};
    const attn_tensor out = attn_bhsd(memory[5], ATTN_F32, 2, 4, 128, 64);
    if (!bad) bad = attn_merge(ctx, 2, outs, lses, &out, NULL, NULL);
    const attn_tensor keep = attn_bhsd(memory[7], ATTN_BOOL, 2, 4, 128, 128);
    p.dropout = 0.5f;
    return bad ? bad : attn_dropout_mask(ctx, &p, &keep, NULL);
}

/* Plans say how many threads run, of operations without a choice of kernels too. */
static void threads_of_plans(void **state)
{
    (void)state;
    for (int large = 0; large < 2; large++) {
        const int64_t rows = large ? 256 : 4;
        attn_context *ctx = context(NULL, 3), *forced = context("threads=2", 0);
        attn_problem p = problem(1, 4, 4, rows, rows, 64);
        const attn_tensor outs[2] = {p.out, p.out}, lses[2] = {p.lse, p.lse};
        attn_append a = ATTN_APPEND_INIT;
        const int32_t used[1] = {0};
        attn_plan mask = ATTN_PLAN_INIT, merge = ATTN_PLAN_INIT, append = ATTN_PLAN_INIT, two = ATTN_PLAN_INIT;
        a.k_new = a.v_new = a.k_cache = a.v_cache = p.k;
        a.k_cache.data = memory[5];
        a.v_cache.data = memory[6];
        a.cache_len.used = used;
        assert_int_equal(attn_query(ctx, ATTN_OP_DROPOUT_MASK, &p, NULL, NULL, &mask), ATTN_OK);
        assert_int_equal(attn_query_merge(ctx, 2, outs, lses, &p.out, NULL, NULL, &merge), ATTN_OK);
        assert_int_equal(attn_query_append(ctx, &a, NULL, &append), ATTN_OK);
        assert_int_equal(attn_query_merge(forced, 2, outs, lses, &p.out, NULL, NULL, &two), ATTN_OK);
        assert_int_equal(mask.threads, large ? 3 : 1);
        assert_int_equal(merge.threads, large ? 3 : 1);
        assert_int_equal(append.threads, large ? 3 : 1);
        assert_int_equal(two.threads, 2);
        attn_destroy(ctx);
        attn_destroy(forced);
    }
}

/* Later calls may have more threads; an earlier one's are not seen twice. */
static void thread_limit(void **state)
{
    (void)state;
    for (int32_t limit = 1; limit <= 4; limit++)
        for (int forced = 0; forced < 2; forced++) {
            char words[32];
            snprintf(words, sizeof words, "threads=%d", (int)limit);
            attn_context *ctx = forced ? context(words, 0) : context(NULL, limit);
            assert_non_null(ctx);
            assert_int_equal(each_operation(ctx), ATTN_OK);
            assert_in_range(threads_now(), 0, limit);
            attn_destroy(ctx);
        }
    if (threads_now()) assert_int_equal(threads_now(), 4); /* so teams are what has been counted */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_calls),
        cmocka_unit_test(packed),
        cmocka_unit_test(threads_of_plans),
        cmocka_unit_test(thread_limit),
    };
    unsetenv("ATTN_FORCE");
    return cmocka_run_group_tests_name("small", tests, NULL, NULL);
}
