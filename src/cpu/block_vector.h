/* SPDX-License-Identifier: Apache-2.0
 * What forward and backward of the vector levels share: rows of any type in and out, the columns that a set of rows sees,
 * scores up to the mask, dropout, packing into panels, and the register tile that every product is made of:
 * TILE_ROWS x 2W sums, for each k two vectors of the panels and a broadcast of each row's element,
 *     lane n of sum[r][v] = sum over k of a[r][k] b[k][vW + n].
 * -inf and NaN pass through all of it as they are; what is masked is -inf by selection. */
#ifndef ATTN_CPU_BLOCK_VECTOR_H
#define ATTN_CPU_BLOCK_VECTOR_H

#include "level.h"
#include "vector.h"

/* ---- rows in and out --------------------------------------------------------------------------- */

/* Elements d to d + W of a row by their factor: exactly what attn_read_row gives. */
VECTOR vf widen_vector(int32_t type, const char *p, int64_t d, vf factor)
{
    vf x = vf_load_as(type, p, d);
    if (type == ATTN_F8_E4M3) {
        x = vf_mul(x, vf_set1(E4M3_UNIT));
        x = vf_select_less(vf_set1(ATTN_F8_E4M3_MAX), vf_abs(x), vf_set1(NAN), x);
    }
    return is_float_type(type) ? x : vf_mul(factor, x);
}

/* Elements [0, n) of a row that begins at p as floats, then zeros up to a multiple of W. */
ALWAYS_INLINE void widen_as(int32_t type, const char *p, float scale, int64_t n, float *x)
{
    const int64_t whole = n / W * W, bytes = type == ATTN_F32 ? 4 : type == ATTN_F16 || type == ATTN_BF16 ? 2 : 1;
    vf factor = vf_set1(scale);
    for (int64_t d = 0; d < whole; d += W) {
        if (is_block_type(type) && d % ATTN_BLOCK == 0) {
            const int64_t block = type == ATTN_Q8_0 ? ATTN_Q8_0_BYTES : ATTN_Q4_0_BYTES;
            factor = vf_set1(attn_f16_to_f32(attn_load_u16(p + d / ATTN_BLOCK * block)));
        }
        vf_store(x + d, widen_vector(type, p, d, factor));
    }
    if (whole == n) return;
    char last[4 * W] = {0};
    memcpy(last, p + whole * bytes, (size_t)((n - whole) * bytes));
    vf_store(x + whole, widen_vector(type, last, 0, factor));
    for (int64_t d = n; d < whole + W; d++) x[d] = 0.0f;
}

static void widen_row(const attn_view *view, int64_t batch, int64_t h, int64_t row, int64_t n, float *x)
{
    if (n == 0) return; /* perhaps without memory */
    const char *p = attn_element(view, attn_row_offset(view, batch, h, row));
    const float scale = view->scale ? *attn_row_scale(view, batch, h, row) : 1.0f;
    switch (view->dtype) {
    case ATTN_F32: widen_as(ATTN_F32, p, scale, n, x); break;
    case ATTN_F16: widen_as(ATTN_F16, p, scale, n, x); break;
    case ATTN_BF16: widen_as(ATTN_BF16, p, scale, n, x); break;
    case ATTN_I8: widen_as(ATTN_I8, p, scale, n, x); break;
    case ATTN_F8_E4M3: widen_as(ATTN_F8_E4M3, p, scale, n, x); break;
    case ATTN_F8_E5M2: widen_as(ATTN_F8_E5M2, p, scale, n, x); break;
    case ATTN_Q8_0: widen_as(ATTN_Q8_0, p, scale, n, x); break;
    default: widen_as(ATTN_Q4_0, p, scale, n, x);
    }
}

VECTOR void store_vector(int32_t type, char *p, vf x)
{
    if (type == ATTN_F32) vf_store((float *)(void *)p, x);
    else vh_store(p, type == ATTN_F16 ? vf_to_f16(x) : vf_to_bf16(x));
}

