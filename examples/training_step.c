/* SPDX-License-Identifier: Apache-2.0
 * Training: forward keeps the LSE, backward uses it. Gradient descent moves q, k and v until causal attention over
 * them gives a wanted output. */
#include <attn/attn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { B = 2, H = 2, S = 12, D = 8, N = B * H * S * D, ROWS = B * H * S, STEPS = 400 };
static const float rate = 0.15f;

static float q[N], k[N], v[N], out[N], lse[ROWS];     /* the parameters and what forward computes */
static float dout[N], dq[N], dk[N], dv[N], target[N]; /* the gradients, and the goal */

static void must(attn_status s, const char *what)
{
    if (s == ATTN_OK) return;
    fprintf(stderr, "%s: %s: %s\n", what, attn_status_string(s), attn_last_error());
    exit(1);
}

static float uniform(void) /* -1 .. 1 */
{
    static unsigned state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / 8388608.0f - 1.0f;
}

static attn_tensor tensor(float *data) { return attn_bhsd(data, ATTN_F32, B, H, S, D); }

/* Half the squared distance from the target; dout becomes its gradient. */
static double loss(void)
{
    double sum = 0;
    for (int i = 0; i < N; i++) {
        dout[i] = out[i] - target[i];
        sum += 0.5 * (double)dout[i] * (double)dout[i];
    }
    return sum;
}

int main(void)
{
    attn_context *ctx;
    must(attn_create(NULL, &ctx), "create");

    attn_problem p = ATTN_PROBLEM_INIT;
    p.mask = ATTN_CAUSAL;
    p.q = tensor(q);
    p.k = tensor(k);
    p.v = tensor(v);
    p.out = tensor(out);
    p.lse = attn_bhsd(lse, ATTN_F32, B, H, S, 1); /* without it there is no backward */

    attn_grads g = ATTN_GRADS_INIT;
    g.dout = tensor(dout);
    g.dq = tensor(dq);
    g.dk = tensor(dk);
    g.dv = tensor(dv);

    /* Can the automatic choice compute gradients? If not it says why, and the reference backend surely can. */
    attn_plan plan = ATTN_PLAN_INIT;
    attn_status s = attn_query(ctx, ATTN_OP_BACKWARD, &p, &g, NULL, &plan);
    if (s == ATTN_UNSUPPORTED) {
        printf("backward: %s\n", attn_last_error());
        attn_destroy(ctx);
        attn_config config = ATTN_CONFIG_INIT;
        config.backend = ATTN_BACKEND_REFERENCE;
        must(attn_create(&config, &ctx), "create the reference");
        s = attn_query(ctx, ATTN_OP_BACKWARD, &p, &g, NULL, &plan);
    }
    must(s, "query");
    printf("backward by %s\n", plan.kernel);

    for (int i = 0; i < N; i++) {
        q[i] = uniform();
        k[i] = uniform();
        v[i] = uniform();
        target[i] = uniform();
    }
    double first = 0, last = 0;
    for (int step = 0; step <= STEPS; step++) {
        must(attn_forward(ctx, &p, NULL), "forward");
        last = loss();
        if (step == 0) first = last;
        if (step % 100 == 0) printf("step %3d: loss %.4f\n", step, last);
        must(attn_backward(ctx, &p, &g, NULL), "backward");
        for (int i = 0; i < N; i++) {
            q[i] -= rate * dq[i];
            k[i] -= rate * dk[i];
            v[i] -= rate * dv[i];
        }
    }
    attn_destroy(ctx);
    return !(last < 0.2 * first);
}
