/* SPDX-License-Identifier: Apache-2.0
 * bf16 over the range of float32: what a kernel that computes in a narrower format may get wrong. Very large and very small
 * tensors, keys and values that grow in the middle of a sequence, rows whose largest weight falls on a value of zero,
 * infinite values. The same of few queries, as a rule f16, over quantised keys and values, whose scales say more than a half holds. */
#include "suite_case.h"

#include <math.h>
#include <stdio.h>

enum { KEYS = 150, COLUMNS = 64 };

struct range {
    const char *name;
    float q, k, v, scale;                        /* amounts */
    void (*edit)(int64_t j, float *k, float *v); /* of key j; or NULL */
    int splits, layout, all_see_all;             /* no causal mask: a masked infinity may become NaN */
    float softcap;
    float first_query; /* what the first number of each query becomes, if not 0 */
    int32_t stored;    /* of k and v beside f16 queries; 0: all is bf16 */
    int not_gpu;       /* docs/semantics.md section 5 leaves it to a GPU's kernels */
};

static void multiply(float *x, float factor)
{
    for (int d = 0; d < COLUMNS; d++) x[d] *= factor;
}

static void set(float *x, float value)
{
    for (int d = 0; d < COLUMNS; d++) x[d] = value;
}

/* A score that is the same for all queries, which are constant. */
static void set_score(float *k, float score)
{
    set(k, 0);
    k[0] = score;
}

static void values_grow(int64_t j, float *k, float *v)
{
    (void)k;
    if (j >= 100) multiply(v, 1e6f);
}

static void values_of_all_sizes(int64_t j, float *k, float *v)
{
    (void)k;
    multiply(v, ldexpf(1, (int)(j * 37 % 64) - 32));
}

static void first_values_are_zero(int64_t j, float *k, float *v)
{
    (void)k;
    if (j < 64) set(v, 0);
}

static void no_values(int64_t j, float *k, float *v)
{
    (void)j, (void)k;
    set(v, 0);
}

/* The largest numbers stand where queries are zero in all but name. */
static void keys_grow(int64_t j, float *k, float *v)
{
    (void)v;
    if (j >= 70) multiply(k, 1e5f);
}

static void one_key_grows(int64_t j, float *k, float *v)
{
    (void)v;
    if (j == 90) multiply(k, -1e5f);
}

/* A score like the others, whose one product is -infinity where the key overflows. */
static void one_number_grows(int64_t j, float *k, float *v)
{
    (void)v;
    if (j == 90) set_score(k, -1e5f);
}

static void zero_rules(int64_t j, float *k, float *v)
{
    set_score(k, j ? -31 : 0);
    if (!j) set(v, 0);
}

static void zero_rules_by_far(int64_t j, float *k, float *v)
{
    set_score(k, j == 40 ? 70 : 0);
    if (j == 40) set(v, 0);
}

static void small_one_rules(int64_t j, float *k, float *v)
{
    set_score(k, j ? -26 - 0.125f * (float)(j % 16) : 0);
    if (!j) multiply(v, 1e-13f);
}

static void first_number_is_zero(int64_t j, float *k, float *v)
{
    (void)j, (void)v;
    k[0] = 0;
}

static void infinite_value(int64_t j, float *k, float *v)
{
    (void)k;
    if (j == 77) v[5] = INFINITY;
}

static void nan_value(int64_t j, float *k, float *v)
{
    (void)k;
    if (j == 77) v[5] = NAN;
}

/* One block of 32 alone. */
static void one_block_grows(int64_t j, float *k, float *v)
{
    (void)k;
    for (int d = 32; d < 64 && j == 50; d++) v[d] *= 1e6f;
}

/* Its factor is infinite in f16. */
static void one_block_of_a_key_grows(int64_t j, float *k, float *v)
{
    (void)v;
    for (int d = 32; d < 64 && j == 50; d++) k[d] *= 1e8f;
}

