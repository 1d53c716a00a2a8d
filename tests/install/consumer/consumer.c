/* SPDX-License-Identifier: Apache-2.0
 * A C11 program that uses attn: causal attention of four query heads over two key/value heads, against the formula
 * written down plainly. */
#include <attn/attn.h>
#include <math.h>
#include <stdio.h>

enum { HQ = 4, HKV = 2, S = 7, D = 8 };
static float q[HQ][S][D], k[HKV][S][D], v[HKV][S][D], out[HQ][S][D];

static void fill(float *x, int count, double step)
{
    for (int i = 0; i < count; i++) x[i] = (float)sin(step * (i + 1));
}

static double expected(int h, int i, int d)
{
    const int g = h / (HQ / HKV);
    double sum = 0, weighted = 0;
    for (int j = 0; j <= i; j++) {
        double score = 0;
        for (int e = 0; e < D; e++) score += (double)q[h][i][e] * (double)k[g][j][e];
        const double weight = exp(score / sqrt(D));
        sum += weight;
        weighted += weight * (double)v[g][j][d];
    }
    return weighted / sum;
}

int main(void)
{
    fill(&q[0][0][0], HQ * S * D, 0.7);
    fill(&k[0][0][0], HKV * S * D, 0.3);
    fill(&v[0][0][0], HKV * S * D, 0.9);

    attn_context *ctx = NULL;
    attn_problem p = ATTN_PROBLEM_INIT;
    attn_plan plan = ATTN_PLAN_INIT;
    p.q = attn_bhsd(q, ATTN_F32, 1, HQ, S, D);
    p.k = attn_bhsd(k, ATTN_F32, 1, HKV, S, D);
    p.v = attn_bhsd(v, ATTN_F32, 1, HKV, S, D);
    p.out = attn_bhsd(out, ATTN_F32, 1, HQ, S, D);
    p.mask = ATTN_CAUSAL;
    attn_status status = attn_create(NULL, &ctx);
    if (status == ATTN_OK) status = attn_query(ctx, ATTN_OP_FORWARD, &p, NULL, NULL, &plan);
    if (status == ATTN_OK) status = attn_forward(ctx, &p, NULL);
    if (status != ATTN_OK) fprintf(stderr, "%s: %s\n", attn_status_string(status), attn_last_error());
    attn_destroy(ctx);
    if (status != ATTN_OK) return 1;

    double error = 0;
    for (int h = 0; h < HQ; h++)
        for (int i = 0; i < S; i++)
            for (int d = 0; d < D; d++) error = fmax(error, fabs((double)out[h][i][d] - expected(h, i, d)));
    printf("C11: backend %d, kernel %s, %d thread(s), because %s; error %.1e\n", (int)plan.backend, plan.kernel,
           (int)plan.threads, plan.reason, error);
    return !(error < 1e-6);
}
