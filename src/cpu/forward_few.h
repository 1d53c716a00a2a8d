/* SPDX-License-Identifier: Apache-2.0
 * Forward of few rows (decode), see forward_vector.h: packing would cost more than it saves. Dot products along D with keys
 * straight from the caller's memory, up to 4 rows sharing each load; W sums are reduced together. Codes of 8 bits become
 * floats in registers, keys of blocks after they were transposed as bytes; factors multiply sums of scores, and weights.
 * During QK' the step's V is prefetched, during PV the next step's K.
 * Bytes: K and V once, all heads of a group together. */
#ifndef ATTN_CPU_FORWARD_FEW_H
#define ATTN_CPU_FORWARD_FEW_H

#include "few_rows.h"

/* Vectors of columns, or of keys, whose sums with `rows` rows are in registers: W sums, 8 of a row alone, as few as cover
 * latencies. */
ALWAYS_INLINE int vectors_of(int rows) { return rows == 4 ? W / 4 : rows == 2 ? W / 2 : 8; }

/* Scores of `rows` rows against W / rows keys: dot products along D. */
ALWAYS_INLINE void few_scores_as(int32_t type, int rows, const float *q, int64_t d, const few_rows *keys, int key,
                                 float scale, float *s)
{
    const int count = W / rows;
    const char *const *row = keys->row + key;
    vf sum[W];
#pragma GCC unroll 16
    for (int n = 0; n < W; n++) sum[n] = vf_zero();
#pragma GCC unroll 2
    for (int64_t at = 0; at < d; at += W) {
        vf x[W];
#pragma GCC unroll 16
        for (int j = 0; j < count; j++) x[j] = vf_load_as(type, row[j], at);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            vf y = vf_load(q + r * d + at);
#pragma GCC unroll 16
            for (int j = 0; j < count; j++) sum[r * count + j] = vf_fma(y, x[j], sum[r * count + j]);
        }
    }
    float total[W];
    vf_store(total, vf_mul(vf_totals(sum), vf_set1(scale)));
    for (int r = 0; r < rows; r++) memcpy(s + r * STEP, total + r * count, (size_t)count * sizeof *total);
}

/* What is read next, to be fetched meanwhile: bytes [from, to) of each row, none where `to` is 0. */
typedef struct prefetch {
    const char *const *rows;
    int64_t from, to;
} prefetch;

ALWAYS_INLINE void prefetch_row(const prefetch *next, int n)
{
    for (int64_t at = next->from; at < next->to; at += 64) prefetch_to_l2(next->rows[n] + at);
}

/* Scores of `rows` rows against `vectors` vectors of packed keys, a lane each, so that a factor multiplies the sum of a block;
 * of half a one where there are but two: the fewer sums, the more each one's chain of roundings weighs. */
ALWAYS_INLINE void code_scores_as(int rows, int vectors, const float *q, int64_t d, const few_rows *keys, int key,
                                  float scale, float *s, const prefetch *next)
{
    const int run = d > 2 * ATTN_BLOCK ? ATTN_BLOCK : ATTN_BLOCK / 2;
    for (int64_t at = 0; at < d; at += run) {
        const int64_t block = at / ATTN_BLOCK;
        const char *panel = keys->panel + (block * FEW_STEP + key) * ATTN_BLOCK + at % ATTN_BLOCK * W;
        const float *x = q + block * ATTN_BLOCK + at % ATTN_BLOCK / 2;
        vf sum[SHARE][8];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++) sum[r][v] = vf_zero();
        for (int e = 0; e < run / 2; e += 16 / W, panel += 32)
#pragma GCC unroll 4
            for (int k = 0; k < 32 / W; k++) { /* the order of store_codes_across */
                vf y[SHARE];
#pragma GCC unroll 4
                for (int r = 0; r < rows; r++) y[r] = vf_set1(x[r * d + e + (k < 16 / W ? k : k - 16 / W + 16)]);
#pragma GCC unroll 8
                for (int v = 0; v < vectors; v++) {
                    vf code = vf_load_i8(panel + v * W * ATTN_BLOCK + k * W);
#pragma GCC unroll 4
                    for (int r = 0; r < rows; r++) sum[r][v] = vf_fma(y[r], code, sum[r][v]);
                }
            }
        const float *factor = keys->factor + block * FEW_STEP + key;
        const vf last = vf_set1(at + run < d ? 1.0f : scale);
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) {
            vf f = vf_load(factor + v * W);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                float *to = s + r * STEP + v * W;
                vf_store(to, vf_mul(last, at ? vf_fma(f, sum[r][v], vf_load(to)) : vf_mul(f, sum[r][v])));
            }
        }
        for (int64_t n = vectors * W * at / d; n < vectors * W * (at + run) / d; n++) prefetch_row(next, key + (int)n);
    }
}

