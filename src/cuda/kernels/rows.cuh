// SPDX-License-Identifier: Apache-2.0
// Elements of rows of any storage type as float32: four at a time, from element d (a multiple of four) of a row that
// starts at element `place`. Whatever the alignment: vector loads where it allows them.
#ifndef ATTN_CUDA_ROWS_CUH
#define ATTN_CUDA_ROWS_CUH

#include "device.cuh"
#include "job.h"

#define ROW_NOWHERE INT64_MIN /* any other offset may be a row's, where strides are negative */

DEVICE bool is_aligned(const void *p, unsigned bytes) { return (reinterpret_cast<uintptr_t>(p) & (bytes - 1)) == 0; }

// An element of a view that is always float32: LSE and its gradient.
DEVICE float load_float32(const attn_view &t, int64_t offset) { return load_vector<float>(t.data + 4 * offset); }

DEVICE void load_four_f32(const char *p, int count, float (&x)[4])
{
    if (count == 4 && is_aligned(p, 16)) {
        const float4 four = load_vector<float4>(p);
        x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
        return;
    }
#pragma unroll
    for (int e = 0; e < 4; e++)
        if (e < count) x[e] = load_vector<float>(p + 4 * e);
}

// F16 and BF16.
DEVICE void load_four_u16(const char *p, int count, bool is_f16, float (&x)[4])
{
    uint32_t pair[2] = {0, 0};
    if (count == 4 && is_aligned(p, 8)) {
        const uint2 four = load_vector<uint2>(p);
        pair[0] = four.x, pair[1] = four.y;
    } else {
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (e < count) pair[e / 2] |= uint32_t(attn_load_u16(p + 2 * e)) << 16 * (e % 2);
    }
#pragma unroll
    for (int e = 0; e < 4; e += 2) {
        x[e] = is_f16 ? low_half(pair[e / 2]) : low_bf16(pair[e / 2]);
        x[e + 1] = is_f16 ? high_half(pair[e / 2]) : high_bf16(pair[e / 2]);
    }
}

DEVICE float byte_to_float(int32_t type, uint8_t code)
{
    if (type == ATTN_I8) return float(int8_t(code));
    return type == ATTN_F8_E4M3 ? attn_e4m3_to_f32(code) : attn_e5m2_to_f32(code);
}

DEVICE void load_four_bytes(const char *p, int count, int32_t type, float scale, float (&x)[4])
{
#pragma unroll
    for (int e = 0; e < 4; e++)
        if (e < count) x[e] = scale * byte_to_float(type, uint8_t(p[e]));
}

// Blocks of 32: rows start and end with whole ones.
DEVICE void load_four_blocks(const attn_view &t, int64_t element, float (&x)[4])
{
    const bool q8 = t.dtype == ATTN_Q8_0;
    const uint8_t *block = reinterpret_cast<const uint8_t *>(attn_element(&t, element / ATTN_BLOCK * ATTN_BLOCK));
    const int first = int(element % ATTN_BLOCK);
    const float scale = low_half(attn_load_u16(block));
#pragma unroll
    for (int e = 0; e < 4; e++)
        x[e] = scale * float(q8 ? int8_t(block[2 + first + e]) : attn_q4_0_code(block, first + e));
}

// place ROW_NOWHERE: no such row, zeros; so are elements from n on.
DEVICE void load_four(const attn_view &t, int64_t place, int64_t d, int64_t n, float scale, float (&x)[4])
{
    x[0] = x[1] = x[2] = x[3] = 0;
    if (place == ROW_NOWHERE || d >= n) return;
    const int count = n - d < 4 ? int(n - d) : 4;
    switch (t.dtype) {
    case ATTN_F32: load_four_f32(t.data + 4 * (place + d), count, x); break;
    case ATTN_F16:
    case ATTN_BF16: load_four_u16(t.data + 2 * (place + d), count, t.dtype == ATTN_F16, x); break;
    case ATTN_Q8_0:
    case ATTN_Q4_0: load_four_blocks(t, place + d, x); break;
    default: load_four_bytes(t.data + place + d, count, t.dtype, scale, x);
    }
}

// Rows that vector loads of four elements reach everywhere: decided once for a view of n columns.
enum row_kind { ROWS_OTHER, ROWS_F32, ROWS_F16, ROWS_BF16 };

DEVICE int row_kind_of(const attn_view &t, int64_t n)
{
    if (((t.stride[0] | t.stride[1] | t.stride[2] | n) & 3) != 0) return ROWS_OTHER;
    if (t.dtype == ATTN_F32) return is_aligned(t.data, 16) ? ROWS_F32 : ROWS_OTHER;
    if (!is_aligned(t.data, 8)) return ROWS_OTHER;
    return t.dtype == ATTN_F16 ? ROWS_F16 : t.dtype == ATTN_BF16 ? ROWS_BF16 : ROWS_OTHER;
}

#endif
