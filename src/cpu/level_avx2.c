/* SPDX-License-Identifier: Apache-2.0
 * The level of AVX2, FMA and F16C (Haswell, Zen and later). */
#define VECTOR_HEADER "vector_avx2.h"
#include "backward_vector.h"

VECTOR_LEVEL(avx2, ATTN_CPU_AVX2 | ATTN_CPU_FMA | ATTN_CPU_F16C);
