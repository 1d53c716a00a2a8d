/* SPDX-License-Identifier: Apache-2.0
 * The dropout mask of docs/semantics.md section 4: Philox-4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel
 * random numbers: as easy as 1, 2, 3; SC'11). The packing below never changes. */
#ifndef ATTN_PHILOX_H
#define ATTN_PHILOX_H

#include "portable.h"

typedef struct attn_philox {
    uint32_t word[4];
} attn_philox;

ATTN_INLINE attn_philox attn_philox_4x32_10(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint64_t key)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(b >> 32) ^ c1 ^ k0, n2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    attn_philox r = {{c0, c1, c2, c3}};
    return r;
}

ATTN_INLINE uint64_t attn_dropout_key(uint64_t seed, uint64_t offset) { return seed + offset * 0x9E3779B97F4A7C15u; }

/* floor(p * 2^32) as a 64-bit number: p = 1 gives 2^32, above every word. The product is exact. */
ATTN_INLINE uint64_t attn_dropout_threshold(float p) { return (uint64_t)((double)p * 4294967296.0); }

/* Columns 0,1,4,5 and 2,3,6,7 of an aligned eight share a call. */
ATTN_INLINE uint32_t attn_dropout_group(uint64_t column) { return (uint32_t)(2 * (column >> 3) + ((column >> 1) & 1)); }
ATTN_INLINE int attn_dropout_word(uint64_t column) { return (int)((column & 1) + 2 * ((column >> 2) & 1)); }

#endif
