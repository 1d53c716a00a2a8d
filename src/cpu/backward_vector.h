/* SPDX-License-Identifier: Apache-2.0
 * The backward kernel of the vector levels: one text, compiled once a level with its vectors (vector_NAME.h).
 *
 * Gradients of one tile, rows of a block against KEYS keys (docs/semantics.md section 7), Z being keep/(1 - p):
 *     S = scale Q K'  ->  softcap, bias, ALiBi, mask,  P = exp(S - LSE)         dP = dO V'
 *     dS = P (Z dP + dLSE - D), through the softcap
 *     dV += (Z P)' dO      dK += dS' Q      dQ += dS K
 * All five products are the register tile of block_vector.h. K' and V' are panels of W keys [KEYS/W][D][W], as in forward, so
 * that S has the forward's bits. K, Q and dO are panels of W columns [D/W][KEYS or ROWS][W], which serve twice: as b, and,
 * since a row's element stands W floats behind that of the row before, as a. P and dS lie as [ROWS][S_STRIDE]: as a of
 * dQ they are read along a row, as a of dV and dK (transposed) down a column, neighbouring keys being neighbours.
 * Rows go through S, dP, dS in strips of BACK_STRIP, each with the keys it sees alone; a tile of keys of dV and dK then takes
 * the strips that see it. The other products of the tile are 0.
 *
 * Few rows (the sequences that forward_few serves) go another way: backward_few.h.
 *
 * Bytes, f32: a tile reads its rows' Q and dO and adds to their dQ, 16 bytes a row and column, for 10 KEYS flops: at KEYS =
 * 96 60 flops a byte of the L3 cache. Scratch of a thread, float32: K', V', K, dK, dV of KEYS keys, Q, dO, S, dP of ROWS
 * rows: 0.5 MiB at D = 128.
 *
 * -inf: LSE = -inf is given as +inf, so that P of an empty row is 0; where P is 0 so is dS, whatever dP is.
 * NaN in Q, dO or LSE reaches the row's dQ and the keys of its tiles. */
#ifndef ATTN_CPU_BACKWARD_VECTOR_H
#define ATTN_CPU_BACKWARD_VECTOR_H

#include "backward_few.h"

enum {
    BACK_STRIP = 4 * TILE_ROWS,
    S_STRIDE = KEYS + (KEYS == 112 ? 32 : 16) /* an odd number of cache lines: columns spread over all sets */
};

typedef struct back_scratch {
    float *kt, *vt;     /* [KEYS / W][D'][W] */
    float *k;           /* [D' / W][KEYS][W] */
    float *dk, *dv;     /* [KEYS][D'] */
    float *q, *dout;    /* [D' / W][ROWS][W] */
    float *s, *dp;      /* [ROWS][S_STRIDE]: S, then Z P; dP, then dS */
    float *row;         /* [W][max(D', Dv')] */
    float *panel;       /* 2 [Dv'][W] */
    int64_t d, dv_size; /* D' and Dv': D and Dv rounded up to W; zeros there */
} back_scratch;

static int64_t back_floats(const attn_job *job, back_scratch *t, float *base)
{
    const int64_t d = attn_round_up(job->head_dim, W), dv = attn_round_up(job->head_dim_v, W);
    int64_t floats = 0;
    t->kt = place(base, &floats, KEYS * d);
    t->vt = place(base, &floats, KEYS * dv);
    t->k = place(base, &floats, KEYS * d);
    t->dk = place(base, &floats, KEYS * d);
    t->dv = place(base, &floats, KEYS * dv);
    t->q = place(base, &floats, ROWS * d);
    t->dout = place(base, &floats, ROWS * dv);
    t->s = place(base, &floats, ROWS * S_STRIDE);
    t->dp = place(base, &floats, ROWS * S_STRIDE);
    t->row = place(base, &floats, W * attn_max(d, dv));
    t->panel = place(base, &floats, 2 * W * dv);
    t->d = d;
    t->dv_size = dv;
    return floats;
}

