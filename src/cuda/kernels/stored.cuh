// SPDX-License-Identifier: Apache-2.0
// Rows of K and V as they are stored, in shared memory, as halves for tensor cores. Codes are exact as halves; block scales are left to the caller.
// Rows start at multiples of 16 bytes there.
#ifndef ATTN_CUDA_STORED_CUH
#define ATTN_CUDA_STORED_CUH

#include "device.cuh"
#include "job.h"
#include "tensor_shapes.h"

enum stored_kind { STORED_HALVES, STORED_Q8_0, STORED_Q4_0, STORED_I8, STORED_E4M3, STORED_E5M2 };

DEVICE int stored_kind_of(int32_t dtype)
{
    switch (dtype) {
    case ATTN_Q8_0: return STORED_Q8_0;
    case ATTN_Q4_0: return STORED_Q4_0;
    case ATTN_I8: return STORED_I8;
    case ATTN_F8_E4M3: return STORED_E4M3;
    case ATTN_F8_E5M2: return STORED_E5M2;
    default: return STORED_HALVES;
    }
}

// That of an attn_stored which is of one type; else -1.
DEVICE constexpr int stored_only(int stored) { return stored == ATTN_STORED_Q8_0 ? STORED_Q8_0 : stored == ATTN_STORED_Q4_0 ? STORED_Q4_0 : -1; }

DEVICE bool stored_has_row_scale(int32_t dtype) { return dtype == ATTN_I8 || dtype == ATTN_F8_E4M3 || dtype == ATTN_F8_E5M2; }
DEVICE constexpr bool stored_has_block_scale(int kind) { return kind == STORED_Q8_0 || kind == STORED_Q4_0; }

// Bytes of n elements; of blocks: n is a multiple of 32, and may be negative.
DEVICE constexpr int64_t stored_bytes(int kind, int64_t n)
{
    return kind == STORED_HALVES ? 2 * n : kind == STORED_Q8_0 ? (n >> 5) * ATTN_Q8_0_BYTES : kind == STORED_Q4_0 ? (n >> 5) * ATTN_Q4_0_BYTES : n;
}

// Blocks of 34 and 18 bytes begin at a multiple of four if their number is even, else two behind one. All is loaded in words at multiples of four.

// A word with the bits of the scale of a block: in its lower half, of odd blocks in the upper.
template <int Kind> DEVICE uint32_t stored_scale_word(const char *row, int block)
{
    return load_vector<uint32_t>(row + block * (Kind == STORED_Q8_0 ? ATTN_Q8_0_BYTES : ATTN_Q4_0_BYTES) - block % 2 * 2);
}

template <int Kind> DEVICE float stored_scale(const char *row, int block)
{
    const uint32_t word = stored_scale_word<Kind>(row, block);
    return block % 2 ? high_half(word) : low_half(word);
}

// The bits of those of two rows.
template <int Kind> DEVICE uint32_t stored_scales(const char *first, const char *second, int block)
{
    return permute_bytes(stored_scale_word<Kind>(first, block), stored_scale_word<Kind>(second, block), block % 2 ? 0x7632 : 0x5410);
}

// Four bytes at a place that is a multiple of four or, of even blocks, two behind one.
DEVICE uint32_t stored_word(const char *p, bool is_whole)
{
    return is_whole ? load_vector<uint32_t>(p) : permute_bytes(load_vector<uint32_t>(p - 2), load_vector<uint32_t>(p + 2), 0x5432);
}

// The codes of columns 32 block + 4 n .. + 3, n from 0 to 7, a byte each.
template <int Kind> DEVICE uint32_t stored_codes(const char *row, int block, int n)
{
    if (Kind == STORED_Q8_0) return stored_word(row + block * ATTN_Q8_0_BYTES + 2 + 4 * n, block % 2 != 0);
    if (Kind == STORED_Q4_0) return stored_word(row + block * ATTN_Q4_0_BYTES + 2 + 4 * (n & 3), block % 2 != 0) >> (n & 4) & 0x0f0f0f0fu;
    return load_vector<uint32_t>(row + 32 * block + 4 * n);
}

// 1024 + code is a half whose low byte is the code.
DEVICE void stored_integers(uint32_t codes, uint32_t bias, uint32_t (&half)[2])
{
    half[0] = add_half2(permute_bytes(codes, 0x64646464u, 0x4140), bias);
    half[1] = add_half2(permute_bytes(codes, 0x64646464u, 0x4342), bias);
}

// Bytes that are 8-bit floats in the upper half of a half: E5M2 as it is. E4M3: its exponent lies one bit lower and is less by 8. All ones are NaN.
template <int Kind> DEVICE void stored_floats(uint32_t (&half)[2])
{
#pragma unroll
    for (int i = 0; i < 2 && Kind == STORED_E4M3; i++) {
        const uint32_t all = half[i] & 0x7f007f00u;
        half[i] = multiply_half2((half[i] & 0x80008000u) | all >> 1, 0x5c005c00u);
        if ((all & 0xffffu) == 0x7f00u) half[i] |= 0x7e00u;
        if (all >> 16 == 0x7f00u) half[i] |= 0x7e000000u;
    }
}

