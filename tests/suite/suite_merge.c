/* SPDX-License-Identifier: Apache-2.0
 * attn_merge: made-up parts against float64, and forward in parts against forward as a whole. */
#include "suite_case.h"
#include "suite_format.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PARTS = 8 };

struct parts {
    struct suite_view out[PARTS], lse[PARTS], merged, merged_lse;
    int n;
};

static int add_parts(struct suite_built *t, struct parts *p, int n, int32_t part_type, int32_t out_type,
                     const int64_t shape[4], int layout, int are_outputs)
{
    const int64_t lse_shape[4] = {shape[0], shape[1], shape[2], 1};
    p->n = n;
    for (int k = 0; k < n; k++)
        if (suite_add_view(t, &p->out[k], part_type, shape, k % 2 ? LAYOUT_BSHD : layout, are_outputs) ||
            suite_add_view(t, &p->lse[k], ATTN_F32, lse_shape, layout, are_outputs))
            return -1;
    return suite_add_view(t, &p->merged, out_type, shape, layout, 1) ||
           suite_add_view(t, &p->merged_lse, ATTN_F32, lse_shape, layout, 1);
}

/* lse: 0 by a tensor without data, 1 as wanted, -1 by a NULL pointer. */
static int merge(struct suite_check *check, struct suite_built *t, struct parts *p, int lse)
{
    attn_tensor out[PARTS], part_lse[PARTS], merged = suite_view_tensor(t, &p->merged, check->target), none = {0};
    attn_tensor merged_lse = suite_view_tensor(t, &p->merged_lse, check->target);
    attn_exec exec = {.struct_size = sizeof exec, .flags = ATTN_EXEC_WAIT};
    attn_plan plan = {.struct_size = sizeof plan};
    for (int k = 0; k < p->n; k++) {
        out[k] = suite_view_tensor(t, &p->out[k], check->target);
        part_lse[k] = suite_view_tensor(t, &p->lse[k], check->target);
    }
    const attn_tensor *to = lse > 0 ? &merged_lse : lse < 0 ? NULL : &none;
    attn_context *ctx = check->target->ctx;
    if (!suite_expect_status(check, attn_query_merge(ctx, p->n, out, part_lse, &merged, to, NULL, &plan), ATTN_OK,
                             "attn_query_merge"))
        return 0;
    if (!merged.shape[2] && check->target->staged > 0) { /* of nothing nothing is copied */
        suite_expect(check, !plan.staged, "plan: staged %d without rows", plan.staged);
        plan.staged = check->target->staged;
    }
    if (!suite_expect_plan(check, "merge", NULL, &plan)) return 0;
    attn_status status = attn_merge(ctx, p->n, out, part_lse, &merged, to, &exec);
    int done = suite_expect_status(check, status, ATTN_OK, "attn_merge");
    suite_fetch_outputs(check, t);
    return done;
}

/* ---- made-up parts ---------------------------------------------------------------------------------------------- */

struct made_up {
    const char *name;
    int n;
    int32_t part_type, out_type;
    int64_t shape[4];
    int layout, lse;
    int empty; /* 0: some parts of some rows; 1: all; 2: none; 3: as some, marked by +inf */
    float spread;
};

static const struct made_up lists[] = {
    {"f32", 3, ATTN_F32, ATTN_F32, {2, 3, 5, 16}, LAYOUT_BHSD, 1, 0, 2},
    {"one-part", 1, ATTN_F32, ATTN_F32, {2, 3, 5, 16}, LAYOUT_BHSD, 1, 0, 2},
    {"f16-from-f32", 4, ATTN_F32, ATTN_F16, {1, 4, 7, 64}, LAYOUT_BSHD, 1, 0, 5},
    {"f32-from-f16", 4, ATTN_F16, ATTN_F32, {1, 4, 7, 64}, LAYOUT_HOSTILE, 1, 0, 5},
    {"bf16", 8, ATTN_BF16, ATTN_BF16, {3, 1, 1, 128}, LAYOUT_HOSTILE, 1, 2, 1},
    {"f16-many", 8, ATTN_F16, ATTN_F16, {1, 2, 40, 33}, LAYOUT_BHSD, 1, 0, 40},
    {"far-apart", 3, ATTN_F32, ATTN_F32, {1, 2, 9, 8}, LAYOUT_BHSD, 1, 0, 50000},
    {"all-empty", 2, ATTN_F32, ATTN_F32, {2, 2, 4, 8}, LAYOUT_BHSD, 1, 1, 1}, /* cases.md A.7 */
    {"plus-infinity", 3, ATTN_F16, ATTN_F32, {2, 2, 4, 8}, LAYOUT_BHSD, 1, 3, 1},
    {"no-lse", 3, ATTN_F32, ATTN_F32, {2, 3, 5, 16}, LAYOUT_HOSTILE, 0, 0, 2},
    {"null-lse", 3, ATTN_F32, ATTN_F32, {2, 3, 5, 16}, LAYOUT_BHSD, -1, 0, 2},
    {"no-rows", 2, ATTN_F32, ATTN_F32, {2, 3, 0, 16}, LAYOUT_BHSD, 1, 0, 2},
    {"no-columns", 2, ATTN_F32, ATTN_F32, {2, 3, 4, 0}, LAYOUT_BHSD, 0, 2, 2},
};

