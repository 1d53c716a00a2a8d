/* SPDX-License-Identifier: Apache-2.0
 * What a level computes in its own way, looked at closely: exp and tanh over their whole range, distances beyond what
 * float32 counts, the rounding of outputs, NaN of every kind. */
#include "suite_case.h"
#include "suite_format.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void put(struct suite_built *t, const struct suite_view *view, double *dense, int64_t row, float x)
{
    suite_write_row(t, view, 0, 0, row, &x);
    dense[row] = x;
}

/* ---- ladders: one feature, two keys, the scores 0 and x, the values 0 and 1, so that O = 1 / (1 + exp(-x)) -------- */

static const struct ladder {
    const char *name;
    float softcap, from, step;
} ladders[] = {
    {"exp-near-0", 0, 0, -0x1p-8f},        /* each bit of the polynomial's argument */
    {"exp-down-to-83", 0, 0, -0.1618f},    /* where P falls below what the rule asks for */
    {"exp-upwards", 0, 0, 0.03125f},       /* the other key is the small one */
    {"tanh-near-0", 1, -1, 0x1p-8f},       /* softcap and back */
    {"tanh-tiny", 1, -0x1p-14f, 0x1p-22f}, /* no cancellation */
    {"tanh-far", 3, -30, 0.1f},            /* up to where it is 1 */
};

static void climb(struct suite_check *check, const void *arg)
{
    const struct ladder *l = arg;
    struct suite_case c = {.sq = 513, .sk = 2, .d = 1, .scale = 1, .softcap = l->softcap};
    struct suite_built t;
    struct suite_truth truth = {0};
    struct suite_result naive = {0}, x = {0};
    suite_settle(&c);
    if (!suite_expect(check, !suite_build(&t, &c), "no memory")) return;
    for (int64_t i = 0; i < c.sq; i++) put(&t, &t.q, t.sequence[0].q, i, l->from + l->step * (float)i);
    for (int64_t j = 0; j < 2; j++) {
        put(&t, &t.k, t.sequence[0].k, j, (float)j);
        put(&t, &t.v, t.sequence[0].v, j, (float)j);
    }
    t.input_hash = suite_inputs_hash(&t);
    if (suite_expect(check, !suite_truth_compute(&truth, &t) && !suite_naive_compute(&naive, &t), "no memory") &&
        suite_forward(check, &t, NULL, &x))
        suite_judge(check, &t, &truth, &naive, &x);
    suite_truth_free(&truth);
    suite_result_free(&naive);
    suite_result_free(&x);
    suite_unbuild(&t);
}

/* ---- outputs: one key, so that O is its value, rounded ------------------------------------------------------------ */

static const float hard[] = {
    0,
    1,
    /* halfway between two numbers of F16, and next to that */
    1 + 0x1p-11f,
    1 + 0x3p-11f,
    -1 - 0x1p-11f,
    -1 - 0x3p-11f,
    1 + 0x1p-11f + 0x1p-23f,
    1 + 0x3p-11f - 0x1p-23f,
    0x1.8p-24f,
    0x1p-25f,
    0x1.000002p-25f,
    -0x1.4p-23f,
    0x1.ffep-15f,
    65504,
    0x1.ffdffep15f,
    0x1.ffep15f,
    -0x1.ffep15f,
    1e30f,
    /* of BF16 */
    1 + 0x1p-8f,
    1 + 0x3p-8f,
    -1 - 0x1p-8f,
    -1 - 0x3p-8f,
    1 + 0x1p-8f + 0x1p-23f,
    1 + 0x3p-8f - 0x1p-23f,
    0x1.01p-126f,
    0x1p-133f,
    0x1.8p-133f,
    0x1p-134f,
    0x1.fefffep127f,
    0x1.ffp127f,
    -0x1.ffp127f,
    /* of float32 */
    FLT_MAX,
    -FLT_MAX,
    FLT_MIN,
    FLT_TRUE_MIN,
    INFINITY,
    -INFINITY,
};
static const uint32_t nans[] = {0x7fc00000, 0x7fffffff, 0xffffffff, 0x7f800001, 0xff80ffff};
enum { HARD = sizeof hard / sizeof *hard, NANS = sizeof nans / sizeof *nans };

/* The list again and again, always another distance from the row's ends. */
static float hard_value(int64_t n)
{
    float x;
    n %= HARD + NANS;
    if (n < HARD) return hard[n];
    memcpy(&x, &nans[n - HARD], sizeof x);
    return x;
}

static void expect_rounded(struct suite_check *check, const struct suite_case *c, const struct suite_result *x)
{
    for (int64_t n = 0; n < x->rows * x->dv; n++) {
        float given = hard_value(n % c->dv + c->dv), got = x->out[n];
        double expected = suite_round(c->out_type, given);
        suite_expect(check, isnan(given) ? isnan(got) : (double)got == expected, "column %lld: %a for %a, expected %a",
                     (long long)(n % c->dv), (double)got, (double)given, expected);
    }
}

