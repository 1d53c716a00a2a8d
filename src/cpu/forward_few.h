/* SPDX-License-Identifier: Apache-2.0
 * Forward of few rows (decode), see forward_vector.h: packing would cost more than it saves. Dot products along D with keys
 * straight from the caller's memory, codes becoming floats in registers, up to 4 rows sharing each load; W sums are reduced
 * together. During QK' the step's V is prefetched, during PV the next step's K.
 * Bytes: K and V once, all heads of a group together. */
#ifndef ATTN_CPU_FORWARD_FEW_H
#define ATTN_CPU_FORWARD_FEW_H

#include "forward_step.h"

/* Rows of a step as the loops load them: in the caller's memory, or widened. Element d of row n is code d times
 * factor[n * factors + d / ATTN_BLOCK] where the type has blocks, times factor[n] where it has none but is no float type. */
typedef struct few_rows {
    int32_t type;
    int64_t factors; /* of a row */
    float *factor;   /* [rows][factors] */
    const char *row[STEP];
} few_rows;

/* W elements of a row, for a type that is a constant. */
VECTOR vf load_stored(int32_t type, const char *row, int64_t d, vf factor)
{
    vf x = vf_load_as(type, row, d);
    return is_float_type(type) ? x : vf_mul(factor, x);
}

/* Scores of `rows` rows against W / rows keys. */
ALWAYS_INLINE void few_scores_as(int32_t type, int rows, const float *q, int64_t d, const few_rows *keys, int key,
                                 float scale, float *s)
{
    const int count = W / rows, run = is_block_type(type) ? ATTN_BLOCK : W;
    const char *const *row = keys->row + key;
    const float *factor = keys->factor + key * keys->factors;
    vf sum[W];
#pragma GCC unroll 16
    for (int n = 0; n < W; n++) sum[n] = vf_zero();
#pragma GCC unroll 2
    for (int64_t at = 0; at < d; at += run) {
        vf f[W];
#pragma GCC unroll 16
        for (int j = 0; j < count; j++)
            f[j] = is_float_type(type) ? vf_zero() : vf_set1(factor[j * keys->factors + (run == W ? 0 : at / run)]);
#pragma GCC unroll 4
        for (int e = 0; e < run; e += W) {
            vf x[W];
#pragma GCC unroll 16
            for (int j = 0; j < count; j++) x[j] = load_stored(type, row[j], at + e, f[j]);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                vf y = vf_load(q + r * d + at + e);
#pragma GCC unroll 16
                for (int j = 0; j < count; j++) sum[r * count + j] = vf_fma(y, x[j], sum[r * count + j]);
            }
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

/* O of `rows` rows and `vectors` vectors of columns from d on. */
ALWAYS_INLINE void few_values_as(int32_t type, int rows, int vectors, const few_rows *values, int64_t d,
                                 const columns *c, const float *p, const float *shrink, float *o, int64_t o_stride,
                                 const prefetch *next)
{
    vf sum[SHARE][SHARE];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) sum[r][v] = vf_zero();
    for (int n = c->c0; n < c->c1; n++) {
        const float *factor = values->factor + n * values->factors;
        vf x[SHARE];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            const int64_t at = d + v * W, block = is_block_type(type) ? at / ATTN_BLOCK : 0;
            x[v] = load_stored(type, values->row[n], at, is_float_type(type) ? vf_zero() : vf_set1(factor[block]));
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            vf y = vf_set1(p[r * STEP + n]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) sum[r][v] = vf_fma(y, x[v], sum[r][v]);
        }
        prefetch_row(next, n);
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) {
            float *at = o + r * o_stride + d + v * W;
            vf_store(at, vf_fma(vf_load(at), vf_set1(shrink[r]), sum[r][v]));
        }
}

/* A few rows at a time: 4, then 2, then 1. */
static int share_of(int rows) { return rows >= 4 ? 4 : rows >= 2 ? 2 : 1; }

