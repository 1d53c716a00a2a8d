/* SPDX-License-Identifier: Apache-2.0
 * The product of block_bf16.h by AVX512-BF16: an instruction adds two products of bf16 to each of 16 sums in float32. The
 * register tile is that of block_vector.h, 14 x 32 sums; what is broadcast is a pair of a row's elements.
 * The instruction takes subnormal operands, products and sums as 0 and rounds each sum to nearest (Intel SDM, VDPBF16PS). */
#ifndef ATTN_CPU_PRODUCT_BF16_H
#define ATTN_CPU_PRODUCT_BF16_H

enum { STRIP16 = 4 * TILE_ROWS }; /* rows between QK' and PV */

/* Before and after a thread's products. */
static inline void product_begin(void) {}
static inline void product_end(void) {}

ALWAYS_INLINE void product_tile(int rows, int vectors, int64_t slabs, const uint16_t *a, int64_t a_slab,
                                const uint16_t *b, int64_t b_panel, int add, float *c, int64_t c_stride)
{
    vf sum[TILE_ROWS][2];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) sum[r][v] = add ? vf_load(c + r * c_stride + v * W) : vf_zero();
    for (int64_t slab = 0; slab < slabs; slab++) {
        for (int pair = 0; pair < SLAB / 2; pair++) {
            const __m512bh b0 = (__m512bh)_mm512_loadu_si512(b),
                           b1 = vectors > 1 ? (__m512bh)_mm512_loadu_si512(b + b_panel) : b0;
#pragma GCC unroll 16
            for (int r = 0; r < rows; r++) {
                int32_t two;
                memcpy(&two, a + r * SLAB + 2 * pair, sizeof two);
                const __m512bh x = (__m512bh)_mm512_set1_epi32(two);
                sum[r][0] = _mm512_dpbf16_ps(sum[r][0], x, b0);
                if (vectors > 1) sum[r][1] = _mm512_dpbf16_ps(sum[r][1], x, b1);
            }
            b += 2 * W;
        }
        a += a_slab;
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) vf_store(c + r * c_stride + v * W, sum[r][v]);
}

/* One function a size and use of c, so that the sums are registers. */
#define CASE(n)                                                                                                  \
  static void product_tile_##n(int vectors, int64_t slabs, const uint16_t *a, int64_t a_slab, const uint16_t *b, \
                               int64_t b_panel, int add, float *c, int64_t c_stride)                             \
  {                                                                                                              \
    if (vectors > 1 && add) product_tile(n, 2, slabs, a, a_slab, b, b_panel, 1, c, c_stride);                    \
    else if (vectors > 1) product_tile(n, 2, slabs, a, a_slab, b, b_panel, 0, c, c_stride);                      \
    else product_tile(n, 1, slabs, a, a_slab, b, b_panel, add, c, c_stride);                                     \
  }
EACH_TILE_ROWS(CASE)
#undef CASE

typedef void product_function(int vectors, int64_t slabs, const uint16_t *a, int64_t a_slab, const uint16_t *b,
                              int64_t b_panel, int add, float *c, int64_t c_stride);

static product_function *const product_tiles[TILE_ROWS + 1] = {
#define CASE(n) [n] = product_tile_##n,
    EACH_TILE_ROWS(CASE)
#undef CASE
};

static void product(int rows, int64_t width, int64_t slabs, const uint16_t *a, int64_t a_slab, const uint16_t *b,
                    int64_t b_panel, int add, float *c, int64_t c_stride, meanwhile *work)
{
    (void)work; /* vectors are what products are made of here */
    if (rows < 1) return;
    const int each = (int)attn_ceil_div(rows, attn_ceil_div(rows, TILE_ROWS));
    for (int64_t n = 0; n < width; n += 2 * W)
        for (int r = 0; r < rows; r += each)
            product_tiles[rows - r < each ? rows - r : each](width - n > W ? 2 : 1, slabs, a + r * SLAB, a_slab,
                                                             b + n / W * b_panel, b_panel, add, c + r * c_stride + n,
                                                             c_stride);
}

#endif
