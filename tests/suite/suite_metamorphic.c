/* SPDX-License-Identifier: Apache-2.0
 * The same problem put differently must give the same answer: to the bit where docs/semantics.md section 8 promises it,
 * within the accuracy rule otherwise. Teams and batches are in suite_determinism.c. */
#include "suite_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct base {
    const char *name;
    struct suite_case c;
} bases[] = {
    {"f32-causal", {.hq = 2, .hkv = 1, .sq = 37, .sk = 130, .d = 64, .mask = ATTN_CAUSAL, .seed = 1}},
    {"f16-everything",
     {.q_type = ATTN_F16,
      .b = 2,
      .hq = 4,
      .hkv = 2,
      .sq = 20,
      .sk = 70,
      .d = 32,
      .mask = ATTN_CAUSAL | ATTN_WINDOW_LEFT,
      .left = 50,
      .softcap = 20,
      .alibi = ALIBI_HEADS,
      .sink = 1,
      .dropout = 0.2f,
      .dropout_seed = 5,
      .seed = 2}},
    {"bf16-plain", {.q_type = ATTN_BF16, .hq = 3, .hkv = 3, .sq = 65, .sk = 129, .d = 80, .dv = 48, .seed = 3}},
    {"f32-decode", {.hq = 4, .hkv = 1, .sq = 1, .sk = 4500, .d = 64, .mask = ATTN_CAUSAL, .seed = 4}},
    {"f16-decode-q8",
     {.q_type = ATTN_F16,
      .k_type = ATTN_Q8_0,
      .v_type = ATTN_Q8_0,
      .hq = 2,
      .hkv = 2,
      .sq = 4,
      .sk = 2500,
      .d = 64,
      .mask = ATTN_CAUSAL,
      .seed = 5}},
    {"bf16-speculative-i8",
     {.q_type = ATTN_BF16,
      .k_type = ATTN_I8,
      .v_type = ATTN_F8_E4M3,
      .scaling = SCALING_ROW,
      .b = 2,
      .hq = 6,
      .hkv = 2,
      .sq = 5,
      .sk = 1100,
      .d = 40,
      .mask = ATTN_CAUSAL,
      .alibi = ALIBI_HEADS,
      .seed = 6}},
    {"f32-long", {.hq = 2, .hkv = 1, .sq = 40, .sk = 2100, .d = 32, .mask = ATTN_CAUSAL, .sink = 1, .seed = 7}},
};
enum { BASES = sizeof bases / sizeof *bases };

struct relation {
    const char *name;
    void (*run)(struct suite_check *check, const struct suite_case *base);
};

struct instance {
    const struct base *base;
    const struct relation *relation;
};

/* Builds and runs a case; 1 if result is there. */
static int run_case(struct suite_check *check, struct suite_case c, attn_context *ctx, struct suite_result *result)
{
    struct suite_built t;
    suite_settle(&c);
    if (!suite_expect(check, !suite_build(&t, &c), "no memory")) return 0;
    int done = suite_forward(check, &t, ctx, result);
    suite_unbuild(&t);
    return done;
}

/* Runs variant and compares it with base to the bit. */
static void expect_same(struct suite_check *check, const struct suite_case *base, const struct suite_case *variant,
                        attn_context *ctx, const char *what)
{
    struct suite_result a = {0}, b = {0};
    struct suite_built shape;
    struct suite_case c = *base;
    suite_settle(&c);
    if (!suite_expect(check, !suite_build(&shape, &c), "no memory")) return;
    if (run_case(check, *base, NULL, &a) && run_case(check, *variant, ctx, &b)) suite_same(check, &shape, &a, &b, what);
    suite_result_free(&a);
    suite_result_free(&b);
    suite_unbuild(&shape);
}

/* Runs variant and judges it as if it were base. */
static void expect_close(struct suite_check *check, const struct suite_case *base, const struct suite_case *variant)
{
    struct suite_built t;
    struct suite_truth truth = {0};
    struct suite_result naive = {0}, x = {0};
    struct suite_case c = *base;
    suite_settle(&c);
    if (!suite_expect(check, !suite_build(&t, &c), "no memory")) return;
    if (suite_expect(check, !suite_truth_compute(&truth, &t) && !suite_naive_compute(&naive, &t), "no memory") &&
        run_case(check, *variant, NULL, &x))
        suite_judge(check, &t, &truth, &naive, &x);
    suite_truth_free(&truth);
    suite_result_free(&naive);
    suite_result_free(&x);
    suite_unbuild(&t);
}

