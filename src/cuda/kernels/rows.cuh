// SPDX-License-Identifier: Apache-2.0
// Elements of rows of any storage type as float32: four at a time, from element d (a multiple of four) of a row that
// starts at element `place`. Whatever the alignment: vector loads where it allows them. And whether dropout keeps a pair.
#ifndef ATTN_CUDA_ROWS_CUH
#define ATTN_CUDA_ROWS_CUH

#include "device.cuh"
#include "job.h"

DEVICE bool is_aligned(const void *p, unsigned bytes) { return (reinterpret_cast<uintptr_t>(p) & (bytes - 1)) == 0; }

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
        x[e] = is_f16 ? low_half(pair[e / 2]) : attn_bits_float(pair[e / 2] << 16);
        x[e + 1] = is_f16 ? high_half(pair[e / 2]) : attn_bits_float(pair[e / 2] & 0xffff0000u);
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
    const char *block = t.data + element / ATTN_BLOCK * (q8 ? ATTN_Q8_0_BYTES : ATTN_Q4_0_BYTES);
    const int first = int(element % ATTN_BLOCK);
    const float scale = low_half(attn_load_u16(block));
#pragma unroll
    for (int e = 0; e < 4; e++) {
        // Q4_0: elements 0 to 15 are the low nibbles, 16 to 31 the high ones
        const int at = first + e;
        const uint8_t byte = uint8_t(block[2 + (q8 ? at : at % 16)]);
        x[e] = scale * float(q8 ? int(int8_t(byte)) : int(at < 16 ? byte & 15 : byte >> 4) - 8);
    }
}

// place < 0: no such row, zeros; so are elements from n on.
DEVICE void load_four(const attn_view &t, int64_t place, int64_t d, int64_t n, float scale, float (&x)[4])
{
    x[0] = x[1] = x[2] = x[3] = 0;
    if (place < 0 || d >= n) return;
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

// attn_dropout_keep() without an index into registers.
DEVICE bool is_kept(const attn_job &job, uint64_t seed, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const uint64_t column = uint64_t(job.column_origin + j);
    const attn_philox r = attn_philox_4x32_10(attn_dropout_group(column), uint32_t(job.row_origin + i),
                                              uint32_t(job.head_origin + h), uint32_t(job.batch_origin + b), seed);
    const int n = attn_dropout_word(column);
    const uint32_t low = n & 1 ? r.word[1] : r.word[0], high = n & 1 ? r.word[3] : r.word[2];
    return (n & 2 ? high : low) >= job.keep_threshold;
}

#endif