static void outputs(struct suite_check *check, const void *arg)
{
    static const int64_t sq[] = {1, 40};
    const int32_t *out_type = arg;
    for (int64_t dv = 1; dv < 2 * (HARD + NANS); dv += dv < 34 ? 1 : 7)
        for (int n = 0; n < 2; n++) {
            struct suite_case c = {.out_type = *out_type, .sq = sq[n], .sk = 1, .d = 8, .dv = dv};
            struct suite_built t;
            struct suite_result x = {0};
            float row[2 * (HARD + NANS)];
            suite_settle(&c);
            if (!suite_expect(check, !suite_build(&t, &c), "no memory")) return;
            for (int64_t d = 0; d < dv; d++) row[d] = hard_value(d + dv);
            suite_write_row(&t, &t.v, 0, 0, 0, row);
            t.input_hash = suite_inputs_hash(&t);
            if (suite_forward(check, &t, NULL, &x)) expect_rounded(check, &c, &x);
            suite_result_free(&x);
            suite_unbuild(&t);
        }
}

/* ---- NaN: in one key or one value, wherever it stands, it reaches the rows that see it, and no others -------------- */

static const struct nan_case {
    const char *name;
    int64_t sq, hq;
    int in_value;
    int32_t type;
} nan_cases[] = {{"key-few-rows", 3, 2, 0, ATTN_F32},         {"key-many-rows", 40, 2, 0, ATTN_F32},
                 {"value-few-rows", 3, 2, 1, ATTN_F32},       {"value-many-rows", 40, 2, 1, ATTN_F32},
                 {"key-many-rows-bf16", 40, 2, 0, ATTN_BF16}, {"value-many-rows-bf16", 40, 2, 1, ATTN_BF16}};

/* Causal, so that key at is seen by the queries from at + Sq - Sk on. A masked NaN may or may not spread. */
static void expect_nan(struct suite_check *check, const struct suite_built *t, const struct suite_result *x, int64_t at)
{
    for (int64_t row = 0; row < x->rows; row++) {
        int sees = row % t->c.sq + t->c.sk - t->c.sq >= at;
        for (int64_t d = 0; sees && d < x->dv; d++)
            suite_expect(check, isnan(x->out[row * x->dv + d]), "NaN in key %lld: row %lld, column %lld is %g",
                         (long long)at, (long long)row, (long long)d, (double)x->out[row * x->dv + d]);
    }
}

static void one_nan(struct suite_check *check, const void *arg)
{
    const struct nan_case *n = arg;
    float nan[24];
    for (int d = 0; d < 24; d++) nan[d] = NAN;
    for (int64_t at = 0; at < 150; at += at < 20 ? 1 : 13) {
        struct suite_case c = {.hq = n->hq, .sq = n->sq, .sk = 150, .d = 24, .mask = ATTN_CAUSAL};
        c.q_type = c.k_type = c.v_type = c.out_type = n->type;
        struct suite_built t;
        struct suite_result x = {0};
        suite_settle(&c);
        if (!suite_expect(check, !suite_build(&t, &c), "no memory")) return;
        suite_write_row(&t, n->in_value ? &t.v : &t.k, 0, 0, at, nan);
        t.input_hash = suite_inputs_hash(&t);
        if (suite_forward(check, &t, NULL, &x)) expect_nan(check, &t, &x, at);
        suite_result_free(&x);
        suite_unbuild(&t);
    }
}

/* ---- distances ---------------------------------------------------------------------------------------------------- */

/* Float32 counts up to 2^24: whatever it makes of distances beyond, the sign and LSE are right. */
static void far_alibi(struct suite *s)
{
    static const struct {
        const char *name;
        int64_t diagonal;
    } far[] = {{"values/alibi-far-after", (int64_t)1 << 24},
               {"values/alibi-far-before", -((int64_t)1 << 24)},
               {"values/alibi-beyond-2-to-the-32", ((int64_t)1 << 34) + 5}};
    for (int n = 0; n < 3; n++) {
        struct suite_case c = {.hq = 2, .sq = 20, .sk = 150, .d = 16, .alibi = ALIBI_HEADS, .mask = ATTN_DIAGONAL};
        c.diagonal = far[n].diagonal;
        suite_forward_case(s, 1, far[n].name, &c, NULL);
    }
}

void suite_run_values(struct suite *s)
{
    static const int32_t types[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
    char name[96];
    for (size_t n = 0; n < sizeof ladders / sizeof *ladders; n++) {
        snprintf(name, sizeof name, "values/%s", ladders[n].name);
        suite_each(s, 1, name, climb, &ladders[n]);
    }
    for (int n = 0; n < 3; n++) {
        snprintf(name, sizeof name, "values/outputs-%s", attn_dtype_name((attn_dtype)types[n]));
        suite_each(s, 1, name, outputs, &types[n]);
    }
    for (size_t n = 0; n < sizeof nan_cases / sizeof *nan_cases; n++) {
        snprintf(name, sizeof name, "values/nan-in-%s", nan_cases[n].name);
        suite_each(s, 1, name, one_nan, &nan_cases[n]);
    }
    far_alibi(s);
}