/* o * f / l; + 0 makes -0 a 0: underflow may leave either, by how many fully masked steps came after. Gradients are divided
 * by nothing, and few rows would wait for it. */
VECTOR vf quotient(const float *o, vf f, int by_one, vf l)
{
    const vf x = vf_mul(vf_load(o), f);
    return vf_add(by_one ? x : vf_div(x, l), vf_zero());
}

ALWAYS_INLINE void store_as(int32_t type, char *p, int64_t n, const float *o, float factor, float divisor)
{
    const int64_t whole = n / W * W, bytes = type == ATTN_F32 ? 4 : 2;
    const vf f = vf_set1(factor), l = vf_set1(divisor);
    const int by_one = divisor == 1.0f;
    for (int64_t d = 0; d < whole; d += W) store_vector(type, p + d * bytes, quotient(o + d, f, by_one, l));
    if (whole == n) return;
    char last[4 * W];
    store_vector(type, last, quotient(o + whole, f, by_one, l));
    memcpy(p + whole * bytes, last, (size_t)((n - whole) * bytes));
}

static void store_row(const attn_view *view, int64_t offset, int64_t n, const float *o, float factor, float divisor)
{
    char *p = attn_element(view, offset);
    if (view->dtype == ATTN_F32) store_as(ATTN_F32, p, n, o, factor, divisor);
    else if (view->dtype == ATTN_F16) store_as(ATTN_F16, p, n, o, factor, divisor);
    else store_as(ATTN_BF16, p, n, o, factor, divisor);
}

/* Where rows of the block's head lie in memory: rows[n] for key + n, n in [from, to). */
static void find_rows(const attn_cpu_block *w, const attn_view *view, int64_t key, int from, int to, const char **rows)
{
    int64_t batch, row;
    if (!w->job->page_size) { /* asking for each key takes a tenth of decode's time */
        attn_key_place(w->job, &w->seq, w->b, key + from, &batch, &row);
        const char *at = attn_element(view, attn_row_offset(view, batch, w->hkv, row));
        const int64_t step = attn_element(view, view->stride[2]) - attn_element(view, 0);
        for (int n = from; n < to; n++) rows[n] = at + (n - from) * step;
        return;
    }
    for (int n = from; n < to; n++) {
        attn_key_place(w->job, &w->seq, w->b, key + n, &batch, &row);
        rows[n] = attn_element(view, attn_row_offset(view, batch, w->hkv, row));
    }
}

/* On Sapphire Rapids more lines can be on their way to L2 than to L1: 15 GB/s a thread against 11. */
ALWAYS_INLINE void prefetch_to_l2(const char *p) { __builtin_prefetch(p, 0, 2); }

/* Rows that packing can load as they are; others are widened to float32 first. */
static int is_direct(const attn_view *view, int64_t n) { return is_float_type(view->dtype) && n % W == 0; }

static void widen_key(const attn_cpu_block *w, const attn_view *view, int64_t key, int64_t n, float *x)
{
    int64_t batch, row;
    attn_key_place(w->job, &w->seq, w->b, key, &batch, &row);
    widen_row(view, batch, w->hkv, row, n, x);
}

/* ---- scores to P, the same for few and many rows ------------------------------------------------- */

/* The columns of a step that a set of rows sees: [c0, c1) of them, within [a0, a1), whole vectors; `edge` if some
 * row does not see all of [a0, a1). */
typedef struct columns {
    int64_t key; /* of column 0 */
    int c0, c1, a0, a1;
    int edge;
} columns;

static columns columns_of(const attn_cpu_block *w, int64_t row, int64_t rows, int64_t key, int step)
{
    columns c = {.key = key};
    int64_t first, end, last_first, first_end;
    attn_visible(w->job, &w->seq, attn_block_query(w, row), &first, &first_end);
    attn_visible(w->job, &w->seq, attn_block_query(w, row + rows - 1), &last_first, &end);
    first = attn_max(first, w->key);
    end = attn_min(end, w->key_end);
    c.c0 = (int)attn_min(step, attn_max(0, first - key));
    c.c1 = (int)attn_max(c.c0, attn_min(step, end - key));
    c.a0 = c.c0 / W * W;
    c.a1 = (c.c1 + W - 1) / W * W;
    c.edge = attn_max(last_first, w->key) > key + c.a0 || attn_min(first_end, w->key_end) < key + c.a1;
    return c;
}

