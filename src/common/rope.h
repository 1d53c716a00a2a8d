/* SPDX-License-Identifier: Apache-2.0
 * Rotary embedding of docs/semantics.md section 6: one expression with explicit fused multiply-adds, so that
 * CPU and GPU agree to the bit. */
#ifndef ATTN_ROPE_H
#define ATTN_ROPE_H

#include "portable.h"
#include <math.h>

/* Rotates `rotary_dim` columns of a float row in place; cos and sin point at this position's row. */
ATTN_INLINE void attn_rope_row(float *x, const float *cosine, const float *sine, int64_t rotary_dim, int interleaved)
{
    int64_t half = rotary_dim / 2;
    for (int64_t n = 0; n < half; n++) {
        int64_t ia = interleaved ? 2 * n : n, ib = interleaved ? 2 * n + 1 : n + half;
        float a = x[ia], b = x[ib], bs = b * sine[n], as = a * sine[n];
        x[ia] = fmaf(a, cosine[n], -bs);
        x[ib] = fmaf(b, cosine[n], as);
    }
}

#endif
