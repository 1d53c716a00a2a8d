/* SPDX-License-Identifier: Apache-2.0
 * Forward of many rows, see forward_vector.h. K and V of the step are packed once for all rows of the block: K into panels
 * of W keys [STEP/W][D][W], V into panels of W columns [Dv/W][STEP][W]; 16-bit and quantised types become float32 on the way.
 * The rows follow in strips of STRIP: QK', softmax, PV, so that S stays in the L1 or L2 cache. Both products are the
 * register tile of block_vector.h.
 * Steps begin at multiples of STEP in the sequence, panels at multiples of W, whatever the block's band is, so that a
 * sum's order is the same for every cut into blocks; what a panel holds of keys outside the band is zero.
 * Bytes, f32: a block of R rows reads Sk (D + Dv) 4 bytes of K and V and works 4 Sk R D flops: with R = 1032, D = Dv = 128
 * 516 flops a byte. */
#ifndef ATTN_CPU_FORWARD_TILES_H
#define ATTN_CPU_FORWARD_TILES_H

#include "forward_step.h"

/* ---- many rows: packing -------------------------------------------------------------------------- */

/* Panels of K for the columns [a0, a1); columns outside [c0, c1) are zero. */
static void pack_keys(const attn_cpu_block *w, const scratch *t, const columns *c)
{
    static const float zeros[ATTN_MAX_HEAD_DIM];
    const attn_view *k = &w->job->k;
    const int direct = is_direct(k, w->job->head_dim);
    const char *rows[STEP];
    if (direct) find_rows(w, k, c->key, c->c0, c->c1, rows);
    for (int n = c->a0; n < c->a1; n += W) {
        for (int j = 0; j < W; j++) {
            if (n + j < c->c0 || n + j >= c->c1) {
                rows[n + j] = (const char *)zeros;
            } else if (!direct) {
                widen_key(w, k, c->key + n + j, w->job->head_dim, t->row + j * t->d);
                rows[n + j] = (const char *)(t->row + j * t->d);
            }
        }
        pack_transposed(direct ? k->dtype : ATTN_F32, rows + n, t->d, t->k + n * t->d);
    }
}

/* Rows [from, to) to their places in the panels of V, a few panels at a time: the same row of all panels is a whole number
 * of pages apart, more lines of one set than the L1 cache has. */
ALWAYS_INLINE void pack_rows_as(int32_t type, const char *const *rows, int from, int to, int64_t dv, float *panels)
{
    for (int64_t d = 0; d < dv; d += 4 * W)
        for (int n = from; n < to; n++)
            for (int64_t e = d; e < d + 4 * W && e < dv; e += W)
                vf_store(panels + e * STEP + n * W, vf_load_as(type, rows[n], e));
}

static void pack_rows(int32_t type, const char *const *rows, int from, int to, int64_t dv, float *panels)
{
    if (type == ATTN_F32) pack_rows_as(ATTN_F32, rows, from, to, dv, panels);
    else if (type == ATTN_F16) pack_rows_as(ATTN_F16, rows, from, to, dv, panels);
    else pack_rows_as(ATTN_BF16, rows, from, to, dv, panels);
}

/* Panels of V for the columns [c0, c1). */
static void pack_values(const attn_cpu_block *w, const scratch *t, const columns *c)
{
    const attn_view *v = &w->job->v;
    const char *rows[STEP];
    if (is_direct(v, w->job->head_dim_v)) {
        find_rows(w, v, c->key, c->c0, c->c1, rows);
        pack_rows(v->dtype, rows, c->c0, c->c1, t->dv, t->v);
        return;
    }
    for (int n = c->c0; n < c->c1; n += W) {
        const int end = c->c1 - n < W ? c->c1 : n + W;
        for (int j = n; j < end; j++) {
            float *row = t->row + (j - n) * t->dv;
            widen_key(w, v, c->key + j, w->job->head_dim_v, row);
            rows[j] = (const char *)row;
        }
        pack_rows(ATTN_F32, rows, n, end, t->dv, t->v);
    }
}

/* The rows of the next step, fetched into the L2 cache a few lines at a time between this step's tiles: a burst would
 * only move the wait. */
typedef struct ahead {
    const char *rows[2 * MOST_STEP]; /* of K, then of V */
    int64_t bytes[2];                /* of a row of K, of V */
    int keys, count;                 /* rows of K; all rows */
    int lines;                       /* to be fetched a tile */
    int row;                         /* the next line: in this row, */
    int64_t at;                      /* from this byte on */
} ahead;

