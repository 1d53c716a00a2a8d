/* SPDX-License-Identifier: Apache-2.0
 * What many and few rows have in common in backward: the size of tiles, which rows are few, and S and dP to P and dS. See
 * backward_vector.h. */
#ifndef ATTN_CPU_BACKWARD_STEP_H
#define ATTN_CPU_BACKWARD_STEP_H

#include "forward_vector.h"

enum {
#ifdef PRODUCT_HEADER
    KEYS = 128, /* whole slabs of bf16 */
#else
    KEYS = W == 8 ? 16 * TILE_ROWS : 8 * TILE_ROWS, /* whole tiles and whole panels: 96, 112 */
#endif
    ROWS = KEYS,
    STEP_KEYS = 4 * KEYS
};

/* Which rows the forward took must be known from the sequence: S has to have its bits. */
static int has_few_rows(const attn_cpu_block *w) { return w->seq.q_len * w->job->group <= FEW_ROWS; }

/* dS of W pairs; 0 where P is, also where dP overflows. P is never subnormal. */
VECTOR vf pair_gradient(vf p, vf dp, vf rest)
{
    return vf_select_less(p, vf_set1(0x1p-126f), vf_zero(), vf_mul(p, vf_add(dp, rest)));
}

/* Row r: S to P and dP to dS in place. raw: dS in front of the softcap goes there too. */
static void row_gradients(const attn_cpu_block *w, int r, const columns *c, float *s, float *dp, float lse, float rest,
                          float *raw)
{
    const attn_job *job = w->job;
    const vf l = vf_set1(lse), add = vf_set1(rest);
    float z[KEYS], slope[KEYS];
    const int capped = job->softcap > 0.0f;
    if (capped) {
        const vf cap = vf_set1(1.0f / job->softcap);
        softcap_row(job->softcap, c, s);
        for (int n = c->a0; n < c->a1; n += W) {
            vf x = vf_mul(vf_load(s + n), cap);
            vf_store(slope + n, vf_sub(vf_set1(1.0f), vf_mul(x, x)));
        }
    }
    if (has_finish(job) || c->edge) mask_scores(w, r, c, s);
    if (!capped && !job->has_dropout && !raw) {
        for (int n = c->a0; n < c->a1; n += W) {
            vf p = vf_exp(vf_sub(vf_load(s + n), l));
            vf_store(s + n, p);
            vf_store(dp + n, pair_gradient(p, vf_load(dp + n), add));
        }
        return;
    }
    for (int n = c->a0; n < c->a1; n++) z[n] = 1.0f;
    if (job->has_dropout) drop_row(w, r, c, z);
    for (int n = c->a0; n < c->a1; n += W) {
        vf p = vf_exp(vf_sub(vf_load(s + n), l)), keep = vf_load(z + n);
        vf ds = pair_gradient(p, vf_mul(keep, vf_load(dp + n)), add);
        vf_store(s + n, vf_mul(p, keep));
        if (raw) vf_store(raw + n, ds);
        vf_store(dp + n, capped ? vf_mul(ds, vf_load(slope + n)) : ds);
    }
}

#endif
