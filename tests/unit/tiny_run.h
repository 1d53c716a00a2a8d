/* SPDX-License-Identifier: Apache-2.0
 * A tiny problem through the public API: values, tensors, forward and backward of a context, and the comparison of all that
 * they write with the forward of tiny.h and its differences. */
#ifndef ATTN_UNIT_TINY_RUN_H
#define ATTN_UNIT_TINY_RUN_H

#include "unit.h"

#include "number.h"
#include "tiny.h"

static attn_context *reference;

/* ---- values -------------------------------------------------------------------------------------------------------------- */

/* n/64: exact in F32, F16 and BF16, and as I8 with scale 1/64. */
static void fill(uint64_t *random, double *x, int64_t count)
{
    for (int64_t n = 0; n < count; n++) x[n] = (double)unit_between(random, -127, 127) / 64.0;
}

static int64_t q_rows(const tiny *t) { return tiny_batch_axis(t, &t->q_side) * t->hq * t->q_side.rows; }
static int64_t k_rows(const tiny *t) { return tiny_batch_axis(t, &t->k_side) * t->hkv * t->k_side.rows; }

static int64_t bias_size(const tiny *t)
{
    const int64_t *shape = t->bias_shape;
    return t->bias_kind ? shape[0] * shape[1] * shape[2] * shape[3] : 0;
}

static void fill_all(tiny *t, uint64_t seed)
{
    fill(&seed, t->x->q, q_rows(t) * t->d);
    fill(&seed, t->x->k, k_rows(t) * t->d);
    fill(&seed, t->x->v, k_rows(t) * t->dv);
    fill(&seed, t->x->dout, q_rows(t) * t->dv);
    fill(&seed, t->x->dlse, q_rows(t));
    fill(&seed, t->x->bias, bias_size(t));
    fill(&seed, t->x->sink, t->hq);
    fill(&seed, t->x->slope, t->b * t->hq);
    for (int64_t n = 0; n < bias_size(t); n++)
        if (t->bias_kind == TINY_BOOL) t->x->bias[n] = t->x->bias[n] > -0.8;
        else if (t->bias_kind == TINY_HOLES && t->x->bias[n] < -0.8) t->x->bias[n] = -INFINITY;
    if (t->sink == 2) t->x->sink[0] = -INFINITY;
}

/* ---- the same for the library -------------------------------------------------------------------------------------------- */

static const float untouched = -77.0f, before = 3.25f; /* what gradients hold without and with ACCUMULATE */
static float step_of_i8 = 1.0f / 64.0f;

typedef struct arrays {
    float q[TINY], k[TINY], v[TINY], bias[TINY], slope[TINY_HEADS], sink[TINY_HEADS], dout[TINY], dlse[TINY];
    float out[TINY], lse[TINY], dq[TINY], dk[TINY], dv[TINY], dbias[TINY], dsink[TINY_HEADS];
} arrays;

/* Stores the values as `type` and describes them: [batch axis, heads, rows, n]. */
static attn_tensor stored(const tiny *t, const tiny_side *s, float *memory, int32_t type, int64_t heads, int64_t n,
                          const double *x)
{
    int64_t batch = tiny_batch_axis(t, s), count = batch * heads * s->rows * n;
    if (!type) type = ATTN_F32;
    for (int64_t e = 0; x && e < count; e++) {
        if (type == ATTN_F32) memory[e] = (float)x[e];
        else if (type == ATTN_F16) ((uint16_t *)memory)[e] = attn_f32_to_f16((float)x[e]);
        else if (type == ATTN_BF16) ((uint16_t *)memory)[e] = attn_f32_to_bf16((float)x[e]);
        else ((int8_t *)memory)[e] = (int8_t)(x[e] * 64.0);
    }
    attn_tensor view = attn_bhsd(memory, (attn_dtype)type, batch, heads, s->rows, n);
    if (type == ATTN_I8) view.scale = &step_of_i8;
    return view;
}

static void set_bias(const tiny *t, arrays *a, attn_problem *p, attn_grads *g)
{
    const int64_t *shape = t->bias_shape;
    if (!t->bias_kind) return;
    p->bias =
        attn_bhsd(a->bias, t->bias_kind == TINY_BOOL ? ATTN_BOOL : ATTN_F32, shape[0], shape[1], shape[2], shape[3]);
    for (int64_t n = 0; n < bias_size(t); n++)
        if (t->bias_kind == TINY_BOOL) ((unsigned char *)a->bias)[n] = t->x->bias[n] != 0.0;
        else a->bias[n] = (float)t->x->bias[n];
    if (t->bias_kind != TINY_BOOL) g->dbias = attn_bhsd(a->dbias, ATTN_F32, shape[0], shape[1], shape[2], shape[3]);
}

static attn_lengths lengths_of(const tiny *t, const tiny_side *s)
{
    return (attn_lengths){.used = s->used, .start = s->start, .offsets = s->offsets, .count = s->offsets ? t->b : 0};
}

