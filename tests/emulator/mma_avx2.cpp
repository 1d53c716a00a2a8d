/* SPDX-License-Identifier: Apache-2.0
 * The rounding mma for processors with AVX2, FMA and F16C, 5 times as fast as mma.cpp's. */
#include "mma.h"

#ifdef __x86_64__
#  include <immintrin.h>

#  include <initializer_list>

#  define TARGET __attribute__((target("avx2,fma,f16c")))
#  define INLINE TARGET static inline __attribute__((always_inline))

namespace emulator
{

INLINE __m128i load8(const void *p) { return _mm_loadl_epi64(static_cast<const __m128i *>(p)); }

/* out[k] = the 8 rows of A (columns of B) at k; see mma.cpp. */
template <unsigned WORDS>
INLINE void gather(__m256 (&out)[4], const uint32_t (&words)[LANES][WORDS], unsigned pair, bool by_vector)
{
    __m128i v[8];
    for (unsigned p = 0; p < 8; p++) v[p] = load8(words[mma_lane(pair, p)]);
    if (!by_vector) {
        for (int k = 0; k < 4; k++) out[k] = _mm256_cvtph_ps(_mm_unpacklo_epi64(v[k], v[k + 4]));
        return;
    }
    const __m128i t0 = _mm_unpacklo_epi16(v[0], v[1]), t1 = _mm_unpacklo_epi16(v[2], v[3]);
    const __m128i t2 = _mm_unpacklo_epi16(v[4], v[5]), t3 = _mm_unpacklo_epi16(v[6], v[7]);
    const __m128i low0 = _mm_unpacklo_epi32(t0, t1), high0 = _mm_unpackhi_epi32(t0, t1);
    const __m128i low1 = _mm_unpacklo_epi32(t2, t3), high1 = _mm_unpackhi_epi32(t2, t3);
    out[0] = _mm256_cvtph_ps(_mm_unpacklo_epi64(low0, low1));
    out[1] = _mm256_cvtph_ps(_mm_unpackhi_epi64(low0, low1));
    out[2] = _mm256_cvtph_ps(_mm_unpacklo_epi64(high0, high1));
    out[3] = _mm256_cvtph_ps(_mm_unpackhi_epi64(high0, high1));
}

/* Rows r and r + 2 of C are spread over two lanes, pairs of columns alternating: one unpack each way. */
TARGET static void compute_quad_pairs(const WarpMma &mma, MmaForm form)
{
    for (unsigned pair = 0; pair < 4; pair++) {
        __m256 a_columns[4], b[4];
        alignas(32) float a[4][8]; /* [k][row] */
        gather(a_columns, mma.a, pair, form == MMA_ROW_ROW || form == MMA_ROW_COL);
        gather(b, mma.b, pair, form == MMA_ROW_COL || form == MMA_COL_COL);
        for (int k = 0; k < 4; k++) _mm256_store_ps(a[k], a_columns[k]);
        for (unsigned p : {0u, 1u, 4u, 5u}) {
            float *first = mma.c[mma_lane(pair, p)], *second = mma.c[mma_lane(pair, p + 2)];
            const __m256d x = _mm256_castps_pd(_mm256_loadu_ps(first)), y = _mm256_castps_pd(_mm256_loadu_ps(second));
            __m256 row = _mm256_castpd_ps(_mm256_unpacklo_pd(x, y));
            __m256 row2 = _mm256_castpd_ps(_mm256_unpackhi_pd(x, y));
            for (int k = 0; k < 4; k++) {
                row = _mm256_fmadd_ps(_mm256_broadcast_ss(&a[k][p]), b[k], row);
                row2 = _mm256_fmadd_ps(_mm256_broadcast_ss(&a[k][p + 2]), b[k], row2);
            }
            const __m256d u = _mm256_castps_pd(row), v = _mm256_castps_pd(row2);
            _mm256_storeu_ps(first, _mm256_castpd_ps(_mm256_unpacklo_pd(u, v)));
            _mm256_storeu_ps(second, _mm256_castpd_ps(_mm256_unpackhi_pd(u, v)));
        }
    }
}

/* The lower and the upper halves of 8 words, as floats. */
INLINE void split(__m256 (&out)[2], __m256i words, bool is_bf16)
{
    const __m256i low = _mm256_set1_epi32(0xffff);
    if (is_bf16) {
        out[0] = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
        out[1] = _mm256_castsi256_ps(_mm256_andnot_si256(low, words));
        return;
    }
    const __m256i packed = /* low halves 0..3, high 0..3, low 4..7, high 4..7 */
        _mm256_packus_epi32(_mm256_and_si256(words, low), _mm256_srli_epi32(words, 16));
    const __m256i ordered = _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0));
    out[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(ordered));
    out[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(ordered, 1));
}