static const struct range ranges[] = {
    {.name = "v-1e30", .q = 1, .k = 1, .v = 1e30f},
    {.name = "v-1e-30", .q = 1, .k = 1, .v = 1e-30f},
    {.name = "v-1.1e-19", .q = 1, .k = 1, .v = 1.1e-19f}, /* where avx512bf16 and amx begin to multiply apart */
    {.name = "v-subnormal", .q = 1, .k = 1, .v = 1e-39f},
    {.name = "q-1e30-k-1e-30", .q = 1e30f, .k = 1e-30f, .v = 1},
    {.name = "q-1e-30-k-1e30", .q = 1e-30f, .k = 1e30f, .v = 1},
    {.name = "q-k-1e-30", .q = 1e-30f, .k = 1e-30f, .v = 1},
    {.name = "q-1e3-k-1e3", .q = 1e3f, .k = 1e3f, .v = 1},
    {.name = "scale-1e-20", .q = 1e10f, .k = 1e10f, .v = 1e10f, .scale = 1e-20f},
    {.name = "values-grow", .q = 1, .k = 1, .v = 1, .edit = values_grow},
    {.name = "values-of-all-sizes", .q = 1, .k = 1, .v = 1, .edit = values_of_all_sizes},
    {.name = "first-values-are-zero", .q = 1, .k = 1, .v = 1, .edit = first_values_are_zero},
    {.name = "no-values", .q = 1, .k = 1, .v = 1, .edit = no_values},
    {.name = "no-values-q-k-1e-30", .q = 1e-30f, .k = 1e-30f, .v = 1, .edit = no_values},
    {.name = "keys-grow", .q = 1e-5f, .k = 1, .v = 1, .edit = keys_grow},
    {.name = "one-key-grows", .q = 1e-4f, .k = 1, .v = 1, .edit = one_key_grows},
    {.name = "one-number-grows", .q = 1, .k = 1, .v = 1, .edit = one_number_grows, .first_query = 1e-5f},
    {.name = "one-number-grows-unaligned",
     .q = 1,
     .k = 1,
     .v = 1,
     .edit = one_number_grows,
     .first_query = 1e-5f,
     .layout = LAYOUT_HOSTILE},
    {.name = "zero-rules", .q = 0, .k = 1, .v = 1, .scale = 1, .edit = zero_rules},
    {.name = "zero-rules-by-far", .q = 0, .k = 1, .v = 1, .scale = 1, .edit = zero_rules_by_far},
    {.name = "small-one-rules", .q = 0, .k = 1, .v = 1, .scale = 1, .edit = small_one_rules},
    {.name = "infinite-value", .q = 1, .k = 1, .v = 1, .edit = infinite_value, .all_see_all = 1},
    {.name = "values-grow-in-pieces", .q = 1, .k = 1, .v = 1, .edit = values_grow, .splits = 3},
    {.name = "values-grow-unaligned", .q = 1, .k = 1, .v = 1, .edit = values_grow, .layout = LAYOUT_HOSTILE},
    {.name = "values-grow-softcap", .q = 1, .k = 1, .v = 1, .edit = values_grow, .softcap = 3},
    {.name = "keys-grow-unaligned", .q = 1e-5f, .k = 1, .v = 1, .edit = keys_grow, .layout = LAYOUT_HOSTILE},
    {.name = "keys-grow-softcap", .q = 1e-5f, .k = 1, .v = 1, .edit = keys_grow, .softcap = 3},
    {.name = "zero-rules-in-pieces", .q = 0, .k = 1, .v = 1, .scale = 1, .edit = zero_rules_by_far, .splits = 3},
    {.name = "queries-of-two-sizes", .q = 1e-3f, .k = 1e3f, .v = 1, .edit = first_number_is_zero, .first_query = 1e8f},
    {.name = "q8_0-v-1e6", .q = 1, .k = 1, .v = 1e6f, .stored = ATTN_Q8_0},
    {.name = "q4_0-v-1e5", .q = 1, .k = 1, .v = 1e5f, .stored = ATTN_Q4_0},
    {.name = "q8_0-v-1e-5", .q = 1, .k = 1, .v = 1e-5f, .stored = ATTN_Q8_0},
    {.name = "q8_0-q-1e-4-k-1e4", .q = 1e-4f, .k = 1e4f, .v = 1, .stored = ATTN_Q8_0},
    {.name = "q8_0-values-grow", .q = 1, .k = 1, .v = 1, .edit = values_grow, .stored = ATTN_Q8_0},
    {.name = "q8_0-values-grow-in-pieces",
     .q = 1,
     .k = 1,
     .v = 1,
     .edit = values_grow,
     .splits = 3,
     .stored = ATTN_Q8_0},
    {.name = "q8_0-one-block-grows", .q = 1, .k = 1, .v = 1, .edit = one_block_grows, .stored = ATTN_Q8_0},
    {.name = "q8_0-infinite-factor",
     .q = 1,
     .k = 1,
     .v = 1,
     .edit = one_block_of_a_key_grows,
     .all_see_all = 1,
     .stored = ATTN_Q8_0,
     .not_gpu = 1},
    {.name = "i8-q-1e-37-k-1e37-scale-3e3", .q = 1e-37f, .k = 1e37f, .v = 1, .scale = 3e3f, .stored = ATTN_I8},
    {.name = "q4_0-values-grow", .q = 1, .k = 1, .v = 0.1f, .edit = values_grow, .stored = ATTN_Q4_0},
    {.name = "e4m3-nan-value", .q = 1, .k = 1, .v = 1, .edit = nan_value, .all_see_all = 1, .stored = ATTN_F8_E4M3},
    {.name = "e5m2-nan-value", .q = 1, .k = 1, .v = 1, .edit = nan_value, .all_see_all = 1, .stored = ATTN_F8_E5M2},
};
enum { RANGES = sizeof ranges / sizeof *ranges };