/* S by scale and the factors of its columns, whose product is taken as two numbers: S is rounded once. */
static void scale_scores(int rows, const columns *c, const float *factor, float scale, float *s)
{
    for (int n = c->a0; n < c->a1; n += W) {
        const vf f = vf_load(factor + n), by = vf_set1(scale), high = vf_mul(f, by), low = vf_fms(f, by, high);
        for (int r = 0; r < rows; r++) {
            vf x = vf_load(s + r * STEP + n);
            vf_store(s + r * STEP + n, vf_fma(x, high, vf_mul(x, low)));
        }
    }
}

/* P of some rows by the factors of its columns. */
ALWAYS_INLINE void scale_weights(int rows, const columns *c, const float *p, const float *factor, float *to, int stride)
{
    for (int n = c->a0; n < c->a1; n += W) {
        vf f = vf_load(factor + n);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) vf_store(to + r * stride + n, vf_mul(vf_load(p + r * STEP + n), f));
    }
}

/* Columns at a time for which P is scaled by the factors of V's blocks, and floats of P for a block. */
enum { CHUNK = 8 * W, SCALED = SHARE * FEW_STEP };

/* O of `rows` rows and `vectors` vectors of columns from d on, which lie `at` bytes behind the beginning of a row. p: of a
 * row, or of a block and row, scaled. */
ALWAYS_INLINE void few_values_as(int32_t type, int rows, int vectors, const few_rows *values, int64_t d, int64_t at,
                                 const columns *c, const float *p, const float *shrink, float *o, int64_t o_stride,
                                 const prefetch *next)
{
    const int p_stride = type == ATTN_Q8_0 ? FEW_STEP : STEP, blocks = type == ATTN_Q8_0;
    vf sum[SHARE][8];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) sum[r][v] = vf_zero();
    for (int n = c->c0; n < c->c1; n++) {
        const char *row = values->row[n] + at;
        vf y[SHARE];
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) {
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
                if (v == 0 || (blocks && v * W % ATTN_BLOCK == 0))
                    y[r] = vf_set1(p[r * p_stride + n + blocks * (v * W / ATTN_BLOCK) * SCALED]);
            vf x = vf_load_as(type, row, v * W);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) sum[r][v] = vf_fma(y[r], x, sum[r][v]);
        }
        prefetch_row(next, n);
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) {
            float *to = o + r * o_stride + d + v * W;
            vf_store(to, vf_fma(vf_load(to), vf_set1(shrink[r]), sum[r][v]));
        }
}

/* A few rows at a time: 4, then 2, then 1. */
static int share_of(int rows) { return rows >= 4 ? 4 : rows >= 2 ? 2 : 1; }

ALWAYS_INLINE void code_scores_at(int rows, const float *q, const scratch *t, const columns *c, const few_rows *keys,
                                  float scale, float *s, const prefetch *next)
{
    const int most = vectors_of(rows) < FEW_STEP / W ? vectors_of(rows) : FEW_STEP / W;
    for (int n = c->a0, count; n < c->a1; n += count) {
        const int many = c->a1 - n >= most * W;
        count = many ? most * W : W;
        if (many) code_scores_as(rows, most, q, t->d, keys, n, scale, s + n, next);
        else code_scores_as(rows, 1, q, t->d, keys, n, scale, s + n, next);
    }
}

