/* SPDX-License-Identifier: Apache-2.0 */
#include "naive.h"

#include "attn/attn.h"
#include "common/number.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

float naive_round(int32_t dtype, float x)
{
    if (dtype == ATTN_F16) return attn_f16_to_f32(attn_f32_to_f16(x));
    if (dtype == ATTN_BF16) return attn_bf16_to_f32(attn_f32_to_bf16(x));
    return x;
}

/* Index of (b, h, i, j) in a [B, Hq, Sq, Sk] array. */
static int64_t pair_at(const struct naive_problem *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    return ((b * p->Hq + h) * p->Sq + i) * p->Sk + j;
}

static int64_t kv_head(const struct naive_problem *p, int64_t b, int64_t h)
{
    return b * p->Hkv + h / (p->Hq / p->Hkv);
}

static int sees(const struct naive_problem *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    return !p->visible || p->visible[pair_at(p, b, h, i, j)];
}

/* The keys of one head as float32, feature by feature, so that the loop over keys is the inner one. */
static float *transposed_keys(const struct naive_problem *p, int64_t b, int64_t h)
{
    const double *k = p->k + kv_head(p, b, h) * p->Sk * p->D;
    float *kt = malloc(sizeof *kt * (size_t)(p->Sk * p->D + 1));
    if (!kt) return NULL;
    for (int64_t j = 0; j < p->Sk; j++)
        for (int64_t d = 0; d < p->D; d++) kt[d * p->Sk + j] = (float)k[j * p->D + d];
    return kt;
}

static float *float_values(const struct naive_problem *p, int64_t b, int64_t h)
{
    const double *v = p->v + kv_head(p, b, h) * p->Sk * p->Dv;
    float *copy = malloc(sizeof *copy * (size_t)(p->Sk * p->Dv + 1));
    if (!copy) return NULL;
    for (int64_t n = 0; n < p->Sk * p->Dv; n++) copy[n] = (float)v[n];
    return copy;
}

/* scale * q.k of one row. */
static void row_dots(const struct naive_problem *p, const double *q, const float *kt, float *t)
{
    for (int64_t j = 0; j < p->Sk; j++) t[j] = 0.0f;
    for (int64_t d = 0; d < p->D; d++) {
        float x = (float)q[d];
        const float *column = kt + d * p->Sk;
        for (int64_t j = 0; j < p->Sk; j++) t[j] += x * column[j];
    }
    for (int64_t j = 0; j < p->Sk; j++) t[j] *= p->scale;
}

/* The scores of row i in place of t; masked ones are -inf. */
static void row_scores(const struct naive_problem *p, int64_t b, int64_t h, int64_t i, float *t)
{
    int64_t row = pair_at(p, b, h, i, 0);
    for (int64_t j = 0; j < p->Sk; j++) {
        float s = t[j];
        if (p->softcap > 0.0f) s = p->softcap * tanhf(s / p->softcap);
        if (p->bias) s += p->bias[row + j];
        if (p->slopes) s -= p->slopes[b * p->Hq + h] * fabsf((float)(i + p->diagonal - j));
        t[j] = sees(p, b, h, i, j) ? naive_round(p->dtype, s) : -INFINITY;
    }
}

/* Softmax of a row of scores in place, rounded; returns the LSE. A row that sees nothing becomes zeros. */
static float row_softmax(const struct naive_problem *p, int64_t h, float *s)
{
    float m = p->sink ? p->sink[h] : -INFINITY;
    float l = 0.0f;
    for (int64_t j = 0; j < p->Sk; j++)
        if (s[j] > m || s[j] != s[j]) m = s[j];
    if (m == -INFINITY) {
        for (int64_t j = 0; j < p->Sk; j++) s[j] = 0.0f;
        return -INFINITY;
    }
    for (int64_t j = 0; j < p->Sk; j++) {
        s[j] = s[j] == -INFINITY ? 0.0f : expf(s[j] - m);
        l += s[j];
    }
    if (p->sink) l += expf(p->sink[h] - m);
    for (int64_t j = 0; j < p->Sk; j++) s[j] = naive_round(p->dtype, s[j] / l);
    return m + logf(l);
}

