// SPDX-License-Identifier: Apache-2.0
#include "m16n8_few.cuh"

template <int Rows, int Keys> using family = m16n8_few<sm75_products, Rows / 8, Keys, ATTN_STORED_NONE>;

#define SM75_FEW_KERNELS(module, d, rows, most_rows, keys, depth, blocks_per_sm) \
    RING_KERNEL(sm75_few_##d##_##rows, RING_FAMILY(family<rows, keys>), d, depth, blocks_per_sm)
SM75_RING_SHAPES(SM75_FEW_KERNELS)
