// SPDX-License-Identifier: Apache-2.0
#include "sm70_tiles.cuh"

#define SM70_BACKWARD(module, d, rows, keys, ...) \
    TENSOR_BACKWARD(sm70_backward_##d##_##rows##x##keys, sm70_tiles, d, rows, keys, __VA_ARGS__)
SM70_BACKWARD_SHAPES(SM70_BACKWARD)
