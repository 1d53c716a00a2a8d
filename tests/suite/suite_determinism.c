/* SPDX-License-Identifier: Apache-2.0
 * Section 8 of docs/semantics.md: the same bits, whatever team computes them and wherever in a batch a sequence stands.
 * The shapes are those that teams cut differently: rows that fill no whole blocks, groups, bands, and sequences on both
 * sides of the number of rows up to which a level may compute in another way. */
#include "suite_case.h"

#include <stdio.h>
#include <string.h>

#define F16 .q_type = ATTN_F16
#define BF16 .q_type = ATTN_BF16

/* ---- teams ------------------------------------------------------------------------------------------------------ */

struct team_case {
    const char *name;
    void (*edit)(struct suite_built *t); /* of the inputs, or NULL */
    int full;                            /* not in the quick part */
    struct suite_case c;                 /* num_splits: with and without them */
};

static void one_feature(struct suite_built *t, const struct suite_view *view, int64_t row, float x)
{
    float all[8] = {0};
    for (int64_t d = 0; d < view->t.shape[3]; d++) all[d] = x;
    suite_write_row(t, view, 0, 0, row, all);
}

/* D = 1. What rows sum up over keys 0 .. 127 is tiny and negative, and key 128 shrinks it to -0. Whether the steps that
 * follow leave -0 or make it 0 must not depend on how many of them a block has. */
static void to_minus_zero(struct suite_built *t)
{
    for (int64_t i = 0; i < t->c.sq; i++) one_feature(t, &t->q, i, 1);
    for (int64_t j = 0; j < t->c.sk; j++) {
        one_feature(t, &t->k, j, j < 128 ? 0 : j == 128 ? 80.0f : -100.0f);
        one_feature(t, &t->v, j, j == 128 ? 0 : -1e-30f);
    }
}

