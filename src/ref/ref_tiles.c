/* SPDX-License-Identifier: Apache-2.0
 * Tiles of the reference: loading, scores, dropout, softmax. */
#include "../cpu/rows.h"
#include "ref.h"

static double *take(double **next, int64_t doubles)
{
    double *p = *next;
    *next += doubles;
    return p;
}

static int64_t result_doubles(int64_t d, int64_t dv) { return REF_KEYS * attn_max(attn_max(d, dv), REF_ROWS); }

size_t attn_ref_tiles_bytes(const attn_job *job)
{
    int64_t d = attn_round_up(job->head_dim, REF_LANES), dv = attn_round_up(job->head_dim_v, REF_LANES);
    int64_t doubles = (REF_ROWS + 2 * REF_KEYS) * (d + dv) + 5 * REF_ROWS * REF_KEYS + 2 * result_doubles(d, dv);
    return (size_t)doubles * sizeof(double); /* a multiple of 64: every part is a multiple of 8 doubles */
}

ref_tiles attn_ref_tiles_at(const attn_job *job, void *memory)
{
    int64_t d = attn_round_up(job->head_dim, REF_LANES), dv = attn_round_up(job->head_dim_v, REF_LANES);
    double *next = memory;
    ref_tiles t = {.d = d, .dv = dv};
    t.q = take(&next, REF_ROWS * d);
    t.dout = take(&next, REF_ROWS * dv);
    t.k = take(&next, REF_KEYS * d);
    t.kt = take(&next, REF_KEYS * d);
    t.v = take(&next, REF_KEYS * dv);
    t.vt = take(&next, REF_KEYS * dv);
    t.s = take(&next, REF_ROWS * REF_KEYS);
    t.slope = take(&next, REF_ROWS * REF_KEYS);
    t.p = take(&next, REF_ROWS * REF_KEYS);
    t.ds = take(&next, REF_ROWS * REF_KEYS);
    t.z = take(&next, REF_ROWS * REF_KEYS);
    t.o = take(&next, result_doubles(d, dv));
    t.o2 = take(&next, result_doubles(d, dv));
    return t;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* A row in double: scale * code is not rounded. Zero-filled to `padded`. */
static void read_row(const attn_view *t, int64_t batch, int64_t h, int64_t row, int64_t n, int64_t padded, double *x)
{
    float codes[ATTN_MAX_HEAD_DIM];
    attn_view plain = *t;
    plain.scale = NULL;
    attn_read_row(&plain, batch, h, row, n, codes);
    double scale = t->scale ? (double)*attn_row_scale(t, batch, h, row) : 1.0;
    for (int64_t d = 0; d < n; d++) x[d] = scale * (double)codes[d];
    for (int64_t d = n; d < padded; d++) x[d] = 0.0;
}

void attn_ref_load_queries(const ref_place *w, ref_tiles *t)
{
    const attn_job *job = w->job;
    for (int r = 0; r < w->rows; r++) {
        int64_t row = w->seq.q_row + w->i + r;
        read_row(&job->q, w->seq.q_batch, w->h, row, job->head_dim, t->d, t->q + r * t->d);
        if (job->dout.data)
            read_row(&job->dout, w->seq.q_batch, w->h, row, job->head_dim_v, t->dv, t->dout + r * t->dv);
    }
}

static void transpose(const double *rows, int n, int64_t d, double *columns)
{
    for (int64_t c = 0; c < d; c++)
        for (int j = 0; j < REF_KEYS; j++) columns[c * REF_KEYS + j] = j < n ? rows[j * d + c] : 0.0;
}

/* The band of docs/semantics.md section 2, pair by pair. */
static bool in_band(const ref_place *w, int64_t i, int64_t j)
{
    int64_t aligned = i + w->seq.diagonal;
    if (w->job->window_right != ATTN_OPEN && j > aligned + w->job->window_right) return false;
    if (w->job->window_left != ATTN_OPEN && j < aligned - w->job->window_left) return false;
    return true;
}

/* Some row of the tile sees the key. */
static bool key_is_needed(const ref_place *w, int64_t j)
{
    for (int r = 0; r < w->rows; r++)
        if (in_band(w, w->i + r, j)) return true;
    return false;
}

void attn_ref_load_keys(const ref_place *w, ref_tiles *t)
{
    const attn_job *job = w->job;
    int64_t hkv = w->h / job->group;
    for (int j = 0; j < w->keys; j++) {
        int64_t batch, row;
        if (job->page_size && !key_is_needed(w, w->j + j)) { /* its page-table entry may hold anything */
            memset(t->k + j * t->d, 0, sizeof(double) * (size_t)t->d);
            memset(t->v + j * t->dv, 0, sizeof(double) * (size_t)t->dv);
            continue;
        }
        attn_key_place(job, &w->seq, w->b, w->j + j, &batch, &row);
        read_row(&job->k, batch, hkv, row, job->head_dim, t->d, t->k + j * t->d);
        read_row(&job->v, batch, hkv, row, job->head_dim_v, t->dv, t->v + j * t->dv);
    }
    transpose(t->k, w->keys, t->d, t->kt);
    transpose(t->v, w->keys, t->dv, t->vt);
}

void attn_ref_multiply(int64_t m, int64_t n, int64_t count, const double *a, int64_t a_row, int64_t a_col,
                       const double *b, int64_t b_row, double *c, int64_t c_row)
{
    for (int64_t r = 0; r < m; r++)
        for (int64_t e = 0; e < n; e += REF_LANES) {
            double sum[REF_LANES];
            memcpy(sum, c + r * c_row + e, sizeof sum);
            const double *from = a + r * a_row, *row = b + e;
            for (int64_t x = 0; x < count; x++, from += a_col, row += b_row) {
                double factor = *from;
                for (int lane = 0; lane < REF_LANES; lane++) sum[lane] += factor * row[lane];
            }
            memcpy(c + r * c_row + e, sum, sizeof sum);
        }
}

/* ---- scores ---------------------------------------------------------------------------------- */

bool attn_ref_visible(const ref_place *w)
{
    for (int r = 0; r < w->rows; r++)
        for (int j = 0; j < w->keys; j++)
            if (in_band(w, w->i + r, w->j + j)) return true;
    return false;
}

static double score(const ref_place *w, int64_t i, int64_t j, double t, double *slope)
{
    const attn_job *job = w->job;
    double s = t;
    *slope = 1.0;
    if (job->softcap > 0.0f) {
        double x = tanh(t / (double)job->softcap);
        s = (double)job->softcap * x;
        *slope = 1.0 - x * x;
    }
    if (!in_band(w, i, j)) return -INFINITY;
    if (job->bias.data) {
        int64_t at = attn_bias_offset(&job->bias, w->b, w->h, i, j);
        if (job->bias.dtype == ATTN_BOOL) {
            if (!job->bias.data[at]) return -INFINITY;
        } else {
            s += (double)attn_load_float(&job->bias, at);
        }
    }
    if (job->alibi) s -= (double)attn_alibi_slope(job, w->b, w->h) * fabs((double)(i + w->seq.diagonal - j));
    return s;
}

void attn_ref_scores(const ref_place *w, ref_tiles *t)
{
    memset(t->s, 0, sizeof(double) * REF_ROWS * REF_KEYS);
    attn_ref_multiply(w->rows, REF_KEYS, t->d, t->q, t->d, 1, t->kt, REF_KEYS, t->s, REF_KEYS);
    for (int r = 0; r < w->rows; r++)
        for (int j = 0; j < w->keys; j++) {
            int at = r * REF_KEYS + j;
            t->s[at] = score(w, w->i + r, w->j + j, (double)w->job->scale * t->s[at], &t->slope[at]);
        }
}

void attn_ref_dropout(const ref_place *w, ref_tiles *t)
{
    const attn_job *job = w->job;
    for (int r = 0; r < w->rows; r++)
        for (int j = 0; j < w->keys; j++) {
            bool keep = !job->has_dropout || attn_dropout_keep(job, w->dropout_key, w->b, w->h, w->i + r, w->j + j);
            t->z[r * REF_KEYS + j] = !keep ? 0.0 : job->has_dropout ? (double)job->keep_factor : 1.0;
        }
}

/* ---- softmax --------------------------------------------------------------------------------- */

/* Extends a row's statistics by n more scores. */
static void extend(ref_stat *stat, const double *s, int n)
{
    double largest = stat->m;
    for (int j = 0; j < n; j++) largest = s[j] > largest ? s[j] : largest;
    double base = largest == -INFINITY ? 0.0 : largest;
    stat->l *= exp(stat->m - base);
    for (int j = 0; j < n; j++) stat->l += exp(s[j] - base);
    stat->m = largest;
}

static int tile_keys(const ref_place *w) { return (int)attn_min(REF_KEYS, w->seq.k_len - w->j); }

void attn_ref_statistics(ref_place *w, ref_tiles *t, ref_stat stat[REF_ROWS])
{
    for (int r = 0; r < w->rows; r++) stat[r] = (ref_stat){-INFINITY, 0.0};
    attn_ref_load_queries(w, t);
    for (w->j = 0; w->j < w->seq.k_len; w->j += REF_KEYS) {
        w->keys = tile_keys(w);
        if (!attn_ref_visible(w)) continue;
        attn_ref_load_keys(w, t);
        attn_ref_scores(w, t);
        for (int r = 0; r < w->rows; r++) extend(&stat[r], t->s + r * REF_KEYS, w->keys);
    }
    for (int r = 0; r < w->rows && w->job->sink; r++) {
        double sink = (double)w->job->sink[w->h];
        extend(&stat[r], &sink, 1);
    }
}

void attn_ref_output(ref_place *w, ref_tiles *t, const ref_stat stat[REF_ROWS])
{
    memset(t->o, 0, sizeof(double) * (size_t)(REF_ROWS * t->dv));
    for (w->j = 0; w->j < w->seq.k_len; w->j += REF_KEYS) {
        w->keys = tile_keys(w);
        if (!attn_ref_visible(w)) continue;
        attn_ref_load_keys(w, t);
        attn_ref_scores(w, t);
        attn_ref_dropout(w, t);
        for (int r = 0; r < w->rows; r++)
            for (int j = 0; j < w->keys; j++) {
                int at = r * REF_KEYS + j;
                t->p[at] = attn_ref_probability(stat[r], t->s[at]) * t->z[at];
            }
        attn_ref_multiply(w->rows, t->dv, w->keys, t->p, REF_KEYS, 1, t->v, t->dv, t->o, t->dv);
    }
}
