/* SPDX-License-Identifier: Apache-2.0
 * The cost model's arithmetic, with figures worked out by hand. */
#include "unit.h"

#include "internal.h"

static attn_job job_of(attn_problem p)
{
    attn_job job;
    if (attn_validate_problem(&p, true, &job) != ATTN_OK) fail_msg("%s", attn_last_error());
    return job;
}

static char memory[64]; /* nothing is read */

static attn_problem problem_of(attn_dtype type, int64_t b, int64_t hq, int64_t hkv, int64_t sq, int64_t sk, int64_t d)
{
    attn_problem p = ATTN_PROBLEM_INIT;
    p.q = attn_bhsd(memory, type, b, hq, sq, d);
    p.k = attn_bhsd(memory, type, b, hkv, sk, d);
    p.v = attn_bhsd(memory, type, b, hkv, sk, d);
    p.out = attn_bhsd(memory, type, b, hq, sq, d);
    return p;
}

static attn_work work_of(attn_problem p)
{
    attn_work work;
    const attn_job job = job_of(p);
    attn_cost_work(&job, &work);
    return work;
}

static void assert_near(double value, double expected)
{
    if (!(value >= 0.999 * expected && value <= 1.001 * expected)) fail_msg("%.9g, expected %.9g", value, expected);
}

static void flops_are_of_visible_pairs(void **state)
{
    (void)state;
    attn_problem p = problem_of(ATTN_F32, 1, 32, 32, 2048, 2048, 128);
    const double whole = 2.0 * 32 * 2048 * 2048 * 256;
    assert_near(work_of(p).flops, whole);
    p.mask = ATTN_CAUSAL;
    assert_near(work_of(p).flops, whole / 2);
    p.mask = ATTN_CAUSAL | ATTN_WINDOW_LEFT;
    p.window_left = 0;
    assert_near(work_of(p).flops, whole / 2048);
    p.mask = ATTN_DIAGONAL | ATTN_CAUSAL;
    p.diagonal = -5000;
    assert_true(work_of(p).flops <= 0); /* nothing is seen */
}

static void bytes_are_what_is_copied(void **state)
{
    (void)state;
    attn_problem p = problem_of(ATTN_F16, 2, 8, 2, 3, 100, 64);
    const double q = 2.0 * 8 * 3 * 64 * 2, kv = 2.0 * 2 * 100 * 64 * 2;
    attn_work work;
    p.v.data = memory + 2; /* inside K's rows: one copy for both */
    p.v.shape[3] = p.out.shape[3] = 32;
    work = work_of(p);
    assert_near(work.in_bytes, q + kv);
    assert_near(work.kv_bytes, kv);
    assert_near(work.out_bytes, q / 2);
    p.v.stride[2] = 128;
    assert_near(work_of(p).in_bytes, q + kv + kv / 2);
    p = problem_of(ATTN_F16, 2, 8, 2, 3, 100, 64);
    p.v.stride[2] = 128;
    p.k.stride[0] = 0; /* one K for both sequences */
    p.bias = attn_bhsd(memory, ATTN_F32, 1, 8, 3, 100);
    p.lse = attn_bhsd(memory, ATTN_F32, 2, 8, 3, 1);
    work = work_of(p);
    assert_near(work.in_bytes, q + kv / 2 + kv + 8 * 3 * 100 * 4);
    assert_near(work.out_bytes, q + 2 * 8 * 3 * 4);
}

static void pools_are_copied_whole(void **state)
{
    static const int32_t table[4] = {6, 1, 0, 3};
    attn_problem p = problem_of(ATTN_F16, 2, 8, 2, 1, 16, 64);
    (void)state;
    p.k = attn_bhsd(memory, ATTN_F16, 10, 2, 16, 64);
    p.v = attn_bhsd(memory, ATTN_F16, 10, 2, 16, 64);
    p.v.stride[2] = 128;
    p.page_table = table;
    p.page_table_pages = 2;
    attn_work work = work_of(p);
    assert_near(work.in_bytes, 2.0 * 8 * 64 * 2 + 2 * 10.0 * 16 * 2 * 64 * 2);
    assert_near(work.kv_bytes, 2 * 2.0 * 32 * 2 * 64 * 2);
}

static void packed_rows_count_once(void **state)
{
    static const int32_t offsets[4] = {0, 10, 15, 100};
    attn_problem p = problem_of(ATTN_F32, 1, 2, 2, 100, 100, 16);
    (void)state;
    p.q_len.offsets = p.kv_len.offsets = offsets;
    p.q_len.count = p.kv_len.count = 3;
    p.v.stride[2] = 32;
    attn_work work = work_of(p);
    assert_near(work.out_bytes, 100.0 * 2 * 16 * 4);
    assert_near(work.in_bytes, 4 * 100.0 * 2 * 16 * 4); /* outputs make the way there, too */
    assert_near(work.flops, 2.0 * 2 * 100 * 85 * 32);   /* each row as if of the longest sequence */
}