static const struct team_case teams[] = {
    {"causal", .c = {.hq = 4, .hkv = 2, .sq = 300, .sk = 300, .d = 64, .mask = ATTN_CAUSAL}},
    {"full", .c = {.hq = 6, .hkv = 2, .sq = 217, .sk = 333, .d = 40, .dv = 72, .num_splits = 3}},
    {"causal-f16", .c = {F16, .hq = 8, .hkv = 2, .sq = 130, .sk = 517, .d = 80, .mask = ATTN_CAUSAL, .sink = 1}},
    {"causal-bf16-heads-of-one",
     .c = {BF16, .hq = 3, .hkv = 3, .sq = 405, .sk = 405, .d = 48, .mask = ATTN_CAUSAL, .num_splits = 2}},
    {"full-f16-q8",
     .c = {F16, .k_type = ATTN_Q8_0, .v_type = ATTN_I8, .hq = 2, .hkv = 1, .sq = 145, .sk = 260, .d = 96}},
    {"window",
     .c = {.hq = 2, .hkv = 1, .sq = 290, .sk = 300, .d = 24, .mask = ATTN_CAUSAL | ATTN_WINDOW_LEFT, .left = 45}},
    {"window-both-f16", .c = {F16, .hq = 1, .sq = 401, .sk = 640, .d = 32, .mask = ATTN_WINDOW_LEFT | ATTN_WINDOW_RIGHT,
                              .left = 150, .right = 17}},
    {"window-before-the-keys",
     .c = {.hq = 2, .sq = 300, .sk = 90, .d = 16, .mask = ATTN_CAUSAL | ATTN_WINDOW_LEFT, .left = 70}},
    {"alibi-softcap-f16", .c = {F16, .hq = 5, .hkv = 1, .sq = 61, .sk = 290, .d = 32, .mask = ATTN_CAUSAL,
                                .alibi = ALIBI_HEADS, .softcap = 20}},
    {"bias-dropout", .c = {.hq = 2,
                           .hkv = 1,
                           .sq = 150,
                           .sk = 290,
                           .d = 24,
                           .bias = BIAS_F16,
                           .dropout = 0.3f,
                           .dropout_seed = 3,
                           .origin = {0, 0, 7, 3}}},
    {"bias-holes-bf16",
     .c = {BF16, .hq = 3, .sq = 100, .sk = 200, .d = 16, .bias = BIAS_HOLES, .mask = ATTN_WINDOW_LEFT, .left = 60}},
    {"bool-bias-window", .c = {.hq = 2,
                               .sq = 200,
                               .sk = 260,
                               .d = 8,
                               .bias = BIAS_BOOL,
                               .mask = ATTN_CAUSAL | ATTN_WINDOW_LEFT,
                               .left = 99}},
    {"ragged", .c = {F16, .b = 4, .hq = 4, .hkv = 2, .sq = 190, .sk = 210, .d = 40, .mask = ATTN_CAUSAL,
                     .q_lengths = LENGTHS_PACKED, .k_lengths = LENGTHS_PACKED, .seed = 5}},
    {"padded-pages", .c = {.b = 3,
                           .hq = 2,
                           .hkv = 1,
                           .sq = 150,
                           .sk = 230,
                           .d = 32,
                           .mask = ATTN_CAUSAL,
                           .q_lengths = LENGTHS_START,
                           .k_lengths = LENGTHS_USED,
                           .page = 16,
                           .seed = 6}},
    {"mla", .c = {BF16, .hq = 16, .sq = 20, .sk = 140, .d = 192, .dv = 128, .layout = LAYOUT_MLA, .mask = ATTN_CAUSAL}},
    {"minus-zero", to_minus_zero, .c = {.sq = 300, .sk = 300, .d = 1, .scale = 1, .mask = ATTN_CAUSAL}},
    /* one row more than a block of avx2, of avx512 has, and that row alone sees keys of one more step */
    {"minus-zero-25", to_minus_zero, .c = {.sq = 25, .sk = 257, .d = 1, .scale = 1, .mask = ATTN_CAUSAL}},
    {"minus-zero-29", to_minus_zero, .c = {.sq = 29, .sk = 257, .d = 1, .scale = 1, .mask = ATTN_CAUSAL}},
    {"decode", .c = {.hq = 4, .hkv = 1, .sq = 1, .sk = 4500, .d = 64, .mask = ATTN_CAUSAL, .num_splits = 3}},
    {"decode-f16-q8", .c = {F16, .k_type = ATTN_Q8_0, .v_type = ATTN_Q8_0, .hq = 2, .hkv = 2, .sq = 4, .sk = 2500,
                            .d = 64, .mask = ATTN_CAUSAL, .num_splits = 7}},
    {"long", .full = 1, .c = {.hq = 2, .hkv = 1, .sq = 700, .sk = 2100, .d = 32, .mask = ATTN_CAUSAL, .sink = 1}},
    {"long-bf16", .full = 1, .c = {BF16, .hq = 8, .hkv = 1, .sq = 333, .sk = 1500, .d = 128, .mask = ATTN_CAUSAL}},
};

static void expect_team(struct suite_check *check, struct suite_built *t, const struct suite_result *one, int threads)
{
    struct suite_result x = {0};
    char what[64];
    attn_context *ctx = suite_context(check->target, threads, NULL);
    snprintf(what, sizeof what, "%d threads, %d splits", threads, (int)t->c.num_splits);
    if (suite_expect(check, ctx != NULL, "no context: %s", attn_last_error()) && suite_forward(check, t, ctx, &x))
        suite_same(check, t, one, &x, what);
    suite_result_free(&x);
    attn_destroy(ctx);
}

static void compare_teams(struct suite_check *check, struct suite_built *t)
{
    static const int counts[] = {1, 2, 3, 7, 16};
    struct suite_result one = {0};
    t->c.threads = 1;
    if (suite_forward(check, t, NULL, &one))
        for (int n = 0; n < 5; n++) expect_team(check, t, &one, counts[n]);
    suite_result_free(&one);
}

static void run_teams(struct suite_check *check, const void *arg)
{
    const struct team_case *k = arg;
    struct suite_case c = k->c;
    struct suite_built t;
    suite_settle(&c);
    if (!suite_expect(check, !suite_build(&t, &c), "no memory")) return;
    if (k->edit) k->edit(&t);
    t.input_hash = suite_inputs_hash(&t);
    compare_teams(check, &t);
    t.c.num_splits = 0;
    if (c.num_splits) compare_teams(check, &t);
    suite_unbuild(&t);
}

