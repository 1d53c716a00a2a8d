/* SPDX-License-Identifier: Apache-2.0
 * Ring attention on one machine: the keys are cut in chunks, as if each lay on another device; every chunk is attended
 * to alone, and attn_merge combines the parts through their LSEs into what the whole would have given. */
#include <attn/attn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { H = 4, SQ = 50, SK = 130, D = 32, CHUNKS = 4 };
static const int first[CHUNKS + 1] = {0, 30, 33, 90, SK}; /* chunks need not be equal */

static float q[H * SQ * D], k[H * SK * D], v[H * SK * D], sink[H] = {0.5f, -1.0f, 2.0f, 0.0f};
static float whole[H * SQ * D], whole_lse[H * SQ], merged[H * SQ * D], merged_lse[H * SQ];
static float part[CHUNKS][H * SQ * D], part_lse[CHUNKS][H * SQ];

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
        x[i] = (float)(state >> 8) / 4194304.0f - 2.0f;
    }
}

int main(void)
{
    attn_context *ctx;
    attn_tensor outs[CHUNKS], lses[CHUNKS];
    must(attn_create(NULL, &ctx), "create");
    fill(q, H * SQ * D);
    fill(k, H * SK * D);
    fill(v, H * SK * D);

    attn_problem p = ATTN_PROBLEM_INIT;
    p.q = attn_bhsd(q, ATTN_F32, 1, H, SQ, D);
    p.k = attn_bhsd(k, ATTN_F32, 1, H, SK, D);
    p.v = attn_bhsd(v, ATTN_F32, 1, H, SK, D);
    p.out = attn_bhsd(whole, ATTN_F32, 1, H, SQ, D);
    p.lse = attn_bhsd(whole_lse, ATTN_F32, 1, H, SQ, 1);
    p.sink = sink;
    p.mask = ATTN_CAUSAL; /* bottom-right: the last query sees the last key, query i key i + SK - SQ */
    must(attn_forward(ctx, &p, NULL), "the whole");

    int empty = 0;
    for (int c = 0; c < CHUNKS; c++) {
        attn_problem chunk = p;
        int keys = first[c + 1] - first[c];
        chunk.k.data = k + first[c] * D; /* views: only the length differs, the strides stay */
        chunk.v.data = v + first[c] * D;
        chunk.k.shape[2] = chunk.v.shape[2] = keys;
        chunk.out.data = part[c];
        chunk.lse.data = part_lse[c];
        chunk.sink = c == 0 ? sink : NULL; /* it joins the denominator once */
        /* Key j of the chunk is key first + j of the whole, so the diagonal moves by that. */
        chunk.mask = ATTN_CAUSAL | ATTN_DIAGONAL;
        chunk.diagonal = SK - SQ - first[c];
        must(attn_forward(ctx, &chunk, NULL), "a chunk");
        outs[c] = chunk.out;
        lses[c] = chunk.lse;
        for (int i = 0; i < H * SQ; i++) empty += isinf(part_lse[c][i]) != 0;
    }
    attn_tensor out = attn_bhsd(merged, ATTN_F32, 1, H, SQ, D), lse = attn_bhsd(merged_lse, ATTN_F32, 1, H, SQ, 1);
    must(attn_merge(ctx, CHUNKS, outs, lses, &out, &lse, NULL), "merge");
    attn_destroy(ctx);

    int wrong = 0;
    for (int i = 0; i < H * SQ * D; i++) wrong += !(fabsf(merged[i] - whole[i]) < 1e-5f);
    for (int i = 0; i < H * SQ; i++) wrong += !(fabsf(merged_lse[i] - whole_lse[i]) < 1e-5f);
    printf("%d chunks, %d rows of them saw no key: %d numbers of the merged result differ\n", CHUNKS, empty, wrong);
    return wrong || !empty;
}
