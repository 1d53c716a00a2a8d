/* SPDX-License-Identifier: Apache-2.0
 * The backward kernel of the levels that multiply bf16, where Q, K, V, O and dO are bf16 and the sequence has more rows than
 * forward_few takes; all else is backward_vector.h's, as are formula, tiles and order.
 *
 * S and dP are products of left rows with K and V as right columns, to float32; P and dS are made there by row_gradients and
 * rounded to bf16 as left operands: dS along a row for dQ, Z P and dS turned round for dV and dK, pairs of rows at a time. dO and Q
 * serve as right operands of these, rows woven, K as that of dQ. Sums of gradients are float32, as everywhere.
 * D is taken from the diagonal of the product dO O', so that a row that sees one key has dP = D.
 *
 * Bytes: as backward_vector.h, operands half as wide. Scratch of a thread: 0.6 MiB at D = 128.
 * -inf and NaN: as in backward_vector.h. What of dO, and of products with it, is below 2^-126 counts as 0. */
#ifndef ATTN_CPU_BACKWARD_BF16_H
#define ATTN_CPU_BACKWARD_BF16_H

#include "backward_vector.h"
#include "forward_bf16.h"

enum { SLAB_ROWS = SLAB }; /* rows of a strip: one slab of what is turned round */

typedef struct back_scratch16 {
    uint16_t *kt, *vt;             /* panels of KEYS keys, D' and Dv' deep */
    uint16_t *k;                   /* panels of D'' columns, KEYS deep */
    uint16_t *q, *dout;            /* slabs of D' and Dv', ROWS rows */
    uint16_t *qw, *doutw;          /* panels of D'' and Dv'' columns, ROWS deep */
    uint16_t *pt, *dst;            /* Z P and dS turned round: slabs of ROWS, KEYS rows */
    uint16_t *ds;                  /* slabs of KEYS, ROWS rows */
    float *dk, *dv;                /* [KEYS][D''], [KEYS][Dv''] */
    float *s, *dp;                 /* [ROWS][S_STRIDE] */
    int64_t d, dv_depth;           /* D' and Dv': rounded up to a slab */
    int64_t d_columns, dv_columns; /* D'' and Dv'': rounded up to a panel */
} back_scratch16;

static int64_t back16_bytes(const attn_job *job, back_scratch16 *t, char *base)
{
    t->d = whole_slabs(job->head_dim);
    t->dv_depth = whole_slabs(job->head_dim_v);
    t->d_columns = attn_round_up(job->head_dim, W);
    t->dv_columns = attn_round_up(job->head_dim_v, W);
    const scratch_part parts[] = {{&t->kt, 2 * KEYS * t->d},
                                  {&t->vt, 2 * KEYS * t->dv_depth},
                                  {&t->k, 2 * KEYS * t->d_columns},
                                  {&t->q, 2 * ROWS * t->d},
                                  {&t->dout, 2 * ROWS * t->dv_depth},
                                  {&t->qw, 2 * ROWS * t->d_columns},
                                  {&t->doutw, 2 * ROWS * t->dv_columns},
                                  {&t->pt, 2 * ROWS * KEYS},
                                  {&t->dst, 2 * ROWS * KEYS},
                                  {&t->ds, 2 * ROWS * KEYS},
                                  {&t->dk, 4 * KEYS * t->d_columns},
                                  {&t->dv, 4 * KEYS * t->dv_columns},
                                  {&t->s, 4 * ROWS * S_STRIDE},
                                  {&t->dp, 4 * ROWS * S_STRIDE}};
    return place_parts(parts, sizeof parts / sizeof *parts, base);
}

static int is_back16(const attn_job *job)
{
    return attn_job_is_bf16(job) && job->out.dtype == ATTN_BF16 && job->dout.dtype == ATTN_BF16;
}

static int takes_back16(const attn_cpu_block *w) { return is_back16(w->job) && !has_few_rows(w); }

