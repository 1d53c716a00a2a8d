/* SPDX-License-Identifier: Apache-2.0
 * Number formats of docs/semantics.md section 5, by integer arithmetic, so that every device, compiler
 * and rounding mode gives the same bits. */
#ifndef ATTN_NUMBER_H
#define ATTN_NUMBER_H

#include "portable.h"
#include <math.h>
#include <string.h>

#define ATTN_BLOCK 32      /* elements of a Q8_0 or Q4_0 block */
#define ATTN_Q8_0_BYTES 34 /* f16 scale, 32 int8 */
#define ATTN_Q4_0_BYTES 18 /* f16 scale, 16 bytes of nibbles */

#define ATTN_F8_E4M3_MAX 448.0f
#define ATTN_F8_E5M2_MAX 57344.0f

ATTN_INLINE uint32_t attn_float_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

ATTN_INLINE float attn_bits_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Magnitude of x (not NaN) in a format of `mantissa` stored bits and exponent bias `bias`, rounded to
 * nearest even, subnormals included. The exponent field is unbounded: the caller handles overflow. */
ATTN_INLINE uint32_t attn_encode_magnitude(float x, int mantissa, int bias)
{
    uint32_t a = attn_float_bits(x) & 0x7fffffffu;
    int exponent = (int)(a >> 23) - 127;
    int shift = 23 - mantissa;
    if (exponent >= 1 - bias) { /* normal there: round in place, then change the bias */
        a += (1u << (shift - 1)) - 1u + ((a >> shift) & 1u);
        return (a >> shift) - ((uint32_t)(127 - bias) << mantissa);
    }
    shift += 1 - bias - exponent;
    if (shift > 25) return 0; /* below half of the smallest subnormal; float32 subnormals end here too */
    uint32_t m = (a & 0x7fffffu) | 0x800000u;
    uint32_t rest = m & ((1u << shift) - 1u), half = 1u << (shift - 1);
    m >>= shift;
    return m + (rest > half || (rest == half && (m & 1u)));
}

/* Value of magnitude bits in such a format; the exponent field is never special. */
ATTN_INLINE float attn_decode_magnitude(uint32_t code, int mantissa, int bias)
{
    uint32_t exponent = code >> mantissa;
    if (exponent) return attn_bits_float((code << (23 - mantissa)) + ((uint32_t)(127 - bias) << 23));
    /* subnormal: code * 2^(1 - bias - mantissa), exact in float32 */
    return (float)code * attn_bits_float((uint32_t)(127 + 1 - bias - mantissa) << 23);
}

ATTN_INLINE float attn_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, a = h & 0x7fffu;
    if (a >= 0x7c00u) return attn_bits_float(sign | 0x7f800000u | ((a & 0x3ffu) << 13)); /* inf, NaN */
    return attn_bits_float(sign | attn_float_bits(attn_decode_magnitude(a, 10, 15)));
}

ATTN_INLINE uint16_t attn_f32_to_f16(float x)
{
    uint32_t sign = (attn_float_bits(x) >> 16) & 0x8000u;
    if (x != x) return (uint16_t)(sign | 0x7e00u);
    uint32_t a = attn_encode_magnitude(x, 10, 15);
    return (uint16_t)(sign | (a > 0x7c00u ? 0x7c00u : a));
}

ATTN_INLINE float attn_bf16_to_f32(uint16_t h) { return attn_bits_float((uint32_t)h << 16); }

ATTN_INLINE uint16_t attn_f32_to_bf16(float x)
{
    uint32_t u = attn_float_bits(x);
    if (x != x) return (uint16_t)((u >> 16) | 0x40u); /* quiet, also where only low bits said NaN */
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

ATTN_INLINE float attn_e4m3_to_f32(uint8_t c)
{
    uint32_t sign = (uint32_t)(c & 0x80u) << 24, a = c & 0x7fu;
    if (a == 0x7fu) return attn_bits_float(sign | 0x7fc00000u);
    return attn_bits_float(sign | attn_float_bits(attn_decode_magnitude(a, 3, 7)));
}

ATTN_INLINE uint8_t attn_f32_to_e4m3(float x)
{
    uint32_t sign = (attn_float_bits(x) >> 24) & 0x80u;
    if (x != x) return (uint8_t)(sign | 0x7fu);
    uint32_t a = fabsf(x) > ATTN_F8_E4M3_MAX ? 0x7eu : attn_encode_magnitude(x, 3, 7);
    return (uint8_t)(sign | a);
}

ATTN_INLINE float attn_e5m2_to_f32(uint8_t c) { return attn_f16_to_f32((uint16_t)(c << 8)); }

ATTN_INLINE uint8_t attn_f32_to_e5m2(float x)
{
    uint32_t sign = (attn_float_bits(x) >> 24) & 0x80u;
    if (x != x) return (uint8_t)(sign | 0x7fu);
    uint32_t a = fabsf(x) > ATTN_F8_E5M2_MAX ? 0x7bu : attn_encode_magnitude(x, 2, 15);
    return (uint8_t)(sign | a);
}

/* Half away from zero, clamped to +-127; NaN gives 0. Comparisons first: converting what int cannot hold is
 * undefined. */
ATTN_INLINE int8_t attn_f32_to_i8(float x)
{
    if (!(x > -127.0f)) return x != x ? 0 : -127;
    if (x > 127.0f) return 127;
    return (int8_t)roundf(x);
}

ATTN_INLINE uint16_t attn_load_u16(const void *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return h;
}

ATTN_INLINE void attn_store_u16(void *p, uint16_t h) { memcpy(p, &h, sizeof h); }

/* One block of 32 floats to and from ggml's layouts; see docs/semantics.md section 5. */
ATTN_INLINE void attn_q8_0_encode(const float *x, uint8_t *block)
{
    float largest = 0.0f;
    for (int n = 0; n < ATTN_BLOCK; n++) largest = fabsf(x[n]) > largest ? fabsf(x[n]) : largest;
    float d = largest / 127.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
    attn_store_u16(block, attn_f32_to_f16(d));
    for (int n = 0; n < ATTN_BLOCK; n++) block[2 + n] = (uint8_t)attn_f32_to_i8(x[n] * inverse);
}

ATTN_INLINE void attn_q4_0_encode(const float *x, uint8_t *block)
{
    float largest = 0.0f, signed_largest = 0.0f;
    for (int n = 0; n < ATTN_BLOCK; n++)
        if (fabsf(x[n]) > largest) {
            largest = fabsf(x[n]);
            signed_largest = x[n];
        }
    float d = signed_largest / -8.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
    attn_store_u16(block, attn_f32_to_f16(d));
    uint8_t nibble[ATTN_BLOCK];
    for (int n = 0; n < ATTN_BLOCK; n++) {
        float t = x[n] * inverse + 8.5f;
        nibble[n] = t >= 15.0f ? 15 : t > 0.0f ? (uint8_t)t : t != t ? 8 : 0;
    }
    for (int n = 0; n < ATTN_BLOCK / 2; n++) block[2 + n] = (uint8_t)(nibble[n] | nibble[n + ATTN_BLOCK / 2] << 4);
}

ATTN_INLINE int attn_q4_0_code(const uint8_t *block, int n) /* -8 .. 7 */
{
    int byte = block[2 + n % (ATTN_BLOCK / 2)];
    return (n < ATTN_BLOCK / 2 ? byte & 15 : byte >> 4) - 8;
}

#endif
