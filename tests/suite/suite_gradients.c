/* SPDX-License-Identifier: Apache-2.0
 * Gradients: against the suite's own float64 backward, and what must come out exactly. A target that does not do
 * backward must say so, with a reason, and write nothing. */
#include "suite_gradients.h"

#include <stdio.h>
#include <string.h>

/* ---- against the truth ------------------------------------------------------------------------------------------- */

#define F16 ATTN_F16
#define BF16 ATTN_BF16
/* Sizes of which no tile is a multiple, and ones of which it is. */
#define ODD .b = 2, .hq = 4, .hkv = 2, .sq = 37, .sk = 53, .d = 24, .seed = 1
#define EVEN .b = 1, .hq = 2, .hkv = 1, .sq = 64, .sk = 128, .d = 64, .seed = 2
#define MANY(columns) .b = 2, .hq = 36, .hkv = 36, .sq = 140, .sk = 150, .d = (columns), .seed = 3

static const int32_t fa443_q[] = {76, 34, 146}, fa443_k[] = {1, 1, 1}, fa1537_q[] = {1, 0, 1}, fa1537_k[] = {3, 0, 5};
static const int32_t no_queries_q[] = {0, 151, 105, 0}, no_queries_k[] = {317, 218, 105, 384};

static const struct gradient_case cases[] = {
    {"plain-f32", {ODD}, 0, 0, 0, 0},
    {"plain-f16", {.q_type = F16, ODD}, F16, 0, 0, 0},
    {"plain-bf16", {.q_type = BF16, ODD}, BF16, 1, 0, 0},
    {"plain-f16-f32", {.q_type = F16, EVEN}, 0, 1, 0, 0},
    {"plain-bf16-f32", {.q_type = BF16, EVEN}, 0, 0, 0, 0},
    {"f32-f16", {ODD}, F16, 1, 0, 0},
    {"wide-out", {.q_type = F16, .out_type = ATTN_F32, ODD}, F16, 0, 0, 0},
    {"mixed-kv", {.q_type = F16, .k_type = BF16, .v_type = ATTN_F32, ODD}, BF16, 1, 0, 0},
    {"scale", {ODD, .scale = -0.3f}, 0, 1, 0, 0},
    /* bands */
    {"causal", {ODD, .mask = ATTN_CAUSAL}, 0, 1, 0, 0},
    {"causal-f16", {.q_type = F16, EVEN, .mask = ATTN_CAUSAL}, F16, 0, 0, 0},
    {"causal-empty-rows",
     {.q_type = BF16, .hq = 2, .hkv = 2, .sq = 70, .sk = 33, .d = 40, .mask = ATTN_CAUSAL},
     0,
     1,
     0,
     0},
    {"top-left", {.q_type = F16, ODD, .mask = ATTN_CAUSAL | ATTN_TOP_LEFT}, 0, 1, 0, 0},
    {"diagonal", {ODD, .mask = ATTN_CAUSAL | ATTN_DIAGONAL, .diagonal = 5}, 0, 1, 0, 0},
    {"diagonal-empty", {ODD, .mask = ATTN_CAUSAL | ATTN_DIAGONAL, .diagonal = -20, .sink = 1}, 0, 1, 0, 0},
    {"nothing-visible", {ODD, .mask = ATTN_CAUSAL | ATTN_DIAGONAL, .diagonal = -100}, 0, 1, 0, 0},
    {"window", {.q_type = BF16, ODD, .mask = ATTN_CAUSAL | ATTN_WINDOW_LEFT, .left = 9}, BF16, 1, 0, 0},
    {"window-both", {EVEN, .mask = ATTN_WINDOW_LEFT | ATTN_WINDOW_RIGHT, .left = 20, .right = 7}, 0, 0, 0, 0},
    /* bands that begin behind several blocks of keys, and blocks of rows that wait for some of them only */
    {"window-long",
     {.q_type = F16,
      .hq = 2,
      .hkv = 1,
      .sq = 200,
      .sk = 700,
      .d = 32,
      .mask = ATTN_CAUSAL | ATTN_WINDOW_LEFT,
      .left = 100},
     F16,
     0,
     0,
     0},
    {"window-own-key", {ODD, .mask = ATTN_WINDOW_LEFT | ATTN_WINDOW_RIGHT}, 0, 1, 0, 0},
    /* scores */
    {"softcap", {ODD, .softcap = 1.5f, .scale = 1}, 0, 1, 0, 0},
    {"softcap-f16", {.q_type = F16, EVEN, .softcap = 5, .scale = 0.5f}, F16, 0, 0, 0},
    {"alibi", {.q_type = F16, ODD, .alibi = ALIBI_HEADS, .mask = ATTN_CAUSAL}, F16, 1, 0, 0},
    {"alibi-batch", {ODD, .alibi = ALIBI_BATCH}, 0, 0, 0, 0},
    {"bias", {ODD, .bias = BIAS_F32}, 0, 1, 0, 0},
    {"bias-f16", {.q_type = F16, ODD, .bias = BIAS_F16, .mask = ATTN_CAUSAL}, F16, 0, 0, 0},
    {"bias-bf16", {.q_type = BF16, ODD, .bias = BIAS_BF16}, BF16, 1, 0, 0},
    {"bias-headless", {.q_type = F16, ODD, .bias = BIAS_HEADLESS}, 0, 0, 0, 0},
    {"bias-keys", {ODD, .bias = BIAS_KEYS, .softcap = 4}, 0, 1, 0, 0},
    {"bias-queries", {.q_type = BF16, ODD, .bias = BIAS_QUERIES, .sink = 1}, 0, 1, 0, 0},
    {"bias-turned", {ODD, .bias = BIAS_TURNED, .layout = LAYOUT_HOSTILE}, F16, 0, 0, 0},
    {"bias-holes", {.q_type = F16, ODD, .bias = BIAS_HOLES}, F16, 1, 0, 0},
    {"bias-bool", {ODD, .bias = BIAS_BOOL}, 0, 1, 0, 0},
    {"bias-bool-keys", {.q_type = F16, ODD, .bias = BIAS_BOOL_KEYS, .mask = ATTN_CAUSAL}, F16, 0, 0, 0},
    {"bias-ragged",
     {.b = 4,
      .hq = 2,
      .hkv = 1,
      .sq = 30,
      .sk = 40,
      .d = 16,
      .bias = BIAS_F32,
      .q_lengths = LENGTHS_PACKED,
      .k_lengths = LENGTHS_START,
      .with_max = 1,
      .seed = 5},
     0,
     1,
     0,
     0},
    {"sink", {ODD, .sink = 1}, 0, 1, 0, 0},
    {"sink-f16", {.q_type = F16, EVEN, .sink = 1, .mask = ATTN_CAUSAL}, F16, 0, 0, 0},
    {"sink-of-nothing", {ODD, .sink = 2, .mask = ATTN_CAUSAL | ATTN_DIAGONAL, .diagonal = -7}, 0, 1, 0, 0},
    {"dropout", {ODD, .dropout = 0.3f, .dropout_seed = 3}, 0, 1, 0, 0},
    {"dropout-f16",
     {.q_type = F16, EVEN, .dropout = 0.6f, .dropout_seed = 4, .seed_in_memory = 1, .origin = {3, 5, 7, 9}},
     F16,
     0,
     0,
     0},
    {"dropout-all", {ODD, .dropout = 1}, 0, 1, 0, 0},
    {"everything",
     {.q_type = BF16,
      .b = 3,
      .hq = 6,
      .hkv = 2,
      .sq = 29,
      .sk = 61,
      .d = 48,
      .dv = 32,
      .mask = ATTN_CAUSAL | ATTN_WINDOW_LEFT,
      .left = 40,
      .softcap = 10,
      .bias = BIAS_F32,
      .alibi = ALIBI_HEADS,
      .sink = 1,
      .dropout = 0.2f,
      .dropout_seed = 9,
      .q_lengths = LENGTHS_PACKED_USED,
      .k_lengths = LENGTHS_PACKED_USED,
      .seed = 6},
     BF16,
     1,
     0,
     0},
    /* heads, sizes, layouts */
    {"mha", {.q_type = F16, .b = 2, .hq = 3, .hkv = 3, .sq = 40, .sk = 40, .d = 32}, F16, 1, 0, 0},
    {"mqa", {.b = 2, .hq = 8, .sq = 20, .sk = 45, .d = 32}, 0, 1, 0, 0},
    {"dk-dv", {ODD, .dv = 40}, 0, 1, 0, 0},
    {"dk-dv-mla", {.q_type = F16, .hq = 4, .sq = 20, .sk = 60, .d = 96, .dv = 64, .layout = LAYOUT_MLA}, 0, 0, 0, 0},
    {"d1", {.hq = 2, .hkv = 2, .sq = 9, .sk = 11, .d = 1, .dv = 3}, 0, 1, 0, 0},
    {"d160", {.q_type = F16, .hq = 2, .sq = 40, .sk = 70, .d = 160}, F16, 0, 0, 0},
    {"d256", {.q_type = F16, .hq = 2, .sq = 40, .sk = 70, .d = 256}, 0, 1, 0, 0},
    {"d256-everything",
     {.q_type = F16,
      .hq = 2,
      .sq = 40,
      .sk = 70,
      .d = 256,
      .mask = ATTN_CAUSAL,
      .softcap = 5,
      .dropout = 0.2f,
      .dropout_seed = 3},
     F16,
     1,
     0,
     0},
    /* enough heads that a GPU has work for all its multiprocessors and takes its large tiles in any order too */
    {"many-64", {.q_type = F16, MANY(64), .mask = ATTN_CAUSAL}, F16, 0, 0, 1},
    {"many-64-bf16", {.q_type = BF16, MANY(64), .softcap = 5, .dropout = 0.3f, .dropout_seed = 2}, BF16, 1, 0, 1},
    {"many-128", {.q_type = F16, MANY(128), .mask = ATTN_CAUSAL | ATTN_WINDOW_LEFT, .left = 60}, F16, 1, 0, 1},
    {"many-128-bf16", {.q_type = BF16, MANY(128), .alibi = ALIBI_HEADS, .sink = 1}, BF16, 0, 0, 1},
    {"many-256", {.q_type = F16, MANY(256)}, F16, 0, 0, 1},
    {"many-256-bf16", {.q_type = BF16, MANY(256), .bias = BIAS_F32, .mask = ATTN_CAUSAL}, BF16, 1, 0, 1},
    /* more keys than a block of them has, in every type that has kernels of its own */
    {"keys-300-bf16",
     {.q_type = BF16, .hq = 4, .hkv = 2, .sq = 70, .sk = 300, .d = 64, .mask = ATTN_CAUSAL},
     BF16,
     1,
     0,
     0},
    {"keys-300-f32", {.hq = 4, .hkv = 2, .sq = 70, .sk = 300, .d = 64, .mask = ATTN_CAUSAL}, 0, 1, 0, 0},
    {"decode", {.q_type = F16, .b = 3, .hq = 4, .hkv = 2, .sq = 1, .sk = 700, .d = 64, .num_splits = 3}, F16, 1, 0, 0},
    {"bshd", {.q_type = F16, ODD, .layout = LAYOUT_BSHD}, F16, 1, DOUT_TURNED, 0},
    {"projection",
     {.q_type = F16, .b = 2, .hq = 2, .hkv = 2, .sq = 33, .sk = 33, .d = 256, .layout = LAYOUT_PACKED},
     F16,
     0,
     0,
     0},
    {"hostile", {.q_type = BF16, ODD, .layout = LAYOUT_HOSTILE}, BF16, 1, DOUT_TURNED, 0},
    {"hostile-alone", {.hq = 1, .hkv = 1, .sq = 1, .sk = 9, .d = 5, .layout = LAYOUT_HOSTILE}, 0, 1, 0, 0},
    {"shared-kv", {ODD, .layout = LAYOUT_BROADCAST}, 0, 0, DOUT_TURNED, 0},
    {"dout-shared", {.b = 2, .hq = 32, .sq = 4, .sk = 4, .d = 128, .layout = LAYOUT_BSHD}, 0, 0, DOUT_SHARED, 0},
    {"dout-shared-mha", {.q_type = F16, .hq = 5, .hkv = 5, .sq = 2, .sk = 2, .d = 8}, F16, 0, DOUT_SHARED, 0},
    {"dout-turned", {.q_type = F16, ODD}, F16, 1, DOUT_TURNED, 0},
    {"f16-overflow",
     {.q_type = F16, .hq = 2, .sq = 40, .sk = 5, .d = 16, .fill_v = {FILL_CONSTANT, 0.5f}},
     F16,
     0,
     DOUT_LARGE,
     0},
    /* lengths */
    {"used",
     {.q_type = F16,
      .b = 4,
      .hq = 2,
      .sq = 40,
      .sk = 60,
      .d = 32,
      .mask = ATTN_CAUSAL,
      .q_lengths = LENGTHS_USED,
      .k_lengths = LENGTHS_USED,
      .seed = 7},
     F16,
     1,
     0,
     0},
    {"start",
     {.b = 4, .hq = 2, .sq = 40, .sk = 60, .d = 16, .q_lengths = LENGTHS_START, .k_lengths = LENGTHS_START, .seed = 8},
     0,
     1,
     0,
     0},
    {"packed",
     {.q_type = BF16,
      .b = 5,
      .hq = 4,
      .hkv = 2,
      .sq = 40,
      .sk = 60,
      .d = 32,
      .mask = ATTN_CAUSAL,
      .q_lengths = LENGTHS_PACKED,
      .k_lengths = LENGTHS_PACKED,
      .with_max = 1,
      .layout = LAYOUT_BSHD,
      .seed = 9},
     0,
     1,
     0,
     0},
    {"packed-roomy",
     {.q_type = F16,
      .b = 5,
      .hq = 2,
      .sq = 40,
      .sk = 60,
      .d = 32,
      .sink = 1,
      .q_lengths = LENGTHS_PACKED_USED,
      .k_lengths = LENGTHS_PACKED_USED,
      .seed = 10},
     F16,
     0,
     0,
     0},
    {"no-queries", {.b = 2, .hq = 2, .sq = -1, .sk = 30, .d = 16}, 0, 1, 0, 0},
    {"no-keys", {.q_type = F16, .b = 4, .hq = 16, .hkv = 16, .sq = 64, .sk = -1, .d = 24, .sink = 1}, F16, 1, 0, 0},
    {"no-queries-packed",
     {.q_type = F16,
      .b = 4,
      .hq = 4,
      .sq = 151,
      .sk = 384,
      .d = 16,
      .q_used = no_queries_q,
      .k_used = no_queries_k,
      .q_lengths = LENGTHS_PACKED,
      .k_lengths = LENGTHS_PACKED},
     0,
     0,
     0,
     0},
    {"fewer-keys-packed",
     {.q_type = F16,
      .b = 3,
      .sq = 146,
      .sk = 1,
      .d = 32,
      .mask = ATTN_CAUSAL,
      .q_used = fa443_q,
      .k_used = fa443_k,
      .q_lengths = LENGTHS_PACKED,
      .k_lengths = LENGTHS_PACKED,
      .fill_q = {FILL_NORMAL, 3},
      .fill_k = {FILL_NORMAL, 3},
      .fill_v = {FILL_NORMAL, 3}},
     F16,
     0,
     DOUT_ONES,
     0},
    {"one-query-packed",
     {.q_type = F16,
      .b = 3,
      .hq = 9,
      .hkv = 3,
      .sq = 1,
      .sk = 5,
      .d = 64,
      .scale = 1,
      .mask = ATTN_CAUSAL,
      .q_used = fa1537_q,
      .k_used = fa1537_k,
      .q_lengths = LENGTHS_PACKED,
      .k_lengths = LENGTHS_PACKED,
      .with_max = 1},
     F16,
     1,
     0,
     0},
    /* quantised keys and values */
    {"q8_0",
     {.q_type = F16, .k_type = ATTN_Q8_0, .v_type = ATTN_Q8_0, .hq = 4, .hkv = 2, .sq = 20, .sk = 45, .d = 64},
     0,
     1,
     0,
     0},
    {"q4_0-i8",
     {.k_type = ATTN_Q4_0, .v_type = ATTN_I8, .hq = 2, .sq = 20, .sk = 45, .d = 32, .scaling = SCALING_ROW},
     0,
     0,
     0,
     0},
    {"f8",
     {.q_type = BF16,
      .k_type = ATTN_F8_E4M3,
      .v_type = ATTN_F8_E5M2,
      .hq = 2,
      .sq = 20,
      .sk = 45,
      .d = 40,
      .scaling = SCALING_HEAD,
      .mask = ATTN_CAUSAL},
     0,
     1,
     0,
     0},
    {"i8-used",
     {.q_type = F16,
      .k_type = ATTN_I8,
      .v_type = ATTN_I8,
      .b = 3,
      .hq = 2,
      .sq = 10,
      .sk = 45,
      .d = 40,
      .scaling = SCALING_TENSOR,
      .k_lengths = LENGTHS_USED},
     F16,
     0,
     0,
     0},
    /* sizes */
    {"long-f16", {.q_type = F16, .hq = 4, .hkv = 2, .sq = 500, .sk = 700, .d = 64, .mask = ATTN_CAUSAL}, F16, 0, 0, 1},
    {"long-f32", {.b = 2, .hq = 2, .sq = 257, .sk = 1030, .d = 80, .sink = 1}, 0, 1, 0, 1},
};