/* next: values of the same columns. */
ALWAYS_INLINE void few_scores_of(int32_t type, const attn_cpu_block *w, const scratch *t, const columns *c,
                                 const few_rows *keys, prefetch next)
{
    for (int r = 0, share; r < w->rows; r += share, next.to = 0) {
        const float *q = t->q + r * t->d;
        share = share_of(w->rows - r);
        int count = W / share;
        for (int n = c->a0; n < c->c1; n += count) {
            float *s = t->s + r * STEP + n;
            if (share == 4) few_scores_as(type, 4, q, t->d, keys, n, w->job->scale, s);
            else if (share == 2) few_scores_as(type, 2, q, t->d, keys, n, w->job->scale, s);
            else few_scores_as(type, 1, q, t->d, keys, n, w->job->scale, s);
            for (int j = n; j < n + count; j++) prefetch_row(&next, j);
        }
    }
}

/* Columns [d, d + width) of O, the rows' part of which decides what of the next keys is fetched meanwhile. */
ALWAYS_INLINE void few_values_at(int32_t type, int vectors, int64_t d, const attn_cpu_block *w, const scratch *t,
                                 const columns *c, const few_rows *values, const float *shrink, const prefetch *next)
{
    prefetch part = {next->rows, next->to * d / t->dv / 64 * 64, next->to * (d + vectors * W) / t->dv};
    for (int r = 0, share; r < w->rows; r += share, part.to = 0) {
        const float *p = t->s + r * STEP;
        float *o = t->o + r * t->dv;
        share = share_of(w->rows - r);
        if (share == 4) few_values_as(type, 4, vectors, values, d, c, p, shrink + r, o, t->dv, &part);
        else if (share == 2) few_values_as(type, 2, vectors, values, d, c, p, shrink + r, o, t->dv, &part);
        else few_values_as(type, 1, vectors, values, d, c, p, shrink + r, o, t->dv, &part);
    }
}

/* next: keys of the next step. */
ALWAYS_INLINE void few_values_of(int32_t type, const attn_cpu_block *w, const scratch *t, const columns *c,
                                 const few_rows *values, const float *shrink, const prefetch *next)
{
    const int64_t wide = W / 4 * W, whole = t->dv / wide * wide;
    for (int64_t d = 0; d < whole; d += wide) few_values_at(type, W / 4, d, w, t, c, values, shrink, next);
    for (int64_t d = whole; d < t->dv; d += W) few_values_at(type, 1, d, w, t, c, values, shrink, next);
}

static void few_scores(const attn_cpu_block *w, const scratch *t, const columns *c, const few_rows *keys, prefetch next)
{
    switch (keys->type) {
#define CASE(name) \
case ATTN_##name: few_scores_of(ATTN_##name, w, t, c, keys, next); break;
        EACH_STORAGE(CASE)
#undef CASE
    }
}

static void few_values(const attn_cpu_block *w, const scratch *t, const columns *c, const few_rows *values,
                       const float *shrink, const prefetch *next)
{
    switch (values->type) {
#define CASE(name) \
case ATTN_##name: few_values_of(ATTN_##name, w, t, c, values, shrink, next); break;
        EACH_STORAGE(CASE)
#undef CASE
    }
}

/* Where the rows of the columns [c0, c1) lie in the caller's memory. The others of [a0, a1) stand for a neighbour:
 * whole vectors of keys are computed, and no row may read what lies there. */
static void find_few(const attn_cpu_block *w, const attn_view *view, const columns *c, const char **rows)
{
    find_rows(w, view, c->key, c->c0, c->c1, rows);
    for (int j = c->a0; j < c->c0; j++) rows[j] = rows[c->c0];
    for (int j = c->c1; j < c->a1; j++) rows[j] = rows[c->c1 - 1];
}

