/* SPDX-License-Identifier: Apache-2.0
 * The operations whose intrinsics differ between levels by their prefix alone. vector_NAME.h includes it after the type
 * vf and PS(operation), the intrinsic of that operation on vf. */
VECTOR vf vf_zero(void) { return PS(setzero)(); }
VECTOR vf vf_set1(float x) { return PS(set1)(x); }
VECTOR vf vf_load(const float *p) { return PS(loadu)(p); }
VECTOR void vf_store(float *p, vf x) { PS(storeu)(p, x); }
/* Past the caches: memory need not be read first. p is aligned to a vector. */
VECTOR void vf_stream(float *p, vf x) { PS(stream)(p, x); }
VECTOR vf vf_add(vf a, vf b) { return PS(add)(a, b); }
VECTOR vf vf_sub(vf a, vf b) { return PS(sub)(a, b); }
VECTOR vf vf_mul(vf a, vf b) { return PS(mul)(a, b); }
VECTOR vf vf_div(vf a, vf b) { return PS(div)(a, b); }
VECTOR vf vf_fma(vf a, vf b, vf c) { return PS(fmadd)(a, b, c); }
VECTOR vf vf_fms(vf a, vf b, vf c) { return PS(fmsub)(a, b, c); }
/* b where one of them is NaN */
VECTOR vf vf_max(vf a, vf b) { return PS(max)(a, b); }

/* Codes made into others: the same at all levels, which have AVX2. */

/* The nibbles of a block of Q4_0, less 8, as bytes. */
VECTOR __m256i load_nibbles_as_bytes(const char *p)
{
    const __m128i x = _mm_loadu_si128((const __m128i *)(const void *)p);
    const __m256i codes = _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(x, 4), x), _mm256_set1_epi8(15));
    return _mm256_sub_epi8(codes, _mm256_set1_epi8(8));
}
/* The 32 codes, or nibbles, at rows[n] + at of W rows, transposed: those of one element lie together, elements in the order
 * 0, 16, 1, 17, ... (W = 16) or 0, 1, 16, 17, 2, 3, ... (W = 8). Each round interleaves the bytes of rows n and n + W / 2. */
VECTOR void store_codes_across(char *to, int nibbles, const char *const *rows, int64_t at)
{
    __m256i x[W], y[W];
#pragma GCC unroll 16
    for (int n = 0; n < W; n++)
        x[n] = nibbles ? load_nibbles_as_bytes(rows[n] + at)
                       : _mm256_loadu_si256((const __m256i *)(const void *)(rows[n] + at));
#pragma GCC unroll 4
    for (int half = W / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
        for (int n = 0; n < W / 2; n++) {
            y[2 * n] = _mm256_unpacklo_epi8(x[n], x[n + W / 2]);
            y[2 * n + 1] = _mm256_unpackhi_epi8(x[n], x[n + W / 2]);
        }
        memcpy(x, y, sizeof x);
    }
#pragma GCC unroll 16
    for (int n = 0; n < W; n++) _mm256_storeu_si256((__m256i *)(void *)(to + 32 * n), x[n]);
}
/* The codes of n elements of Q4_0 where those of Q8_0 would be. */
VECTOR void store_q4_as_q8(char *to, const char *p, int64_t n)
{
#pragma GCC unroll 4
    for (int64_t b = 0; b < n / ATTN_BLOCK; b++)
        _mm256_storeu_si256((__m256i *)(void *)(to + b * ATTN_Q8_0_BYTES + 2),
                            load_nibbles_as_bytes(p + b * ATTN_Q4_0_BYTES + 2));
}
/* n codes E5M2 as f16, n a multiple of 16. */
VECTOR void store_e5m2_as_f16(char *to, const char *p, int64_t n)
{
#pragma GCC unroll 4
    for (int64_t d = 0; d < n; d += 16) {
        const __m128i x = _mm_loadu_si128((const __m128i *)(const void *)(p + d));
        _mm256_storeu_si256((__m256i *)(void *)(to + 2 * d), _mm256_slli_epi16(_mm256_cvtepu8_epi16(x), 8));
    }
}
/* The same of E4M3, see vf_load_as. 1: NaN is among them. */
VECTOR int store_e4m3_as_f16(char *to, const char *p, int64_t n)
{
    const __m128i magnitude = _mm_set1_epi8(0x7f);
    __m128i most = _mm_setzero_si128();
#pragma GCC unroll 4
    for (int64_t d = 0; d < n; d += 16) {
        const __m128i x = _mm_loadu_si128((const __m128i *)(const void *)(p + d));
        const __m256i h = _mm256_slli_epi16(_mm256_cvtepi8_epi16(x), 7); /* the sign twice */
        _mm256_storeu_si256((__m256i *)(void *)(to + 2 * d), _mm256_and_si256(h, _mm256_set1_epi16((short)0xbf80)));
        most = _mm_max_epu8(most, _mm_and_si128(x, magnitude));
    }
    return _mm_movemask_epi8(_mm_cmpeq_epi8(most, magnitude)) != 0;
}
