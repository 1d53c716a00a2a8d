/* SPDX-License-Identifier: Apache-2.0
 * The forward kernel of the vector levels: one text, compiled once a level with its vectors (vector_NAME.h).
 *
 * Forward of one block (docs/semantics.md section 1), for each step of STEP keys:
 *     S = scale Q K'  ->  softcap, bias, ALiBi, mask  ->  m' = max(m, rowmax S)
 *     P = exp(S - m'), l = l exp(m - m') + rowsum P, O = O exp(m - m') + (keep P) V
 *
 * Many rows (forward_tiles). K and V of the step are packed once for all rows of the block: K into panels of W keys
 * [STEP/W][D][W], V into panels of W columns [Dv/W][STEP][W]; 16-bit and quantised types become float32 on the way.
 * The rows follow in strips of STRIP: QK', softmax, PV, so that S stays in the L1 or L2 cache. Both products are the
 * register tile of block_vector.h.
 * Steps begin at multiples of STEP in the sequence, panels at multiples of W, whatever the block's band is, so that a
 * sum's order is the same for every cut into blocks; what a panel holds of keys outside the band is zero.
 *
 * Few rows (forward_few; decode): packing would cost more than it saves. Dot products along D with keys straight from the
 * caller's memory, codes becoming floats in registers, up to 4 rows sharing each load; W sums are reduced together. During
 * QK' the step's V is prefetched, during PV the next step's K.
 *
 * Bytes, many rows of f32: a block of R rows reads Sk (D + Dv) 4 bytes of K and V and works 4 Sk R D flops: with R =
 * 1032, D = Dv = 128 516 flops a byte. Few rows: K and V once, all heads of a group together.
 * Scratch of a thread, float32: Q [rows][D], O [rows][Dv], K and V of a step, S [STRIP][STEP], one panel of rows; less
 * where a problem has fewer rows or keys.
 *
 * -inf: a row whose scores are all -inf keeps m = -inf and exponents are taken against 0, so it adds exact zeros.
 * NaN: a NaN score is passed over by the maximum but makes l, and so the row, NaN. */
#ifndef ATTN_CPU_FORWARD_VECTOR_H
#define ATTN_CPU_FORWARD_VECTOR_H

#include "block_vector.h"

enum {
    STEP = 128,            /* keys packed at a time */
    MOST_STEP = 256,       /* by any kernel of a level */
    STRIP = 4 * TILE_ROWS, /* rows between QK' and PV */
    ROW_STEP = 2 * TILE_ROWS < 24 ? 24 : 2 * TILE_ROWS,
    MOST_ROWS = 1024,
    FEW_STEP = 64, /* keys at a time then: f16, D = 128: K and V 16 KiB each */
    SHARE = 4,     /* rows that share a loaded key or value then */
    ROOM = (STRIP + W - 1) / W * W
};

typedef struct scratch {
    float *q;      /* many: [tile][D][TILE_ROWS]; few: [rows][D'] */
    float *s;      /* [STRIP][STEP] */
    float *k;      /* many: [STEP / W][D'][W]; few: factors, or widened rows [FEW_STEP][D'] */
    float *v;      /* many: [Dv' / W][STEP][W]; few: the same of V */
    float *o;      /* [rows][Dv'] */
    float *row;    /* [W][max(D', Dv')] */
    float *m, *l;  /* [rows] */
    int64_t d, dv; /* D' and Dv': D and Dv rounded up to W; zeros there */
} scratch;

/* rows: of the block, or the most. What a problem of fewer keys than a step or of few rows cannot reach is left out. */
static int64_t scratch_floats(const attn_job *job, int64_t rows, scratch *t, float *base)
{
    const int64_t d = attn_round_up(job->head_dim, W), dv = attn_round_up(job->head_dim_v, W);
    const int64_t most_keys = attn_span_most(&job->kv_span, job->max_k);
    const int64_t keys = attn_min(STEP, attn_round_up(attn_max(most_keys, 1), W));
    const bool few = attn_span_most(&job->q_span, job->max_q) * job->group <= FEW_ROWS; /* all blocks */
    const int64_t few_keys = attn_min(FEW_STEP, keys);
    const bool k_direct = is_direct(&job->k, job->head_dim), v_direct = is_direct(&job->v, job->head_dim_v);
    int64_t floats = 0;
    const int64_t size[8] = {few ? rows * d : attn_round_up(rows, TILE_ROWS) * d,
                             attn_min(rows, STRIP) * STEP,
                             !few       ? keys * d
                             : k_direct ? 0
                                        : few_keys * d,
                             !few       ? (dv - W) * STEP + keys * W
                             : v_direct ? 0
                                        : few_keys * dv,
                             rows * dv,
                             few ? 0 : W * attn_max(d, dv),
                             rows,
                             rows};
    float **part[8] = {&t->q, &t->s, &t->k, &t->v, &t->o, &t->row, &t->m, &t->l};
    for (int n = 0; n < 8; n++) {
        if (base) *part[n] = base + floats;
        floats += attn_round_up(size[n], 16); /* 64 bytes */
    }
    t->d = d;
    t->dv = dv;
    return floats;
}

