/* SPDX-License-Identifier: Apache-2.0 */
#include "suite_format.h"

#include "attn/attn.h"

#include <math.h>
#include <string.h>

/* A small binary float format: stored mantissa bits, exponent of the smallest normal number, code of infinity (or,
 * where there is none, the largest code, at which it saturates) and of NaN. */
struct binary {
    int mantissa, smallest, saturates;
    uint32_t top, nan, sign;
};

static struct binary binary_of(int32_t dtype)
{
    switch (dtype) {
    case ATTN_F16: return (struct binary){10, -14, 0, 0x7c00, 0x7e00, 0x8000};
    case ATTN_BF16: return (struct binary){7, -126, 0, 0x7f80, 0x7fc0, 0x8000};
    case ATTN_F8_E4M3: return (struct binary){3, -6, 1, 0x7e, 0x7f, 0x80};
    default: return (struct binary){2, -14, 1, 0x7b, 0x7f, 0x80}; /* F8_E5M2 */
    }
}

static uint32_t encode_binary(struct binary f, double x)
{
    uint32_t sign = signbit(x) ? f.sign : 0, code = f.top;
    double a = fabs(x);
    if (isnan(x)) return sign | f.nan;
    if (a == 0) return sign;
    if (!isinf(x)) {
        int exponent = ilogb(a);
        if (exponent < f.smallest) exponent = f.smallest;
        double steps = nearbyint(ldexp(a, f.mantissa - exponent)); /* the default mode: nearest, ties to even */
        double all = ldexp(exponent - f.smallest, f.mantissa) + steps;
        if (all < f.top) code = (uint32_t)all;
    }
    return sign | code;
}

static double decode_binary(struct binary f, uint32_t code)
{
    uint32_t a = code & (f.sign - 1);
    int exponent = (int)(a >> f.mantissa), fraction = (int)(a & ((1u << f.mantissa) - 1));
    double x;
    if (a == f.top && !f.saturates) x = INFINITY;
    else if (a > f.top)
        x = f.mantissa == 2 && a == 0x7c ? INFINITY : NAN; /* E5M2 reads infinities, never writes them */
    else if (exponent == 0) x = ldexp(fraction, f.smallest - f.mantissa);
    else x = ldexp(fraction + (1 << f.mantissa), exponent - 1 + f.smallest - f.mantissa);
    return code & f.sign ? -x : x;
}

int suite_is_block(int32_t dtype) { return dtype == ATTN_Q8_0 || dtype == ATTN_Q4_0; }

int suite_is_scaled(int32_t dtype) { return dtype == ATTN_I8 || dtype == ATTN_F8_E4M3 || dtype == ATTN_F8_E5M2; }

double suite_unit(int32_t dtype) { return dtype == ATTN_F16 ? 0x1p-11 : dtype == ATTN_BF16 ? 0x1p-8 : 0x1p-24; }

double suite_round(int32_t dtype, double x)
{
    if (dtype == ATTN_F32) return (float)x;
    return decode_binary(binary_of(dtype), encode_binary(binary_of(dtype), x));
}

/* Rounded half away from zero, clamped to +-127, NaN to 0. */
static int8_t to_i8(float x)
{
    float a = floorf(fabsf(x)), rest = fabsf(x) - a;
    if (isnan(x)) return 0;
    if (fabsf(x) >= 127.0f) a = 127.0f;
    else if (rest >= 0.5f) a += 1.0f;
    return (int8_t)(x < 0 ? -a : a);
}

static float largest(const float *x, int64_t n)
{
    float most = 0;
    for (int64_t i = 0; i < n; i++)
        if (fabsf(x[i]) > most) most = fabsf(x[i]);
    return most;
}

float suite_row_scale(int32_t dtype, const float *x, int64_t n)
{
    return largest(x, n) / (dtype == ATTN_I8 ? 127.0f : dtype == ATTN_F8_E4M3 ? 448.0f : 57344.0f);
}

static void put_half(unsigned char *p, uint32_t code)
{
    uint16_t h = (uint16_t)code;
    memcpy(p, &h, sizeof h);
}

static void encode_q8(unsigned char *block, const float *x)
{
    float d = largest(x, SUITE_BLOCK) / 127.0f;
    float inverse = d > 0 ? 1.0f / d : 0.0f;
    put_half(block, encode_binary(binary_of(ATTN_F16), d));
    for (int n = 0; n < SUITE_BLOCK; n++) block[2 + n] = (unsigned char)to_i8(x[n] * inverse);
}