static int ahead_rows(const attn_cpu_block *w, const attn_view *view, int64_t n, const columns *c, const char **rows,
                      int64_t *bytes)
{
    if (!is_direct(view, n)) return 0; /* widening takes longer than reading */
    find_rows(w, view, c->key + c->c0, 0, c->c1 - c->c0, rows);
    *bytes = (int64_t)attn_dtype_bytes((attn_dtype)view->dtype, n);
    return c->c1 - c->c0;
}

static void plan_ahead(const attn_cpu_block *w, int64_t key, int64_t end, int step, int64_t step_tiles, ahead *a)
{
    const attn_job *job = w->job;
    a->keys = a->count = a->lines = a->row = 0;
    a->bytes[0] = a->bytes[1] = a->at = 0;
    if (key >= end) return;
    columns c = columns_of(w, 0, w->rows, key, step);
    a->keys = ahead_rows(w, &job->k, job->head_dim, &c, a->rows, &a->bytes[0]);
    a->count = a->keys + ahead_rows(w, &job->v, job->head_dim_v, &c, a->rows + a->keys, &a->bytes[1]);
    a->lines = (int)((a->bytes[0] + a->bytes[1]) / 64 * step / step_tiles + 1);
}

static void fetch_ahead(ahead *a)
{
    for (int n = 0; n < a->lines && a->row < a->count; n++) {
        prefetch_to_l2(a->rows[a->row] + a->at);
        a->at += 64;
        if (a->at < a->bytes[a->row >= a->keys]) continue;
        a->at = 0;
        a->row++;
    }
}

static void pack_tile(int32_t type, const char *const *rows, int64_t d, float *tile)
{
    if (type == ATTN_F32) pack_transposed_as(ATTN_F32, rows, d, TILE_ROWS, tile);
    else if (type == ATTN_F16) pack_transposed_as(ATTN_F16, rows, d, TILE_ROWS, tile);
    else pack_transposed_as(ATTN_BF16, rows, d, TILE_ROWS, tile);
}

/* Q in tiles of tile_rows rows: element d of a tile's row r at [d][r]. Behind a tile is what is written later: the next
 * tile, or S. */
static void pack_queries(const attn_cpu_block *w, const scratch *t, int tile_rows)
{
    const attn_view *q = &w->job->q;
    const int direct = is_direct(q, w->job->head_dim);
    int64_t i = attn_block_query(w, 0), h = attn_block_head(w, 0);
    float *tile = t->q;
    for (int r0 = 0; r0 < w->rows; r0 += tile_rows, tile += TILE_ROWS * t->d) {
        const char *rows[W];
        for (int r = 0; r < W; r++) {
            if (r >= tile_rows || r0 + r >= w->rows) {
                rows[r] = rows[0];
                continue;
            }
            if (direct) {
                rows[r] = attn_element(q, attn_row_offset(q, w->seq.q_batch, h, w->seq.q_row + i));
            } else {
                widen_row(q, w->seq.q_batch, h, w->seq.q_row + i, w->job->head_dim, t->row + r * t->d);
                rows[r] = (const char *)(t->row + r * t->d);
            }
            attn_block_next(w, &i, &h);
        }
        pack_tile(direct ? q->dtype : ATTN_F32, rows, t->d, tile);
    }
}

/* ---- many rows: products ------------------------------------------------------------------------- */

ALWAYS_INLINE void score_tile(int rows, int vectors, int64_t d, const float *q, const float *k, int64_t panel,
                              float scale, float *s)
{
    vf sum[TILE_ROWS][2], f = vf_set1(scale);
    clear_sums(rows, vectors, sum);
    add_product(rows, vectors, d, q, 1, TILE_ROWS, k, panel, sum);
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) vf_store(s + r * STEP + v * W, vf_mul(sum[r][v], f));
}

ALWAYS_INLINE void value_tile(int rows, int vectors, int64_t keys, const float *p, const float *v, const float *shrink,
                              float *o, int64_t o_stride)
{
    vf sum[TILE_ROWS][2];
    clear_sums(rows, vectors, sum);
    add_product(rows, vectors, keys, p, STEP, 1, v, STEP * W, sum);
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
        for (int n = 0; n < vectors; n++) {
            float *at = o + r * o_stride + n * W;
            vf_store(at, vf_fma(vf_load(at), vf_set1(shrink[r]), sum[r][n]));
        }
}

