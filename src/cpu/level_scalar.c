/* SPDX-License-Identifier: Apache-2.0
 * The scalar level: portable C, no intrinsics, the level that stays for good.
 *
 * Forward of one block (docs/semantics.md section 1): for each tile of k_cols keys
 *     S = scale Q K'  ->  softcap, bias, ALiBi, mask  ->  m' = max(m, rowmax S)
 *     P = exp(S - m'), l = l exp(m - m') + rowsum P, O = O exp(m - m') + (keep P) V
 * Tile: Q_ROWS query rows (all heads of the group interleaved) x K_COLS keys.
 * Scratch of a thread, float32: Q [Q_ROWS][D], S [Q_ROWS][K_COLS], K' [D][K_COLS] transposed and
 * V [K_COLS][Dv'], O [Q_ROWS][Dv'], one row, m and l; Dv' is Dv rounded up to 16 (zeros). 426 KB at the
 * largest sizes (576, 512).
 * Each sum over keys is formed per tile and then added, in key order, so that l and a constant V see the
 * same roundings.
 * -inf: a row whose scores are all -inf keeps m = -inf and exponents are taken against 0, so it adds exact
 * zeros.
 * NaN: a NaN score makes l, and so the row, NaN; max() alone would lose it. */
#include "level.h"
#include "rows.h"

enum { Q_ROWS = 32, K_COLS = 64, LANES = 16 };

typedef struct scratch {
    float *q, *s, *k, *v, *o, *row, *m, *l;
} scratch;

static float *take(float **next, int64_t floats)
{
    float *p = *next;
    *next += attn_round_up(floats, 16); /* 64 bytes */
    return p;
}

static scratch layout(const attn_job *job, float *base)
{
    int64_t d = job->head_dim, dv = attn_round_up(job->head_dim_v, LANES);
    float *next = base;
    scratch t;
    t.q = take(&next, Q_ROWS * d);
    t.s = take(&next, Q_ROWS * K_COLS);
    t.k = take(&next, d * K_COLS);
    t.v = take(&next, K_COLS * dv);
    t.o = take(&next, Q_ROWS * dv);
    t.row = take(&next, attn_max(d, dv));
    t.m = take(&next, Q_ROWS);
    t.l = take(&next, Q_ROWS);
    return t;
}

static int task_rows(const attn_job *job, size_t l2_bytes)
{
    (void)job;
    (void)l2_bytes;
    return Q_ROWS;
}

static size_t scratch_bytes(const attn_job *job, int rows)
{
    (void)rows;
    int64_t d = job->head_dim, dv = attn_round_up(job->head_dim_v, LANES);
    int64_t floats = Q_ROWS * K_COLS + (Q_ROWS + K_COLS) * (d + dv) + attn_round_up(attn_max(d, dv), 16) + 2 * Q_ROWS;
    return (size_t)attn_round_up(floats * (int64_t)sizeof(float), 64);
}

/* c[16] = sum over n of a[n] * b[n * stride + 0..15], each in order of n. A function of its own, with a row
 * pointer that steps, because gcc 12 then keeps the sixteen sums in vector registers; inlined it makes them
 * scalars. */
__attribute__((noinline)) static void dot16(const float *a, const float *b, int64_t stride, int64_t count,
                                            float c[LANES])
{
    float sum[LANES] = {0};
    for (int64_t n = 0; n < count; n++, b += stride) {
        float x = a[n];
        for (int e = 0; e < LANES; e++) sum[e] += x * b[e];
    }
    memcpy(c, sum, sizeof sum);
}

static void load_queries(const attn_cpu_block *w, const scratch *t)
{
    const attn_job *job = w->job;
    for (int r = 0; r < w->rows; r++) {
        int64_t i = attn_block_query(w, r), h = attn_block_head(w, r);
        attn_read_row(&job->q, w->seq.q_batch, h, w->seq.q_row + i, job->head_dim, t->q + r * job->head_dim);
    }
}

/* Keys [key, key + n) transposed, columns beyond n zero. */
static void load_keys(const attn_cpu_block *w, const scratch *t, int64_t key, int n)
{
    const attn_job *job = w->job;
    if (n < K_COLS) memset(t->k, 0, (size_t)(job->head_dim * K_COLS) * sizeof *t->k);
    for (int j = 0; j < n; j++) {
        int64_t batch, row;
        attn_key_place(job, &w->seq, w->b, key + j, &batch, &row);
        attn_read_row(&job->k, batch, w->hkv, row, job->head_dim, t->row);
        for (int64_t d = 0; d < job->head_dim; d++) t->k[d * K_COLS + j] = t->row[d];
    }
}

static void load_values(const attn_cpu_block *w, const scratch *t, int64_t dv, int64_t key, int n)
{
    const attn_job *job = w->job;
    for (int j = 0; j < n; j++) {
        int64_t batch, row;
        attn_key_place(job, &w->seq, w->b, key + j, &batch, &row);
        attn_read_row(&job->v, batch, w->hkv, row, job->head_dim_v, t->v + j * dv);
        for (int64_t d = job->head_dim_v; d < dv; d++) t->v[j * dv + d] = 0.0f;
    }
}

