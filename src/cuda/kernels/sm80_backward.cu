// SPDX-License-Identifier: Apache-2.0
#include "tensor_backward.cuh"

#define SM80_BACKWARD(module, d, keys)                                     \
    TENSOR_BACKWARD(sm80_backward_##d##_f16, false, d, keys)               \
    TENSOR_BACKWARD(sm80_backward_##d##_bf16, true, d, keys)
SM80_BACKWARD_SHAPES(SM80_BACKWARD)