static size_t back_scratch_bytes(const attn_job *job)
{
    back_scratch unused;
    back_few few;
    const int64_t floats = attn_max(back_floats(job, &unused, NULL), back_few_floats(job, &few, NULL));
    return (size_t)floats * sizeof(float);
}

/* ---- keys and rows in -------------------------------------------------------------------------- */

/* Keys [n, n + W) of the block, those beyond its end zeros, where packing can load them as *type. */
static void take_keys(const attn_cpu_block *w, const attn_view *view, int64_t size, int n, float *room, int32_t *type,
                      const char **rows)
{
    static const float zeros[ATTN_MAX_HEAD_DIM];
    const int there = (int)attn_max(0, attn_min(W, w->key_end - w->key - n));
    const int direct = is_direct(view, size);
    *type = direct ? view->dtype : ATTN_F32;
    if (direct && there) find_rows(w, view, w->key + n, 0, there, rows);
    for (int j = 0; j < W; j++) {
        if (j >= there) {
            rows[j] = (const char *)zeros;
        } else if (!direct) {
            float *x = room + j * attn_round_up(size, W);
            widen_key(w, view, w->key + n + j, size, x);
            rows[j] = (const char *)x;
        }
    }
}

static void load_keys(const attn_cpu_block *w, void *memory, attn_cpu_key_sums *sums)
{
    const attn_job *job = w->job;
    back_scratch t;
    if (has_few_rows(w)) {
        begin_few(w, memory, sums);
        return;
    }
    back_floats(job, &t, memory);
    for (int n = 0; n < KEYS; n += W) {
        const char *rows[W];
        int32_t type;
        take_keys(w, &job->k, job->head_dim, n, t.row, &type, rows);
        for (int j = 0; j < W; j++) pack_row(type, rows[j], t.d, KEYS, t.k + (n + j) * W);
        pack_transposed(type, rows, t.d, t.kt + n * t.d);
        take_keys(w, &job->v, job->head_dim_v, n, t.row, &type, rows);
        pack_transposed(type, rows, t.dv_size, t.vt + n * t.dv_size);
    }
    memset(t.dk, 0, (size_t)(KEYS * t.d) * sizeof *t.dk);
    memset(t.dv, 0, (size_t)(KEYS * t.dv_size) * sizeof *t.dv);
    *sums = (attn_cpu_key_sums){.dk = t.dk, .dv = t.dv, .dk_stride = t.d, .dv_stride = t.dv_size};
}

/* Row r of q, dout or out, where packing can load it as *type. */
static const char *take_row(const attn_cpu_block *w, const attn_view *view, int64_t size, int64_t r, float *room,
                            int32_t *type)
{
    const int64_t h = attn_block_head(w, r), row = w->seq.q_row + attn_block_query(w, r);
    const int direct = is_direct(view, size);
    *type = direct ? view->dtype : ATTN_F32;
    if (direct) return attn_element(view, attn_row_offset(view, w->seq.q_batch, h, row));
    widen_row(view, w->seq.q_batch, h, row, size, room);
    return (const char *)room;
}

static void load_rows(const attn_cpu_block *w, const back_scratch *t)
{
    const attn_job *job = w->job;
    int32_t type;
    for (int r = 0; r < w->rows; r++) {
        const char *row = take_row(w, &job->q, job->head_dim, r, t->row, &type);
        pack_row(type, row, t->d, ROWS, t->q + r * W);
        row = take_row(w, &job->dout, job->head_dim_v, r, t->row, &type);
        pack_row(type, row, t->dv_size, ROWS, t->dout + r * W);
    }
}