// Four codes as four halves.
template <int Kind> DEVICE void stored_halves(uint32_t codes, uint32_t (&half)[2])
{
    if (Kind == STORED_Q8_0 || Kind == STORED_I8) return stored_integers(codes ^ 0x80808080u, 0xe480e480u, half); // -(1024 + 128)
    if (Kind == STORED_Q4_0) return stored_integers(codes, 0xe408e408u, half);                                    // -(1024 + 8)
    half[0] = permute_bytes(codes, 0, 0x1404), half[1] = permute_bytes(codes, 0, 0x3424); // each in the upper byte
    stored_floats<Kind>(half);
}

// Integers as subnormal halves: code + bias, which is not negative, is the bits of (code + bias) 2^-24. That takes a mask where a normal half takes two
// permutations and a sum; products with bias 2^-24 (stored_bias, two halves) take the bias off again. It is the codes that are negative, not the bias, as ptxas 11.8
// makes -(bits) of an operand whose sign bit is set by subtracting integers.
DEVICE constexpr bool stored_is_integer(int kind) { return kind == STORED_Q8_0 || kind == STORED_I8 || kind == STORED_Q4_0; }
DEVICE constexpr uint32_t stored_bias(int kind) { return kind == STORED_Q4_0 ? 0x00080008u : 0x00800080u; }

// Four codes, the last four bits of each byte if Q4_0, as halves: those of bytes 0 and 2, and of 1 and 3. Of integers
// -(code + bias) 2^-24.
template <int Kind> DEVICE void stored_pairs(uint32_t codes, uint32_t (&half)[2])
{
    if constexpr (Kind == STORED_Q4_0) half[0] = and_or(codes, 0x000f000fu, 0x80008000u), half[1] = and_or(codes >> 8, 0x000f000fu, 0x80008000u);
    else if constexpr (stored_is_integer(Kind)) half[0] = and_xor(codes, 0x00ff00ffu, 0x80808080u), half[1] = and_xor(codes >> 8, 0x00ff00ffu, 0x80808080u);
    else {
        half[0] = permute_bytes(codes, 0, 0x2404), half[1] = permute_bytes(codes, 0, 0x3414);
        stored_floats<Kind>(half);
    }
}

// The bytes with the codes of columns 32 block + 4 n .. + 3, n from 0 to 7; Q4_0: the last four bits of each, above which are others.
template <int Kind> DEVICE uint32_t stored_bytes_of(const char *row, int block, int n)
{
    if constexpr (Kind == STORED_Q4_0) return stored_word(row + block * ATTN_Q4_0_BYTES + 2 + 4 * (n & 3), block % 2 != 0) >> (n & 4);
    else return stored_codes<Kind>(row, block, n);
}

// Columns 32 block + 4 n .. + 3 and 16 more, n from 0 to 3: eight halves.
template <int Kind> DEVICE void stored_key(const char *row, int block, int n, uint32_t (&half)[2][2])
{
#pragma unroll
    for (int i = 0; i < 2; i++)
        if constexpr (Kind == STORED_HALVES) {
            const uint2 four = load_vector<uint2>(row + 64 * block + 32 * i + 8 * n);
            half[i][0] = four.x, half[i][1] = four.y;
        } else stored_halves<Kind>(stored_codes<Kind>(row, block, n + 4 * i), half[i]);
}

// Bits of both halves that are scales from 512 on, whose products may exceed what a half holds.
DEVICE uint32_t stored_large(uint32_t scales) { return scales & scales << 1 & 0x40004000u; }
// 2^8 or 2^-8 of those, 1 of others.
DEVICE uint32_t stored_factor(uint32_t large, uint32_t factor)
{
    return (large & 0xffffu ? factor : 0x3c00u) | (large >> 16 ? factor : 0x3c00u) << 16;
}

// On its way from global to shared memory through registers.
template <int Bytes> struct stored_unit {
    uint32_t word[Bytes / 4];
};

template <int Bytes> DEVICE stored_unit<Bytes> load_unit_if(bool wanted, const char *from)
{
    stored_unit<Bytes> unit = {};
    if constexpr (Bytes == 16) {
        const uint4 v = load_once_if(wanted, from);
        unit.word[0] = v.x, unit.word[1] = v.y, unit.word[2] = v.z, unit.word[3] = v.w;
    } else if constexpr (Bytes == 8) {
        if (wanted) {
            const uint2 v = load_vector<uint2>(from);
            unit.word[0] = v.x, unit.word[1] = v.y;
        }
    } else if (wanted) unit.word[0] = load_vector<uint32_t>(from);
    return unit;
}

template <int Bytes> DEVICE void store_unit(char *to, const stored_unit<Bytes> &unit)
{
    if constexpr (Bytes == 16) store_vector(to, uint4{unit.word[0], unit.word[1], unit.word[2], unit.word[3]});
    else if constexpr (Bytes == 8) store_vector(to, uint2{unit.word[0], unit.word[1]});
    else store_vector(to, unit.word[0]);
}

#endif
