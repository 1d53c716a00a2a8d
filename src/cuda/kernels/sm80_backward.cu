// SPDX-License-Identifier: Apache-2.0
#include "tensor_backward.cuh"

#define SM80_BACKWARD(module, d, rows, keys)                         \
    TENSOR_BACKWARD(sm80_backward_##d##_f16, false, d, rows, keys)   \
    TENSOR_BACKWARD(sm80_backward_##d##_bf16, true, d, rows, keys)
SM80_BACKWARD_SHAPES(SM80_BACKWARD)
