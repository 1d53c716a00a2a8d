// SPDX-License-Identifier: Apache-2.0
#include "m16n8_products.cuh"

SM80_SMALL_SHAPES(SM80_SMALL_KERNELS)
