// SPDX-License-Identifier: Apache-2.0
#include "m16n8_products.cuh"

SM75_SHAPES(SM75_KERNELS)