/* next: values of the same columns. */
ALWAYS_INLINE void few_scores_of(int32_t type, const attn_cpu_block *w, const scratch *t, const columns *c,
                                 const few_rows *keys, float scale, prefetch next)
{
    const int packed = type == ATTN_Q8_0, later = !packed && keys->factors; /* one factor a key */
    const float now = later ? 1.0f : scale;
    for (int r = 0, share; r < w->rows; r += share, next.to = 0) {
        const float *q = t->q + r * t->d;
        float *s = t->s + r * STEP;
        share = share_of(w->rows - r);
        if (packed) {
            if (share == 4) code_scores_at(4, q, t, c, keys, now, s, &next);
            else if (share == 2) code_scores_at(2, q, t, c, keys, now, s, &next);
            else code_scores_at(1, q, t, c, keys, now, s, &next);
            continue;
        }
        const int count = W / share;
        for (int n = c->a0; n < c->a1; n += count) {
            if (share == 4) few_scores_as(type, 4, q, t->d, keys, n, now, s + n);
            else if (share == 2) few_scores_as(type, 2, q, t->d, keys, n, now, s + n);
            else few_scores_as(type, 1, q, t->d, keys, n, now, s + n);
            for (int j = n; j < n + count; j++) prefetch_row(&next, j);
        }
    }
    if (later) scale_scores(w->rows, c, keys->factor, scale, t->s);
}

/* Columns [d, end) of O, the rows' part of which decides what of the next keys is fetched meanwhile. */
ALWAYS_INLINE void few_values_at(int32_t type, int rows, int64_t d, int64_t end, const scratch *t, const columns *c,
                                 const few_rows *values, const float *p, const float *shrink, float *o,
                                 const prefetch *next)
{
    const int64_t first = d;
    for (int64_t wide; d < end; d += wide) {
        const int many = end - d >= vectors_of(rows) * W;
        wide = many ? vectors_of(rows) * W : W;
        const int64_t at = type == ATTN_Q8_0  ? d / ATTN_BLOCK * ATTN_Q8_0_BYTES + d % ATTN_BLOCK
                           : type == ATTN_I8  ? d
                           : type == ATTN_F32 ? 4 * d
                                              : 2 * d;
        const float *weights = type == ATTN_Q8_0 ? p + (d - first) / ATTN_BLOCK * SCALED : p;
        const prefetch part = {next->rows, attn_round_up(next->to * d / t->dv, 64), next->to * (d + wide) / t->dv};
        if (many) few_values_as(type, rows, vectors_of(rows), values, d, at, c, weights, shrink, o, t->dv, &part);
        else few_values_as(type, rows, 1, values, d, at, c, weights, shrink, o, t->dv, &part);
    }
}

/* The same, P of blocks scaled once for each: at most CHUNK columns. */
ALWAYS_INLINE void few_values_share(int32_t type, int rows, int64_t d, int64_t end, const scratch *t, const columns *c,
                                    const few_rows *values, const float *p, const float *shrink, float *o,
                                    const prefetch *next)
{
    _Alignas(64) float scaled[CHUNK / ATTN_BLOCK * SCALED];
    if (type == ATTN_Q8_0) {
        const float *factor = values->factor + d / ATTN_BLOCK * FEW_STEP;
        for (int64_t b = 0; b < (end - d) / ATTN_BLOCK; b++)
            scale_weights(rows, c, p, factor + b * FEW_STEP, scaled + b * SCALED, FEW_STEP);
        p = scaled;
    }
    few_values_at(type, rows, d, end, t, c, values, p, shrink, o, next);
}

/* next: keys of the next step. P is no more what it was. */
ALWAYS_INLINE void few_values_of(int32_t type, const attn_cpu_block *w, const scratch *t, const columns *c,
                                 const few_rows *values, const float *shrink, const prefetch *next)
{
    const int chunk = type == ATTN_Q8_0 ? CHUNK : vectors_of(share_of(w->rows)) * W;
    if (type != ATTN_Q8_0 && values->factors) scale_weights(w->rows, c, t->s, values->factor, t->s, STEP);
    for (int64_t d = 0; d < t->dv; d += chunk) {
        const int64_t end = attn_min(d + chunk, t->dv);
        prefetch part = *next;
        for (int r = 0, share; r < w->rows; r += share, part.to = 0) {
            const float *p = t->s + r * STEP;
            float *o = t->o + r * t->dv;
            share = share_of(w->rows - r);
            if (share == 4) few_values_share(type, 4, d, end, t, c, values, p, shrink + r, o, &part);
            else if (share == 2) few_values_share(type, 2, d, end, t, c, values, p, shrink + r, o, &part);
            else few_values_share(type, 1, d, end, t, c, values, p, shrink + r, o, &part);
        }
    }
}

