// SPDX-License-Identifier: Apache-2.0
#include "sm80_tiles.cuh"

#define SM80_BACKWARD(module, d, rows, keys, ...)                                                                  \
    TENSOR_BACKWARD(sm80_backward_##d##_##rows##x##keys##_f16, sm80_tiles<false>, d, rows, keys, __VA_ARGS__)      \
    TENSOR_BACKWARD(sm80_backward_##d##_##rows##x##keys##_bf16, sm80_tiles<true>, d, rows, keys, __VA_ARGS__)
SM80_BACKWARD_SHAPES(SM80_BACKWARD)