/* D of the block's rows, W at a time and in the order in which a tile sums dP: a row that sees one key has dP = D. */
static void deltas(const attn_cpu_block *w, void *memory, float *delta)
{
    const attn_job *job = w->job;
    const attn_view *const of[2] = {&job->dout, &job->out};
    back_scratch t;
    if (has_few_rows(w)) {
        few_deltas(w, memory, delta);
        return;
    }
    back_floats(job, &t, memory);
    for (int r0 = 0; r0 < w->rows; r0 += W) {
        float *const panel[2] = {t.panel, t.panel + W * t.dv_size};
        for (int n = 0; n < 2; n++) {
            const char *rows[W];
            int32_t type = ATTN_F32;
            for (int r = 0; r < W; r++)
                rows[r] =
                    take_row(w, of[n], job->head_dim_v, attn_min(r0 + r, w->rows - 1), t.row + r * t.dv_size, &type);
            pack_transposed(type, rows, t.dv_size, panel[n]);
        }
        vf sum = vf_zero();
        for (int64_t d = 0; d < t.dv_size; d++) sum = vf_fma(vf_load(panel[0] + d * W), vf_load(panel[1] + d * W), sum);
        float x[W];
        vf_store(x, sum);
        for (int r = 0; r < W && r0 + r < w->rows; r++) delta[r0 + r] = x[r];
    }
}

/* ---- products ---------------------------------------------------------------------------------- */

/* c[r][n] = factor sum over d of a[r][d] b[d][n]; a: panels of columns, b: one or two panels of keys, size deep. */
ALWAYS_INLINE void dot_tile(int rows, int vectors, int64_t size, const float *a, const float *b, float factor, float *c)
{
    vf sum[TILE_ROWS][2], f = vf_set1(factor);
    clear_sums(rows, vectors, sum);
    for (int64_t d = 0; d < size; d += W) add_product(rows, vectors, W, a + d * ROWS, W, 1, b + d * W, size * W, sum);
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) vf_store(c + r * S_STRIDE + v * W, vf_mul(sum[r][v], f));
}

/* c[r][n] += sum over k of a[r * a_row + k * a_step] b[k][n]; fresh: c held nothing. */
ALWAYS_INLINE void sum_tile(int rows, int vectors, int64_t depth, const float *a, int a_row, int a_step, const float *b,
                            int64_t b_panel, int fresh, float *c, int64_t c_stride)
{
    vf sum[TILE_ROWS][2];
    if (fresh) {
        clear_sums(rows, vectors, sum);
    } else {
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < vectors; v++) sum[r][v] = vf_load(c + r * c_stride + v * W);
    }
    add_product(rows, vectors, depth, a, a_row, a_step, b, b_panel, sum);
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) vf_store(c + r * c_stride + v * W, sum[r][v]);
}

/* Two panels of b, or one; key: rows of c are keys, a is P or dS transposed; query: a is dS. */
#define CASE(n)                                                                                                \
  static void dot_tile_##n(int64_t size, const float *a, const float *b, float factor, float *c)               \
  {                                                                                                            \
    dot_tile(n, 2, size, a, b, factor, c);                                                                     \
  }                                                                                                            \
  static void dot_half_##n(int64_t size, const float *a, const float *b, float factor, float *c)               \
  {                                                                                                            \
    dot_tile(n, 1, size, a, b, factor, c);                                                                     \
  }                                                                                                            \
  static void key_tile_##n(int64_t depth, const float *a, const float *b, int fresh, float *c, int64_t stride) \
  {                                                                                                            \
    sum_tile(n, 2, depth, a, 1, S_STRIDE, b, ROWS *W, fresh, c, stride);                                       \
  }                                                                                                            \
  static void key_half_##n(int64_t depth, const float *a, const float *b, int fresh, float *c, int64_t stride) \
  {                                                                                                            \
    sum_tile(n, 1, depth, a, 1, S_STRIDE, b, ROWS *W, fresh, c, stride);                                       \
  }                                                                                                            \
  static void row_tile_##n(int64_t depth, const float *a, const float *b, int fresh, float *c, int64_t stride) \
  {                                                                                                            \
    sum_tile(n, 2, depth, a, S_STRIDE, 1, b, KEYS *W, fresh, c, stride);                                       \
  }                                                                                                            \
  static void row_half_##n(int64_t depth, const float *a, const float *b, int fresh, float *c, int64_t stride) \
  {                                                                                                            \
    sum_tile(n, 1, depth, a, S_STRIDE, 1, b, KEYS *W, fresh, c, stride);                                       \
  }