static size_t scratch_bytes(const attn_job *job, int rows)
{
    scratch unused;
    return (size_t)scratch_floats(job, rows, &unused, NULL) * sizeof(float);
}

/* As many rows as have 1 MiB of Q and O, whatever the L2 cache holds: each step goes through them once, in order, so they may
 * come from L3, while K and V of the step stay in L2. The more rows, the less packing weighs. */
static int task_rows(const attn_job *job, size_t l2_bytes)
{
    (void)l2_bytes;
    const int64_t d = attn_round_up(job->head_dim, W) + attn_round_up(job->head_dim_v, W);
    return (int)attn_round_up(attn_min(MOST_ROWS, (1 << 20) / (int64_t)sizeof(float) / attn_max(d, 1)), ROW_STEP);
}

/* ---- S to P, the same for few and many rows -------------------------------------------------------- */

/* S of rows [r0, r0 + rows) to P in place; updates m and l. shrink: the factors by which sums so far shrink. */
static void softmax_rows(const attn_cpu_block *w, const scratch *t, int r0, int rows, const columns *c, float *shrink)
{
    float base[ROOM] = {0}, total[ROOM] = {0};
    const int finish = has_finish(w->job) || c->edge, from = c->a0, to = c->a1;
    for (int r = 0; r < rows; r++) {
        float *s = t->s + r * STEP;
        if (finish) finish_scores(w, r0 + r, c, s);
        vf m = vf_set1(t->m[r0 + r]), m1 = m; /* one alone would wait for itself */
        int n = from;
        for (; n + W < to; n += 2 * W) {
            m = vf_max(vf_load(s + n), m);
            m1 = vf_max(vf_load(s + n + W), m1);
        }
        if (n < to) m = vf_max(vf_load(s + n), m);
        base[r] = vf_largest(vf_max(m, m1));
    }
    for (int r = 0; r < rows; r++) {
        float m = base[r];
        base[r] = m == -INFINITY ? 0.0f : m;
        shrink[r] = t->m[r0 + r] - base[r];
        t->m[r0 + r] = m;
    }
    for (int r = 0; r < rows; r += W) vf_store(shrink + r, vf_exp(vf_load(shrink + r)));
    for (int r = 0; r < rows; r++) {
        float *s = t->s + r * STEP;
        vf b = vf_set1(base[r]), sum = vf_zero();
        for (int n = from; n < to; n += W) {
            vf p = vf_exp(vf_sub(vf_load(s + n), b));
            vf_store(s + n, p);
            sum = vf_add(sum, p);
        }
        total[r] = vf_total(sum);
    }
    for (int r = 0; r < rows; r++) t->l[r0 + r] = t->l[r0 + r] * shrink[r] + total[r];
    if (w->job->has_dropout)
        for (int r = 0; r < rows; r++) drop_row(w, r0 + r, c, t->s + r * STEP);
}

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
    a->keys = a->count = a->row = 0;
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