/* One row of all parts: lse, and out, of which an empty part's stays poison, for it must not be read. */
static void make_row(struct suite_built *t, struct parts *p, const struct made_up *m, int64_t b, int64_t h, int64_t s)
{
    float x[256];
    struct suite_random r = suite_random_of(5, (uint64_t)((b * 100 + h) * 100 + s));
    for (int k = 0; k < p->n; k++) {
        float lse = m->spread * suite_normal(&r);
        int empty = m->empty == 1 || (m->empty != 2 && suite_below(&r, 3) == 0);
        if (empty) lse = m->empty == 3 && suite_below(&r, 2) ? INFINITY : -INFINITY;
        suite_write_row(t, &p->lse[k], b, h, s, &lse);
        for (int64_t d = 0; d < m->shape[3]; d++) x[d] = suite_normal(&r);
        if (!empty) suite_write_row(t, &p->out[k], b, h, s, x);
    }
}

static void expect_merged(struct suite_check *check, struct suite_built *t, struct parts *p, const struct made_up *m,
                          int64_t b, int64_t h, int64_t s)
{
    double lse[PARTS], x[256], sum[256] = {0}, terms[256] = {0}, most = -INFINITY, l = 0, got, e = 0x1p-24;
    for (int k = 0; k < p->n; k++) {
        suite_read_row(t, &p->lse[k], b, h, s, &lse[k]);
        if (lse[k] == INFINITY) lse[k] = -INFINITY;
        most = fmax(most, lse[k]);
    }
    for (int k = 0; k < p->n; k++) {
        if (lse[k] == -INFINITY) continue;
        double w = exp(lse[k] - most);
        l += w;
        suite_read_row(t, &p->out[k], b, h, s, x);
        for (int64_t d = 0; d < m->shape[3]; d++) sum[d] += w * x[d], terms[d] += w * fabs(x[d]);
    }
    suite_read_row(t, &p->merged, b, h, s, x);
    for (int64_t d = 0; d < m->shape[3]; d++) {
        double ref = l > 0 ? sum[d] / l : 0, u = suite_unit(m->out_type);
        double limit = u * fabs(ref) + (l > 0 ? 8 * e * terms[d] / l : 0) + (m->out_type == ATTN_F16 ? 0x1p-25 : 0);
        suite_expect(check, l > 0 ? fabs(x[d] - ref) <= limit : x[d] == 0, "row %lld of head %lld: %.9g, expected %.9g",
                     (long long)s, (long long)h, x[d], ref);
    }
    suite_poison_row(t, &p->merged, b, h, s);
    if (m->lse <= 0) return;
    double ref = l > 0 ? most + log(l) : -INFINITY;
    suite_read_row(t, &p->merged_lse, b, h, s, &got);
    suite_expect(check, l > 0 ? fabs(got - ref) <= 4 * e * (1 + fabs(ref)) : got == ref,
                 "row %lld of head %lld: lse %.9g, expected %.9g", (long long)s, (long long)h, got, ref);
    suite_poison_row(t, &p->merged_lse, b, h, s);
}

static void for_rows(struct suite_check *check, struct suite_built *t, struct parts *p, const struct made_up *m)
{
    for (int64_t b = 0; b < m->shape[0]; b++)
        for (int64_t h = 0; h < m->shape[1]; h++)
            for (int64_t s = 0; s < m->shape[2]; s++) {
                if (check) expect_merged(check, t, p, m, b, h, s);
                else make_row(t, p, m, b, h, s);
            }
}

static void made_up_parts(struct suite_check *check, const void *arg)
{
    const struct made_up *m = arg;
    struct suite_built t = {0};
    struct parts p;
    if (suite_expect(check, !add_parts(&t, &p, m->n, m->part_type, m->out_type, m->shape, m->layout, 0), "no memory")) {
        for_rows(NULL, &t, &p, m);
        t.input_hash = suite_inputs_hash(&t);
        if (merge(check, &t, &p, m->lse)) {
            if (m->shape[3]) for_rows(check, &t, &p, m); /* without columns nothing is written */
            suite_expect_clean(check, &t);
        }
    }
    suite_unbuild(&t);
}

/* ---- forward in parts ------------------------------------------------------------------------------------------- */

struct cut {
    const char *name;
    struct suite_case c;
    int n;
    int64_t end[PARTS]; /* of each part's keys */
    int32_t part_type;
};

