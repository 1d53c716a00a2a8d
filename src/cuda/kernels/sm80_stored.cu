// SPDX-License-Identifier: Apache-2.0
#include "m16n8_few.cuh"

template <int Rows, int Keys> using family = m16n8_few<sm80_products<false>, Rows / 8, Keys, ATTN_STORED_CODES>;

#define SM80_STORED_KERNELS(module, d, rows, most_rows, keys, depth, blocks_per_sm) \
    RING_KERNEL(sm80_stored_##d##_##rows, RING_FAMILY(family<rows, keys>), d, depth, blocks_per_sm)
SM80_STORED_SHAPES(SM80_STORED_KERNELS)