/* Q in tiles of tile_rows rows: element d of a tile's row r at [d][r]. */
static void pack_queries(const attn_cpu_block *w, const scratch *t, int tile_rows)
{
    for (int r = 0; r < w->rows; r++) {
        float *tile = t->q + (int64_t)(r / tile_rows) * TILE_ROWS * w->job->head_dim + r % tile_rows;
        widen_query(w, r, t->row);
        for (int64_t d = 0; d < w->job->head_dim; d++) tile[d * TILE_ROWS] = t->row[d];
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
            const float *q = t->q + (int64_t)((r0 + r) / tile_rows) * TILE_ROWS * w->job->head_dim;
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

/* ---- few rows -------------------------------------------------------------------------------------- */

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

/* Where the rows of the columns [c0, c1) lie in the caller's memory. The step's other columns stand for a neighbour:
 * whole vectors of keys are computed, and no row may read what lies there. */
static void find_few(const attn_cpu_block *w, const attn_view *view, const columns *c, const char **rows)
{
    find_rows(w, view, c->key, c->c0, c->c1, rows);
    for (int j = 0; j < c->c0; j++) rows[j] = rows[c->c0];
    for (int j = c->c1; j < FEW_STEP; j++) rows[j] = rows[c->c1 - 1];
}

/* The factors of the blocks of all rows, which begin with theirs in 16 bits. */
static void find_block_factors(const attn_view *view, int64_t n, few_rows *rows)
{
    const int64_t step = view->dtype == ATTN_Q8_0 ? ATTN_Q8_0_BYTES : ATTN_Q4_0_BYTES;
    uint16_t bits[FEW_STEP * ATTN_MAX_HEAD_DIM / ATTN_BLOCK], *at = bits;
    rows->factors = n / ATTN_BLOCK;
    for (int j = 0; j < FEW_STEP; j++)
        for (int64_t b = 0; b < rows->factors; b++) *at++ = attn_load_u16(rows->row[j] + b * step);
    for (int64_t b = 0; b < FEW_STEP * rows->factors; b += W) vf_store(rows->factor + b, vf_load_f16(bits + b));
}

static void find_row_factors(const attn_cpu_block *w, const attn_view *view, const columns *c, few_rows *rows)
{
    const float whole = view->dtype == ATTN_F8_E4M3 ? E4M3_UNIT : 1.0f;
    rows->factors = 1;
    for (int j = 0; j < FEW_STEP; j++) {
        int64_t batch, row;
        attn_key_place(w->job, &w->seq, w->b, c->key + (j < c->c0 ? c->c0 : j < c->c1 ? j : c->c1 - 1), &batch, &row);
        rows->factor[j] = view->scale ? *attn_row_scale(view, batch, w->hkv, row) * whole : whole;
    }
}

/* E4M3 whose codes and factors give what vf_load_as gives: no NaN, and no factor that overflows. */
static int is_plain_e4m3(int64_t n, const few_rows *rows)
{
    uint64_t sums = 0; /* bit 7 of each byte: a code of 0x7f without its sign */
    int odd = 0;
    for (int j = 0; j < FEW_STEP; j++) {
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
        memcpy(rows->row, found, FEW_STEP * sizeof *found);
        if (is_block_type(view->dtype)) find_block_factors(view, n, rows);
        else if (!is_float_type(view->dtype)) find_row_factors(w, view, c, rows);
        as_they_are = view->dtype != ATTN_F8_E4M3 || is_plain_e4m3(n, rows);
    }
    if (as_they_are) return;
    rows->type = ATTN_F32;
    for (int j = c->c0; j < c->c1; j++) widen_key(w, view, c->key + j, n, room + j * padded);
    for (int j = 0; j < FEW_STEP; j++)
        rows->row[j] = (const char *)(room + (j < c->c0 ? c->c0 : j < c->c1 ? j : c->c1 - 1) * padded);
}

static void forward_few(const attn_cpu_block *w, const scratch *t)
{
    const attn_job *job = w->job;
    const int64_t k_bytes = (int64_t)attn_dtype_bytes((attn_dtype)job->k.dtype, job->head_dim);
    const int64_t v_bytes = (int64_t)attn_dtype_bytes((attn_dtype)job->v.dtype, job->head_dim_v);
    const char *keys[FEW_STEP], *values[FEW_STEP];
    few_rows rows;
    for (int r = 0; r < w->rows; r++) widen_query(w, r, t->q + r * t->d);
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

static void forward(const attn_cpu_block *w, void *memory, attn_cpu_state *state)
{
    scratch t;
    scratch_floats(w->job, w->rows, &t, memory);
    *state = (attn_cpu_state){t.m, t.l, t.o, t.dv};
    for (int r = 0; r < w->rows; r++) {
        t.m[r] = -INFINITY;
        t.l[r] = 0.0f;
    }
    memset(t.o, 0, (size_t)(w->rows * t.dv) * sizeof *t.o);
    /* Which of the two must depend on the sequence only: they round differently. */
    if (w->seq.q_len * w->job->group <= FEW_ROWS) forward_few(w, &t);
    else forward_tiles(w, &t);
}

#endif