/* docs/performance.md has what was measured. */
static void cpu_figures(void **state)
{
    const attn_work prefill = work_of(problem_of(ATTN_F32, 1, 32, 32, 2048, 2048, 128));
    const attn_work decode = work_of(problem_of(ATTN_F16, 1, 32, 8, 1, 32768, 128));
    (void)state;
    assert_near(attn_cost_cpu("avx512", 1, 16, &prefill), 68.72 / 140);
    assert_near(attn_cost_cpu("avx512", 16, 16, &prefill), 68.72 / 1460 + 202e-6);
    assert_near(attn_cost_cpu("avx512", 64, 16, &prefill), 68.72 / 1460 + 202e-6);
    assert_near(attn_cost_cpu("avx2", 2, 2, &prefill), 68.72 / 115);
    assert_near(attn_cost_cpu("scalar", 2, 2, &prefill), 68.72 / 18);
    assert_true(attn_cost_cpu("none", 2, 2, &prefill) <= 0);
    assert_near(attn_cost_cpu("avx512", 16, 16, &decode),
                67.1e6 / 91e9 + 202e-6); /* V in K: the test's memory is one */
}

static void gpu_figures(void **state)
{
    const attn_work work = {.flops = 68.72e9, .in_bytes = 100e6, .out_bytes = 33e6};
    attn_gpu_rates gpu = {"simt", 90, 132, 1.98e9, 1000};
    const double copies = 100e6 / 8e9 + 33e6 / 9e9 + 40e-6;
    (void)state;
    assert_near(attn_cost_gpu(&gpu, &work), copies + 68.72e9 / (132 * 256 * 1.98e9 * 0.46));
    gpu.blocks = 33; /* a quarter of the multiprocessors */
    assert_near(attn_cost_gpu(&gpu, &work), copies + 68.72e9 / (33 * 256 * 1.98e9 * 0.46));
    gpu = (attn_gpu_rates){"sm70", 70, 80, 0, 1000};
    assert_near(attn_cost_gpu(&gpu, &work), copies + 68.72e9 / (80 * 1024 * 1.4e9 * 0.3));
    gpu.capability = 90; /* where its instruction is emulated */
    assert_near(attn_cost_gpu(&gpu, &work), copies + 68.72e9 / (80 * 256 * 1.4e9 * 0.25));
    gpu = (attn_gpu_rates){"simt", 80, 108, 1.41e9, 1000};
    assert_near(attn_cost_gpu(&gpu, &work), copies + 68.72e9 / (108 * 128 * 1.41e9 * 0.46));
    gpu.family = "none";
    assert_true(attn_cost_gpu(&gpu, &work) <= 0);
}

static void the_bound_is_never_below(void **state)
{
    attn_problem p = problem_of(ATTN_F32, 3, 8, 2, 77, 300, 64);
    const uint32_t masks[] = {0, ATTN_CAUSAL, ATTN_CAUSAL | ATTN_TOP_LEFT};
    (void)state;
    for (int n = 0; n < 3; n++) {
        p.mask = masks[n];
        const attn_job job = job_of(p);
        const attn_work work = work_of(p);
        assert_true(attn_cost_cpu("avx2", 2, 2, &work) <= attn_cost_cpu_bound("avx2", 2, 2, &job));
    }
    assert_true(attn_cost_worth_asking(true) < attn_cost_worth_asking(false));
}

static void seconds_in_words(void **state)
{
    (void)state;
    assert_string_equal(attn_cost_text(0.0031).text, "3.1 ms");
    assert_string_equal(attn_cost_text(0.9994).text, "999 ms");
    assert_string_equal(attn_cost_text(0.9996).text, "1 s");
    assert_string_equal(attn_cost_text(12.34).text, "12.3 s");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flops_are_of_visible_pairs),
        cmocka_unit_test(bytes_are_what_is_copied),
        cmocka_unit_test(pools_are_copied_whole),
        cmocka_unit_test(packed_rows_count_once),
        cmocka_unit_test(cpu_figures),
        cmocka_unit_test(gpu_figures),
        cmocka_unit_test(the_bound_is_never_below),
        cmocka_unit_test(seconds_in_words),
    };
    return cmocka_run_group_tests_name("cost", tests, NULL, NULL);
}
