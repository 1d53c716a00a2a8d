// SPDX-License-Identifier: Apache-2.0
#include "m16n8_few.cuh"

template <int Rows, int Keys> using family = m16n8_few<sm75_products, Rows / 8, Keys, ATTN_STORED_ANY>;

#define SM75_STORED_KERNELS(module, d, rows, most_rows, keys, depth, blocks_per_sm) \
    RING_KERNEL(sm75_stored_##d##_##rows, RING_FAMILY(family<rows, keys>), d, depth, blocks_per_sm)
SM75_STORED_SHAPES(SM75_STORED_KERNELS)
