/* SPDX-License-Identifier: Apache-2.0
 * Backward of few rows, those that forward_few serves (the formulas are in backward_vector.h): all rows are one block, so a
 * key's gradients are complete at once, and nothing is packed.
 *     S and dP: forward_few's dot products, S with the forward's bits; quantised V is widened, so that dP is summed as D is
 *     dQ = dS K: forward_few's sums of values, over all tiles of a step in scratch
 *     dV = (Z P)' dO, dK = dS' Q: registers, then the caller's rows, past the caches where these would not hold them
 * Meanwhile K and V of the next tile are fetched, so that memory reads and writes at once.
 * Bytes: K and V read and their gradients written once, 5 multiply-adds for each row and element of K. */
#ifndef ATTN_CPU_BACKWARD_FEW_H
#define ATTN_CPU_BACKWARD_FEW_H

#include "backward_step.h"

enum {
    FEW_KEYS = W / 4,    /* whose gradients are summed at a time */
    PAST_CACHE = 1 << 24 /* bytes of dK or dV */
};

typedef struct back_few {
    float *q, *dout;    /* [FEW_ROWS][D'] */
    float *s, *dp;      /* [FEW_ROWS][STEP]: S, then Z P; dP, then dS */
    float *dq;          /* [FEW_ROWS][D'] */
    float *dk, *dv;     /* [FEW_KEYS + 1][D']: of as many keys, and what is added to */
    float *k, *v;       /* what take_few makes of FEW_STEP keys; v: or a row */
    int64_t d, dv_size; /* D' and Dv': D and Dv rounded up to W; zeros there */
} back_few;

static int64_t back_few_floats(const attn_job *job, back_few *t, float *base)
{
    const int64_t d = attn_round_up(job->head_dim, W), dv = attn_round_up(job->head_dim_v, W);
    int64_t floats = 0;
    t->q = place(base, &floats, FEW_ROWS * d);
    t->dout = place(base, &floats, FEW_ROWS * dv);
    t->s = place(base, &floats, FEW_ROWS * STEP);
    t->dp = place(base, &floats, FEW_ROWS * STEP);
    t->dq = place(base, &floats, FEW_ROWS * d);
    t->dk = place(base, &floats, (FEW_KEYS + 1) * d);
    t->dv = place(base, &floats, (FEW_KEYS + 1) * dv);
    t->k = place(base, &floats, few_floats(&job->k, job->head_dim, FEW_STEP));
    t->v = place(base, &floats, attn_max(dv, few_floats(&job->v, job->head_dim_v, FEW_STEP)));
    t->d = d;
    t->dv_size = dv;
    return floats;
}

/* Row r of q, dout or out. */
static void widen_block_row(const attn_cpu_block *w, const attn_view *view, int64_t n, int r, float *x)
{
    widen_row(view, w->seq.q_batch, attn_block_head(w, r), w->seq.q_row + attn_block_query(w, r), n, x);
}

/* D in the order in which few_scores sums dP of floats: a row that sees one key has dP = D. */
static void few_deltas(const attn_cpu_block *w, void *memory, float *delta)
{
    const attn_job *job = w->job;
    back_few t;
    back_few_floats(job, &t, memory);
    for (int r0 = 0; r0 < w->rows; r0 += W) {
        const int rows = w->rows - r0 < W ? w->rows - r0 : W;
        vf sum[W];
        float x[W];
        for (int r = 0; r < W; r++) sum[r] = vf_zero();
        for (int r = 0; r < rows; r++) {
            widen_block_row(w, &job->dout, job->head_dim_v, r0 + r, t.dout);
            widen_block_row(w, &job->out, job->head_dim_v, r0 + r, t.v);
            for (int64_t d = 0; d < t.dv_size; d += W) sum[r] = vf_fma(vf_load(t.dout + d), vf_load(t.v + d), sum[r]);
        }
        vf_store(x, vf_totals(sum));
        memcpy(delta + r0, x, (size_t)rows * sizeof *x);
    }
}

static void begin_few(const attn_cpu_block *w, void *memory, attn_cpu_key_sums *sums)
{
    back_few t;
    back_few_floats(w->job, &t, memory);
    memset(t.dq, 0, (size_t)(FEW_ROWS * t.d) * sizeof *t.dq);
    *sums = (attn_cpu_key_sums){0};
}