/* ---- to the bit ------------------------------------------------------------------------------------------------- */

static void again(struct suite_check *check, const struct suite_case *base)
{
    expect_same(check, base, base, NULL, "a second call");
}

static void layouts(struct suite_check *check, const struct suite_case *base)
{
    static const int list[] = {LAYOUT_BSHD, LAYOUT_PACKED, LAYOUT_HOSTILE};
    for (int n = 0; n < 3; n++) {
        struct suite_case variant = *base;
        variant.layout = list[n];
        expect_same(check, base, &variant, NULL, "another layout");
    }
}

static void paged(struct suite_check *check, const struct suite_case *base)
{
    static const int64_t sizes[] = {1, 3, 16, 256, -1};
    int32_t used[8];
    for (int n = 0; n < 8; n++) used[n] = (int32_t)base->sk;
    for (int n = 0; n < 5; n++) {
        struct suite_case variant = *base;
        variant.page = sizes[n];
        variant.k_used = used;
        expect_same(check, base, &variant, NULL, "shuffled pages");
    }
}

static void without_lse(struct suite_check *check, const struct suite_case *base)
{
    struct suite_case variant = *base;
    variant.no_lse = 1;
    expect_same(check, base, &variant, NULL, "without lse");
}

static void explicit_scale(struct suite_check *check, const struct suite_case *base)
{
    struct suite_case variant = *base;
    variant.scale = (float)(1.0 / sqrt((double)base->d));
    expect_same(check, base, &variant, NULL, "scale given as 1/sqrt(D)");
}

static void seed_in_memory(struct suite_check *check, const struct suite_case *base)
{
    struct suite_case variant = *base;
    variant.seed_in_memory = 1;
    expect_same(check, base, &variant, NULL, "seed_offset");
}

/* ---- within the rule -------------------------------------------------------------------------------------------- */

static void splits(struct suite_check *check, const struct suite_case *base)
{
    static const int counts[] = {1, 2, 3, 7, 64, 5000};
    for (int n = 0; n < 6; n++) {
        struct suite_case variant = *base;
        variant.num_splits = counts[n];
        expect_close(check, base, &variant);
    }
}

static void repeated_heads(struct suite_check *check, const struct suite_case *base)
{
    struct suite_case variant = *base;
    variant.kv_repeat = base->hq / base->hkv;
    variant.hkv = base->hq;
    expect_close(check, base, &variant);
}

/* A window that reaches the first key is no window. */
static void wide_window(struct suite_check *check, const struct suite_case *base)
{
    static const int64_t more[] = {-1, 0, 1000, INT64_MAX / 4};
    for (int n = 0; n < 4; n++) {
        struct suite_case open = *base, variant;
        open.mask &= ~(uint32_t)ATTN_WINDOW_LEFT;
        open.mask |= ATTN_CAUSAL;
        variant = open;
        variant.mask |= ATTN_WINDOW_LEFT;
        variant.left = base->sk + more[n];
        expect_close(check, &open, &variant);
    }
}

/* CAUSAL is a window of 0 to the right. */
static void causal_is_a_window(struct suite_check *check, const struct suite_case *base)
{
    struct suite_case causal = *base, variant;
    causal.mask |= ATTN_CAUSAL;
    variant = causal;
    variant.mask = (variant.mask & ~(uint32_t)ATTN_CAUSAL) | ATTN_WINDOW_RIGHT;
    variant.right = 0;
    expect_close(check, &causal, &variant);
}

static void explicit_diagonal(struct suite_check *check, const struct suite_case *base)
{
    struct suite_case variant = *base;
    variant.mask |= ATTN_DIAGONAL;
    variant.diagonal = base->sk - base->sq;
    expect_close(check, base, &variant);
}

static void sink_of_nothing(struct suite_check *check, const struct suite_case *base)
{
    struct suite_case none = *base, variant = *base;
    none.sink = 0;
    variant.sink = 2;
    expect_close(check, &none, &variant);
}