/* Columns become rows; a row has 8 words. */
INLINE void transpose(__m256i (&x)[8])
{
    __m256i t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_epi32(x[i], x[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi32(x[i], x[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            u[i + 2 * j] = _mm256_unpacklo_epi64(t[i + j], t[i + j + 2]);
            u[i + 2 * j + 1] = _mm256_unpackhi_epi64(t[i + j], t[i + j + 2]);
        }
    for (int i = 0; i < 4; i++) {
        x[i] = _mm256_permute2x128_si256(u[i], u[i + 4], 0x20);
        x[i + 4] = _mm256_permute2x128_si256(u[i], u[i + 4], 0x31);
    }
}

/* A group of 4 lanes has two rows of C, two neighbours of each in a lane; see mma.cpp. */
template <MmaForm FORM> TARGET static void compute_16x8(const WarpMma &mma)
{
    constexpr bool is_bf16 = FORM == MMA_K16_BF16;
    constexpr int terms = FORM == MMA_K8_F16 ? 8 : 16;
    __m256i words[8]; /* of b: [group][2 * place + word], then [2 * place + word][group] */
    for (int g = 0; g < 8; g++) words[g] = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(mma.b[4 * g]));
    transpose(words);
    __m256 b[16]; /* [k]: 8 columns */
    for (int q = 0; q < 4; q++)
        for (int w = 0; w < terms / 8; w++) {
            __m256 pair[2];
            split(pair, words[2 * q + w], is_bf16);
            b[8 * w + 2 * q] = pair[0];
            b[8 * w + 2 * q + 1] = pair[1];
        }
    for (int g = 0; g < 8; g++) {
        alignas(32) float a[4][2][4]; /* [place][lower or upper half][word] */
        for (int q = 0; q < 4; q += 2) {
            __m256 pair[2]; /* the words of two lanes */
            split(pair, _mm256_loadu_si256(reinterpret_cast<const __m256i *>(mma.a[4 * g + q])), is_bf16);
            for (int half = 0; half < 2; half++) {
                _mm_store_ps(a[q][half], _mm256_castps256_ps128(pair[half]));
                _mm_store_ps(a[q + 1][half], _mm256_extractf128_ps(pair[half], 1));
            }
        }
        float *const *c = &mma.c[4 * g];
        const __m128 c0 = _mm_loadu_ps(c[0]), c1 = _mm_loadu_ps(c[1]), c2 = _mm_loadu_ps(c[2]), c3 = _mm_loadu_ps(c[3]);
        __m256 row = _mm256_set_m128(_mm_movelh_ps(c2, c3), _mm_movelh_ps(c0, c1));
        __m256 row8 = _mm256_set_m128(_mm_movehl_ps(c3, c2), _mm_movehl_ps(c1, c0));
        for (int k = 0; k < terms; k++) {
            const float *of_k = &a[k % 8 / 2][k % 2][2 * (k / 8)];
            row = _mm256_fmadd_ps(_mm256_broadcast_ss(of_k), b[k], row);
            row8 = _mm256_fmadd_ps(_mm256_broadcast_ss(of_k + 1), b[k], row8);
        }
        for (int q = 0; q < 4; q++) {
            const __m128 x = q < 2 ? _mm256_castps256_ps128(row) : _mm256_extractf128_ps(row, 1);
            const __m128 y = q < 2 ? _mm256_castps256_ps128(row8) : _mm256_extractf128_ps(row8, 1);
            _mm_storeu_ps(c[q], q % 2 == 0 ? _mm_movelh_ps(x, y) : _mm_movehl_ps(y, x));
        }
    }
}

bool mma_compute_avx2(const WarpMma &mma, MmaForm form)
{
    static const bool usable = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (!usable) return false;
    switch (form) {
    case MMA_K16_F16: compute_16x8<MMA_K16_F16>(mma); break;
    case MMA_K16_BF16: compute_16x8<MMA_K16_BF16>(mma); break;
    case MMA_K8_F16: compute_16x8<MMA_K8_F16>(mma); break;
    default: compute_quad_pairs(mma, form);
    }
    return true;
}

} // namespace emulator
#else
namespace emulator
{
bool mma_compute_avx2(const WarpMma &, MmaForm) { return false; }
} // namespace emulator
#endif