static void softcap_row(float cap, const columns *c, float *s)
{
    vf x = vf_set1(cap);
    for (int n = c->a0; n < c->a1; n += W) vf_store(s + n, vf_mul(x, vf_tanh(vf_div(vf_load(s + n), x))));
}

static void bias_row(const attn_view *bias, int64_t offset, const columns *c, float *s)
{
    int64_t step = bias->stride[3];
    int n = c->c0;
    offset += n * step;
    if (bias->dtype == ATTN_BOOL) {
        for (; n < c->c1; n++, offset += step)
            if (!bias->data[offset]) s[n] = -INFINITY;
        return;
    }
    if (step == 1) {
        const char *p = attn_element(bias, offset);
        int whole = n + (c->c1 - n) / W * W, from = n;
        if (bias->dtype == ATTN_F32)
            for (; n < whole; n += W) vf_store(s + n, vf_add(vf_load(s + n), vf_load_as(ATTN_F32, p, n - from)));
        else if (bias->dtype == ATTN_F16)
            for (; n < whole; n += W) vf_store(s + n, vf_add(vf_load(s + n), vf_load_as(ATTN_F16, p, n - from)));
        else
            for (; n < whole; n += W) vf_store(s + n, vf_add(vf_load(s + n), vf_load_as(ATTN_BF16, p, n - from)));
        offset += n - from;
    }
    for (; n < c->c1; n++, offset += step) s[n] += attn_load_float(bias, offset);
}

static void alibi_row(float slope, int64_t centre, const columns *c, float *s)
{
    int64_t distance = centre - c->key;                /* from column 0 to the aligned key */
    if (distance > -(1 << 23) && distance < 1 << 23) { /* exact in float32 */
        vf at = vf_sub(vf_set1((float)distance), vf_iota()), minus = vf_set1(-slope);
        for (int n = c->a0; n < c->a1; n += W)
            vf_store(s + n, vf_add(vf_load(s + n), vf_mul(minus, vf_abs(vf_sub(at, vf_set1((float)n))))));
    } else {
        for (int n = c->a0; n < c->a1; n++) s[n] -= slope * (float)(distance > n ? distance - n : n - distance);
    }
}

/* What of section 1 follows the softcap: bias, ALiBi, the mask. */
static void mask_scores(const attn_cpu_block *w, int64_t r, const columns *c, float *s)
{
    const attn_job *job = w->job;
    int64_t i = attn_block_query(w, r), h = attn_block_head(w, r), first, end;
    if (job->bias.data) bias_row(&job->bias, attn_bias_offset(&job->bias, w->b, h, i, c->key), c, s);
    if (job->alibi) alibi_row(attn_alibi_slope(job, w->b, h), i + w->seq.diagonal, c, s);
    if (!c->edge) return;
    attn_visible(job, &w->seq, i, &first, &end);
    first = attn_max(first, w->key) - c->key;
    end = attn_min(end, w->key_end) - c->key;
    for (int n = c->a0; n < c->a1 && n < first; n++) s[n] = -INFINITY;
    for (int n = (int)attn_max(c->a0, end); n < c->a1; n++) s[n] = -INFINITY;
}

/* Scores of row r: everything of section 1 up to the mask, in its order. */
static void finish_scores(const attn_cpu_block *w, int64_t r, const columns *c, float *s)
{
    if (w->job->softcap > 0.0f) softcap_row(w->job->softcap, c, s);
    mask_scores(w, r, c, s);
}

static int has_finish(const attn_job *job) { return job->softcap > 0.0f || job->bias.data || job->alibi; }