static size_t any_back_scratch_bytes(const attn_job *job)
{
    back_scratch16 unused;
    const size_t vectors = back_scratch_bytes(job), bytes = (size_t)back16_bytes(job, &unused, NULL);
    return is_back16(job) && bytes > vectors ? bytes : vectors;
}

/* ---- D --------------------------------------------------------------------------------------------- */

static void any_deltas(const attn_cpu_block *w, void *memory, float *delta)
{
    const attn_job *job = w->job;
    back_scratch16 t;
    if (!takes_back16(w)) {
        deltas(w, memory, delta);
        return;
    }
    back16_bytes(job, &t, memory);
    product_begin();
    for (int r0 = 0; r0 < w->rows; r0 += W) {
        const void *out[W];
        for (int r = 0; r < W; r++) {
            const int there = r0 + r < w->rows;
            put_left(there ? row_of(w, &job->dout, r0 + r) : NULL, job->head_dim_v, ROWS, t.dout + r * SLAB);
            out[r] = there ? row_of(w, &job->out, r0 + r) : zero_row;
        }
        put_right_columns(out, job->head_dim_v, t.vt);
        product(W, W, t.dv_depth / SLAB, t.dout, ROWS * SLAB, t.vt, W * t.dv_depth, 0, t.s, S_STRIDE, NULL);
        for (int r = 0; r < W && r0 + r < w->rows; r++) delta[r0 + r] = t.s[r * S_STRIDE + r];
    }
    product_end();
}

/* ---- keys and rows in ------------------------------------------------------------------------------ */

static void load_keys16(const attn_cpu_block *w, const back_scratch16 *t)
{
    const attn_job *job = w->job;
    const int there = (int)(w->key_end - w->key);
    const char *keys[KEYS], *values[KEYS];
    find_rows(w, &job->k, w->key, 0, there, keys);
    find_rows(w, &job->v, w->key, 0, there, values);
    for (int n = there; n < KEYS; n++) keys[n] = values[n] = (const char *)zero_row;
    for (int n = 0; n < KEYS; n += W) {
        const void *of[W];
        for (int j = 0; j < W; j++) of[j] = keys[n + j];
        put_right_columns(of, job->head_dim, t->kt + n * t->d);
        for (int j = 0; j < W; j++) of[j] = values[n + j];
        put_right_columns(of, job->head_dim_v, t->vt + n * t->dv_depth);
    }
    for (int n = 0; n < KEYS; n += 2) put_right_rows(keys[n], keys[n + 1], job->head_dim, KEYS, t->k + n * W);
    memset(t->dk, 0, (size_t)(KEYS * t->d_columns) * sizeof *t->dk);
    memset(t->dv, 0, (size_t)(KEYS * t->dv_columns) * sizeof *t->dv);
}

static void any_load_keys(const attn_cpu_block *w, void *memory, attn_cpu_key_sums *sums)
{
    back_scratch16 t;
    if (!takes_back16(w)) {
        load_keys(w, memory, sums);
        return;
    }
    back16_bytes(w->job, &t, memory);
    load_keys16(w, &t);
    *sums = (attn_cpu_key_sums){.dk = t.dk, .dv = t.dv, .dk_stride = t.d_columns, .dv_stride = t.dv_columns};
}

/* Zeros behind the last row, up to a whole strip. */
static void load_rows16(const attn_cpu_block *w, const back_scratch16 *t)
{
    const attn_job *job = w->job;
    const int whole = (w->rows + SLAB_ROWS - 1) / SLAB_ROWS * SLAB_ROWS;
    for (int r = 0; r < whole; r += 2) {
        const void *q[2] = {zero_row, zero_row}, *dout[2] = {zero_row, zero_row};
        for (int n = 0; n < 2; n++) {
            if (r + n < w->rows) {
                q[n] = row_of(w, &job->q, r + n);
                dout[n] = row_of(w, &job->dout, r + n);
            }
            put_left(q[n], job->head_dim, ROWS, t->q + (r + n) * SLAB);
            put_left(dout[n], job->head_dim_v, ROWS, t->dout + (r + n) * SLAB);
        }
        put_right_rows(q[0], q[1], job->head_dim, ROWS, t->qw + r * W);
        put_right_rows(dout[0], dout[1], job->head_dim_v, ROWS, t->doutw + r * W);
    }
}

