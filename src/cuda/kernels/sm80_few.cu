// SPDX-License-Identifier: Apache-2.0
#include "m16n8_few.cuh"

#define SM80_FEW_KERNELS(module, d, rows, blocks_per_sm)                                   \
    FEW_KERNEL(sm80_few_##d##_f16, m16n8_few<sm80_products<false>>, d, blocks_per_sm)     \
    FEW_KERNEL(sm80_few_##d##_bf16, m16n8_few<sm80_products<true>>, d, blocks_per_sm)
SM80_FEW_SHAPES(SM80_FEW_KERNELS)
