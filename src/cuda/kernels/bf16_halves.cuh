// SPDX-License-Identifier: Apache-2.0
// bf16 on tensor cores that take f16: numbers as halves, and what tells where that is not good enough (docs/design.md,
// "bf16 on the V100").
//
// A bf16 number times a power of two is a half, exactly, from 2^-17 to below 2^16, and off by at most 2^-25 below. So each of
// q, k and v has one power of two a task: q's largest number of the task's rows becomes 2^14 or a little more, k's and v's of the
// first step of keys 2^11, which leaves a factor of 16 for what comes later. P is multiplied by 2^15. What does not fit shows:
//
//   scores   off by (2^15 + 2^16) 2^-25 a product at most, which must be below 2^-16 in all, or the task gives up at once;
//            halves of k that overflow are seen as they are made
//   O        halves of v that overflow make it infinite or NaN; flushing moves a number of O by at most n (2^15 + 2^16) 2^-25 in
//            n keys, which must be below 2^-8 of the row's root mean square
//
// A task with a row of which this is not so says so in a word, and a launch of simt behind this one does it again.
#ifndef ATTN_CUDA_BF16_HALVES_CUH
#define ATTN_CUDA_BF16_HALVES_CUH

#include "device.cuh"
#include "tensor_shapes.h"

#define BF16_P_SCALE 0x1p15f
#define BF16_Q_LOG2 14
#define BF16_KV_LOG2 11

// In shared memory.
struct bf16_scales {
    float k, v, q; // that make halves
    float score, value; // of S, with the caller's; of O
    int trusted; // the scores, so far
    int pad[2];
    int largest[3][8]; // of a warp's q, k and v, without sign
};
static_assert(sizeof(bf16_scales) == TENSOR_BF16_BYTES, "room in tensor_shapes.h");

// Of two bf16, without sign: integers are in the same order.
DEVICE int bf16_larger(int largest, uint32_t pair) { return max(largest, max(int(pair & 0x7fff), int(pair >> 16 & 0x7fff))); }

DEVICE int bf16_largest(int largest, uint4 x)
{
    return bf16_larger(bf16_larger(bf16_larger(bf16_larger(largest, x.x), x.y), x.z), x.w);
}

// The power of two that takes `largest` to 2^log2 or a little more; 1 where there is nothing. Not beyond 2^-110 and 2^80, so that products
// of factors stay normal.
DEVICE float bf16_scale(int largest, int log2)
{
    const int field = largest ? log2 + 254 - (largest >> 7) : 127;
    return bits_float(uint32_t(min(max(field, 127 - 110), 127 + 80)) << 23);
}

DEVICE float inverse_power(float x) { return bits_float((254u << 23) - float_bits(x)); }

DEVICE uint32_t bf16_halves(uint32_t pair, float scale)
{
    return pack_half2(low_bf16(pair) * scale, high_bf16(pair) * scale);
}

DEVICE uint4 bf16_halves(uint4 x, float scale)
{
    return {bf16_halves(x.x, scale), bf16_halves(x.y, scale), bf16_halves(x.z, scale), bf16_halves(x.w, scale)};
}

// Both halves of a pair at once: bit 15 and bit 31 say whether one is infinite or NaN.
DEVICE uint32_t halves_overflow(uint32_t pair) { return (pair & 0x7fff7fff) + 0x04000400; }

DEVICE uint32_t halves_overflow(uint4 x)
{
    return halves_overflow(x.x) | halves_overflow(x.y) | halves_overflow(x.z) | halves_overflow(x.w);
}

#endif
