/* SPDX-License-Identifier: Apache-2.0
 * Sliding windows with attention sinks, as in GPT-OSS: every second layer sees the last 128 tokens only, and each head
 * has a learned logit, the sink, that takes part in the softmax but has no value. So a head can attend to nothing. */
#include <attn/attn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HQ = 8, HKV = 1, S = 300, D = 64, WINDOW = 128 };

static float q[HQ * S * D], k[HKV * S * D], v[HKV * S * D], sink[HQ];
static float out[HQ * S * D], lse[HQ * S], again[HQ * S * D];

static void must(attn_status s, const char *what)
{
    if (s == ATTN_OK) return;
    fprintf(stderr, "%s: %s: %s\n", what, attn_status_string(s), attn_last_error());
    exit(1);
}

static void fill(float *x, int n)
{
    static unsigned state = 1;
    for (int i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
    }
}

int main(void)
{
    attn_context *ctx;
    must(attn_create(NULL, &ctx), "create");
    fill(q, HQ * S * D);
    fill(k, HKV * S * D);
    for (int h = 0; h < HQ; h++) sink[h] = (float)h - 2.0f;
    for (int i = 0; i < HKV * S * D; i++) v[i] = 1.0f;

    attn_problem p = ATTN_PROBLEM_INIT;
    p.q = attn_bhsd(q, ATTN_F32, 1, HQ, S, D);
    p.k = attn_bhsd(k, ATTN_F32, 1, HKV, S, D);
    p.v = attn_bhsd(v, ATTN_F32, 1, HKV, S, D);
    p.out = attn_bhsd(out, ATTN_F32, 1, HQ, S, D);
    p.lse = attn_bhsd(lse, ATTN_F32, 1, HQ, S, 1);
    p.sink = sink;
    p.mask = ATTN_CAUSAL | ATTN_WINDOW_LEFT;
    p.window_left = WINDOW - 1; /* the own token is not counted */
    must(attn_forward(ctx, &p, NULL), "forward");

    /* With V = 1 an output is the sum of its row's probabilities: 1 less the sink's share, exp(sink - LSE). */
    double least = 1;
    int wrong = 0;
    for (int row = 0; row < HQ * S; row++) {
        double share = exp((double)sink[row / S] - (double)lse[row]);
        for (int d = 0; d < D; d++) wrong += !(fabs((double)out[row * D + d] - (1 - share)) < 1e-5);
        least = fmin(least, 1 - share);
    }
    printf("%d rows do not sum up; a head attends to as little as %.3f\n", wrong, least);

    /* LSE by the textbook: the last row sees the last WINDOW keys and its head's sink. */
    double sum = exp((double)sink[0]);
    for (int j = S - WINDOW; j < S; j++) {
        double score = 0;
        for (int d = 0; d < D; d++) score += (double)q[(S - 1) * D + d] * (double)k[j * D + d];
        sum += exp(score / sqrt(D));
    }
    double error = fabs(log(sum) - (double)lse[S - 1]);
    printf("LSE of the last row of head 0: off by %.2g\n", error);

    /* A token outside the window has no influence at all: rows from WINDOW on do not see key 0. */
    for (int d = 0; d < D; d++) {
        k[d] = 50.0f;
        v[d] = -1000.0f;
    }
    p.out.data = again;
    must(attn_forward(ctx, &p, NULL), "forward again");
    int changed_outside = 0, changed_inside = 0;
    for (int row = 0; row < HQ * S; row++) {
        int differs = memcmp(out + row * D, again + row * D, D * sizeof(float)) != 0;
        if (row % S >= WINDOW) changed_outside += differs;
        else changed_inside += differs;
    }
    printf("key 0 changed: %d rows in its reach differ, %d out of it\n", changed_inside, changed_outside);
    attn_destroy(ctx);
    return !(wrong == 0 && error < 1e-5 && changed_inside > 0 && changed_outside == 0);
}
