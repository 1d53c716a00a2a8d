// SPDX-License-Identifier: Apache-2.0
#include "m16n8_few.cuh"

template <int Rows, int Keys> using halves = m16n8_few<sm80_products<false>, Rows / 8, Keys, ATTN_STORED_NONE>;
template <int Rows, int Keys> using bf16 = m16n8_few<sm80_products<true>, Rows / 8, Keys, ATTN_STORED_NONE>;

#define SM80_FEW_KERNELS(module, d, rows, most_rows, keys, depth, blocks_per_sm)                       \
    RING_KERNEL(sm80_few_##d##_##rows##_f16, RING_FAMILY(halves<rows, keys>), d, depth, blocks_per_sm) \
    RING_KERNEL(sm80_few_##d##_##rows##_bf16, RING_FAMILY(bf16<rows, keys>), d, depth, blocks_per_sm)
SM80_RING_SHAPES(SM80_FEW_KERNELS)
