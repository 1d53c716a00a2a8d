/* SPDX-License-Identifier: Apache-2.0
 * What lets one inline function serve C11 hosts and CUDA kernels. */
#ifndef ATTN_PORTABLE_H
#define ATTN_PORTABLE_H

#include <stdint.h>

#if defined(__CUDACC__)
#  define ATTN_INLINE static __host__ __device__ __forceinline__
#else
#  define ATTN_INLINE static inline
#endif

ATTN_INLINE int64_t attn_min(int64_t a, int64_t b) { return a < b ? a : b; }
ATTN_INLINE int64_t attn_max(int64_t a, int64_t b) { return a > b ? a : b; }
/* b > 0, a >= 0 */
ATTN_INLINE int64_t attn_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
ATTN_INLINE int64_t attn_round_up(int64_t a, int64_t b) { return attn_ceil_div(a, b) * b; }

#endif
