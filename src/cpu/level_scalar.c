/* SPDX-License-Identifier: Apache-2.0
 * The scalar level: portable C, no intrinsics, the level that stays for good.
 *
 * Forward of one block (docs/semantics.md section 1): for each tile of k_cols keys
 *     S = scale Q K'  ->  softcap, bias, ALiBi, mask  ->  m' = max(m, rowmax S)
 *     P = exp(S - m'), l = l exp(m - m') + rowsum P, O = O exp(m - m') + (keep P) V
 * Tile: Q_ROWS query rows (all heads of the group interleaved) x K_COLS keys.
 * Scratch of a thread, float32: Q [rows][D], S [rows][K_COLS], K' [D][K_COLS] transposed and
 * V [K_COLS][Dv'], O [rows][Dv'], one row, m and l; Dv' is Dv rounded up to 16 (zeros). 426 KB at the
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

/* Floats; fills *t unless base is NULL. rows: of the block, or the most. */
static int64_t layout(const attn_job *job, int64_t rows, float *base, scratch *t)
{
    const int64_t d = job->head_dim, dv = attn_round_up(job->head_dim_v, LANES);
    const int64_t keys = attn_min(K_COLS, attn_span_most(&job->kv_span, job->max_k));
    const int64_t size[8] = {rows * d, rows * K_COLS, d * K_COLS, keys * dv, rows * dv, attn_max(d, dv), rows, rows};
    float **part[8] = {&t->q, &t->s, &t->k, &t->v, &t->o, &t->row, &t->m, &t->l};
    int64_t floats = 0;
    for (int n = 0; n < 8; n++) {
        if (base) *part[n] = base + floats;
        floats += attn_round_up(size[n], 16); /* 64 bytes */
    }
    return floats;
}

static int task_rows(const attn_job *job, size_t l2_bytes)
{
    (void)job;
    (void)l2_bytes;
    return Q_ROWS;
}

