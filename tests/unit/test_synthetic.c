/* SPDX-License-Identifier: Apache-2.0
 * What is made of a machine that hwloc only describes: two NUMA nodes, each with two L2 caches of two cores. Calls run on
 * the real one, whose first CPUs are taken for those of the first node. */
#include "unit.h"

#include "internal.h"

#include <stdlib.h>

static void shared_caches_and_nodes(void **state)
{
    (void)state;
    assert_int_equal(setenv("HWLOC_SYNTHETIC", "node:2 l2:2(size=2097152) core:2 pu:2", 1), 0);
    attn_host host = attn_cpu_host();
    assert_int_equal(host.numa_nodes, 2);
    assert_int_equal(host.l2_bytes, 1 << 20); /* a core's share */
    assert_int_equal(host.cores, 8);
}

/* ---- forward, whose tasks are dealt to the nodes ----------------------------------------------------------------- */

enum { FLOATS = 1 << 20 };
static float memory[3][FLOATS], out[2][FLOATS], lse[2][FLOATS / 16];

static const struct {
    int64_t b, hq, hkv, sq, sk, d;
    uint32_t mask;
    int packed;
} problems[] = {
    {1, 8, 8, 200, 200, 64, ATTN_CAUSAL, 0}, /* blocks */
    {2, 8, 2, 1, 4000, 32, 0, 0},            /* pieces */
    {1, 4, 1, 300, 300, 32, 0, 0},           /* fewer units than nodes */
    {5, 6, 3, 1000, 1000, 16, 0, 1},         /* sequences of all lengths, one of them empty */
    {3, 2, 1, 12, 3000, 16, ATTN_CAUSAL, 0},
};

static void forward(const char *force, size_t number, int n, attn_plan *plan)
{
    static const int32_t offsets[] = {0, 100, 100, 317, 940, 1000};
    attn_config config = ATTN_CONFIG_INIT;
    attn_context *ctx;
    config.backend = ATTN_BACKEND_CPU;
    config.force = force;
    assert_int_equal(attn_create(&config, &ctx), ATTN_OK);
    assert_false(ctx->nodes.real);
    ctx->nodes.real = n == 1; /* where memory lies is then asked for all the same */
    assert_int_equal(ctx->nodes.count, 2);
    assert_int_equal(ctx->nodes.cores[0], 4);
    assert_int_equal(ctx->nodes.cores[1], 4);
    const int64_t b = problems[number].packed ? 1 : problems[number].b, d = problems[number].d;
    const int64_t sq = problems[number].sq, sk = problems[number].sk;
    attn_problem p = ATTN_PROBLEM_INIT;
    p.q = attn_bhsd(memory[0], ATTN_F32, b, problems[number].hq, sq, d);
    p.k = attn_bhsd(memory[1], ATTN_F32, b, problems[number].hkv, sk, d);
    p.v = attn_bhsd(memory[2], ATTN_F32, b, problems[number].hkv, sk, d);
    p.out = attn_bhsd(out[n], ATTN_F32, b, problems[number].hq, sq, d);
    p.lse = attn_bhsd(lse[n], ATTN_F32, b, problems[number].hq, sq, 1);
    p.mask = problems[number].mask;
    if (problems[number].packed) p.q_len = p.kv_len = (attn_lengths){.offsets = offsets, .count = problems[number].b};
    memset(out[n], 0xff, sizeof out[n]);
    memset(lse[n], 0xff, sizeof lse[n]);
    *plan = (attn_plan)ATTN_PLAN_INIT;
    assert_int_equal(attn_query(ctx, ATTN_OP_FORWARD, &p, NULL, NULL, plan), ATTN_OK);
    assert_int_equal(attn_forward(ctx, &p, NULL), ATTN_OK);
    attn_destroy(ctx);
}

static void lists_change_nothing(void **state)
{
    uint64_t random = 8;
    attn_plan alone, never, lists;
    (void)state;
    for (size_t n = 0; n < sizeof memory / sizeof **memory; n++)
        memory[n / FLOATS][n % FLOATS] = (float)unit_between(&random, -99, 99) / 60.0f;
    for (size_t n = 0; n < sizeof problems / sizeof *problems; n++) {
        forward("threads=1", n, 0, &alone);
        assert_null(strstr(alone.reason, "NUMA"));
        for (int threads = 2; threads <= 8; threads *= 2) {
            char words[32];
            snprintf(words, sizeof words, "threads=%d", threads);
            forward(words, n, 1, &lists);
            assert_non_null(strstr(lists.reason, "; a list of tasks for each NUMA node"));
            assert_memory_equal(out[0], out[1], sizeof out[0]);
            assert_memory_equal(lse[0], lse[1], sizeof lse[0]);
        }
        forward("threads=8,numa=never", n, 1, &never);
        assert_null(strstr(never.reason, "NUMA"));
        assert_true(never.workspace_bytes < lists.workspace_bytes);
        assert_memory_equal(out[0], out[1], sizeof out[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_caches_and_nodes), /* first: describes the machine */
        cmocka_unit_test(lists_change_nothing),
    };
    unsetenv("ATTN_FORCE");
    return cmocka_run_group_tests_name("synthetic", tests, NULL, NULL);
}