static struct suite_case case_of(const struct range *r)
{
    struct suite_case c = {.q_type = ATTN_BF16,
                           .k_type = ATTN_BF16,
                           .v_type = ATTN_BF16,
                           .out_type = ATTN_BF16,
                           .hq = 2,
                           .hkv = 1,
                           .sq = KEYS,
                           .sk = KEYS,
                           .d = COLUMNS,
                           .mask = r->all_see_all ? 0 : ATTN_CAUSAL};
    if (r->stored)
        c.q_type = r->q < 1e-7f ? ATTN_BF16 : ATTN_F16, c.k_type = c.v_type = r->stored, c.out_type = ATTN_F32,
        c.sq = 3;
    c.fill_q.amount = r->q, c.fill_k.amount = r->k, c.fill_v.amount = r->v;
    if (r->q == 0) c.fill_q.kind = FILL_CONSTANT, c.fill_q.amount = 1;
    c.scale = r->scale, c.softcap = r->softcap, c.num_splits = r->splits, c.layout = r->layout;
    suite_settle(&c);
    return c;
}

static void edit_keys(struct suite_built *t, const struct range *r)
{
    double *k = t->sequence[0].k, *v = t->sequence[0].v;
    float key[COLUMNS], value[COLUMNS];
    for (int64_t j = 0; j < KEYS; j++, k += COLUMNS, v += COLUMNS) {
        for (int d = 0; d < COLUMNS; d++) key[d] = (float)k[d], value[d] = (float)v[d];
        r->edit(j, key, value);
        suite_write_row(t, &t->k, 0, 0, j, key);
        suite_write_row(t, &t->v, 0, 0, j, value);
        suite_read_row(t, &t->k, 0, 0, j, k);
        suite_read_row(t, &t->v, 0, 0, j, v);
    }
}

static void edit_queries(struct suite_built *t, float first)
{
    double *q = t->sequence[0].q;
    float query[COLUMNS];
    for (int64_t row = 0; row < t->c.hq * t->c.sq; row++, q += COLUMNS) {
        for (int d = 0; d < COLUMNS; d++) query[d] = (float)q[d];
        query[0] = first;
        suite_write_row(t, &t->q, 0, row / t->c.sq, row % t->c.sq, query);
        suite_read_row(t, &t->q, 0, row / t->c.sq, row % t->c.sq, q);
    }
}

static void judge_range(struct suite_check *check, const void *arg)
{
    const struct range *r = arg;
    const struct suite_case c = case_of(r);
    struct suite_built t;
    struct suite_truth truth = {0};
    struct suite_result naive = {0}, x = {0};
    if (r->not_gpu && check->target->backend == ATTN_BACKEND_CUDA) {
        suite_skip(check, "infinite factors are not defined on a GPU");
        return;
    }
    if (!suite_expect(check, !suite_build(&t, &c), "no memory")) return;
    if (r->edit) edit_keys(&t, r);
    if (r->first_query != 0) edit_queries(&t, r->first_query);
    t.input_hash = suite_inputs_hash(&t);
    if (suite_expect(check, !suite_truth_compute(&truth, &t) && !suite_naive_compute(&naive, &t), "no memory") &&
        suite_forward(check, &t, NULL, &x))
        suite_judge(check, &t, &truth, &naive, &x);
    suite_truth_free(&truth);
    suite_result_free(&naive);
    suite_result_free(&x);
    suite_unbuild(&t);
}

void suite_run_ranges(struct suite *s)
{
    char name[96];
    for (int n = 0; n < RANGES; n++) {
        snprintf(name, sizeof name, "ranges/%s", ranges[n].name);
        suite_each(s, 1, name, judge_range, &ranges[n]);
    }
}