static void add_bias(const attn_job *job, int64_t b, int64_t h, int64_t i, int64_t key, int n, float *s)
{
    int64_t offset = attn_bias_offset(&job->bias, b, h, i, key), step = job->bias.stride[3];
    if (job->bias.dtype == ATTN_BOOL) {
        for (int j = 0; j < n; j++)
            if (!job->bias.data[offset + j * step]) s[j] = -INFINITY;
    } else {
        for (int j = 0; j < n; j++) s[j] += attn_load_float(&job->bias, offset + j * step);
    }
}

/* Scores of one row against the tile: everything of section 1 up to the mask. */
static void score_row(const attn_cpu_block *w, const scratch *t, int r, int64_t key, int n)
{
    const attn_job *job = w->job;
    int64_t i = attn_block_query(w, r), h = attn_block_head(w, r), first, end;
    float *s = t->s + r * K_COLS;
    for (int j = 0; j < n; j += LANES) dot16(t->q + r * job->head_dim, t->k + j, K_COLS, job->head_dim, s + j);
    for (int j = 0; j < n; j++) s[j] *= job->scale;
    if (job->softcap > 0.0f)
        for (int j = 0; j < n; j++) s[j] = job->softcap * tanhf(s[j] / job->softcap);
    if (job->bias.data) add_bias(job, w->b, h, i, key, n, s);
    if (job->alibi) {
        float slope = attn_alibi_slope(job, w->b, h);
        int64_t c = i + w->seq.diagonal;
        for (int j = 0; j < n; j++) s[j] -= slope * (float)(c > key + j ? c - key - j : key + j - c);
    }
    attn_visible(job, &w->seq, i, &first, &end);
    for (int j = 0; j < n; j++)
        if (key + j < first || key + j >= end) s[j] = -INFINITY;
}

/* S to P in place; updates m and l. Returns the factor by which what was summed so far shrinks. */
static float softmax_row(const scratch *t, int r, int n)
{
    float *s = t->s + r * K_COLS, m = t->m[r], sum = 0.0f;
    for (int j = 0; j < n; j++) m = s[j] > m ? s[j] : m;
    float base = m == -INFINITY ? 0.0f : m, shrink = expf(t->m[r] - base);
    for (int j = 0; j < n; j++) {
        s[j] = expf(s[j] - base);
        sum += s[j];
    }
    t->m[r] = m;
    t->l[r] = t->l[r] * shrink + sum;
    return shrink;
}

static void drop_row(const attn_cpu_block *w, const scratch *t, int r, int64_t key, int n)
{
    const attn_job *job = w->job;
    int64_t i = attn_block_query(w, r), h = attn_block_head(w, r);
    float *p = t->s + r * K_COLS;
    for (int j = 0; j < n; j++)
        p[j] = attn_dropout_keep(job, w->dropout_key, w->b, h, i, key + j) ? p[j] * job->keep_factor : 0.0f;
}

static void accumulate_row(const scratch *t, int64_t dv, int r, int n, float shrink)
{
    float *o = t->o + r * dv, part[LANES];
    for (int64_t d = 0; d < dv; d += LANES) {
        dot16(t->s + r * K_COLS, t->v + d, dv, n, part);
        for (int e = 0; e < LANES; e++) o[d + e] = o[d + e] * shrink + part[e];
    }
}

static void forward(const attn_cpu_block *w, void *memory, attn_cpu_state *state)
{
    const attn_job *job = w->job;
    scratch t = layout(job, memory);
    int64_t dv = attn_round_up(job->head_dim_v, LANES), first, end;
    *state = (attn_cpu_state){t.m, t.l, t.o, dv};
    for (int r = 0; r < w->rows; r++) {
        t.m[r] = -INFINITY;
        t.l[r] = 0.0f;
    }
    memset(t.o, 0, (size_t)(w->rows * dv) * sizeof *t.o);
    load_queries(w, &t);

    attn_block_band(w, &first, &end); /* only tiles with a visible key */
    for (int64_t key = first / K_COLS * K_COLS; key < end; key += K_COLS) {
        int64_t from = attn_max(key, first);
        int n = (int)(attn_min(key + K_COLS, end) - from);
        load_keys(w, &t, from, n);
        load_values(w, &t, dv, from, n);
        for (int r = 0; r < w->rows; r++) {
            score_row(w, &t, r, from, n);
            float shrink = softmax_row(&t, r, n);
            if (job->has_dropout) drop_row(w, &t, r, from, n);
            accumulate_row(&t, dv, r, n, shrink);
        }
    }
}

static void store_row(const attn_view *out, int64_t offset, int64_t n, const float *o, float factor, float divisor)
{
    for (int64_t d = 0; d < n; d++) attn_store_float(out, offset + d, o[d] * factor / divisor);
}

const attn_cpu_level attn_cpu_level_scalar = {
    .name = "scalar",
    .row_step = Q_ROWS,
    .key_step = K_COLS,
    .task_rows = task_rows,
    .scratch_bytes = scratch_bytes,
    .forward = forward,
    .store_row = store_row,
};
