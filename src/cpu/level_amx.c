/* SPDX-License-Identifier: Apache-2.0
 * avx512bf16 with AMX's tiles (Sapphire Rapids and later), where the system permits this process to use them. */
#define VECTOR_HEADER "vector_avx512.h"
#define PRODUCT_HEADER "product_amx.h"
#include "backward_bf16.h"

BF16_LEVEL(amx, ATTN_CPU_AMX | ATTN_CPU_AVX512_BF16 | ATTN_CPU_AVX512 | ATTN_CPU_AVX2 | ATTN_CPU_FMA | ATTN_CPU_F16C,
           0);