/* P and dS of a tile, in steps of FEW_STEP keys. */
static void few_gradients(const attn_cpu_block *w, void *memory, const float *lse, const float *rest, float *raw)
{
    const attn_job *job = w->job;
    const int64_t v_bytes = (int64_t)attn_dtype_bytes((attn_dtype)job->v.dtype, job->head_dim_v);
    const char *keys[FEW_STEP], *values[FEW_STEP];
    few_rows rows;
    back_few t;
    back_few_floats(job, &t, memory);
    if (raw) memset(raw, 0, (size_t)(w->rows * KEYS) * sizeof *raw);
    for (int r = 0; r < w->rows; r++) {
        widen_block_row(w, &job->q, job->head_dim, r, t.q + r * t.d);
        widen_block_row(w, &job->dout, job->head_dim_v, r, t.dout + r * t.dv_size);
    }
    for (int n = 0; n < KEYS; n += FEW_STEP) {
        const columns c = columns_of(w, 0, w->rows, w->key + n, FEW_STEP);
        if (c.c0 >= c.c1) continue;
        const scratch scores = {.q = t.q, .s = t.s + n, .d = t.d};
        const scratch products = {.q = t.dout, .s = t.dp + n, .d = t.dv_size};
        find_few(w, &job->k, &c, keys);
        find_few(w, &job->v, &c, values);
        take_few(w, &job->k, job->head_dim, t.d, 1, &c, keys, t.k, &rows);
        few_scores(w, &scores, &c, &rows, job->scale, (prefetch){values, 0, v_bytes});
        if (is_float_type(job->v.dtype)) take_few(w, &job->v, job->head_dim_v, t.dv_size, 1, &c, values, t.v, &rows);
        else widen_few(w, &job->v, job->head_dim_v, t.dv_size, &c, t.v, &rows);
        few_scores(w, &products, &c, &rows, 1.0f, (prefetch){values, 0, 0});
        for (int r = 0; r < w->rows; r++)
            row_gradients(w, r, &c, scores.s + r * STEP, products.s + r * STEP, lse[r], rest[r],
                          raw ? raw + r * KEYS + n : NULL);
    }
}

/* W elements of a row of dK or dV, of a type and a way that are constants. */
VECTOR void put_vector(int32_t type, int past, char *row, int64_t d, vf x)
{
    float *at = (float *)(void *)row + d;
    if (type == ATTN_F32 && past) vf_stream(at, x);
    else if (type == ATTN_F32) vf_store(at, x);
    else if (past) vh_stream(row + 2 * d, type == ATTN_F16 ? vf_to_f16(x) : vf_to_bf16(x));
    else vh_store(row + 2 * d, type == ATTN_F16 ? vf_to_f16(x) : vf_to_bf16(x));
}

/* out[j] = factor times the sum over rows r of p[r][j] x[r], for FEW_KEYS keys j and `vectors` vectors of columns from d on. */
ALWAYS_INLINE void sum_keys(int32_t type, int past, int vectors, int rows, const float *p, const float *x, int64_t size,
                            int64_t d, float factor, char *const *out)
{
    const vf f = vf_set1(factor);
    vf sum[FEW_KEYS][SHARE];
#pragma GCC unroll 4
    for (int j = 0; j < FEW_KEYS; j++)
        for (int v = 0; v < vectors; v++) sum[j][v] = vf_zero();
    for (int r = 0; r < rows; r++) {
        vf a[SHARE];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) a[v] = vf_load(x + r * size + d + v * W);
#pragma GCC unroll 4
        for (int j = 0; j < FEW_KEYS; j++) {
            vf y = vf_set1(p[r * STEP + j]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++) sum[j][v] = vf_fma(y, a[v], sum[j][v]);
        }
    }
#pragma GCC unroll 4
    for (int j = 0; j < FEW_KEYS; j++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) /* + 0 as in store_row */
            put_vector(type, past, out[j], d + v * W, vf_add(vf_mul(sum[j][v], f), vf_zero()));
}

ALWAYS_INLINE void sum_keys_of(int32_t type, int past, int rows, const float *p, const float *x, int64_t size,
                               float factor, char *const *out)
{
    const int64_t wide = SHARE * W, whole = size / wide * wide;
    for (int64_t d = 0; d < whole; d += wide) sum_keys(type, past, SHARE, rows, p, x, size, d, factor, out);
    for (int64_t d = whole; d < size; d += W) sum_keys(type, past, 1, rows, p, x, size, d, factor, out);
}

/* dK or dV of FEW_KEYS keys. */
static void put_keys(int32_t type, int past, int rows, const float *p, const float *x, int64_t size, float factor,
                     char *const *out)
{
    switch (2 * type + past) {
#define CASE(name)                                                                       \
case 2 * ATTN_##name: sum_keys_of(ATTN_##name, 0, rows, p, x, size, factor, out); break; \
case 2 * ATTN_##name + 1: sum_keys_of(ATTN_##name, 1, rows, p, x, size, factor, out); break;
        CASE(F32) CASE(F16) CASE(BF16)
#undef CASE
    }
}

/* Row of dK or dV by way of n sums: tails of vectors, and what is added to. */
static void write_key(const attn_cpu_block *w, const attn_view *t, int64_t row, int64_t n, float *x, float factor,
                      float *room)
{
    if (w->job->accumulate) {
        widen_row(t, w->seq.k_batch, w->hkv, row, n, room);
        for (int64_t d = 0; d < n; d += W)
            vf_store(x + d, vf_add(vf_mul(vf_load(x + d), vf_set1(factor)), vf_load(room + d)));
        factor = 1.0f;
    }
    store_row(t, attn_row_offset(t, w->seq.k_batch, w->hkv, row), n, x, factor, 1.0f);
}