static void encode_q4(unsigned char *block, const float *x)
{
    float most = largest(x, SUITE_BLOCK);
    int at = 0;
    while (at < SUITE_BLOCK - 1 && fabsf(x[at]) != most) at++;
    float d = (most > 0 ? x[at] : 0.0f) / -8.0f; /* -0 for a block of zeros, of either sign */
    float inverse = d != 0 ? 1.0f / d : 0.0f;
    put_half(block, encode_binary(binary_of(ATTN_F16), d));
    for (int n = 0; n < SUITE_BLOCK / 2; n++) {
        float low = truncf(x[n] * inverse + 8.5f), high = truncf(x[n + SUITE_BLOCK / 2] * inverse + 8.5f);
        block[2 + n] = (unsigned char)((int)fminf(low, 15) | (int)fminf(high, 15) << 4);
    }
}

void suite_encode(int32_t dtype, void *row, const float *x, int64_t n, float scale)
{
    unsigned char *out = row;
    if (dtype == ATTN_F32) {
        memcpy(out, x, sizeof *x * (size_t)n);
    } else if (dtype == ATTN_Q8_0) {
        for (int64_t i = 0; i < n; i += SUITE_BLOCK) encode_q8(out + i / SUITE_BLOCK * 34, x + i);
    } else if (dtype == ATTN_Q4_0) {
        for (int64_t i = 0; i < n; i += SUITE_BLOCK) encode_q4(out + i / SUITE_BLOCK * 18, x + i);
    } else if (dtype == ATTN_I8) {
        float inverse = scale != 0 ? 1.0f / scale : 0.0f;
        for (int64_t i = 0; i < n; i++) out[i] = (unsigned char)to_i8(x[i] * inverse);
    } else if (suite_is_scaled(dtype)) {
        for (int64_t i = 0; i < n; i++)
            out[i] = (unsigned char)(scale != 0 ? encode_binary(binary_of(dtype), x[i] / scale) : 0);
    } else {
        for (int64_t i = 0; i < n; i++) put_half(out + 2 * i, encode_binary(binary_of(dtype), x[i]));
    }
}

static double get_half(const unsigned char *p, int32_t dtype)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return decode_binary(binary_of(dtype), h);
}

static double block_value(int32_t dtype, const unsigned char *row, int64_t i)
{
    const unsigned char *block = row + i / SUITE_BLOCK * (dtype == ATTN_Q8_0 ? 34 : 18);
    int n = (int)(i % SUITE_BLOCK), half = SUITE_BLOCK / 2;
    double d = get_half(block, ATTN_F16);
    if (dtype == ATTN_Q8_0) return d * (int8_t)block[2 + n];
    return d * ((n < half ? block[2 + n] & 15 : block[2 + n - half] >> 4) - 8);
}

/* scale * code is exact here. */
void suite_decode(int32_t dtype, const void *row, double *x, int64_t n, float scale)
{
    const unsigned char *in = row;
    for (int64_t i = 0; i < n; i++) {
        float f;
        switch (dtype) {
        case ATTN_F32:
            memcpy(&f, in + 4 * i, sizeof f);
            x[i] = f;
            break;
        case ATTN_Q8_0:
        case ATTN_Q4_0: x[i] = block_value(dtype, in, i); break;
        case ATTN_I8: x[i] = (double)scale * (int8_t)in[i]; break;
        case ATTN_BOOL: x[i] = in[i] != 0; break;
        case ATTN_F16:
        case ATTN_BF16: x[i] = get_half(in + 2 * i, dtype); break;
        default: x[i] = (double)scale * decode_binary(binary_of(dtype), in[i]); break;
        }
    }
}

/* ---- random bits ------------------------------------------------------------------------------------------------ */

void suite_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t word[4])
{
    const uint64_t multiplier[2] = {0xD2511F53, 0xCD9E8D57};
    const uint32_t bump[2] = {0x9E3779B9, 0xBB67AE85};
    uint32_t x[4], k[2];
    memcpy(x, counter, sizeof x);
    memcpy(k, key, sizeof k);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = multiplier[0] * x[0], p1 = multiplier[1] * x[2];
        uint32_t next[4] = {(uint32_t)(p1 >> 32) ^ x[1] ^ k[0], (uint32_t)p1, (uint32_t)(p0 >> 32) ^ x[3] ^ k[1],
                            (uint32_t)p0};
        memcpy(x, next, sizeof x);
        k[0] += bump[0];
        k[1] += bump[1];
    }
    memcpy(word, x, sizeof x);
}

int suite_keeps(uint64_t seed, uint64_t offset, float dropout, int64_t batch, int64_t head, int64_t row, int64_t column)
{
    uint64_t mixed = seed + offset * 0x9E3779B97F4A7C15u;
    uint64_t group = 2 * ((uint64_t)column / 8) + (uint64_t)column / 2 % 2;
    uint32_t key[2] = {(uint32_t)mixed, (uint32_t)(mixed >> 32)}, word[4];
    uint32_t counter[4] = {(uint32_t)group, (uint32_t)row, (uint32_t)head, (uint32_t)batch};
    suite_philox(counter, key, word);
    double threshold = floor((double)dropout * 4294967296.0);
    return word[column % 2 + 2 * (column / 4 % 2)] >= threshold;
}