/* out = sum over the keys of P (with dropout) times V. */
static void row_output(const struct naive_problem *p, int64_t b, int64_t h, int64_t i, const float *prob,
                       const float *v, float *out)
{
    int64_t row = pair_at(p, b, h, i, 0);
    for (int64_t d = 0; d < p->Dv; d++) out[d] = 0.0f;
    for (int64_t j = 0; j < p->Sk; j++) {
        if (!sees(p, b, h, i, j)) continue;
        float x = p->keep ? naive_round(p->dtype, prob[j] * p->keep[row + j]) : prob[j];
        for (int64_t d = 0; d < p->Dv; d++) out[d] += x * v[j * p->Dv + d];
    }
    for (int64_t d = 0; d < p->Dv; d++) out[d] = naive_round(p->dtype, out[d]);
}

int naive_forward_rows(const struct naive_problem *p, int64_t b, int64_t h, int64_t first, int64_t end, float *out,
                       float *lse)
{
    float *kt = transposed_keys(p, b, h), *v = float_values(p, b, h);
    float *s = malloc(sizeof *s * (size_t)(p->Sk + 1));
    int failed = !kt || !v || !s;
    for (int64_t i = first; !failed && i < end; i++) {
        row_dots(p, p->q + ((b * p->Hq + h) * p->Sq + i) * p->D, kt, s);
        row_scores(p, b, h, i, s);
        float row_lse = row_softmax(p, h, s);
        row_output(p, b, h, i, s, v, out + (i - first) * p->Dv);
        if (lse) lse[i - first] = row_lse;
    }
    free(kt);
    free(v);
    free(s);
    return failed ? -1 : 0;
}

int naive_forward(const struct naive_problem *p, float *out, float *lse)
{
    for (int64_t b = 0; b < p->B; b++)
        for (int64_t h = 0; h < p->Hq; h++) {
            int64_t row = (b * p->Hq + h) * p->Sq;
            if (naive_forward_rows(p, b, h, 0, p->Sq, out + row * p->Dv, lse ? lse + row : NULL)) return -1;
        }
    return 0;
}

/* ---- gradients ------------------------------------------------------------------------------------------------- */

struct backward {
    const struct naive_problem *p;
    const double *dout, *dlse;
    float *t, *prob, *z, *ds, *out; /* one row: scale * q.k, P, Z * P, dS; the output */
    float *kt, *v;                  /* of the current head */
    float *dq, *dk, *dv, *dsink;    /* sums of the whole problem */
    float *dbias;                   /* may be NULL */
};

/* P, Z * P and dS of row i. */
static void backward_row(struct backward *w, int64_t b, int64_t h, int64_t i)
{
    const struct naive_problem *p = w->p;
    int64_t row = pair_at(p, b, h, i, 0), index = (b * p->Hq + h) * p->Sq + i;
    const double *dout = w->dout + index * p->Dv;
    float dlse = w->dlse ? (float)w->dlse[index] : 0.0f, delta = 0.0f;

    row_dots(p, p->q + index * p->D, w->kt, w->t);
    memcpy(w->prob, w->t, sizeof(float) * (size_t)p->Sk);
    row_scores(p, b, h, i, w->prob);
    float lse = row_softmax(p, h, w->prob);
    row_output(p, b, h, i, w->prob, w->v, w->out);
    for (int64_t d = 0; d < p->Dv; d++) delta += (float)dout[d] * w->out[d];

    for (int64_t j = 0; j < p->Sk; j++) {
        float z = p->keep ? p->keep[row + j] : 1.0f, dp = 0.0f;
        w->z[j] = w->ds[j] = 0.0f;
        if (!sees(p, b, h, i, j)) continue;
        for (int64_t d = 0; d < p->Dv; d++) dp += (float)dout[d] * w->v[j * p->Dv + d];
        dp = naive_round(p->dtype, dp);
        w->z[j] = naive_round(p->dtype, z * w->prob[j]);
        w->ds[j] = w->prob[j] * (z * dp - delta + dlse);
        if (w->dbias) w->dbias[row + j] = w->ds[j];
        if (p->softcap > 0.0f) {
            float tanh_t = tanhf(w->t[j] / p->softcap);
            w->ds[j] *= 1.0f - tanh_t * tanh_t;
        }
        w->ds[j] = naive_round(p->dtype, w->ds[j]);
    }
    if (p->sink && lse != -INFINITY) w->dsink[h] += expf(p->sink[h] - lse) * (dlse - delta);
}

