// SPDX-License-Identifier: Apache-2.0
#include "sm90_few.cuh"

template <int Rows, int Keys> using halves = sm90_few<sm80_products<false>, Rows, Keys>;
template <int Rows, int Keys> using bf16 = sm90_few<sm80_products<true>, Rows, Keys>;

#define SM90_FEW_KERNELS(module, d, rows, most_rows, keys, depth, blocks_per_sm)                       \
    RING_KERNEL(sm90_few_##d##_##rows##_f16, RING_FAMILY(halves<rows, keys>), d, depth, blocks_per_sm) \
    RING_KERNEL(sm90_few_##d##_##rows##_bf16, RING_FAMILY(bf16<rows, keys>), d, depth, blocks_per_sm)
SM90_RING_SHAPES(SM90_FEW_KERNELS)