/* Gradients of all keys are so many bytes that no cache would have them until they are used: then they go past it, where rows are
 * whole lines. */
static int goes_past_cache(const attn_job *job, const attn_view *t, int64_t n)
{
    const int64_t bytes = (int64_t)attn_dtype_bytes((attn_dtype)t->dtype, 1),
                  all = job->batch * job->heads_kv * job->max_k;
    if (all * n * bytes < PAST_CACHE || (uintptr_t)t->data % 64) return 0;
    for (int k = 0; k < 3; k++)
        if (t->stride[k] * bytes % 64) return 0;
    return 1;
}

/* dK or dV of the keys of columns c. p: [rows][STEP]. Meanwhile rows of `next` are fetched, as many a key as reach its end. */
static void write_sums(const attn_cpu_block *w, const attn_view *t, int64_t n, float factor, const columns *c,
                       const float *p, const float *x, int64_t size, float *room, const prefetch *next, int next_rows)
{
    const int direct = !w->job->accumulate && is_direct(t, n), past = direct && goes_past_cache(w->job, t, n);
    const int32_t type = direct ? t->dtype : ATTN_F32;
    const int64_t row = w->seq.k_row + c->key;
    int fetched = 0;
    for (int j = c->a0; j < c->a1; j += FEW_KEYS) {
        char *out[FEW_KEYS];
        for (int e = 0; e < FEW_KEYS; e++) {
            const int there = direct && j + e >= c->c0 && j + e < c->c1;
            out[e] = there ? attn_element(t, attn_row_offset(t, w->seq.k_batch, w->hkv, row + j + e))
                           : (char *)(room + e * size);
        }
        put_keys(type, past, w->rows, p + j, x, size, direct ? factor : 1.0f, out);
        for (int e = 0; e < FEW_KEYS && !direct; e++)
            if (j + e >= c->c0 && j + e < c->c1)
                write_key(w, t, row + j + e, n, room + e * size, factor, room + FEW_KEYS * size);
        for (; fetched < (j + FEW_KEYS - c->a0) * next_rows / (c->a1 - c->a0); fetched++) prefetch_row(next, fetched);
    }
    if (past) _mm_sfence();
}

/* dK and dV of the keys that the rows see, and the tile's dQ. */
static void few_sums(const attn_cpu_block *w, void *memory)
{
    const attn_job *job = w->job;
    const int64_t k_bytes = (int64_t)attn_dtype_bytes((attn_dtype)job->k.dtype, job->head_dim);
    const int64_t v_bytes = (int64_t)attn_dtype_bytes((attn_dtype)job->v.dtype, job->head_dim_v);
    const char *keys[FEW_STEP], *values[FEW_STEP];
    attn_cpu_block step = *w; /* who takes the keys behind it is not known */
    float ones[FEW_ROWS];
    few_rows rows;
    back_few t;
    back_few_floats(job, &t, memory);
    step.key_end = attn_min(w->seq.k_len, (w->key / STEP_KEYS + 1) * STEP_KEYS);
    for (int r = 0; r < FEW_ROWS; r++) ones[r] = 1.0f;
    for (int n = 0; n < KEYS; n += FEW_STEP) {
        const columns c = columns_of(w, 0, w->rows, w->key + n, FEW_STEP);
        if (c.c0 >= c.c1) continue;
        const columns next = columns_of(&step, 0, w->rows, w->key_end + n, FEW_STEP);
        const int next_rows = next.c1 > next.c0 ? next.c1 : 0;
        if (next_rows) {
            find_few(w, &job->k, &next, keys);
            find_few(w, &job->v, &next, values);
        }
        if (job->dv.data)
            write_sums(w, &job->dv, job->head_dim_v, 1.0f, &c, t.s + n, t.dout, t.dv_size, t.dv,
                       &(prefetch){values, 0, v_bytes}, next_rows);
        if (job->dk.data)
            write_sums(w, &job->dk, job->head_dim, job->scale, &c, t.dp + n, t.q, t.d, t.dk,
                       &(prefetch){keys, 0, k_bytes}, next_rows);
        if (job->dq.data) { /* last: dS is changed */
            const scratch sums = {.s = t.dp + n, .o = t.dq, .dv = t.d};
            find_few(w, &job->k, &c, keys);
            take_few(w, &job->k, job->head_dim, t.d, 0, &c, keys, t.k, &rows);
            few_values(w, &sums, &c, &rows, ones, &(prefetch){keys, 0, 0});
        }
    }
}

static void few_queries(const attn_cpu_block *w, void *memory, int fresh, float *dq, int64_t stride)
{
    back_few t;
    back_few_floats(w->job, &t, memory);
    for (int r = 0; r < w->rows; r++)
        for (int64_t d = 0; d < t.d; d += W) {
            vf x = vf_load(t.dq + r * t.d + d);
            vf_store(dq + r * stride + d, fresh ? x : vf_add(vf_load(dq + r * stride + d), x));
        }
}

#endif
