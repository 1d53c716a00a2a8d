// SPDX-License-Identifier: Apache-2.0
#include "m16n8_products.cuh"

SM80_SHAPES_512(SM80_PADDED_KERNELS)