/* What row i adds to dQ, dK and dV. */
static void backward_sums(struct backward *w, int64_t b, int64_t h, int64_t i)
{
    const struct naive_problem *p = w->p;
    int64_t index = (b * p->Hq + h) * p->Sq + i, base = kv_head(p, b, h) * p->Sk;
    const double *q = p->q + index * p->D, *dout = w->dout + index * p->Dv;
    float *dq = w->dq + index * p->D;
    for (int64_t j = 0; j < p->Sk; j++) {
        if (!sees(p, b, h, i, j)) continue;
        float *dk = w->dk + (base + j) * p->D, *dv = w->dv + (base + j) * p->Dv;
        for (int64_t d = 0; d < p->D; d++) dq[d] += w->ds[j] * w->kt[d * p->Sk + j];
        for (int64_t d = 0; d < p->D; d++) dk[d] += w->ds[j] * (float)q[d];
        for (int64_t d = 0; d < p->Dv; d++) dv[d] += w->z[j] * (float)dout[d];
    }
}

static int backward_head(struct backward *w, int64_t b, int64_t h)
{
    const struct naive_problem *p = w->p;
    w->kt = transposed_keys(p, b, h);
    w->v = float_values(p, b, h);
    int failed = !w->kt || !w->v;
    for (int64_t i = 0; !failed && i < p->Sq; i++) {
        backward_row(w, b, h, i);
        backward_sums(w, b, h, i);
    }
    free(w->kt);
    free(w->v);
    return failed;
}

static void finish(const struct naive_problem *p, const float *sum, int64_t count, float factor, float *result)
{
    for (int64_t n = 0; result && n < count; n++) result[n] = naive_round(p->dtype, sum[n] * factor);
}

int naive_backward(const struct naive_problem *p, const double *dout, const double *dlse, float *dq, float *dk,
                   float *dv, float *dbias, float *dsink)
{
    int64_t nq = p->B * p->Hq * p->Sq * p->D, nk = p->B * p->Hkv * p->Sk * p->D, nv = p->B * p->Hkv * p->Sk * p->Dv;
    int64_t pairs = p->B * p->Hq * p->Sq * p->Sk;
    float *sums = calloc((size_t)(nq + nk + nv + p->Hq + 1), sizeof *sums);
    float *rows = calloc((size_t)(4 * p->Sk + p->Dv + 1), sizeof *rows);
    int failed = !sums || !rows;
    struct backward w = {.p = p, .dout = dout, .dlse = dlse, .dbias = dbias};
    if (!failed) {
        w.t = rows, w.prob = rows + p->Sk, w.z = rows + 2 * p->Sk, w.ds = rows + 3 * p->Sk, w.out = rows + 4 * p->Sk;
        w.dq = sums, w.dk = sums + nq, w.dv = sums + nq + nk, w.dsink = sums + nq + nk + nv;
    }
    for (int64_t n = 0; dbias && n < pairs; n++) dbias[n] = 0.0f;
    for (int64_t b = 0; !failed && b < p->B; b++)
        for (int64_t h = 0; !failed && h < p->Hq; h++) failed = backward_head(&w, b, h);
    if (!failed) {
        finish(p, w.dq, nq, p->scale, dq);
        finish(p, w.dk, nk, p->scale, dk);
        finish(p, w.dv, nv, 1.0f, dv);
        for (int64_t h = 0; dsink && h < p->Hq; h++) dsink[h] = w.dsink[h];
    }
    free(sums);
    free(rows);
    return failed ? -1 : 0;
}
