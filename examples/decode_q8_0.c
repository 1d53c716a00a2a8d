/* SPDX-License-Identifier: Apache-2.0
 * Decoding as llama.cpp does it: a quantised cache (Q8_0, ggml's block format) that grows by one token a step, and one
 * query row of every head over all tokens so far. Four query heads share a key/value head. */
#include <attn/attn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { HQ = 8, HKV = 2, D = 64, ROOM = 256, STEPS = 200 };

static float q[HQ * D], out[HQ * D];                       /* one token */
static float k_all[ROOM * HKV * D], v_all[ROOM * HKV * D]; /* every token, for the check only */

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

/* One output element by the textbook, from the unquantised keys and values. */
static double plain(int head, int d, int tokens)
{
    int kv = head / (HQ / HKV);
    double sum = 0, weighted = 0;
    for (int t = 0; t < tokens; t++) {
        double score = 0;
        for (int c = 0; c < D; c++) score += (double)q[head * D + c] * (double)k_all[(t * HKV + kv) * D + c];
        double weight = exp(score / sqrt(D));
        sum += weight;
        weighted += weight * (double)v_all[(t * HKV + kv) * D + d];
    }
    return weighted / sum;
}

int main(void)
{
    attn_context *ctx;
    must(attn_create(NULL, &ctx), "create");

    /* The cache [1, HKV, ROOM, D]. Sizes and strides count elements, whatever their storage. */
    size_t bytes = attn_dtype_bytes(ATTN_Q8_0, (int64_t)HKV * ROOM * D);
    void *k_cache = malloc(bytes), *v_cache = malloc(bytes);
    if (!k_cache || !v_cache) return 1;
    int32_t used = 0; /* tokens in the cache: the caller's to keep */

    attn_append a = ATTN_APPEND_INIT;
    a.k_cache = attn_bhsd(k_cache, ATTN_Q8_0, 1, HKV, ROOM, D);
    a.v_cache = attn_bhsd(v_cache, ATTN_Q8_0, 1, HKV, ROOM, D);
    a.cache_len.used = &used;

    attn_problem p = ATTN_PROBLEM_INIT;
    p.q = attn_bhsd(q, ATTN_F32, 1, HQ, 1, D);
    p.k = a.k_cache;
    p.v = a.v_cache;
    p.out = attn_bhsd(out, ATTN_F32, 1, HQ, 1, D);
    p.kv_len.used = &used;
    p.mask = ATTN_CAUSAL; /* the one query is aligned with the last token, so it sees all of them */

    /* One workspace for all steps, so that none allocates: its size holds for every length that fits the cache. */
    attn_plan plan = ATTN_PLAN_INIT;
    must(attn_query(ctx, ATTN_OP_FORWARD, &p, NULL, NULL, &plan), "query");
    attn_exec exec = ATTN_EXEC_INIT;
    exec.device = plan.device + 1; /* stay there; 0 would choose anew */
    exec.workspace_bytes = plan.workspace_bytes;
    must(attn_malloc(ctx, plan.device, plan.workspace_bytes, &exec.workspace), "workspace");

    int wrong = 0;
    for (int step = 0; step < STEPS; step++) {
        float *k = k_all + step * HKV * D, *v = v_all + step * HKV * D; /* what a model's layer would compute */
        fill(q, HQ * D);
        fill(k, HKV * D);
        fill(v, HKV * D);
        a.k_new = attn_bhsd(k, ATTN_F32, 1, HKV, 1, D);
        a.v_new = attn_bhsd(v, ATTN_F32, 1, HKV, 1, D);
        must(attn_kv_append(ctx, &a, NULL), "append"); /* writes row `used`, quantising */
        used++;
        must(attn_forward(ctx, &p, &exec), "forward");
        /* Values are at most 1 and 8 bits of that are steps of 1/127. */
        for (int i = 0; i < HQ * D; i++) wrong += !(fabs((double)out[i] - plain(i / D, i % D, used)) < 0.01);
    }
    printf("%d tokens by %s, %d workspace bytes\n", STEPS, plan.kernel, (int)plan.workspace_bytes);
    printf("cache: %zu bytes instead of %zu in F32\n", 2 * bytes, 2 * sizeof(float) * HKV * ROOM * D);
    printf("%d numbers differ from unquantised attention by more than 0.01\n", wrong);
    attn_free(ctx, exec.workspace);
    attn_destroy(ctx);
    free(k_cache);
    free(v_cache);
    return wrong != 0;
}
