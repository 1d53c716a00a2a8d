/* SPDX-License-Identifier: Apache-2.0
 * The level of AVX-512 F, BW, DQ and VL (Skylake-X, Zen 4 and later). Compilers use AVX2 along with it. */
#define VECTOR_HEADER "vector_avx512.h"
#include "backward_vector.h"

VECTOR_LEVEL(avx512, ATTN_CPU_AVX512 | ATTN_CPU_AVX2 | ATTN_CPU_FMA | ATTN_CPU_F16C);
