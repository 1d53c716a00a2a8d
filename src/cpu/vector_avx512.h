/* SPDX-License-Identifier: Apache-2.0
 * Vectors of 16 floats: AVX-512 F, BW, DQ, VL, and F16C's conversions as AVX-512 has them. See vector.h. */
#ifndef ATTN_CPU_VECTOR_AVX512_H
#define ATTN_CPU_VECTOR_AVX512_H

#include <immintrin.h>

enum {
    W = 16,
    TILE_ROWS = 14, /* 14 x 2 sums, 2 vectors of b, 1 broadcast: 31 of 32 registers */
    FEW_ROWS = 16   /* of a sequence's head group, up to which forward_few is faster (docs/performance.md) */
};

/* One case a row count of a tile. */
#define EACH_TILE_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)

typedef __m512 vf;
typedef __m256i vh; /* as many halves */
#define PS(operation) _mm512_##operation##_ps
#include "vector_common.h"

VECTOR vf vf_iota(void) { return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }

VECTOR vf vf_load_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
VECTOR vf vf_load_bf16(const void *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
}
/* Codes of 8 bits. */
VECTOR vf vf_load_i8(const void *p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p))); }
VECTOR vf vf_load_e5m2(const void *p)
{
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128(p)), 8));
}
VECTOR vf vf_load_e4m3(const void *p) /* see vf_load_as */
{
    __m256i h = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(p)), 7); /* the sign twice */
    return _mm512_cvtph_ps(_mm256_and_si256(h, _mm256_set1_epi16((short)0xbf80)));
}
/* The low nibbles of W bytes, or, with shift 4, the high ones; less 8. */
VECTOR vf vf_load_nibbles(const void *p, int shift)
{
    __m512i x = _mm512_srl_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128(p)), _mm_cvtsi32_si128(shift));
    return _mm512_permutexvar_ps(x, vf_sub(vf_iota(), vf_set1(8.0f))); /* by the lowest 4 bits */
}
VECTOR vh vf_to_f16(vf x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
VECTOR vh vf_to_bf16(vf x)
{
    __m512i u = _mm512_castps_si512(x), top = _mm512_srli_epi32(u, 16);
    __m512i odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __m512i quiet = _mm512_or_si512(top, _mm512_set1_epi32(0x40));
    __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(_mm512_srli_epi32(rounded, 16), is_nan, quiet));
}
VECTOR void vh_store(void *p, vh x) { _mm256_storeu_si256(p, x); }
VECTOR void vh_stream(void *p, vh x) { _mm256_stream_si256(p, x); }

VECTOR vf vf_abs(vf a) { return _mm512_abs_ps(a); }
VECTOR vf vf_copysign(vf magnitude, vf sign)
{
    const __m512i top = _mm512_set1_epi32(INT32_MIN); /* a ? b : c in every bit */
    return _mm512_castsi512_ps(
        _mm512_ternarylogic_epi32(top, _mm512_castps_si512(sign), _mm512_castps_si512(magnitude), 0xca));
}
VECTOR vf vf_select_less(vf a, vf b, vf then, vf otherwise)
{
    return _mm512_mask_mov_ps(otherwise, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), then);
}

VECTOR float vf_largest(vf a) { return _mm512_reduce_max_ps(a); }
VECTOR float vf_total(vf a) { return _mm512_reduce_add_ps(a); }

/* The lowest bits of x become the exponent. */
VECTOR vf vf_exponent(vf x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(x), 23)); }

/* Element n is the sum of the elements of x[n]. Three steps of pairwise addition, each halving the vectors. */
VECTOR vf vf_totals(const vf x[16])
{
    vf quarter[4];
    for (int n = 0; n < 4; n++) {
        vf a = vf_add(_mm512_unpacklo_ps(x[4 * n], x[4 * n + 1]), _mm512_unpackhi_ps(x[4 * n], x[4 * n + 1]));
        vf b = vf_add(_mm512_unpacklo_ps(x[4 * n + 2], x[4 * n + 3]), _mm512_unpackhi_ps(x[4 * n + 2], x[4 * n + 3]));
        __m512d c = _mm512_castps_pd(a), d = _mm512_castps_pd(b);
        quarter[n] = vf_add(_mm512_castpd_ps(_mm512_unpacklo_pd(c, d)), _mm512_castpd_ps(_mm512_unpackhi_pd(c, d)));
    }
    vf a =
        vf_add(_mm512_shuffle_f32x4(quarter[0], quarter[1], 0x44), _mm512_shuffle_f32x4(quarter[0], quarter[1], 0xee));
    vf b =
        vf_add(_mm512_shuffle_f32x4(quarter[2], quarter[3], 0x44), _mm512_shuffle_f32x4(quarter[2], quarter[3], 0xee));
    return vf_add(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

/* x[i][j] <-> x[j][i] */
VECTOR void vf_transpose(vf x[16])
{
    vf t[16], u[16];
    for (int n = 0; n < 16; n += 2) {
        t[n] = _mm512_unpacklo_ps(x[n], x[n + 1]);
        t[n + 1] = _mm512_unpackhi_ps(x[n], x[n + 1]);
    }
    for (int n = 0; n < 16; n += 4)
        for (int k = 0; k < 2; k++) {
            __m512d a = _mm512_castps_pd(t[n + k]), b = _mm512_castps_pd(t[n + 2 + k]);
            u[n + 2 * k] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            u[n + 2 * k + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    /* u[4 g + k], lane L: rows 4 g .. 4 g + 3 of column 4 L + k */
    for (int k = 0; k < 4; k++) {
        vf a = _mm512_shuffle_f32x4(u[k], u[4 + k], 0x88), b = _mm512_shuffle_f32x4(u[8 + k], u[12 + k], 0x88);
        vf c = _mm512_shuffle_f32x4(u[k], u[4 + k], 0xdd), d = _mm512_shuffle_f32x4(u[8 + k], u[12 + k], 0xdd);
        x[k] = _mm512_shuffle_f32x4(a, b, 0x88);
        x[8 + k] = _mm512_shuffle_f32x4(a, b, 0xdd);
        x[4 + k] = _mm512_shuffle_f32x4(c, d, 0x88);
        x[12 + k] = _mm512_shuffle_f32x4(c, d, 0xdd);
    }
}

#endif