/* One function a size, not one with a switch inside the loops: the sizes change between calls only. */
#define CASE(n)                                                                                               \
  static void score_tile_##n(int64_t d, const float *q, const float *k, int64_t panel, float scale, float *s) \
  {                                                                                                           \
    score_tile(n, 2, d, q, k, panel, scale, s);                                                               \
  }                                                                                                           \
  static void score_half_##n(int64_t d, const float *q, const float *k, int64_t panel, float scale, float *s) \
  {                                                                                                           \
    score_tile(n, 1, d, q, k, panel, scale, s);                                                               \
  }                                                                                                           \
  static void value_tile_##n(int64_t keys, const float *p, const float *v, const float *shrink, float *o,     \
                             int64_t o_stride)                                                                \
  {                                                                                                           \
    value_tile(n, 2, keys, p, v, shrink, o, o_stride);                                                        \
  }                                                                                                           \
  static void value_half_##n(int64_t keys, const float *p, const float *v, const float *shrink, float *o,     \
                             int64_t o_stride)                                                                \
  {                                                                                                           \
    value_tile(n, 1, keys, p, v, shrink, o, o_stride);                                                        \
  }
EACH_TILE_ROWS(CASE)
#undef CASE

typedef void score_function(int64_t d, const float *q, const float *k, int64_t panel, float scale, float *s);
typedef void value_function(int64_t keys, const float *p, const float *v, const float *shrink, float *o,
                            int64_t o_stride);

static const struct tile_functions {
    score_function *score, *score_half; /* two panels, one */
    value_function *value, *value_half;
} tiles[TILE_ROWS + 1] = {
#define CASE(n) [n] = {score_tile_##n, score_half_##n, value_tile_##n, value_half_##n},
    EACH_TILE_ROWS(CASE)
#undef CASE
};

static void score_strip(const attn_cpu_block *w, const scratch *t, int r0, int rows, int tile_rows, const columns *c,
                        ahead *next)
{
    const int64_t panel = t->d * W;
    for (int n = c->a0; n < c->a1; n += 2 * W)
        for (int r = 0; r < rows; r += tile_rows) {
            const struct tile_functions *f = &tiles[rows - r < tile_rows ? rows - r : tile_rows];
            const float *q = t->q + (int64_t)((r0 + r) / tile_rows) * TILE_ROWS * t->d;
            score_function *score = c->a1 - n > W ? f->score : f->score_half;
            score(w->job->head_dim, q, t->k + n / W * panel, panel, w->job->scale, t->s + r * STEP + n);
            fetch_ahead(next);
        }
}

static void value_strip(const scratch *t, int r0, int rows, int tile_rows, const columns *c, const float *shrink,
                        ahead *next)
{
    for (int64_t d = 0; d < t->dv; d += 2 * W)
        for (int r = 0; r < rows; r += tile_rows) {
            const struct tile_functions *f = &tiles[rows - r < tile_rows ? rows - r : tile_rows];
            value_function *value = t->dv - d > W ? f->value : f->value_half;
            value(c->c1 - c->c0, t->s + r * STEP + c->c0, t->v + d * STEP + c->c0 * W, shrink + r,
                  t->o + (r0 + r) * t->dv + d, t->dv);
            fetch_ahead(next);
        }
}

/* The strip that begins at row r, and its columns: four tiles, or one where its rows see less than the others'. */
static columns strip_of(const attn_cpu_block *w, int r, int tile_rows, int64_t key, int *rows)
{
    const int tile = w->rows - r < tile_rows ? w->rows - r : tile_rows;
    *rows = w->rows - r < 4 * tile_rows ? w->rows - r : 4 * tile_rows;
    const columns c = columns_of(w, r, *rows, key, STEP), one = columns_of(w, r, tile, key, STEP);
    if (c.c0 == one.c0 && c.c1 == one.c1) return c;
    *rows = tile;
    return one;
}

static void forward_tiles(const attn_cpu_block *w, const scratch *t)
{
    int tile_rows = (int)attn_ceil_div(w->rows, attn_ceil_div(w->rows, TILE_ROWS));
    pack_queries(w, t, tile_rows);
    int64_t first, end;
    attn_block_band(w, &first, &end);
    if (first >= end) return; /* a step would be packed that scratch may have no room for */
    const int64_t step_tiles = attn_ceil_div(w->rows, tile_rows) * (STEP / (2 * W) + attn_ceil_div(t->dv, 2 * W));
    ahead next;
    for (int64_t key = first / STEP * STEP; key < end; key += STEP) {
        columns all = columns_of(w, 0, w->rows, key, STEP);
        pack_keys(w, t, &all);
        pack_values(w, t, &all);
        plan_ahead(w, key + STEP, end, STEP, step_tiles, &next);
        for (int r = 0, rows; r < w->rows; r += rows) {
            float shrink[ROOM];
            columns c = strip_of(w, r, tile_rows, key, &rows);
            if (c.c0 >= c.c1) continue;
            score_strip(w, t, r, rows, tile_rows, &c, &next);
            softmax_rows(w, t, r, rows, &c, shrink);
            value_strip(t, r, rows, tile_rows, &c, shrink, &next);
        }
    }
}

#endif