/* ---- P and dS ---------------------------------------------------------------------------------------- */

static columns strip_columns(const attn_cpu_block *w, int r0)
{
    return slab_columns(w, r0, attn_min(w->rows - r0, SLAB_ROWS), w->key, KEYS);
}

/* Columns [from, to) of 32 rows of x, turned round and rounded: rows of a left operand. */
static void turn_strip(const float *x, int from, int to, uint16_t *slab)
{
    const __m512i weave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (int n = from; n < to; n += W) {
        vf two[W];
#pragma GCC unroll 16
        for (int r = 0; r < W; r++) {
            const float *at = x + 2 * r * S_STRIDE + n;
            two[r] =
                _mm512_castsi512_ps(_mm512_permutexvar_epi16(weave, round_two(vf_load(at), vf_load(at + S_STRIDE))));
        }
        vf_transpose(two);
#pragma GCC unroll 16
        for (int j = 0; j < W; j++) _mm512_storeu_ps(slab + (n + j) * SLAB, two[j]);
    }
}

static void tile_gradients16(const attn_cpu_block *w, const back_scratch16 *t, const float *lse, const float *rest,
                             float *raw)
{
    const attn_job *job = w->job;
    load_rows16(w, t);
    const columns all = slab_columns(w, 0, w->rows, w->key, KEYS);
    if (raw) memset(raw, 0, (size_t)(w->rows * KEYS) * sizeof *raw);
    product_begin();
    for (int r0 = 0; r0 < w->rows; r0 += SLAB_ROWS) {
        columns c = strip_columns(w, r0);
        if (c.c0 >= c.c1) c.a0 = c.a1 = all.a0;
        float *s = t->s + r0 * S_STRIDE, *dp = t->dp + r0 * S_STRIDE;
        product(SLAB_ROWS, c.a1 - c.a0, t->d / SLAB, t->q + r0 * SLAB, ROWS * SLAB, t->kt + c.a0 * t->d, W * t->d, 0,
                s + c.a0, S_STRIDE, NULL);
        product(SLAB_ROWS, c.a1 - c.a0, t->dv_depth / SLAB, t->dout + r0 * SLAB, ROWS * SLAB,
                t->vt + c.a0 * t->dv_depth, W * t->dv_depth, 0, dp + c.a0, S_STRIDE, NULL);
        for (int r = 0; r < SLAB_ROWS; r++, s += S_STRIDE, dp += S_STRIDE) {
            if (r0 + r >= w->rows) {
                clear_columns(s, all.a0, all.a1);
                clear_columns(dp, all.a0, all.a1);
                continue;
            }
            for (int n = c.a0; n < c.a1; n += W) vf_store(s + n, vf_mul(vf_load(s + n), vf_set1(job->scale)));
            row_gradients(w, r0 + r, &c, s, dp, lse[r0 + r], rest[r0 + r], raw ? raw + (r0 + r) * KEYS : NULL);
            clear_columns(s, all.a0, c.a0);
            clear_columns(s, c.a1, all.a1);
            clear_columns(dp, all.a0, c.a0);
            clear_columns(dp, c.a1, all.a1);
            for (int n = c.a0; n < c.a1; n += SLAB)
                _mm512_storeu_si512(t->ds + n * ROWS + (r0 + r) * SLAB,
                                    round_two(vf_load(dp + n), vf_load(dp + n + W)));
        }
        turn_strip(t->s + r0 * S_STRIDE, all.a0, all.a1, t->pt + r0 * KEYS);
        turn_strip(t->dp + r0 * S_STRIDE, all.a0, all.a1, t->dst + r0 * KEYS);
    }
    product_end();
}