static void shuffled_keys(struct suite_check *check, const struct suite_case *base)
{
    struct suite_case plain = *base, variant;
    plain.mask = 0;
    plain.alibi = 0;
    plain.dropout = 0;
    variant = plain;
    variant.key_shuffle = plain.sk % 2 ? 2 : plain.sk % 3 ? 3 : plain.sk % 7 ? 7 : 11;
    expect_close(check, &plain, &variant);
}

/* ---- exact values ----------------------------------------------------------------------------------------------- */

/* The sums of P for O and for l may have different orders: 8 roundings of float32, none of a 16-bit output. */
static void expect_constant(struct suite_check *check, struct suite_case c, float value)
{
    struct suite_result x = {0};
    c.dropout = 0, c.sink = 0, c.v_type = c.q_type, c.scaling = c.k_type == ATTN_I8 ? SCALING_ROW : 0;
    c.fill_v = (struct suite_fill){FILL_CONSTANT, value};
    if (!run_case(check, c, NULL, &x)) return;
    int32_t out_type = c.out_type ? c.out_type : c.q_type; /* as suite_settle() has it */
    float tolerance = out_type == ATTN_F32 ? 8 * 0x1p-24f * fabsf(value) : 0;
    for (int64_t n = 0; n < x.rows * x.dv; n++)
        suite_expect(check, fabsf(x.out[n] - value) <= tolerance, "V = %g everywhere, but an output is %.9g",
                     (double)value, (double)x.out[n]);
    suite_result_free(&x);
}

static void constant_values(struct suite_check *check, const struct suite_case *base)
{
    expect_constant(check, *base, 1.0f);
    expect_constant(check, *base, -0.25f);
    if (base->q_type == ATTN_F16) expect_constant(check, *base, 65504.0f);
}

/* One key: O = V, whatever the score. */
static void one_key(struct suite_check *check, const struct suite_case *base)
{
    struct suite_case c = *base;
    struct suite_built t;
    struct suite_result x = {0};
    c.sk = 1, c.dropout = 0, c.sink = 0, c.mask = 0, c.v_type = c.q_type, c.fill_q.amount = 50;
    suite_settle(&c);
    if (!suite_expect(check, !suite_build(&t, &c), "no memory")) return;
    if (suite_forward(check, &t, NULL, &x))
        for (int64_t b = 0; b < c.b; b++)
            for (int64_t h = 0; h < c.hq; h++)
                for (int64_t n = 0; n < t.sequence[b].sq * c.dv; n++)
                    suite_expect(check,
                                 x.out[(t.sequence[b].row + h * t.sequence[b].sq) * c.dv + n] ==
                                     t.sequence[b].v[h / (c.hq / c.hkv) * c.dv + n % c.dv],
                                 "one key, but O is not V");
    suite_result_free(&x);
    suite_unbuild(&t);
}

static const struct relation relations[] = {
    {"again", again},
    {"layouts", layouts},
    {"paged", paged},
    {"without-lse", without_lse},
    {"scale", explicit_scale},
    {"seed-in-memory", seed_in_memory},
    {"splits", splits},
    {"repeated-heads", repeated_heads},
    {"wide-window", wide_window},
    {"causal-window", causal_is_a_window},
    {"diagonal", explicit_diagonal},
    {"sink", sink_of_nothing},
    {"shuffled-keys", shuffled_keys},
    {"constant-v", constant_values},
    {"one-key", one_key},
};

static void run_instance(struct suite_check *check, const void *arg)
{
    const struct instance *instance = arg;
    struct suite_case base = instance->base->c;
    suite_settle(&base);
    instance->relation->run(check, &base);
}

void suite_run_metamorphic(struct suite *s)
{
    for (size_t r = 0; r < sizeof relations / sizeof *relations; r++)
        for (int b = 0; b < BASES; b++) {
            struct instance instance = {&bases[b], &relations[r]};
            char name[96];
            snprintf(name, sizeof name, "metamorphic/%s/%s", relations[r].name, bases[b].name);
            suite_each(s, b == 1 || b == 4 || b == (int)r % BASES, name, run_instance, &instance);
        }
}
