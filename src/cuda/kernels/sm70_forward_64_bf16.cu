// SPDX-License-Identifier: Apache-2.0
#include "sm70_products.cuh"

SM70_SHAPES_64(SM70_BF16_KERNELS)
