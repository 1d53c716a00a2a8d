// SPDX-License-Identifier: Apache-2.0
#include "m16n8_few.cuh"

#define SM75_FEW_KERNELS(module, d, rows, blocks_per_sm) FEW_KERNEL(sm75_few_##d, m16n8_few<sm75_products>, d, blocks_per_sm)
SM75_FEW_SHAPES(SM75_FEW_KERNELS)