/* The types of few_rows. */
#define EACH_FEW_TYPE(X) X(F32) X(F16) X(BF16) X(I8) X(Q8_0)

/* A function a type, whose loops have all the registers. */
#define FEW_TYPE(name)                                                                                                 \
  static __attribute__((noinline)) void few_scores_##name(const attn_cpu_block *w, const scratch *t, const columns *c, \
                                                          const few_rows *keys, float scale, prefetch next)            \
  {                                                                                                                    \
    few_scores_of(ATTN_##name, w, t, c, keys, scale, next);                                                            \
  }                                                                                                                    \
  static __attribute__((noinline)) void few_values_##name(const attn_cpu_block *w, const scratch *t, const columns *c, \
                                                          const few_rows *values, const float *shrink,                 \
                                                          const prefetch *next)                                        \
  {                                                                                                                    \
    few_values_of(ATTN_##name, w, t, c, values, shrink, next);                                                         \
  }
EACH_FEW_TYPE(FEW_TYPE)
#undef FEW_TYPE

static void few_scores(const attn_cpu_block *w, const scratch *t, const columns *c, const few_rows *keys, float scale,
                       prefetch next)
{
    switch (keys->type) {
#define CASE(name) \
case ATTN_##name: few_scores_##name(w, t, c, keys, scale, next); break;
        EACH_FEW_TYPE(CASE)
#undef CASE
    }
}

static void few_values(const attn_cpu_block *w, const scratch *t, const columns *c, const few_rows *values,
                       const float *shrink, const prefetch *next)
{
    switch (values->type) {
#define CASE(name) \
case ATTN_##name: few_values_##name(w, t, c, values, shrink, next); break;
        EACH_FEW_TYPE(CASE)
#undef CASE
    }
}

static void widen_queries(const attn_cpu_block *w, const scratch *t)
{
    const attn_view *q = &w->job->q;
    const int64_t n = w->job->head_dim;
    int64_t i = attn_block_query(w, 0), h = attn_block_head(w, 0);
    for (int r = 0; r < w->rows; r++, attn_block_next(w, &i, &h)) {
        const int64_t row = w->seq.q_row + i;
        float *x = t->q + r * t->d;
        if (q->dtype == ATTN_F32) /* without a call: it would take longer than a small row */
            widen_as(ATTN_F32, attn_element(q, attn_row_offset(q, w->seq.q_batch, h, row)), 1.0f, n, x);
        else widen_row(q, w->seq.q_batch, h, row, n, x);
    }
}

static void forward_few(const attn_cpu_block *w, const scratch *t)
{
    const attn_job *job = w->job;
    const int64_t k_bytes = (int64_t)attn_dtype_bytes((attn_dtype)job->k.dtype, job->head_dim);
    const int64_t v_bytes = (int64_t)attn_dtype_bytes((attn_dtype)job->v.dtype, job->head_dim_v);
    const char *keys[FEW_STEP], *values[FEW_STEP];
    few_rows rows;
    widen_queries(w, t);
    int64_t first, end;
    attn_block_band(w, &first, &end);
    if (first >= end) return;
    columns c = columns_of(w, 0, w->rows, first / FEW_STEP * FEW_STEP, FEW_STEP);
    find_few(w, &job->k, &c, keys);
    for (;;) {
        const int last = c.key + FEW_STEP >= end;
        float shrink[ROOM];
        find_few(w, &job->v, &c, values);
        take_few(w, &job->k, job->head_dim, t->d, 1, &c, keys, t->k, &rows);
        few_scores(w, t, &c, &rows, job->scale, (prefetch){values, 0, v_bytes});
        softmax_rows(w, t, 0, w->rows, &c, shrink);

        columns following = last ? c : columns_of(w, 0, w->rows, c.key + FEW_STEP, FEW_STEP);
        if (!last) find_few(w, &job->k, &following, keys);
        take_few(w, &job->v, job->head_dim_v, t->dv, 0, &c, values, t->v, &rows);
        few_values(w, t, &c, &rows, shrink, &(prefetch){keys, 0, last ? 0 : k_bytes});
        if (last) return;
        c = following;
    }
}

#endif
