/* SPDX-License-Identifier: Apache-2.0 */
#include "internal.h"

/* What overflows becomes a stride that no tensor may have. */
static int64_t product(int64_t a, int64_t b)
{
    int64_t c;
    return __builtin_mul_overflow(a, b, &c) ? INT64_MAX : c;
}

attn_tensor attn_bhsd(void *data, attn_dtype dtype, int64_t b, int64_t h, int64_t s, int64_t d)
{
    attn_tensor t = {
        .data = data,
        .dtype = (int32_t)dtype,
        .shape = {b, h, s, d},
        .stride = {product(h, product(s, d)), product(s, d), d, 1},
    };
    return t;
}

attn_tensor attn_bshd(void *data, attn_dtype dtype, int64_t b, int64_t h, int64_t s, int64_t d)
{
    attn_tensor t = attn_bhsd(data, dtype, b, h, s, d);
    t.stride[1] = d;
    t.stride[2] = product(h, d);
    return t;
}

size_t attn_dtype_bytes(attn_dtype dtype, int64_t n)
{
    if (n < 0) return 0;
    if (n > INT64_MAX / 8) return SIZE_MAX; /* no memory has so many */
    size_t count = (size_t)n, blocks = (count + ATTN_BLOCK - 1) / ATTN_BLOCK;
    switch (dtype) {
    case ATTN_F32: return 4 * count;
    case ATTN_F16:
    case ATTN_BF16: return 2 * count;
    case ATTN_BOOL:
    case ATTN_F8_E4M3:
    case ATTN_F8_E5M2:
    case ATTN_I8: return count;
    case ATTN_Q8_0: return ATTN_Q8_0_BYTES * blocks;
    case ATTN_Q4_0: return ATTN_Q4_0_BYTES * blocks;
    }
    return 0;
}

const char *attn_dtype_name(attn_dtype dtype)
{
    switch (dtype) {
    case ATTN_F32: return "f32";
    case ATTN_F16: return "f16";
    case ATTN_BF16: return "bf16";
    case ATTN_BOOL: return "bool";
    case ATTN_F8_E4M3: return "f8_e4m3";
    case ATTN_F8_E5M2: return "f8_e5m2";
    case ATTN_I8: return "i8";
    case ATTN_Q8_0: return "q8_0";
    case ATTN_Q4_0: return "q4_0";
    }
    return "?";
}
