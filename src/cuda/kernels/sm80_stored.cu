// SPDX-License-Identifier: Apache-2.0
#include "m16n8_few.cuh"

template <int Rows, int Keys, int Stored> using family = m16n8_few<sm80_products<false>, Rows / 8, Keys, Stored>;

#define SM80_STORED_KERNELS(module, d, rows, most_rows, keys, depth, blocks_per_sm)                                                      \
    RING_KERNEL(sm80_stored_##d##_##rows##_q8_0, RING_FAMILY(family<rows, keys, ATTN_STORED_Q8_0>), d, depth, blocks_per_sm) \
    RING_KERNEL(sm80_stored_##d##_##rows##_q4_0, RING_FAMILY(family<rows, keys, ATTN_STORED_Q4_0>), d, depth, blocks_per_sm) \
    RING_KERNEL(sm80_stored_##d##_##rows, RING_FAMILY(family<rows, keys, ATTN_STORED_CODES>), d, depth, blocks_per_sm)
SM80_STORED_SHAPES(SM80_STORED_KERNELS)