/* Keeps or drops P of row r. Columns 8 n .. 8 n + 7 are two calls of Philox. */
static void drop_row(const attn_cpu_block *w, int64_t r, const columns *c, float *p)
{
    const attn_job *job = w->job;
    uint32_t i = (uint32_t)(job->row_origin + attn_block_query(w, r)),
             h = (uint32_t)(job->head_origin + attn_block_head(w, r));
    uint32_t b = (uint32_t)(job->batch_origin + w->b);
    for (int n = c->c0; n < c->c1;) {
        uint64_t column = (uint64_t)(job->column_origin + c->key + n), eight = column & ~(uint64_t)7;
        attn_philox half[2];
        half[0] = attn_philox_4x32_10(attn_dropout_group(eight), i, h, b, w->dropout_key);
        half[1] = attn_philox_4x32_10(attn_dropout_group(eight + 2), i, h, b, w->dropout_key);
        for (; n < c->c1 && column < eight + 8; n++, column++) {
            uint32_t word = half[column >> 1 & 1].word[attn_dropout_word(column)];
            p[n] = word >= job->keep_threshold ? p[n] * job->keep_factor : 0.0f;
        }
    }
}

/* ---- packing, products ---------------------------------------------------------------------------- */

/* W rows as a panel [d][step], the first `step` of them: the others' elements are overwritten, or behind the panel. */
ALWAYS_INLINE void pack_transposed_as(int32_t type, const char *const *rows, int64_t d, int step, float *panel)
{
    for (int64_t at = 0; at < d; at += W) {
        vf x[W];
#pragma GCC unroll 16
        for (int n = 0; n < W; n++) x[n] = vf_load_as(type, rows[n], at);
        vf_transpose(x);
#pragma GCC unroll 16
        for (int n = 0; n < W; n++) vf_store(panel + (at + n) * step, x[n]);
    }
}

static void pack_transposed(int32_t type, const char *const *rows, int64_t d, float *panel)
{
    if (type == ATTN_F32) pack_transposed_as(ATTN_F32, rows, d, W, panel);
    else if (type == ATTN_F16) pack_transposed_as(ATTN_F16, rows, d, W, panel);
    else pack_transposed_as(ATTN_BF16, rows, d, W, panel);
}

/* A row of n elements to its place in every panel of W columns [n / W][panel_rows][W]. */
ALWAYS_INLINE void pack_row_as(int32_t type, const char *row, int64_t n, int panel_rows, float *panel)
{
    for (int64_t d = 0; d < n; d += W) vf_store(panel + d * panel_rows, vf_load_as(type, row, d));
}

ALWAYS_INLINE void pack_row(int32_t type, const char *row, int64_t n, int panel_rows, float *panel)
{
    if (type == ATTN_F32) pack_row_as(ATTN_F32, row, n, panel_rows, panel);
    else if (type == ATTN_F16) pack_row_as(ATTN_F16, row, n, panel_rows, panel);
    else pack_row_as(ATTN_BF16, row, n, panel_rows, panel);
}

/* sum[r][v] += sum over k of a[r * a_row + k * a_step] * b[v * b_panel + k * W ...]; all but depth and the
 * pointers are constants wherever it is called, so that the sums are registers and a's offsets are immediate. */
ALWAYS_INLINE void add_product(int rows, int vectors, int64_t depth, const float *a, int a_row, int a_step,
                               const float *b, int64_t b_panel, vf sum[TILE_ROWS][2])
{
    for (int64_t k = 0; k < depth; k++) {
        vf b0 = vf_load(b), b1 = vectors > 1 ? vf_load(b + b_panel) : b0;
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            vf x = vf_set1(a[r * a_row]);
            sum[r][0] = vf_fma(x, b0, sum[r][0]);
            if (vectors > 1) sum[r][1] = vf_fma(x, b1, sum[r][1]);
        }
        a += a_step;
        b += W;
    }
}

ALWAYS_INLINE void clear_sums(int rows, int vectors, vf sum[TILE_ROWS][2])
{
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) sum[r][v] = vf_zero();
}

#endif
