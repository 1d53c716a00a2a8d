/* SPDX-License-Identifier: Apache-2.0
 * What the vector levels compute with: one header of vector operations a level (vector_NAME.h), and the functions of
 * whole vectors that are the same text for all of them. A level's file defines VECTOR_HEADER and includes
 * backward_vector.h, which includes forward_vector.h and so block_vector.h and this. */
#ifndef ATTN_CPU_VECTOR_H
#define ATTN_CPU_VECTOR_H

#include "rows.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define VECTOR ALWAYS_INLINE

/* Below it exp() gives 0: about -125.5 ln 2, so that no result is subnormal. */
#define EXP_LOWEST (-87.0f)

#include VECTOR_HEADER

/* exp(x) for x <= 0, about 1 ulp; exp(0) = 1; 0 below EXP_LOWEST. 2^(x log2 e) = 2^(t - 1) (2 2^r), t whole, |r| <= 1/2,
 * 2 2^r by a polynomial fitted to least relative error (2e-9) with constant 2. That log2 e is rounded to 24 bits costs
 * 1.3e-8 |x|, at most 5e-9 of the largest term. Adding `whole` rounds to t and leaves t + 126 in the lowest bits, which is
 * the exponent of 2^(t - 1), and for EXP_LOWEST that of 0. */
VECTOR vf vf_exp(vf x)
{
    const vf log2_e = vf_set1(1.44269504f), whole = vf_set1(0x1.8p23f + 126.0f);
    x = vf_max(vf_set1(EXP_LOWEST), x); /* NaN stays */
    vf t = vf_fma(x, log2_e, whole);
    vf r = vf_fms(x, log2_e, vf_sub(t, whole));
    vf p = vf_set1(2 * 1.5353362e-4f);
    p = vf_fma(p, r, vf_set1(2 * 1.3398875e-3f));
    p = vf_fma(p, r, vf_set1(2 * 9.61843692e-3f));
    p = vf_fma(p, r, vf_set1(2 * 5.55033237e-2f));
    p = vf_fma(p, r, vf_set1(2 * 2.40226477e-1f));
    p = vf_fma(p, r, vf_set1(2 * 6.93147182e-1f));
    p = vf_fma(p, r, vf_set1(2.0f));
    return vf_mul(p, vf_exponent(t));
}

/* tanh(x), about 2 ulp. Near 0 an odd polynomial (error 4e-9), because 1 - exp(-2|x|) would cancel. */
VECTOR vf vf_tanh(vf x)
{
    vf a = vf_abs(x), z = vf_mul(x, x), e = vf_exp(vf_mul(a, vf_set1(-2.0f)));
    vf far = vf_div(vf_sub(vf_set1(1.0f), e), vf_add(vf_set1(1.0f), e));
    vf p = vf_set1(-5.70498640e-3f);
    p = vf_fma(p, z, vf_set1(2.06390861e-2f));
    p = vf_fma(p, z, vf_set1(-5.37397154e-2f));
    p = vf_fma(p, z, vf_set1(1.33314416e-1f));
    p = vf_fma(p, z, vf_set1(-3.33332807e-1f));
    vf near = vf_fma(vf_mul(a, z), p, a);
    return vf_copysign(vf_select_less(a, vf_set1(0.625f), near, far), x);
}

#define E4M3_UNIT 256.0f

/* W elements of a row of any storage type from element d on, a multiple of W, without their factor. `type` is a constant
 * wherever it is called. E4M3 is read as f16, whose bias is another: too small by E4M3_UNIT, NaN as 480. */
VECTOR vf vf_load_as(int32_t type, const char *row, int64_t d)
{
    const int64_t block = d / ATTN_BLOCK, e = d % ATTN_BLOCK;
    switch (type) {
    case ATTN_F32: return vf_load((const float *)(const void *)row + d);
    case ATTN_F16: return vf_load_f16(row + 2 * d);
    case ATTN_BF16: return vf_load_bf16(row + 2 * d);
    case ATTN_I8: return vf_load_i8(row + d);
    case ATTN_F8_E4M3: return vf_load_e4m3(row + d);
    case ATTN_F8_E5M2: return vf_load_e5m2(row + d);
    case ATTN_Q8_0: return vf_load_i8(row + block * ATTN_Q8_0_BYTES + 2 + e);
    default: /* Q4_0 */
        return vf_load_nibbles(row + block * ATTN_Q4_0_BYTES + 2 + e % (ATTN_BLOCK / 2), e < ATTN_BLOCK / 2 ? 0 : 4);
    }
}

ALWAYS_INLINE int is_float_type(int32_t type) { return type == ATTN_F32 || type == ATTN_F16 || type == ATTN_BF16; }

ALWAYS_INLINE int is_block_type(int32_t type) { return type == ATTN_Q8_0 || type == ATTN_Q4_0; }

#endif
