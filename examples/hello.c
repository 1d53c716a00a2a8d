/* SPDX-License-Identifier: Apache-2.0
 * The smallest program: causal attention of 8 query heads over 2 key/value heads, on whatever device is best. */
#include <attn/attn.h>
#include <math.h>
#include <stdio.h>

enum { B = 1, HQ = 8, HKV = 2, SQ = 128, SK = 128, D = 64 };
static float q[B * HQ * SQ * D], k[B * HKV * SK * D], v[B * HKV * SK * D], out[B * HQ * SQ * D];

int main(void)
{
    for (int i = 0; i < B * HQ * SQ * D; i++) q[i] = (float)sin(0.1 * i);
    for (int i = 0; i < B * HKV * SK * D; i++) k[i] = (float)cos(0.3 * i);
    for (int i = 0; i < B * HKV * SK * D; i++) v[i] = 2.0f; /* an average of twos is two */

    attn_context *ctx;
    if (attn_create(NULL, &ctx) != ATTN_OK) {
        fprintf(stderr, "%s\n", attn_last_error());
        return 1;
    }
    attn_problem p = ATTN_PROBLEM_INIT;
    p.q = attn_bhsd(q, ATTN_F32, B, HQ, SQ, D);
    p.k = attn_bhsd(k, ATTN_F32, B, HKV, SK, D);
    p.v = attn_bhsd(v, ATTN_F32, B, HKV, SK, D);
    p.out = attn_bhsd(out, ATTN_F32, B, HQ, SQ, D);
    p.mask = ATTN_CAUSAL;
    attn_status s = attn_forward(ctx, &p, NULL);
    if (s != ATTN_OK) fprintf(stderr, "%s: %s\n", attn_status_string(s), attn_last_error());
    attn_destroy(ctx);

    int wrong = 0;
    for (int i = 0; i < B * HQ * SQ * D; i++) wrong += !(fabsf(out[i] - 2.0f) < 1e-5f);
    printf("%s\n%d wrong numbers\n", attn_build_info(), wrong);
    return s != ATTN_OK || wrong;
}
