/* SPDX-License-Identifier: Apache-2.0
 * A serving step as vLLM does it: sequences own pages of one pool, found through page tables, and one call computes a
 * ragged batch in which one sequence is prefilled, one continues a prompt in chunks and one decodes a single token. */
#include <attn/attn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { B = 3, HQ = 4, HKV = 2, D = 32, PAGE = 8, PAGES = 20, COLUMNS = 6, ROOM = COLUMNS * PAGE };

/* Tokens before this step, and those that it brings: a prompt, a chunk of a prompt, one token. */
static const int32_t cached[B] = {0, 20, 37}, fresh[B] = {13, 5, 1};
enum { TOTAL = 13 + 5 + 1 };

static float pool_k[PAGES * HKV * PAGE * D], pool_v[PAGES * HKV * PAGE * D];
static float keys[B][HKV][ROOM][D], values[B][HKV][ROOM][D]; /* the same contiguously: source and check */
static float q[HQ * TOTAL * D], out[HQ * TOTAL * D], alone[HQ * TOTAL * D];
static float packed_k[HKV * ROOM * B * D], packed_v[HKV * ROOM * B * D];
static int32_t page_table[B * COLUMNS];

static void must(attn_status s, const char *what)
{
    if (s == ATTN_OK) return;
    fprintf(stderr, "%s: %s: %s\n", what, attn_status_string(s), attn_last_error());
    exit(1);
}

static void fill(float *x, size_t n)
{
    static unsigned state = 1;
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) / 8388608.0f - 1.0f;
    }
}

/* Puts tokens first[b] .. first[b] + count[b] - 1 of every sequence into its pages: packed [1, HKV, total, D]. */
static void append(attn_context *ctx, const int32_t *first, const int32_t *count)
{
    int32_t offsets[B + 1] = {0};
    for (int b = 0; b < B; b++) offsets[b + 1] = offsets[b] + count[b];
    int64_t total = offsets[B];
    for (int b = 0; b < B; b++) {
        for (int h = 0; h < HKV; h++) {
            size_t to = (size_t)(h * total + offsets[b]) * D, bytes = (size_t)count[b] * D * sizeof(float);
            memcpy(packed_k + to, keys[b][h][first[b]], bytes);
            memcpy(packed_v + to, values[b][h][first[b]], bytes);
        }
    }
    attn_append a = ATTN_APPEND_INIT;
    a.k_new = attn_bhsd(packed_k, ATTN_F32, 1, HKV, total, D);
    a.v_new = attn_bhsd(packed_v, ATTN_F32, 1, HKV, total, D);
    a.new_len.offsets = offsets;
    a.new_len.count = B;
    a.k_cache = attn_bhsd(pool_k, ATTN_F32, PAGES, HKV, PAGE, D);
    a.v_cache = attn_bhsd(pool_v, ATTN_F32, PAGES, HKV, PAGE, D);
    a.cache_len.used = first; /* new tokens go behind these */
    a.page_table = page_table;
    a.page_table_pages = COLUMNS;
    must(attn_kv_append(ctx, &a, NULL), "append");
}

int main(void)
{
    attn_context *ctx;
    const int32_t nothing[B] = {0};
    must(attn_create(NULL, &ctx), "create");
    fill(q, HQ * TOTAL * D);
    fill(keys[0][0][0], sizeof keys / sizeof(float));
    fill(values[0][0][0], sizeof values / sizeof(float));
    for (int i = 0; i < PAGES * HKV * PAGE * D; i++) pool_k[i] = pool_v[i] = NAN; /* what is not used is not read */

    /* Each sequence takes pages from here and there as it grows; -1: not needed yet. */
    for (int b = 0, next = 3; b < B; b++) {
        for (int n = 0; n < COLUMNS; n++, next = (next + 7) % PAGES)
            page_table[b * COLUMNS + n] = n * PAGE < cached[b] + fresh[b] ? next : -1;
    }
    append(ctx, nothing, cached); /* earlier steps, in one */
    append(ctx, cached, fresh);   /* this step */

    int32_t offsets[B + 1] = {0}, used[B];
    for (int b = 0; b < B; b++) {
        offsets[b + 1] = offsets[b] + fresh[b];
        used[b] = cached[b] + fresh[b];
    }
    attn_problem p = ATTN_PROBLEM_INIT;
    p.q = attn_bhsd(q, ATTN_F32, 1, HQ, TOTAL, D);
    p.out = attn_bhsd(out, ATTN_F32, 1, HQ, TOTAL, D);
    p.q_len.offsets = offsets;
    p.q_len.count = B;
    p.k = attn_bhsd(pool_k, ATTN_F32, PAGES, HKV, PAGE, D);
    p.v = attn_bhsd(pool_v, ATTN_F32, PAGES, HKV, PAGE, D);
    p.kv_len.used = used;
    p.page_table = page_table;
    p.page_table_pages = COLUMNS;
    p.mask = ATTN_CAUSAL; /* each sequence's last query sees its last token */
    must(attn_forward(ctx, &p, NULL), "forward");

    /* The check: each sequence alone, its keys and values contiguous. */
    int wrong = 0;
    for (int b = 0; b < B; b++) {
        attn_problem one = ATTN_PROBLEM_INIT;
        one.q = attn_bhsd(q + offsets[b] * D, ATTN_F32, 1, HQ, fresh[b], D);
        one.q.stride[1] = TOTAL * D;
        one.out = one.q;
        one.out.data = alone + offsets[b] * D;
        one.k = attn_bhsd(keys[b], ATTN_F32, 1, HKV, ROOM, D);
        one.v = attn_bhsd(values[b], ATTN_F32, 1, HKV, ROOM, D);
        one.kv_len.used = &used[b];
        one.mask = ATTN_CAUSAL;
        must(attn_forward(ctx, &one, NULL), "forward alone");
    }
    for (int i = 0; i < HQ * TOTAL * D; i++) wrong += !(fabsf(out[i] - alone[i]) < 1e-5f);
    printf("%d new tokens of %d sequences: %d numbers differ from each alone\n", TOTAL, B, wrong);
    attn_destroy(ctx);
    return wrong != 0;
}