EACH_TILE_ROWS(CASE)
#undef CASE

typedef void dot_function(int64_t size, const float *a, const float *b, float factor, float *c);
typedef void sum_function(int64_t depth, const float *a, const float *b, int fresh, float *c, int64_t stride);

static const struct back_functions {
    dot_function *dot[2]; /* one panel, two */
    sum_function *key[2], *row[2];
} back_tiles[TILE_ROWS + 1] = {
#define CASE(n) [n] = {{dot_half_##n, dot_tile_##n}, {key_half_##n, key_tile_##n}, {row_half_##n, row_tile_##n}},
    EACH_TILE_ROWS(CASE)
#undef CASE
};

/* Rows of the tiles that `rows` rows are cut into, as equal as may be. */
static int tile_of(int rows) { return (int)attn_ceil_div(rows, attn_ceil_div(rows, TILE_ROWS)); }

static void dot_strip(int r0, int rows, const columns *c, int64_t size, const float *a, const float *b, float factor,
                      float *out)
{
    const int each = tile_of(rows);
    for (int n = c->a0; n < c->a1; n += 2 * W)
        for (int r = r0; r < r0 + rows; r += each) {
            const int count = r0 + rows - r < each ? r0 + rows - r : each;
            back_tiles[count].dot[c->a1 - n > W](size, a + r * W, b + n * size, factor, out + r * S_STRIDE + n);
        }
}

/* ---- P and dS ---------------------------------------------------------------------------------- */

static void clear_columns(float *row, int from, int to)
{
    if (from < to) memset(row + from, 0, (size_t)(to - from) * sizeof *row);
}

static void tile_gradients(const attn_cpu_block *w, void *memory, const float *lse, const float *rest, float *raw)
{
    const attn_job *job = w->job;
    back_scratch t;
    if (has_few_rows(w)) {
        few_gradients(w, memory, lse, rest, raw);
        return;
    }
    back_floats(job, &t, memory);
    load_rows(w, &t);
    const columns all = columns_of(w, 0, w->rows, w->key, KEYS);
    if (raw) memset(raw, 0, (size_t)(w->rows * KEYS) * sizeof *raw);
    for (int r0 = 0; r0 < w->rows; r0 += BACK_STRIP) {
        const int rows = w->rows - r0 < BACK_STRIP ? w->rows - r0 : BACK_STRIP;
        columns c = columns_of(w, r0, rows, w->key, KEYS);
        if (c.c0 >= c.c1) c.a0 = c.a1 = all.a0;
        else dot_strip(r0, rows, &c, t.d, t.q, t.kt, job->scale, t.s);
        dot_strip(r0, rows, &c, t.dv_size, t.dout, t.vt, 1.0f, t.dp);
        for (int r = r0; r < r0 + rows; r++) {
            float *s = t.s + r * S_STRIDE, *dp = t.dp + r * S_STRIDE;
            row_gradients(w, r, &c, s, dp, lse[r], rest[r], raw ? raw + r * KEYS : NULL);
            clear_columns(s, all.a0, c.a0);
            clear_columns(s, c.a1, all.a1);
            clear_columns(dp, all.a0, c.a0);
            clear_columns(dp, c.a1, all.a1);
        }
    }
}

/* ---- sums -------------------------------------------------------------------------------------- */

/* Rows [*from, *to) of the block: the strips that see one of the keys [key, key + keys). */
static void rows_of_keys(const columns *strips, int count, int rows, int key, int keys, int *from, int *to)
{
    int first = 0, end = count;
    while (first < count && strips[first].c1 <= key) first++;
    while (end > first && strips[end - 1].c0 >= key + keys) end--;
    *from = first * BACK_STRIP;
    *to = end * BACK_STRIP < rows ? end * BACK_STRIP : rows;
}

