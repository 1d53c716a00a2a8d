// SPDX-License-Identifier: Apache-2.0
// attn_merge: O = sum of w O_p / sum of w, w = exp(LSE_p - largest), LSE = largest + ln(sum of w), in float64 like the CPU.
//
// A block of 128 threads a row, a thread a column; parts in the given order. Bytes: every part once in, one row out.
// -inf, +inf: a part with an infinite LSE has no weight; no part with weight: O = 0, LSE = -inf. NaN in an LSE: the row is NaN.
#include "params.h"
#include "device.cuh"

namespace {

// A copy: nvcc 11.8 fails on a pointer that may lead to parameters or to memory.
DEVICE attn_simt_part get_part(const attn_simt_merge &p, int n) { return p.more_parts ? p.more_parts[n] : p.part[n]; }

DEVICE float part_lse(const attn_simt_merge &p, int n, int64_t b, int64_t h, int64_t i)
{
    const attn_simt_part part = get_part(p, n);
    return part.lse[b * part.lse_stride[0] + h * part.lse_stride[1] + i * part.lse_stride[2]];
}

DEVICE bool has_weight(float lse) { return fabsf(lse) != INFINITY; }

DEVICE void merge(const attn_simt_merge &p)
{
    for (int64_t task = block_index(); task < p.shape[0] * p.shape[1] * p.shape[2]; task += block_count()) {
        const int64_t i = task % p.shape[2], h = task / p.shape[2] % p.shape[1], b = task / p.shape[2] / p.shape[1];
        double largest = -INFINITY, sum = 0;
        for (int n = 0; n < p.parts; n++) {
            const float lse = part_lse(p, n, b, h, i);
            if (has_weight(lse) && !(double(lse) <= largest)) largest = double(lse); // a NaN is kept
        }
        for (int n = 0; n < p.parts; n++) {
            const float lse = part_lse(p, n, b, h, i);
            if (has_weight(lse)) sum += exp(double(lse) - largest);
        }
        const int64_t at = attn_row_offset(&p.out, b, h, i);
        for (int64_t d = thread_index(); d < p.shape[3]; d += SIMT_FOLD_THREADS) {
            double o = 0;
            for (int n = 0; n < p.parts; n++) {
                const float lse = part_lse(p, n, b, h, i);
                if (!has_weight(lse)) continue;
                const attn_view out = get_part(p, n).out;
                const int64_t from = attn_row_offset(&out, b, h, i) + d;
                o += exp(double(lse) - largest) * double(attn_load_float(&out, from));
            }
            attn_store_float(&p.out, at + d, sum == 0 ? 0.0f : float(o / sum));
        }
        if (p.lse.data && thread_index() == 0)
            attn_store_float(&p.lse, attn_row_offset(&p.lse, b, h, i), sum == 0 ? -INFINITY : float(largest + log(sum)));
    }
}

} // namespace

KERNEL(simt_merge, SIMT_FOLD_THREADS, 1, attn_simt_merge, p) { merge(p); }