static const struct cut cuts[] = {
    {"f32-causal",
     {.b = 2, .hq = 4, .hkv = 2, .sq = 50, .sk = 90, .d = 32, .mask = ATTN_CAUSAL},
     3,
     {30, 31, 90},
     ATTN_F32},
    {"f16",
     {.q_type = ATTN_F16, .hq = 2, .sq = 33, .sk = 200, .d = 64, .softcap = 9},
     4,
     {64, 100, 190, 200},
     ATTN_F32},
    {"sink-once",
     {.b = 2, .hq = 2, .sq = 20, .sk = 64, .d = 16, .sink = 1, .mask = ATTN_CAUSAL | ATTN_WINDOW_LEFT, .left = 9},
     2,
     {40, 64},
     ATTN_F32},
    {"bias-alibi",
     {.b = 2, .hq = 2, .sq = 20, .sk = 64, .d = 16, .bias = BIAS_HOLES, .alibi = ALIBI_BATCH},
     3,
     {10, 10, 64},
     ATTN_F32},
    {"dropout",
     {.b = 2, .hq = 2, .sq = 20, .sk = 64, .d = 16, .dropout = 0.3f, .dropout_seed = 2},
     3,
     {13, 33, 64},
     ATTN_F32},
    {"q8-decode",
     {.q_type = ATTN_F16,
      .k_type = ATTN_Q8_0,
      .v_type = ATTN_I8,
      .scaling = SCALING_ROW,
      .hq = 8,
      .hkv = 2,
      .sq = 1,
      .sk = 3000,
      .d = 64},
     3,
     {1000, 2000, 3000},
     ATTN_F32},
    {"more-queries", {.hq = 1, .sq = 40, .sk = 20, .d = 16, .mask = ATTN_CAUSAL}, 2, {10, 20}, ATTN_F32},
};

static void *shifted(void *data, int64_t bytes) { return data ? (unsigned char *)data + bytes : NULL; }

/* The problem of keys [from, to): another diagonal, other columns of bias and mask; the sink goes to the first part. */
static attn_problem part_problem(struct suite_built *t, int64_t from, int64_t to, const struct suite_target *target)
{
    attn_problem p = suite_problem(t, target);
    attn_tensor *kv[2] = {&p.k, &p.v};
    for (int n = 0; n < 2; n++) {
        kv[n]->data =
            shifted(kv[n]->data, (int64_t)attn_dtype_bytes((attn_dtype)kv[n]->dtype, from * kv[n]->stride[2]));
        kv[n]->scale = shifted(kv[n]->scale, from * kv[n]->scale_stride[2] * 4);
        kv[n]->shape[2] = to - from;
    }
    p.mask |= ATTN_DIAGONAL;
    p.diagonal = t->c.sk - t->c.sq - from;
    p.column_origin += from;
    p.bias.data = shifted(p.bias.data, from * p.bias.stride[3] * 4); /* these are float32 */
    if (p.bias.data) p.bias.shape[3] = to - from;
    if (from) p.sink = NULL;
    return p;
}

static int forward_parts(struct suite_check *check, struct suite_built *t, const struct cut *cut, struct parts *parts)
{
    attn_exec exec = {.struct_size = sizeof exec, .flags = ATTN_EXEC_WAIT};
    for (int k = 0; k < cut->n; k++) {
        attn_problem p = part_problem(t, k ? cut->end[k - 1] : 0, cut->end[k], check->target);
        p.out = suite_view_tensor(t, &parts->out[k], check->target);
        p.lse = suite_view_tensor(t, &parts->lse[k], check->target);
        if (!suite_expect_status(check, attn_forward(check->target->ctx, &p, &exec), ATTN_OK, "attn_forward of a part"))
            return 0;
        suite_fetch_outputs(check, t);
    }
    return 1;
}

static void parts_of_forward(struct suite_check *check, const void *arg)
{
    const struct cut *cut = arg;
    struct suite_case c = cut->c;
    struct suite_built t;
    struct suite_truth truth = {0};
    struct suite_result naive = {0}, x = {0};
    struct parts parts;
    suite_settle(&c);
    if (!suite_expect(check, !suite_build(&t, &c), "no memory")) return;
    const int64_t shape[4] = {c.b, c.hq, c.sq, c.dv};
    if (suite_expect(check,
                     !suite_truth_compute(&truth, &t) && !suite_naive_compute(&naive, &t) &&
                         !add_parts(&t, &parts, cut->n, cut->part_type, c.q_type, shape, LAYOUT_BHSD, 1),
                     "no memory") &&
        forward_parts(check, &t, cut, &parts) && merge(check, &t, &parts, 1) &&
        suite_collect(check, &t, &parts.merged, &parts.merged_lse, &x))
        suite_judge(check, &t, &truth, &naive, &x);
    suite_truth_free(&truth);
    suite_result_free(&naive);
    suite_result_free(&x);
    suite_unbuild(&t);
}

void suite_run_merge(struct suite *s)
{
    char name[96];
    for (size_t n = 0; n < sizeof lists / sizeof *lists; n++) {
        snprintf(name, sizeof name, "merge/%s", lists[n].name);
        suite_each(s, 1, name, made_up_parts, &lists[n]);
    }
    for (size_t n = 0; n < sizeof cuts / sizeof *cuts; n++) {
        snprintf(name, sizeof name, "merge/parts-%s", cuts[n].name);
        suite_each(s, 1, name, parts_of_forward, &cuts[n]);
    }
}