/* Few queries: groups and lengths about the number of rows up to which levels read keys where they lie. */
static struct team_case few_queries(int64_t group, int64_t sq)
{
    static const int64_t sk[] = {65, 200, 1030, 1500, 2100}, d[] = {8, 16, 24, 40, 64};
    static const int32_t types[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
    struct suite_random r = suite_random_of((uint64_t)(group * 100 + sq), 0x666577);
    struct team_case k = {.c = {.hkv = 1 + suite_below(&r, 2), .sq = sq, .seed = (uint64_t)sq}};
    struct suite_case *c = &k.c;
    c->hq = c->hkv * group;
    c->sk = sk[suite_below(&r, 5)], c->d = d[suite_below(&r, 5)], c->dv = d[suite_below(&r, 5)];
    c->q_type = types[suite_below(&r, 3)];
    if (suite_below(&r, 4) == 0) c->k_type = c->v_type = ATTN_I8;
    if (suite_below(&r, 2)) c->mask = ATTN_CAUSAL;
    switch (suite_below(&r, 6)) {
    case 0: c->mask |= ATTN_WINDOW_LEFT, c->left = 1 + suite_below(&r, c->sk); break;
    case 1: c->alibi = ALIBI_HEADS; break;
    case 2: c->softcap = 15; break;
    case 3: c->bias = 1 + (int)suite_below(&r, BIAS_KINDS - 1); break;
    case 4: c->dropout = 0.2f, c->origin[3] = 5; break;
    default: c->sink = 1;
    }
    return k;
}

static void sweep_few_queries(struct suite *s)
{
    static const int64_t groups[] = {1, 4, 8, 16};
    char what[256], name[280];
    for (int g = 0; g < 4; g++)
        for (int64_t sq = 1; sq <= 16; sq++) {
            struct team_case k = few_queries(groups[g], sq);
            int64_t rows = groups[g] * sq;
            struct suite_case c = k.c;
            suite_settle(&c);
            suite_describe(&c, what, sizeof what);
            snprintf(name, sizeof name, "determinism/teams/%s", what);
            suite_each(s, (rows >= 12 && rows <= 32) || (sq + g) % 4 == 0, name, run_teams, &k);
        }
}

/* ---- places ----------------------------------------------------------------------------------------------------- */

enum { PLACES = 5 };

static const struct place_case {
    const char *name;
    struct suite_case c; /* the sequence in question; its neighbours are shorter or longer */
} places[] = {
    {"causal", {.hq = 2, .hkv = 1, .sq = 37, .sk = 130, .d = 64, .mask = ATTN_CAUSAL, .seed = 1}},
    {"everything-f16",
     {F16, .hq = 4, .hkv = 2, .sq = 20, .sk = 70, .d = 32, .mask = ATTN_CAUSAL | ATTN_WINDOW_LEFT, .left = 50,
      .softcap = 20, .alibi = ALIBI_HEADS, .sink = 1, .dropout = 0.2f, .dropout_seed = 5, .seed = 2}},
    {"full-bf16", {BF16, .hq = 3, .hkv = 3, .sq = 65, .sk = 129, .d = 80, .dv = 48, .seed = 3}},
    {"decode", {.hq = 4, .hkv = 1, .sq = 1, .sk = 4500, .d = 24, .mask = ATTN_CAUSAL, .seed = 4}},
    {"few-rows-q8",
     {F16, .k_type = ATTN_Q8_0, .v_type = ATTN_Q8_0, .hq = 8, .hkv = 2, .sq = 4, .sk = 2500, .d = 32,
      .mask = ATTN_CAUSAL, .seed = 5}},
    {"more-rows-i8",
     {BF16, .k_type = ATTN_I8, .v_type = ATTN_F8_E4M3, .scaling = SCALING_ROW, .hq = 8, .hkv = 1, .sq = 5, .sk = 1100,
      .d = 40, .mask = ATTN_CAUSAL, .alibi = ALIBI_HEADS, .seed = 6}},
    {"prefill-window-bias",
     {.hq = 2,
      .hkv = 1,
      .sq = 240,
      .sk = 300,
      .d = 16,
      .mask = ATTN_CAUSAL | ATTN_WINDOW_LEFT,
      .left = 77,
      .bias = BIAS_BF16,
      .seed = 7}},
    {"prefill-pages", {F16, .hq = 4, .hkv = 4, .sq = 130, .sk = 520, .d = 40, .page = 32, .mask = ATTN_CAUSAL}},
};

struct batch { /* which sequence stands where, and how long each is */
    struct suite_case c;
    int32_t who[PLACES], q_used[PLACES], k_used[PLACES];
};

static void make_batch(struct batch *batch, const struct suite_case *base, int lengths, int turn)
{
    const int32_t q[PLACES] = {(int32_t)base->sq, 1, 7, 150, 33}, k[PLACES] = {(int32_t)base->sk, 1300, 7, 190, 1};
    struct suite_case *c = &batch->c;
    *c = *base;
    for (int n = 0; n < PLACES; n++) {
        batch->who[n] = (n + turn) % PLACES;
        batch->q_used[n] = q[batch->who[n]];
        batch->k_used[n] = k[batch->who[n]];
        if (batch->q_used[n] > c->sq) c->sq = batch->q_used[n];
        if (batch->k_used[n] > c->sk) c->sk = batch->k_used[n];
    }
    c->b = PLACES;
    c->identity = batch->who, c->q_used = batch->q_used, c->k_used = batch->k_used;
    c->q_lengths = c->k_lengths = lengths;
    c->threads = 1 + turn;
}

static int run_case(struct suite_check *check, struct suite_case c, struct suite_result *result)
{
    struct suite_built t;
    suite_settle(&c);
    if (!suite_expect(check, !suite_build(&t, &c), "no memory")) return 0;
    int done = suite_forward(check, &t, NULL, result);
    suite_unbuild(&t);
    return done;
}

/* The sequence at a place, alone. Dropout is bit-equal at an equal batch index. */
static int run_alone(struct suite_check *check, const struct batch *batch, int place, struct suite_result *result)
{
    struct suite_case alone = batch->c;
    alone.b = 1;
    alone.identity = batch->who + place;
    alone.q_used = batch->q_used + place;
    alone.k_used = batch->k_used + place;
    alone.origin[0] = place;
    alone.threads = 0;
    return run_case(check, alone, result);
}

static void compare_places(struct suite_check *check, const struct batch *batch, struct suite_result *alone)
{
    struct suite_result all = {0};
    if (!run_case(check, batch->c, &all)) return;
    for (int64_t place = 0, row = 0; place < PLACES; row += batch->c.hq * batch->q_used[place++]) {
        struct suite_result *x = &alone[batch->who[place]];
        int64_t rows = batch->c.hq * batch->q_used[place];
        if (batch->c.dropout > 0) suite_result_free(x);
        if (!x->out && !run_alone(check, batch, (int)place, x)) break;
        int same = x->rows == rows && !memcmp(x->out, all.out + row * x->dv, sizeof *x->out * (size_t)(rows * x->dv)) &&
                   !memcmp(x->lse, all.lse + row, sizeof *x->lse * (size_t)rows);
        suite_expect(check, same, "sequence %d at place %d of a batch of five differs from itself alone",
                     (int)batch->who[place], (int)place);
    }
    suite_result_free(&all);
}

static void run_places(struct suite_check *check, const void *arg)
{
    static const int kinds[] = {LENGTHS_USED, LENGTHS_PACKED};
    struct suite_result alone[PLACES] = {0};
    struct suite_case base = *(const struct suite_case *)arg;
    suite_settle(&base);
    for (int turn = 0; turn < 2 * PLACES && !check->failed; turn++) {
        struct batch batch;
        make_batch(&batch, &base, kinds[turn / PLACES], turn % PLACES);
        compare_places(check, &batch, alone);
    }
    for (int n = 0; n < PLACES; n++) suite_result_free(&alone[n]);
}

void suite_run_determinism(struct suite *s)
{
    char name[96];
    for (size_t n = 0; n < sizeof teams / sizeof *teams; n++) {
        snprintf(name, sizeof name, "determinism/teams/%s", teams[n].name);
        suite_each(s, !teams[n].full, name, run_teams, &teams[n]);
    }
    sweep_few_queries(s);
    for (size_t n = 0; n < sizeof places / sizeof *places; n++) {
        snprintf(name, sizeof name, "determinism/places/%s", places[n].name);
        suite_each(s, 1, name, run_places, &places[n].c);
    }
}