int gradient_build_case(struct suite_check *check, struct gradient_built *w, const struct gradient_case *g)
{
    struct gradient_case copy = *g;
    if (copy.c.sq < 0) copy.c.sq = 0; /* -1 stands for none */
    if (copy.c.sk < 0) copy.c.sk = 0;
    return suite_expect(check, !gradient_build(w, &copy), "no memory to build the case");
}

static void judge_on_target(struct suite_check *check, const void *arg)
{
    struct gradient_built *w = (struct gradient_built *)(uintptr_t)arg;
    const int tiles = strcmp(check->target->isa, "sm80") ? 1 : 2; /* sm80 has others for UNORDERED */
    for (int n = 0; n < tiles; n++) {
        const struct gradient_call call = {.flags = n ? ATTN_GRAD_UNORDERED : 0u};
        struct gradient_result x;
        if (gradient_run(check, w, &call, &x)) gradient_judge(check, w, &x);
        gradient_result_free(&x);
    }
}

static void judged_case(struct suite *s, const struct gradient_case *g, const char *name)
{
    struct gradient_built w;
    struct suite_check builder = {.suite = s, .target = &s->reference};
    if (!suite_selected(s, !g->full, name)) return;
    suite_note_running(&s->reference, name);
    int built = gradient_build_case(&builder, &w, g), ready = built && !gradient_truth(&w);
    suite_on_targets(s, name, ready ? judge_on_target : suite_no_memory, &w);
    if (built) gradient_unbuild(&w);
}

static void random_case(struct suite *s, uint64_t seed, int full)
{
    static const int32_t types[] = {0, ATTN_F16, ATTN_BF16, 0};
    char name[64];
    struct gradient_case g = {.c = suite_random_case(seed ^ 0x67726164), .full = full};
    g.type = types[seed % 4];
    g.dlse = seed % 3 != 0;
    g.dout = (int)(seed / 2 % 3); /* normal, turned, shared */
    if (g.c.sk > 300) g.c.sk = 300;
    snprintf(name, sizeof name, "gradients/random-%llu", (unsigned long long)seed);
    judged_case(s, &g, name);
}

void suite_run_gradients(struct suite *s)
{
    enum { QUICK = 12, FULL = 60 };
    char name[96];
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        snprintf(name, sizeof name, "gradients/%s", cases[n].name);
        judged_case(s, &cases[n], name);
    }
    for (size_t n = 0; n < gradient_few_count; n++) {
        snprintf(name, sizeof name, "gradients/%s", gradient_few_cases[n].name);
        judged_case(s, &gradient_few_cases[n], name);
    }
    for (uint64_t seed = 1; seed <= FULL; seed++) random_case(s, seed, seed > QUICK);
    gradients_run_exact(s);
}
