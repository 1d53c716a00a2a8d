/* SPDX-License-Identifier: Apache-2.0
 * Sizes around those in which kernels work, against the reference: vectors of 8 and 16, halves of pairs of them, tiles
 * of 6 and 14 rows, strips of four tiles, steps of 64 and 128 keys, pieces of 1,024. Each size meets every way to
 * compute: few rows, many, and more queries than a GPU's kernels for few take. */
#include "suite_case.h"

#include <stdio.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const int32_t types[] = {ATTN_F32, ATTN_F16, ATTN_BF16};

/* Bands that begin and end anywhere within a step. */
static void choose_mask(struct suite_case *c, int64_t n)
{
    static const struct {
        uint32_t mask;
        int64_t left, right;
    } masks[] = {{0, 0, 0},
                 {ATTN_CAUSAL, 0, 0},
                 {ATTN_CAUSAL | ATTN_WINDOW_LEFT, 37, 0},
                 {ATTN_WINDOW_LEFT | ATTN_WINDOW_RIGHT, 5, 3},
                 {ATTN_WINDOW_RIGHT | ATTN_TOP_LEFT, 0, 20}};
    c->mask = masks[n % 5].mask, c->left = masks[n % 5].left, c->right = masks[n % 5].right;
}

static void run(struct suite *s, int quick, struct suite_case c)
{
    char what[256], name[280];
    suite_settle(&c);
    suite_describe(&c, what, sizeof what);
    snprintf(name, sizeof name, "sizes/%s", what);
    suite_forward_case(s, quick, name, &c, NULL);
}

/* Six rows, then forty, then seventeen queries a head. */
static void run_each(struct suite *s, int quick, struct suite_case c)
{
    c.hkv = 1;
    c.hq = 2, c.sq = 3;
    run(s, quick, c);
    c.hq = 4, c.sq = 10;
    run(s, quick, c);
    c.sq = 17;
    run(s, quick, c);
}

static void sweep_heads(struct suite *s)
{
    static const int64_t d[] = {7,  8,  9,  15, 16, 17, 23, 24, 25,  31,  32,  33,  40, 47,
                                48, 49, 56, 63, 72, 80, 88, 96, 104, 112, 120, 136, 144};
    for (size_t n = 0; n < COUNT(d); n++) {
        struct suite_case c = {.d = d[n], .dv = d[n * 5 % COUNT(d)], .sk = 75, .q_type = types[n % 3], .seed = n};
        choose_mask(&c, (int64_t)n);
        run_each(s, 1, c);
    }
}

/* Halves with gaps of NaN between rows, of sizes that tiles of 32 and 64 columns cover in part and whole. */
static void sweep_gaps(struct suite *s)
{
    static const int64_t d[] = {1, 15, 40, 57, 64};
    for (size_t n = 0; n < COUNT(d); n++) {
        struct suite_case c = {.d = d[n], .sk = 75, .q_type = ATTN_F16, .layout = LAYOUT_HOSTILE, .seed = n};
        choose_mask(&c, (int64_t)n);
        run_each(s, 1, c);
    }
}

static void sweep_keys(struct suite *s)
{
    static const int64_t around[] = {8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 192, 256, 384, 512};
    static const int64_t d[] = {16, 40, 24, 64};
    for (size_t n = 0; n < 3 * COUNT(around); n++) {
        struct suite_case c = {.sk = around[n / 3] + (int64_t)(n % 3) - 1, .d = d[n % 4], .seed = n};
        c.q_type = types[n / 3 % 3];
        choose_mask(&c, (int64_t)n);
        run_each(s, 1, c);
    }
}

/* All keys that a band may begin or end with: each edge of a vector, masked and not, for one query and for many. */
static void sweep_edges(struct suite *s)
{
    for (int64_t n = 0; n < 33; n++) {
        struct suite_case c = {.hq = 16, .hkv = 1, .sq = 1, .sk = 160 + n, .d = 16, .seed = (uint64_t)n};
        c.mask = ATTN_WINDOW_LEFT | ATTN_WINDOW_RIGHT | ATTN_DIAGONAL;
        c.left = n * 7 % 33, c.right = n * 5 % 33, c.diagonal = 40 + n;
        run(s, n % 2 == 0, c);
        c.hq = 32;
        run(s, 1, c);
        c.sq = 2, c.hq = 15;
        run(s, n % 2 == 1, c);
    }
}

static void sweep_rows(struct suite *s)
{
    static const int64_t around[] = {6, 12, 14, 16, 18, 20, 24, 28, 36, 42, 48, 56, 72, 84, 96, 112, 168, 216, 252};
    static const int64_t group[] = {1, 2, 3, 4, 6, 12, 16, 28};
    for (size_t n = 0; n < 3 * COUNT(around); n++) {
        struct suite_case c = {.sq = around[n / 3] + (int64_t)(n % 3) - 1, .sk = 70, .d = 16, .seed = n};
        c.q_type = types[n % 3];
        choose_mask(&c, (int64_t)(n / 3));
        run(s, 1, c);
    }
    /* avx2: five tiles of 5 rows, of which a strip has four */
    run(s, 1, (struct suite_case){.sq = 25, .sk = 70, .d = 16, .seed = 57});
    for (size_t n = 0; n < COUNT(group) * COUNT(around); n++) {
        struct suite_case c = {.hkv = 2, .sk = 40, .d = 8, .dv = 24, .seed = n};
        c.hq = 2 * group[n % COUNT(group)],
        c.sq = around[n / COUNT(group)] / group[n % COUNT(group)] + (int64_t)(n % 2);
        c.q_type = types[n % 3];
        choose_mask(&c, (int64_t)(n / COUNT(group)));
        if (c.sq > 0 && c.sq < 20) run(s, n % 3 == 0, c);
    }
}

/* Pieces, by the rule for few queries and by num_splits, of few rows and of many. */
static void sweep_pieces(struct suite *s)
{
    static const int64_t sk[] = {1023, 1024, 1025, 1041, 2047, 2049, 2180};
    for (size_t n = 0; n < COUNT(sk); n++) {
        struct suite_case c = {.hq = 2, .hkv = 1, .sq = 1, .sk = sk[n], .d = 16, .dv = 24, .seed = n};
        c.q_type = types[n % 3];
        choose_mask(&c, (int64_t)n % 2);
        run(s, 1, c);
        c.hq = 5, c.sq = 7;
        run(s, 1, c);
        c.sq = 17, c.hq = 2, c.sk = sk[n] / 4, c.num_splits = 2 + (int)n;
        run(s, 1, c);
    }
}

void suite_run_sizes(struct suite *s)
{
    sweep_heads(s);
    sweep_gaps(s);
    sweep_keys(s);
    sweep_edges(s);
    sweep_rows(s);
    sweep_pieces(s);
}