/* The factors of the blocks of all rows, which begin with theirs in 16 bits. */
static void find_block_factors(const attn_view *view, int64_t n, const columns *c, few_rows *rows)
{
    const int64_t step = view->dtype == ATTN_Q8_0 ? ATTN_Q8_0_BYTES : ATTN_Q4_0_BYTES;
    uint16_t bits[FEW_STEP * ATTN_MAX_HEAD_DIM / ATTN_BLOCK], *at = bits;
    rows->factors = n / ATTN_BLOCK;
    for (int j = c->a0; j < c->a1; j++)
        for (int64_t b = 0; b < rows->factors; b++) *at++ = attn_load_u16(rows->row[j] + b * step);
    float *factor = rows->factor + c->a0 * rows->factors;
    for (int64_t b = 0; b < (c->a1 - c->a0) * rows->factors; b += W) vf_store(factor + b, vf_load_f16(bits + b));
}

static void find_row_factors(const attn_cpu_block *w, const attn_view *view, const columns *c, few_rows *rows)
{
    const float whole = view->dtype == ATTN_F8_E4M3 ? E4M3_UNIT : 1.0f;
    rows->factors = 1;
    for (int j = c->a0; j < c->a1; j++) {
        int64_t batch, row;
        attn_key_place(w->job, &w->seq, w->b, c->key + (j < c->c0 ? c->c0 : j < c->c1 ? j : c->c1 - 1), &batch, &row);
        rows->factor[j] = view->scale ? *attn_row_scale(view, batch, w->hkv, row) * whole : whole;
    }
}

/* E4M3 whose codes and factors give what vf_load_as gives: no NaN, and no factor that overflows. */
static int is_plain_e4m3(int64_t n, const columns *c, const few_rows *rows)
{
    uint64_t sums = 0; /* bit 7 of each byte: a code of 0x7f without its sign */
    int odd = 0;
    for (int j = c->a0; j < c->a1; j++) {
        const char *p = rows->row[j];
        for (int64_t d = 0; d < n / 8; d++) {
            uint64_t codes;
            memcpy(&codes, p + 8 * d, sizeof codes);
            sums |= (codes & 0x7f7f7f7f7f7f7f7fu) + 0x0101010101010101u;
        }
        odd |= !(fabsf(rows->factor[j]) < INFINITY);
    }
    return !odd && !(sums & 0x8080808080808080u);
}

/* The rows of a step, from where find_few found them; room [FEW_STEP][padded] for what is made of them. */
static void take_few(const attn_cpu_block *w, const attn_view *view, int64_t n, int64_t padded, const columns *c,
                     const char *const *found, float *room, few_rows *rows)
{
    rows->type = view->dtype;
    rows->factor = room;
    rows->factors = 0;
    int as_they_are = n % W == 0;
    if (as_they_are) {
        memcpy(rows->row + c->a0, found + c->a0, (size_t)(c->a1 - c->a0) * sizeof *found);
        if (is_block_type(view->dtype)) find_block_factors(view, n, c, rows);
        else if (!is_float_type(view->dtype)) find_row_factors(w, view, c, rows);
        as_they_are = view->dtype != ATTN_F8_E4M3 || is_plain_e4m3(n, c, rows);
    }
    if (as_they_are) return;
    rows->type = ATTN_F32;
    for (int j = c->c0; j < c->c1; j++) widen_key(w, view, c->key + j, n, room + j * padded);
    for (int j = c->a0; j < c->a1; j++)
        rows->row[j] = (const char *)(room + (j < c->c0 ? c->c0 : j < c->c1 ? j : c->c1 - 1) * padded);
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
        take_few(w, &job->k, job->head_dim, t->d, &c, keys, t->k, &rows);
        few_scores(w, t, &c, &rows, (prefetch){values, 0, v_bytes});
        softmax_rows(w, t, 0, w->rows, &c, shrink);

        columns following = last ? c : columns_of(w, 0, w->rows, c.key + FEW_STEP, FEW_STEP);
        if (!last) find_few(w, &job->k, &following, keys);
        take_few(w, &job->v, job->head_dim_v, t->dv, &c, values, t->v, &rows);
        few_values(w, t, &c, &rows, shrink, &(prefetch){keys, 0, last ? 0 : k_bytes});
        if (last) return;
        c = following;
    }
}

#endif