static void describe(const tiny *t, arrays *a, attn_problem *p, attn_grads *g)
{
    *p = (attn_problem)ATTN_PROBLEM_INIT;
    *g = (attn_grads)ATTN_GRADS_INIT;
    p->q = stored(t, &t->q_side, a->q, t->q_type, t->hq, t->d, t->x->q);
    p->k = stored(t, &t->k_side, a->k, t->k_type, t->hkv, t->d, t->x->k);
    p->v = stored(t, &t->k_side, a->v, t->v_type, t->hkv, t->dv, t->x->v);
    p->out = stored(t, &t->q_side, a->out, 0, t->hq, t->dv, NULL);
    p->lse = stored(t, &t->q_side, a->lse, 0, t->hq, 1, NULL);
    p->q_len = lengths_of(t, &t->q_side);
    p->kv_len = lengths_of(t, &t->k_side);
    p->mask = t->mask;
    p->window_left = t->left;
    p->window_right = t->right;
    p->diagonal = t->diagonal;
    p->scale = t->scale;
    p->softcap = t->softcap;
    p->dropout = t->dropout;
    p->seed = 11;
    p->offset = 5;
    for (int64_t n = 0; n < t->b * t->hq; n++) a->slope[n] = (float)t->x->slope[n];
    for (int64_t n = 0; n < t->hq; n++) a->sink[n] = (float)t->x->sink[n];
    p->alibi = t->alibi ? a->slope : NULL;
    p->alibi_batch_stride = t->alibi == 2 ? t->hq : 0;
    p->sink = t->sink ? a->sink : NULL;

    g->flags = t->accumulate ? ATTN_GRAD_ACCUMULATE : 0;
    g->dout = stored(t, &t->q_side, a->dout, 0, t->hq, t->dv, t->x->dout);
    if (!t->no_dlse) g->dlse = stored(t, &t->q_side, a->dlse, 0, t->hq, 1, t->x->dlse);
    g->dq = stored(t, &t->q_side, a->dq, 0, t->hq, t->d, NULL);
    g->dk = stored(t, &t->k_side, a->dk, 0, t->hkv, t->d, NULL);
    g->dv = stored(t, &t->k_side, a->dv, 0, t->hkv, t->dv, NULL);
    g->dsink = t->sink ? a->dsink : NULL;
    set_bias(t, a, p, g);
}

/* Runs forward and backward, and leaves the dropout mask in t->keep. */
static void run(tiny *t, arrays *a)
{
    attn_problem p;
    attn_grads g;
    describe(t, a, &p, &g);
    float *written[] = {a->dq, a->dk, a->dv, a->dbias};
    for (int n = 0; n < TINY; n++) {
        a->out[n] = a->lse[n] = untouched;
        for (int m = 0; m < 4; m++) written[m][n] = t->accumulate ? before : untouched;
    }
    for (int n = 0; n < TINY_HEADS; n++) a->dsink[n] = t->accumulate ? before : untouched;
    attn_tensor keep = attn_bhsd(t->x->keep, ATTN_BOOL, t->b, t->hq, t->pairs[2], t->pairs[3]);
    if (attn_dropout_mask(reference, &p, &keep, NULL) || attn_forward(reference, &p, NULL) ||
        attn_backward(reference, &p, &g, NULL))
        fail_msg("%s", attn_last_error());
}

/* ---- comparison ---------------------------------------------------------------------------------------------------------- */

static const char *name; /* of the running problem */

/* x is the reference's, rounded to float32; g is exact up to the error of differences, about 1e-10. */
static void near_to(const char *what, int64_t n, float x, double g)
{
    double limit = 0x1p-23 * fabs(g) + 2e-9;
    if (!((double)x == g || fabs((double)x - g) <= limit))
        fail_msg("%s: %s[%d] is %.9g, expected %.9g", name, what, (int)n, (double)x, g);
}

/* Rows [batch axis, heads, rows, n]: `used` of rows in use, `padding` of the others in a sequence's room, and `outside`. */
typedef double expected_value(tiny *t, double *x);

static void check_rows(tiny *t, const char *what, const tiny_side *s, int64_t heads, int64_t n, const float *got,
                       double *x, expected_value *used, float padding, float outside)
{
    for (int64_t b = 0; b < tiny_batch_axis(t, s); b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t row = 0; row < s->rows; row++) {
                bool in_use = false, in_room = false;
                for (int64_t c = s->offsets ? 0 : b; c < (s->offsets ? t->b : b + 1); c++) {
                    tiny_rows r = tiny_rows_of(s, c);
                    in_room = in_room || (row >= r.base && row < r.base + r.room);
                    in_use = in_use || (row >= r.first && row < r.first + r.used);
                }
                for (int64_t e = 0; e < n; e++) {
                    int64_t at = tiny_row(s, heads, b, h, row) * n + e;
                    near_to(what, at, got[at], in_use ? used(t, x + at) : (double)(in_room ? padding : outside));
                }
            }
}

static double itself(tiny *t, double *x)
{
    (void)t;
    return *x;
}

static double gradient(tiny *t, double *x)
{
    double g = isinf(*x) ? 0.0 : tiny_derivative(t, x);
    return t->accumulate ? (double)before + g : g;
}

static void check(const char *called, tiny problem)
{
    static tiny_values values;
    static arrays a;
    tiny *t = &problem;
    name = called;
    tiny_settle(t, &values);
    fill_all(t, 1);
    run(t, &a);
    tiny_loss(t);
    check_rows(t, "out", &t->q_side, t->hq, t->dv, a.out, values.out, itself, 0.0f, untouched);
    check_rows(t, "lse", &t->q_side, t->hq, 1, a.lse, values.lse, itself, -INFINITY, untouched);
    float padding = t->accumulate ? before : 0.0f, outside = t->accumulate ? before : untouched;
    check_rows(t, "dq", &t->q_side, t->hq, t->d, a.dq, values.q, gradient, padding, outside);
    check_rows(t, "dk", &t->k_side, t->hkv, t->d, a.dk, values.k, gradient, padding, outside);
    check_rows(t, "dv", &t->k_side, t->hkv, t->dv, a.dv, values.v, gradient, padding, outside);
    if (t->bias_kind && t->bias_kind != TINY_BOOL)
        for (int64_t n = 0; n < bias_size(t); n++) near_to("dbias", n, a.dbias[n], gradient(t, values.bias + n));
    for (int64_t h = 0; t->sink && h < t->hq; h++) near_to("dsink", h, a.dsink[h], gradient(t, values.sink + h));
}

#endif
