/* SPDX-License-Identifier: Apache-2.0
 * What forward and backward share where all operands are bf16 and the processor multiplies bf16: operands in two layouts,
 *     left:  slabs of 32 columns, [depth / 32][rows][32]
 *     right: panels of 16 columns, two rows woven, [columns / 16][depth / 2][16][2]
 * both with zeros up to a multiple of 32 in depth, and a level's product (product_NAME.h) of them,
 *     product(rows, width, slabs, a, a_slab, b, b_panel, add, c, c_stride, work):
 *     c[r][n] = (add ? c[r][n] : 0) + sum over k < 32 slabs of a[r][k] b[k][n],
 * width a multiple of 16, distances in elements. It may read rows of a up to a multiple of 16 and writes none of c beyond
 * `rows`; each sum goes by k upwards in one way, wherever its row stands. Products are exact, sums float32. */
#ifndef ATTN_CPU_BLOCK_BF16_H
#define ATTN_CPU_BLOCK_BF16_H

#include "block_vector.h"

enum { SLAB = 32 };

/* Vector work for a product to do between its own instructions, where these keep another unit busy: a turn at a time. What it
 * leaves is the caller's to do. */
typedef struct meanwhile {
    void (*turn)(struct meanwhile *work); /* NULL: all is done */
} meanwhile;

#include PRODUCT_HEADER

static int64_t whole_slabs(int64_t n) { return attn_round_up(n, SLAB); }

/* Elements [at, at + 32) of a row of n, zeros behind its end. */
VECTOR __m512i load_slab(const void *row, int64_t at, int64_t n)
{
    const __mmask32 inside = n - at < SLAB ? (1u << (n - at)) - 1 : UINT32_MAX;
    return _mm512_maskz_loadu_epi16(inside, (const uint16_t *)row + at);
}

VECTOR __m512i round_two(vf low, vf high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }
VECTOR vf sum_pairs(vf sum, __m512i x)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)_mm512_set1_epi16(0x3f80)); /* 1 */
}

/* A row of n elements to its place in every slab of `rows` rows; row NULL: zeros. */
static void put_left(const void *row, int64_t n, int64_t rows, uint16_t *slab)
{
    for (int64_t at = 0; at < n; at += SLAB)
        _mm512_storeu_si512(slab + at * rows, row ? load_slab(row, at, n) : _mm512_setzero_si512());
}

/* 16 rows of n elements as the panel of which they are the columns: [n' / 2][16][2]. */
static void put_right_columns(const void *const *rows, int64_t n, uint16_t *panel)
{
    for (int64_t at = 0; at < n; at += SLAB) {
        vf x[W];
#pragma GCC unroll 16
        for (int j = 0; j < W; j++) x[j] = _mm512_castsi512_ps(load_slab(rows[j], at, n));
        vf_transpose(x);
#pragma GCC unroll 16
        for (int j = 0; j < W; j++) _mm512_storeu_ps(panel + (at + 2 * j) * W, x[j]);
    }
}

/* Two rows of n elements, woven, to their place in every panel of `depth` rows. Whether one is tiny: not 0 and
 * below 2^-63. */
static int put_right_rows(const void *first, const void *second, int64_t n, int64_t depth, uint16_t *panel)
{
    const __m512i left = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
                  right = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    const __m512i large = _mm512_set1_epi16(0x6000), /* bits of exponents from 2^-63 on */
        any = _mm512_set1_epi16(0x7fff);
    __mmask32 tiny = 0;
    for (int64_t at = 0; at < n; at += SLAB) {
        const __m512i a = load_slab(first, at, n), b = load_slab(second, at, n);
        const __m512i low = _mm512_unpacklo_epi16(a, b), high = _mm512_unpackhi_epi16(a, b); /* of each 8 columns */
        _mm512_storeu_si512(panel + at * depth, _mm512_permutex2var_epi64(low, left, high));
        if (n - at > W) _mm512_storeu_si512(panel + (at + W) * depth, _mm512_permutex2var_epi64(low, right, high));
        tiny |= _mm512_mask_test_epi16_mask(_mm512_testn_epi16_mask(a, large), a, any);
        tiny |= _mm512_mask_test_epi16_mask(_mm512_testn_epi16_mask(b, large), b, any);
    }
    return tiny != 0;
}

/* A pointer to what lies in scratch, and its bytes. */
typedef struct scratch_part {
    void *part;
    int64_t bytes;
} scratch_part;

/* The bytes of all parts, each from a multiple of 64 on; with a base the pointers are set. */
static int64_t place_parts(const scratch_part *parts, size_t count, char *base)
{
    int64_t bytes = 0;
    for (size_t n = 0; n < count; n++) {
        char *at = base + bytes;
        if (base) memcpy(parts[n].part, &at, sizeof at);
        bytes += attn_round_up(parts[n].bytes, 64);
    }
    return bytes;
}

static const uint16_t zero_row[ATTN_MAX_HEAD_DIM];

/* Columns whose vectors are whole slabs: a depth of the second product. */
static columns slab_columns(const attn_cpu_block *w, int64_t row, int64_t rows, int64_t key, int step)
{
    columns c = columns_of(w, row, rows, key, step);
    int64_t first, end, unused;
    attn_visible(w->job, &w->seq, attn_block_query(w, row + rows - 1), &first, &unused);
    attn_visible(w->job, &w->seq, attn_block_query(w, row), &unused, &end);
    c.a0 = c.c0 / SLAB * SLAB;
    c.a1 = (c.c1 + SLAB - 1) / SLAB * SLAB;
    c.edge = attn_max(first, w->key) > key + c.a0 || attn_min(end, w->key_end) < key + c.a1;
    return c;
}

static const void *row_of(const attn_cpu_block *w, const attn_view *view, int64_t r)
{
    return attn_element(
        view, attn_row_offset(view, w->seq.q_batch, attn_block_head(w, r), w->seq.q_row + attn_block_query(w, r)));
}

#endif
