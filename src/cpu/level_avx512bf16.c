/* SPDX-License-Identifier: Apache-2.0
 * avx512 with products of bf16 (Cooper Lake, Zen 4, Sapphire Rapids and later). */
#define VECTOR_HEADER "vector_avx512.h"
#define PRODUCT_HEADER "product_bf16.h"
#include "backward_bf16.h"

BF16_LEVEL(avx512bf16, ATTN_CPU_AVX512_BF16 | ATTN_CPU_AVX512 | ATTN_CPU_AVX2 | ATTN_CPU_FMA | ATTN_CPU_F16C,
           ATTN_CPU_FAST_BF16);
