/* SPDX-License-Identifier: Apache-2.0
 * Multi-head latent attention in its absorbed form, as DeepSeek decodes: one cached row a token serves every head. Its
 * first 512 columns are the compressed keys and, at the same time, the values; 64 more columns carry the position
 * (rotary) and are shared by all heads. So head_dim is 576 for keys, 512 for values, and V is a view of K. */
#include <attn/attn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { B = 2, HEADS = 16, LATENT = 512, ROTARY = 64, D = LATENT + ROTARY, ROOM = 64, TOKENS = 40, STEP = 2 };

static float cache[B * ROOM * D], fresh[B * TOKENS * D];
static float q[B * HEADS * STEP * D], out[B * HEADS * STEP * LATENT];
static float cosine[ROOM * ROTARY / 2], sine[ROOM * ROTARY / 2];

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

/* One output element by the textbook, from the cache and the rotated queries. */
static double plain(const attn_problem *p, int b, int h, int i, int d)
{
    double sum = 0, weighted = 0;
    for (int t = 0; t <= TOKENS + i; t++) { /* causal: STEP queries are the last STEP tokens */
        const float *key = cache + (b * ROOM + t) * D, *query = q + ((b * HEADS + h) * STEP + i) * D;
        double score = 0;
        for (int c = 0; c < D; c++) score += (double)query[c] * (double)key[c];
        double weight = exp(score * (double)p->scale);
        sum += weight;
        weighted += weight * (double)key[d];
    }
    return weighted / sum;
}

int main(void)
{
    attn_context *ctx;
    must(attn_create(NULL, &ctx), "create");
    for (int m = 0; m < ROOM; m++) {
        for (int n = 0; n < ROTARY / 2; n++) {
            double angle = m * pow(10000.0, -2.0 * n / ROTARY);
            cosine[m * ROTARY / 2 + n] = (float)cos(angle);
            sine[m * ROTARY / 2 + n] = (float)sin(angle);
        }
    }
    attn_rope rope = ATTN_ROPE_INIT;
    rope.cos = cosine;
    rope.sin = sine;
    rope.rotary_dim = ROTARY;
    rope.first_dim = LATENT; /* the columns before it are copied */
    rope.max_pos = ROOM;
    rope.interleaved = 1;

    /* The prompt, then STEP tokens whose queries are rotated in the same call. There is no V to append. */
    int32_t used[B] = {0, 0};
    attn_append a = ATTN_APPEND_INIT;
    a.k_cache = attn_bhsd(cache, ATTN_F32, B, 1, ROOM, D);
    a.cache_len.used = used;
    a.rope = &rope;
    fill(fresh, B * TOKENS * D);
    a.k_new = attn_bhsd(fresh, ATTN_F32, B, 1, TOKENS, D);
    must(attn_kv_append(ctx, &a, NULL), "append the prompt");
    used[0] = used[1] = TOKENS;
    fill(fresh, B * STEP * D);
    fill(q, B * HEADS * STEP * D);
    float before = q[LATENT], beside = q[LATENT + 1];
    a.k_new = attn_bhsd(fresh, ATTN_F32, B, 1, STEP, D);
    a.q = attn_bhsd(q, ATTN_F32, B, HEADS, STEP, D);
    must(attn_kv_append(ctx, &a, NULL), "append the step");
    used[0] = used[1] = TOKENS + STEP;
    float turned = before * cosine[TOKENS * ROTARY / 2] - beside * sine[TOKENS * ROTARY / 2];

    attn_problem p = ATTN_PROBLEM_INIT;
    p.q = a.q;
    p.k = a.k_cache;
    p.v = a.k_cache;       /* the same memory, ... */
    p.v.shape[3] = LATENT; /* ... seen without the rotary columns */
    p.out = attn_bhsd(out, ATTN_F32, B, HEADS, STEP, LATENT);
    p.kv_len.used = used;
    p.mask = ATTN_CAUSAL;
    p.scale = 1.0f / sqrtf(128 + 64); /* of the heads before absorption */
    must(attn_forward(ctx, &p, NULL), "forward");
    attn_destroy(ctx);

    int wrong = 0, checked = 0;
    for (int n = 0; n < B * HEADS * STEP * LATENT; n += 37, checked++) {
        int d = n % LATENT, row = n / LATENT, i = row % STEP, h = row / STEP % HEADS, b = row / STEP / HEADS;
        wrong += !(fabs((double)out[n] - plain(&p, b, h, i, d)) < 1e-5);
    }
    wrong += !(fabsf(q[LATENT] - turned) < 1e-6f);
    printf("%d heads over one cached row a token: %d of %d numbers are wrong\n", HEADS, wrong, checked + 1);
    return wrong != 0;
}