static size_t scratch_bytes(const attn_job *job, int rows)
{
    scratch unused;
    return (size_t)layout(job, rows, NULL, &unused) * sizeof(float);
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

/* Scores q.k scale of one row against n keys from `key` on: everything of section 1 from there to the mask. */
static void finish_scores(const attn_cpu_block *w, int r, int64_t key, int n, float *s)
{
    const attn_job *job = w->job;
    int64_t i = attn_block_query(w, r), h = attn_block_head(w, r), first, end;
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

static void score_row(const attn_cpu_block *w, const scratch *t, int r, int64_t key, int n)
{
    const attn_job *job = w->job;
    float *s = t->s + r * K_COLS;
    for (int j = 0; j < n; j += LANES) dot16(t->q + r * job->head_dim, t->k + j, K_COLS, job->head_dim, s + j);
    for (int j = 0; j < n; j++) s[j] *= job->scale;
    finish_scores(w, r, key, n, s);
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
    scratch t;
    layout(job, w->rows, memory, &t);
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

/* ---- backward ---------------------------------------------------------------------------------
 * One tile of Q_ROWS rows against K_COLS keys (docs/semantics.md section 7), Z being keep/(1 - p):
 *     S = scale Q K' as in forward, P = exp(S - LSE)           dP = dO V'
 *     dS = P (Z dP + dLSE - D), through the softcap
 *     dV += (Z P)' dO      dK += dS' Q      dQ += dS K
 * All products are dot16 again: P and dS are kept transposed too, [K_COLS][Q_ROWS], for dV and dK. Scratch of a thread:
 * K', V' and K [K_COLS], Q and dO [Q_ROWS], dK, dV, five tiles; 1.2 MB at the largest sizes.
 * -inf: LSE = -inf is given as +inf, so that P of an empty row is 0; where P is 0 so is dS. NaN in Q, dO or LSE reaches the
 * row's dQ and the keys of its tiles. */

typedef struct back_scratch {
    float *kt, *vt;    /* [D][K_COLS], [Dv][K_COLS] */
    float *k;          /* [K_COLS][D'] */
    float *q, *dout;   /* [Q_ROWS][D'], [Q_ROWS][Dv'] */
    float *dk, *dv;    /* [K_COLS][D'], [K_COLS][Dv'] */
    float *s, *ds;     /* [Q_ROWS][K_COLS]: S, then Z P; dP, then dS */
    float *p_t, *ds_t; /* their transposes */
    float *row;
    int64_t d, dv_size; /* D' and Dv': rounded up to LANES; zeros there */
} back_scratch;

static float *take(float **next, int64_t floats)
{
    float *p = *next;
    *next += attn_round_up(floats, 16); /* 64 bytes */
    return p;
}

static int64_t back_layout(const attn_job *job, float *base, back_scratch *t)
{
    const int64_t d = attn_round_up(job->head_dim, LANES), dv = attn_round_up(job->head_dim_v, LANES);
    float *next = base;
    t->d = d;
    t->dv_size = dv;
    t->kt = take(&next, d * K_COLS);
    t->vt = take(&next, dv * K_COLS);
    t->k = take(&next, K_COLS * d);
    t->q = take(&next, Q_ROWS * d);
    t->dout = take(&next, Q_ROWS * dv);
    t->dk = take(&next, K_COLS * d);
    t->dv = take(&next, K_COLS * dv);
    t->s = take(&next, Q_ROWS * K_COLS);
    t->ds = take(&next, Q_ROWS * K_COLS);
    t->p_t = take(&next, Q_ROWS * K_COLS);
    t->ds_t = take(&next, Q_ROWS * K_COLS);
    t->row = take(&next, attn_max(d, dv));
    return next - base;
}

static size_t back_scratch_bytes(const attn_job *job)
{
    const int64_t d = attn_round_up(job->head_dim, LANES), dv = attn_round_up(job->head_dim_v, LANES);
    const int64_t floats = K_COLS * (3 * d + 2 * dv) + Q_ROWS * (d + dv) + 4 * Q_ROWS * K_COLS + attn_max(d, dv);
    return (size_t)floats * sizeof(float);
}

/* Row r of a tensor of the queries, zeros behind its n elements up to whole lanes. */
static void read_query(const attn_cpu_block *w, const attn_view *view, int r, int64_t n, float *x)
{
    attn_read_row(view, w->seq.q_batch, attn_block_head(w, r), w->seq.q_row + attn_block_query(w, r), n, x);
    for (int64_t d = n; d < attn_round_up(n, LANES); d++) x[d] = 0.0f;
}

/* In the order in which dot16 sums dP: a row that sees one key has dP = D. */
static void deltas(const attn_cpu_block *w, void *memory, float *delta)
{
    const int64_t n = w->job->head_dim_v;
    back_scratch t;
    back_layout(w->job, memory, &t);
    for (int r = 0; r < w->rows; r++) {
        float sum = 0.0f;
        read_query(w, &w->job->dout, r, n, t.dout);
        read_query(w, &w->job->out, r, n, t.row);
        for (int64_t d = 0; d < n; d++) sum += t.dout[d] * t.row[d];
        delta[r] = sum;
    }
}

/* Keys of the block as rows [n][size'] where `rows` is not NULL, and transposed [size][K_COLS]. */
static void transpose_keys(const attn_cpu_block *w, const back_scratch *t, const attn_view *view, int64_t size,
                           float *rows, float *transposed)
{
    const int64_t padded = attn_round_up(size, LANES);
    memset(transposed, 0, (size_t)(padded * K_COLS) * sizeof *transposed);
    for (int j = 0; j < (int)(w->key_end - w->key); j++) {
        int64_t batch, row;
        attn_key_place(w->job, &w->seq, w->b, w->key + j, &batch, &row);
        attn_read_row(view, batch, w->hkv, row, size, t->row);
        for (int64_t d = 0; d < size; d++) transposed[d * K_COLS + j] = t->row[d];
        for (int64_t d = 0; rows && d < padded; d++) rows[j * padded + d] = d < size ? t->row[d] : 0.0f;
    }
}

static void back_load_keys(const attn_cpu_block *w, void *memory, attn_cpu_key_sums *sums)
{
    const attn_job *job = w->job;
    back_scratch t;
    back_layout(job, memory, &t);
    transpose_keys(w, &t, &job->k, job->head_dim, t.k, t.kt);
    transpose_keys(w, &t, &job->v, job->head_dim_v, NULL, t.vt);
    memset(t.dk, 0, (size_t)(K_COLS * t.d) * sizeof *t.dk);
    memset(t.dv, 0, (size_t)(K_COLS * t.dv_size) * sizeof *t.dv);
    *sums = (attn_cpu_key_sums){.dk = t.dk, .dv = t.dv, .dk_stride = t.d, .dv_stride = t.dv_size};
}

/* S of row r to P, dP to dS, in place and transposed. */
static void row_gradients(const attn_cpu_block *w, const back_scratch *t, int r, int n, float lse, float rest,
                          float *raw)
{
    const attn_job *job = w->job;
    const int64_t i = attn_block_query(w, r), h = attn_block_head(w, r);
    float *s = t->s + r * K_COLS, *ds = t->ds + r * K_COLS, slope[K_COLS];
    for (int j = 0; j < n; j++) {
        const float x = job->softcap > 0.0f ? tanhf(s[j] / job->softcap) : 0.0f;
        slope[j] = 1.0f - x * x;
    }
    finish_scores(w, r, w->key, n, s);
    for (int j = 0; j < n; j++) {
        const float p = expf(s[j] - lse);
        const bool kept = !job->has_dropout || attn_dropout_keep(job, w->dropout_key, w->b, h, i, w->key + j);
        const float z = !job->has_dropout ? 1.0f : kept ? job->keep_factor : 0.0f;
        const float x = p == 0.0f ? 0.0f : p * (z * ds[j] + rest);
        if (raw) raw[j] = x;
        s[j] = t->p_t[j * Q_ROWS + r] = p * z;
        ds[j] = t->ds_t[j * Q_ROWS + r] = x * slope[j];
    }
}

static void tile_gradients(const attn_cpu_block *w, void *memory, const float *lse, const float *rest, float *raw)
{
    const attn_job *job = w->job;
    const int n = (int)(w->key_end - w->key);
    back_scratch t;
    back_layout(job, memory, &t);
    for (int r = 0; r < w->rows; r++) {
        float *q = t.q + r * t.d, *dout = t.dout + r * t.dv_size;
        read_query(w, &job->q, r, job->head_dim, q);
        read_query(w, &job->dout, r, job->head_dim_v, dout);
        for (int j = 0; j < n; j += LANES) {
            dot16(q, t.kt + j, K_COLS, job->head_dim, t.s + r * K_COLS + j);
            dot16(dout, t.vt + j, K_COLS, job->head_dim_v, t.ds + r * K_COLS + j);
        }
        for (int j = 0; j < n; j++) t.s[r * K_COLS + j] *= job->scale;
        row_gradients(w, &t, r, n, lse[r], rest[r], raw ? raw + r * K_COLS : NULL);
    }
}

/* c[0 .. size) += sum over n of a[n] b[n][0 .. size), in whole lanes */
static void add_product(const float *a, const float *b, int64_t size, int64_t count, float *c)
{
    float part[LANES];
    for (int64_t d = 0; d < size; d += LANES) {
        dot16(a, b + d, size, count, part);
        for (int e = 0; e < LANES; e++) c[d + e] += part[e];
    }
}

static void add_keys(const attn_cpu_block *w, void *memory)
{
    back_scratch t;
    back_layout(w->job, memory, &t);
    for (int j = 0; j < (int)(w->key_end - w->key); j++) {
        add_product(t.p_t + j * Q_ROWS, t.dout, t.dv_size, w->rows, t.dv + j * t.dv_size);
        add_product(t.ds_t + j * Q_ROWS, t.q, t.d, w->rows, t.dk + j * t.d);
    }
}

static void add_queries(const attn_cpu_block *w, void *memory, int fresh, float *dq, int64_t stride)
{
    back_scratch t;
    back_layout(w->job, memory, &t);
    for (int r = 0; r < w->rows; r++) {
        if (fresh) memset(dq + r * stride, 0, (size_t)t.d * sizeof *dq);
        add_product(t.ds + r * K_COLS, t.k, t.d, w->key_end - w->key, dq + r * stride);
    }
}

const attn_cpu_level attn_cpu_level_scalar = {
    .name = "scalar",
    .row_step = Q_ROWS,
    .key_step = K_COLS,
    .task_rows = task_rows,
    .scratch_bytes = scratch_bytes,
    .forward = forward,
    .store_row = store_row,
    .back_rows = Q_ROWS,
    .back_keys = K_COLS,
    .few_keys = K_COLS,
    .back_scratch_bytes = back_scratch_bytes,
    .deltas = deltas,
    .load_keys = back_load_keys,
    .tile_gradients = tile_gradients,
    .add_keys = add_keys,
    .add_queries = add_queries,
};