static void add_keys(const attn_cpu_block *w, void *memory)
{
    enum { STRIPS = (ROWS + BACK_STRIP - 1) / BACK_STRIP };
    const attn_job *job = w->job;
    back_scratch t;
    columns strips[STRIPS];
    int count = 0;
    if (has_few_rows(w)) {
        few_sums(w, memory);
        return;
    }
    back_floats(job, &t, memory);
    for (int r0 = 0; r0 < w->rows; r0 += BACK_STRIP, count++)
        strips[count] = columns_of(w, r0, w->rows - r0 < BACK_STRIP ? w->rows - r0 : BACK_STRIP, w->key, KEYS);
    const columns all = columns_of(w, 0, w->rows, w->key, KEYS);
    const int each = tile_of(all.c1 - all.c0);
    for (int key = all.c0; key < all.c1; key += each) {
        const int keys = all.c1 - key < each ? all.c1 - key : each;
        const struct back_functions *f = &back_tiles[keys];
        int from, to;
        rows_of_keys(strips, count, w->rows, key, keys, &from, &to);
        if (from >= to) continue;
        for (int64_t d = 0; d < t.dv_size && job->dv.data; d += 2 * W)
            f->key[t.dv_size - d > W](to - from, t.s + from * S_STRIDE + key, t.dout + d * ROWS + from * W, 0,
                                      t.dv + key * t.dv_size + d, t.dv_size);
        for (int64_t d = 0; d < t.d && job->dk.data; d += 2 * W)
            f->key[t.d - d > W](to - from, t.dp + from * S_STRIDE + key, t.q + d * ROWS + from * W, 0,
                                t.dk + key * t.d + d, t.d);
    }
}

static void add_queries(const attn_cpu_block *w, void *memory, int fresh, float *dq, int64_t stride)
{
    back_scratch t;
    if (has_few_rows(w)) {
        few_queries(w, memory, fresh, dq, stride);
        return;
    }
    back_floats(w->job, &t, memory);
    for (int r0 = 0; r0 < w->rows; r0 += BACK_STRIP) {
        const int rows = w->rows - r0 < BACK_STRIP ? w->rows - r0 : BACK_STRIP, each = tile_of(rows);
        const columns c = columns_of(w, r0, rows, w->key, KEYS);
        if (c.c0 >= c.c1 && !fresh) continue;
        for (int64_t d = 0; d < t.d; d += 2 * W)
            for (int r = r0; r < r0 + rows; r += each) {
                const int count = r0 + rows - r < each ? r0 + rows - r : each;
                back_tiles[count].row[t.d - d > W](c.c1 - c.c0, t.dp + r * S_STRIDE + c.c0, t.k + d * KEYS + c.c0 * W,
                                                   fresh, dq + r * stride + d, stride);
            }
    }
}

/* The level's table; its name is the file's. */
#define VECTOR_LEVEL(level, features)             \
  const attn_cpu_level attn_cpu_level_##level = { \
      .name = #level,                             \
      .needs = features,                          \
      .row_step = ROW_STEP,                       \
      .key_step = STEP,                           \
      .task_rows = task_rows,                     \
      .scratch_bytes = scratch_bytes,             \
      .forward = forward,                         \
      .store_row = store_row,                     \
      .back_rows = ROWS,                          \
      .back_keys = KEYS,                          \
      .few_rows = FEW_ROWS,                       \
      .few_keys = STEP_KEYS,                      \
      .back_scratch_bytes = back_scratch_bytes,   \
      .deltas = deltas,                           \
      .load_keys = load_keys,                     \
      .tile_gradients = tile_gradients,           \
      .add_keys = add_keys,                       \
      .add_queries = add_queries,                 \
  }

#endif
