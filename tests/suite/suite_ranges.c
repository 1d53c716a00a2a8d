/* SPDX-License-Identifier: Apache-2.0
 * bf16 over the range of float32: what a kernel that computes in a narrower format may get wrong. Very large and very small
 * tensors, keys and values that grow in the middle of a sequence, rows whose largest weight falls on a value of zero,
 * infinite values. */
#include "suite_case.h"

#include <math.h>
#include <stdio.h>

enum { KEYS = 150, COLUMNS = 64 };

struct range {
    const char *name;
    float q, k, v, scale;                        /* amounts */
    void (*edit)(int64_t j, float *k, float *v); /* of key j; or NULL */
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
    if (j >= 70) multiply(v, 1e6f);
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

static void infinite_value(int64_t j, float *k, float *v)
{
    (void)k;
    if (j == 77) v[5] = INFINITY;
    if (j == 20) v[9] = -INFINITY;
}

static const struct range ranges[] = {
    {"v-1e30", 1, 1, 1e30f, 0, NULL},
    {"v-1e-30", 1, 1, 1e-30f, 0, NULL},
    {"v-subnormal", 1, 1, 1e-39f, 0, NULL},
    {"q-1e30-k-1e-30", 1e30f, 1e-30f, 1, 0, NULL},
    {"q-1e-30-k-1e30", 1e-30f, 1e30f, 1, 0, NULL},
    {"q-k-1e-30", 1e-30f, 1e-30f, 1, 0, NULL},
    {"q-1e3-k-1e3", 1e3f, 1e3f, 1, 0, NULL},
    {"scale-1e-20", 1e10f, 1e10f, 1e10f, 1e-20f, NULL},
    {"values-grow", 1, 1, 1, 0, values_grow},
    {"values-of-all-sizes", 1, 1, 1, 0, values_of_all_sizes},
    {"first-values-are-zero", 1, 1, 1, 0, first_values_are_zero},
    {"no-values", 1, 1, 1, 0, no_values},
    {"keys-grow", 1e-5f, 1, 1, 0, keys_grow},
    {"one-key-grows", 1e-4f, 1, 1, 0, one_key_grows},
    {"zero-rules", 0, 1, 1, 1, zero_rules},
    {"zero-rules-by-far", 0, 1, 1, 1, zero_rules_by_far},
    {"small-one-rules", 0, 1, 1, 1, small_one_rules},
    {"infinite-value", 1, 1, 1, 0, infinite_value},
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
                           .sq = 40,
                           .sk = KEYS,
                           .d = COLUMNS,
                           .mask = ATTN_CAUSAL};
    c.fill_q.amount = r->q, c.fill_k.amount = r->k, c.fill_v.amount = r->v;
    if (r->q == 0) c.fill_q.kind = FILL_CONSTANT, c.fill_q.amount = 1;
    c.scale = r->scale;
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
    t->input_hash = suite_inputs_hash(t);
}

static void judge_range(struct suite_check *check, const void *arg)
{
    const struct range *r = arg;
    const struct suite_case c = case_of(r);
    struct suite_built t;
    struct suite_truth truth = {0};
    struct suite_result naive = {0}, x = {0};
    if (!suite_expect(check, !suite_build(&t, &c), "no memory")) return;
    if (r->edit) edit_keys(&t, r);
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