static void any_tile_gradients(const attn_cpu_block *w, void *memory, const float *lse, const float *rest, float *raw)
{
    back_scratch16 t;
    if (!takes_back16(w)) {
        tile_gradients(w, memory, lse, rest, raw);
        return;
    }
    back16_bytes(w->job, &t, memory);
    tile_gradients16(w, &t, lse, rest, raw);
}

/* ---- sums ---------------------------------------------------------------------------------------------- */

/* Slabs [*from, *to) of rows that see one of 32 keys. */
static void slabs_of_keys(const columns *strips, int count, int key, int *from, int *to)
{
    int first = 0, end = count;
    while (first < count && strips[first].c1 <= key) first++;
    while (end > first && strips[end - 1].c0 >= key + SLAB) end--;
    *from = first;
    *to = end;
}

static void any_add_keys(const attn_cpu_block *w, void *memory)
{
    const attn_job *job = w->job;
    back_scratch16 t;
    columns strips[ROWS / SLAB_ROWS];
    int count = 0;
    if (!takes_back16(w)) {
        add_keys(w, memory);
        return;
    }
    back16_bytes(job, &t, memory);
    for (int r0 = 0; r0 < w->rows; r0 += SLAB_ROWS) strips[count++] = strip_columns(w, r0);
    const columns all = slab_columns(w, 0, w->rows, w->key, KEYS);
    product_begin();
    for (int key = all.a0; key < all.a1; key += SLAB) {
        int from, to;
        slabs_of_keys(strips, count, key, &from, &to);
        if (from >= to) continue;
        const int64_t left = from * SLAB * KEYS + key * SLAB, right = from * SLAB * W;
        if (job->dv.data)
            product(SLAB, t.dv_columns, to - from, t.pt + left, KEYS * SLAB, t.doutw + right, ROWS * W, 1,
                    t.dv + key * t.dv_columns, t.dv_columns, NULL);
        if (job->dk.data)
            product(SLAB, t.d_columns, to - from, t.dst + left, KEYS * SLAB, t.qw + right, ROWS * W, 1,
                    t.dk + key * t.d_columns, t.d_columns, NULL);
    }
    product_end();
}

static void any_add_queries(const attn_cpu_block *w, void *memory, int fresh, float *dq, int64_t stride)
{
    back_scratch16 t;
    if (!takes_back16(w)) {
        add_queries(w, memory, fresh, dq, stride);
        return;
    }
    back16_bytes(w->job, &t, memory);
    product_begin();
    for (int r0 = 0; r0 < w->rows; r0 += SLAB_ROWS) {
        const columns c = strip_columns(w, r0);
        const int sees = c.c0 < c.c1;
        if (!sees && !fresh) continue;
        product((int)attn_min(w->rows - r0, SLAB_ROWS), t.d_columns, sees ? (c.a1 - c.a0) / SLAB : 0,
                t.ds + c.a0 * ROWS + r0 * SLAB, ROWS * SLAB, t.k + c.a0 * W, KEYS * W, !fresh, dq + r0 * stride, stride,
                NULL);
    }
    product_end();
}

/* The level's table; its name is the file's. */
#define BF16_LEVEL(level, features, wanted)         \
  const attn_cpu_level attn_cpu_level_##level = {   \
      .name = #level,                               \
      .needs = features,                            \
      .wants = wanted,                              \
      .multiplies_bf16 = true,                      \
      .row_step = ROW_STEP16,                       \
      .key_step = STEP16,                           \
      .task_rows = any_task_rows,                   \
      .scratch_bytes = any_scratch_bytes,           \
      .forward = any_forward,                       \
      .store_row = store_row,                       \
      .back_rows = ROWS,                            \
      .back_keys = KEYS,                            \
      .few_rows = FEW_ROWS,                         \
      .few_keys = STEP_KEYS,                        \
      .back_scratch_bytes = any_back_scratch_bytes, \
      .deltas = any_deltas,                         \
      .load_keys = any_load_keys,                   \
      .tile_gradients = any_tile_gradients,         \
      .add_keys = any_add_keys,                     \
      .add_queries = any_add_queries,               \
  }

#endif
