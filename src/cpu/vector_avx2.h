/* SPDX-License-Identifier: Apache-2.0
 * Vectors of 8 floats: AVX2, FMA, F16C. See vector.h. */
#ifndef ATTN_CPU_VECTOR_AVX2_H
#define ATTN_CPU_VECTOR_AVX2_H

#include <immintrin.h>

enum {
    W = 8,
    TILE_ROWS = 6, /* 6 x 2 sums, 2 vectors of b, 1 broadcast: 15 of 16 registers */
    FEW_ROWS = 24  /* of a sequence's head group, up to which forward_few is faster (docs/performance.md) */
};

/* One case a row count of a tile. */
#define EACH_TILE_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6)

typedef __m256 vf;
typedef __m128i vh; /* as many halves */
#define PS(operation) _mm256_##operation##_ps
#include "vector_common.h"

VECTOR vf vf_iota(void) { return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7); }

VECTOR vf vf_load_f16(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128(p)); }
VECTOR vf vf_load_bf16(const void *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}
/* Codes of 8 bits. */
VECTOR vf vf_load_i8(const void *p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p))); }
VECTOR vf vf_load_e5m2(const void *p)
{
    return _mm256_cvtph_ps(_mm_unpacklo_epi8(_mm_setzero_si128(), _mm_loadl_epi64(p)));
}
VECTOR vf vf_load_e4m3(const void *p) /* see vf_load_as */
{
    __m128i h = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64(p)), 7); /* the sign twice */
    return _mm256_cvtph_ps(_mm_and_si128(h, _mm_set1_epi16((short)0xbf80)));
}
/* The low nibbles of W bytes, or, with shift 4, the high ones; less 8. */
VECTOR vf vf_load_nibbles(const void *p, int shift)
{
    __m256i x = _mm256_srl_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p)), _mm_cvtsi32_si128(shift));
    x = _mm256_and_si256(x, _mm256_set1_epi32(15));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(x, _mm256_set1_epi32(8)));
}
VECTOR vh vf_to_f16(vf x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
VECTOR vh vf_to_bf16(vf x)
{
    __m256i u = _mm256_castps_si256(x), top = _mm256_srli_epi32(u, 16);
    __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    __m256i quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
    __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i bits = _mm256_blendv_epi8(rounded, quiet, is_nan);
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(bits, bits), 0x08);
    return _mm256_castsi256_si128(packed);
}
VECTOR void vh_store(void *p, vh x) { _mm_storeu_si128(p, x); }
VECTOR void vh_stream(void *p, vh x) { _mm_stream_si128(p, x); }

VECTOR vf vf_abs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
VECTOR vf vf_copysign(vf magnitude, vf sign)
{
    const vf top = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_and_ps(top, sign), _mm256_andnot_ps(top, magnitude));
}
VECTOR vf vf_select_less(vf a, vf b, vf then, vf otherwise)
{
    return _mm256_blendv_ps(otherwise, then, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}

VECTOR float vf_largest(vf a)
{
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
VECTOR float vf_total(vf a)
{
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

/* The lowest bits of x become the exponent. */
VECTOR vf vf_exponent(vf x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x), 23)); }

/* Element n is the sum of the elements of x[n]. Each step adds the halves of pairs of vectors, one exchanged and one
 * blended: blends run beside the multiply-adds of the next sums, exchanges do not. */
VECTOR vf vf_totals(const vf x[8])
{
    vf half[4], quarter[2];
    for (int n = 0; n < 4; n++) /* low lanes: of x[n], high ones: of x[n + 4] */
        half[n] = vf_add(_mm256_permute2f128_ps(x[n], x[n + 4], 0x21), _mm256_blend_ps(x[n], x[n + 4], 0xf0));
    for (int n = 0; n < 2; n++) {
        const vf a = half[2 * n], b = half[2 * n + 1];
        quarter[n] = vf_add(_mm256_shuffle_ps(a, b, 0x4e), _mm256_blend_ps(a, b, 0xcc));
    }
    return vf_add(_mm256_shuffle_ps(quarter[0], quarter[1], 0x88), _mm256_shuffle_ps(quarter[0], quarter[1], 0xdd));
}

/* x[i][j] <-> x[j][i] */
VECTOR void vf_transpose(vf x[8])
{
    vf t[8], u[8];
    for (int n = 0; n < 8; n += 2) {
        t[n] = _mm256_unpacklo_ps(x[n], x[n + 1]);
        t[n + 1] = _mm256_unpackhi_ps(x[n], x[n + 1]);
    }
    for (int n = 0; n < 8; n += 4)
        for (int k = 0; k < 2; k++) {
            __m256d a = _mm256_castps_pd(t[n + k]), b = _mm256_castps_pd(t[n + 2 + k]);
            u[n + 2 * k] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
            u[n + 2 * k + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
        }
    for (int k = 0; k < 4; k++) {
        x[k] = _mm256_permute2f128_ps(u[k], u[4 + k], 0x20);
        x[4 + k] = _mm256_permute2f128_ps(u[k], u[4 + k], 0x31);
    }
}

#endif
