/* SPDX-License-Identifier: Apache-2.0
 * The dropout mask: Philox itself, the mask that attn_dropout_mask writes, what forward does with it. */
#include "suite_case.h"
#include "suite_format.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The known answers of the Random123 distribution (kat_vectors, philox4x32 with 10 rounds). */
static void known_answers(struct suite_check *check, const void *arg)
{
    static const struct {
        uint32_t counter[4], key[2], word[4];
    } vectors[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    (void)arg;
    for (int n = 0; n < 3; n++) {
        uint32_t word[4];
        suite_philox(vectors[n].counter, vectors[n].key, word);
        suite_expect(check, !memcmp(word, vectors[n].word, sizeof word), "vector %d: the suite's own Philox is wrong",
                     n);
    }
}

/* ---- masks ------------------------------------------------------------------------------------------------------ */

/* The mask of a case as the library writes it, [B, Hq, q_axis, k_axis]; NULL after a failure. t stays built. */
static unsigned char *library_mask(struct suite_check *check, struct suite_built *t, int layout)
{
    const int64_t shape[4] = {t->c.b, t->c.hq, t->q_axis, t->k_axis};
    struct suite_view keep;
    int64_t rows = shape[0] * shape[1] * shape[2];
    unsigned char *mask = malloc((size_t)(rows * shape[3]) + 1);
    if (!suite_expect(check, mask && !suite_add_view(t, &keep, ATTN_BOOL, shape, layout, 1), "no memory")) return mask;
    attn_exec exec = {.struct_size = sizeof exec, .flags = ATTN_EXEC_WAIT};
    attn_problem p = suite_problem(t, check->target);
    attn_tensor out = suite_view_tensor(t, &keep, check->target);
    attn_plan plan = ATTN_PLAN_INIT;
    if (suite_expect_status(check, attn_query(check->target->ctx, ATTN_OP_DROPOUT_MASK, &p, NULL, NULL, &plan), ATTN_OK,
                            "attn_query"))
        (void)(suite_expect_plan(check, "dropout_mask", NULL, &plan) && suite_expect_staged(check, &plan));
    attn_status status = attn_dropout_mask(check->target->ctx, &p, &out, &exec);
    int done = suite_expect_status(check, status, ATTN_OK, "attn_dropout_mask");
    suite_fetch_outputs(check, t);
    if (!done) {
        free(mask);
        return NULL;
    }
    for (int64_t n = 0; n < rows; n++) {
        int64_t s = n % shape[2], h = n / shape[2] % shape[1], b = n / shape[2] / shape[1];
        memcpy(mask + n * shape[3], suite_row(t, &keep, b, h, s), (size_t)shape[3]);
        suite_poison_row(t, &keep, b, h, s);
    }
    suite_expect_clean(check, t);
    return mask;
}

static unsigned char *mask_of(struct suite_check *check, struct suite_case c, struct suite_built *t)
{
    suite_settle(&c);
    if (!suite_expect(check, !suite_build(t, &c), "no memory")) return NULL;
    return library_mask(check, t, LAYOUT_BHSD);
}

static const struct mask_case {
    const char *name;
    struct suite_case c;
    int layout;
} masks[] = {
    {"plain", {.b = 2, .hq = 3, .sq = 5, .sk = 67, .d = 8, .dropout = 0.3f, .dropout_seed = 42}, LAYOUT_BHSD},
    {"strides", {.b = 2, .hq = 2, .sq = 9, .sk = 33, .d = 8, .dropout = 0.5f, .dropout_offset = 7}, LAYOUT_HOSTILE},
    {"bshd", {.b = 1, .hq = 4, .sq = 3, .sk = 8, .d = 8, .dropout = 0.9f, .dropout_seed = ~(uint64_t)0}, LAYOUT_BSHD},
    {"none", {.b = 1, .hq = 2, .sq = 4, .sk = 20, .d = 8, .dropout = 0}, LAYOUT_BHSD},
    {"all", {.b = 1, .hq = 2, .sq = 4, .sk = 20, .d = 8, .dropout = 1}, LAYOUT_BHSD},
    {"rare", {.b = 1, .hq = 2, .sq = 40, .sk = 200, .d = 8, .dropout = 0x1p-12f}, LAYOUT_BHSD},
    {"nearly-all", {.b = 1, .hq = 2, .sq = 40, .sk = 200, .d = 8, .dropout = 0.99999994f}, LAYOUT_BHSD},
    {"below-resolution", {.b = 1, .hq = 1, .sq = 4, .sk = 20, .d = 8, .dropout = 0x1p-40f}, LAYOUT_BHSD},
    {"wrapping-key",
     {.b = 1,
      .hq = 2,
      .sq = 7,
      .sk = 30,
      .d = 8,
      .dropout = 0.4f,
      .dropout_seed = 0xfedcba9876543210,
      .dropout_offset = 0xffffffffffffff},
     LAYOUT_BHSD},
    {"seed-in-memory",
     {.b = 1,
      .hq = 2,
      .sq = 7,
      .sk = 30,
      .d = 8,
      .dropout = 0.4f,
      .dropout_seed = 99,
      .dropout_offset = 3,
      .seed_in_memory = 1},
     LAYOUT_BHSD},
    {"odd-origins",
     {.b = 2, .hq = 2, .sq = 7, .sk = 30, .d = 8, .dropout = 0.4f, .origin = {3, 5, 1001, 13}},
     LAYOUT_BHSD},
    {"last-origins",
     {.b = 2,
      .hq = 3,
      .sq = 7,
      .sk = 30,
      .d = 8,
      .dropout = 0.4f,
      .origin = {4294967294, 4294967293, 4294967289, 4294967266}},
     LAYOUT_BHSD},
    {"padded",
     {.b = 3,
      .hq = 2,
      .sq = 9,
      .sk = 40,
      .d = 8,
      .dropout = 0.4f,
      .q_lengths = LENGTHS_START,
      .k_lengths = LENGTHS_USED},
     LAYOUT_BHSD},
    {"packed",
     {.b = 4,
      .hq = 2,
      .sq = 9,
      .sk = 40,
      .d = 8,
      .dropout = 0.4f,
      .q_lengths = LENGTHS_PACKED_USED,
      .k_lengths = LENGTHS_PACKED},
     LAYOUT_BHSD},
    {"packed-max",
     {.b = 4,
      .hq = 2,
      .sq = 9,
      .sk = 40,
      .d = 8,
      .dropout = 0.4f,
      .q_lengths = LENGTHS_PACKED_USED,
      .k_lengths = LENGTHS_PACKED_USED,
      .with_max = 1},
     LAYOUT_BHSD},
    {"paged",
     {.b = 2, .hq = 4, .hkv = 2, .sq = 3, .sk = 50, .d = 8, .dropout = 0.4f, .page = 16, .mask = ATTN_CAUSAL},
     LAYOUT_BHSD},
};

static void compare_mask(struct suite_check *check, const void *arg)
{
    const struct mask_case *m = arg;
    struct suite_built t;
    struct suite_case c = m->c;
    suite_settle(&c);
    if (!suite_expect(check, !suite_build(&t, &c), "no memory")) return;
    unsigned char *mask = library_mask(check, &t, m->layout);
    int64_t count = mask ? c.b * c.hq * t.q_axis * t.k_axis : 0;
    for (int64_t n = 0; n < count; n++) {
        int64_t j = n % t.k_axis, i = n / t.k_axis % t.q_axis, h = n / t.k_axis / t.q_axis % c.hq,
                b = n / t.k_axis / t.q_axis / c.hq;
        int expected = suite_keep_factor(&t, b, h, i, j) != 0;
        if (mask[n] != expected)
            suite_expect(check, 0, "batch %lld, head %lld, row %lld, column %lld: %d, expected %d", (long long)b,
                         (long long)h, (long long)i, (long long)j, mask[n], expected);
    }
    free(mask);
    suite_unbuild(&t);
}

/* ---- statistics ------------------------------------------------------------------------------------------------- */

static const struct suite_case whole = {
    .b = 2, .hq = 4, .sq = 48, .sk = 203, .d = 4, .dropout = 0.25f, .dropout_seed = 1234};

/* Within five standard deviations, in all, by row and by column of eight. */
static void keep_rate(struct suite_check *check, const void *arg)
{
    static const float rates[] = {0.01f, 0.1f, 0.5f, 0.9f};
    (void)arg;
    for (int r = 0; r < 4; r++) {
        struct suite_case c = whole;
        struct suite_built t;
        c.dropout = rates[r];
        unsigned char *mask = mask_of(check, c, &t);
        int64_t count = c.b * c.hq * c.sq * c.sk, kept[9] = {0};
        for (int64_t n = 0; mask && n < count; n++) {
            kept[n % c.sk % 8] += mask[n];
            kept[8] += mask[n];
        }
        for (int k = 0; mask && k < 9; k++) {
            int64_t drawn = k == 8 ? count : c.b * c.hq * c.sq * ((c.sk - k + 7) / 8);
            double p = 1 - (double)rates[r], sigma = sqrt((double)drawn * p * (1 - p));
            suite_expect(check, fabs((double)kept[k] - (double)drawn * p) < 5 * sigma,
                         "dropout %g: %lld of %lld kept (columns %d mod 8)", (double)rates[r], (long long)kept[k],
                         (long long)drawn, k);
        }
        free(mask);
        suite_unbuild(&t);
    }
}

/* Heads, batches, seeds and offsets have masks of their own. */
static void all_different(struct suite_check *check, const void *arg)
{
    static const struct {
        uint64_t seed, offset;
    } keys[] = {{1, 0}, {2, 0}, {1, 1}, {1, 2}};
    enum { KEYS = 4 };
    unsigned char *mask[KEYS] = {0};
    int64_t slice = whole.sq * whole.sk, slices = whole.b * whole.hq;
    (void)arg;
    for (int k = 0; k < KEYS; k++) {
        struct suite_case c = whole;
        struct suite_built t;
        c.dropout_seed = keys[k].seed, c.dropout_offset = keys[k].offset;
        mask[k] = mask_of(check, c, &t);
        suite_unbuild(&t);
        if (!mask[k]) goto end;
    }
    for (int64_t a = 0; a < KEYS * slices; a++)
        for (int64_t b = a + 1; b < KEYS * slices; b++)
            suite_expect(
                check,
                memcmp(mask[a / slices] + a % slices * slice, mask[b / slices] + b % slices * slice, (size_t)slice),
                "slices %lld and %lld have the same mask", (long long)a, (long long)b);
end:
    for (int k = 0; k < KEYS; k++) free(mask[k]);
}

/* A shard with its origins draws its part of the whole mask. */
static void shards(struct suite_check *check, const void *arg)
{
    static const int64_t from[4] = {1, 2, 17, 101}, size[4] = {1, 2, 30, 77};
    struct suite_case part = whole;
    struct suite_built t, u;
    (void)arg;
    part.b = size[0], part.hq = size[1], part.sq = size[2], part.sk = size[3];
    memcpy(part.origin, from, sizeof from);
    unsigned char *all = mask_of(check, whole, &t), *shard = all ? mask_of(check, part, &u) : NULL;
    for (int64_t n = 0; shard && n < size[0] * size[1] * size[2] * size[3]; n++) {
        int64_t j = n % size[3], i = n / size[3] % size[2], h = n / size[3] / size[2] % size[1],
                b = n / size[3] / size[2] / size[1];
        int64_t at = (((from[0] + b) * whole.hq + from[1] + h) * whole.sq + from[2] + i) * whole.sk + from[3] + j;
        suite_expect(check, shard[n] == all[at], "element %lld of the shard differs from the whole", (long long)n);
    }
    if (all) suite_unbuild(&u);
    suite_unbuild(&t);
    free(all);
    free(shard);
}

/* ---- forward ---------------------------------------------------------------------------------------------------- */

static void all_dropped(struct suite_check *check, struct suite_built *t, const struct suite_result *x)
{
    for (int64_t n = 0; n < t->rows * t->c.dv; n++)
        suite_expect(check, x->out[n] == 0, "dropout 1, but an output is not 0");
}

static const struct {
    const char *name;
    struct suite_case c;
    suite_more *more;
} forwards[] = {
    {"f32",
     {.b = 2, .hq = 4, .hkv = 2, .sq = 70, .sk = 90, .d = 32, .mask = ATTN_CAUSAL, .dropout = 0.1f, .dropout_seed = 3},
     NULL},
    {"f16-ragged",
     {.q_type = ATTN_F16,
      .b = 4,
      .hq = 2,
      .sq = 70,
      .sk = 90,
      .d = 64,
      .dropout = 0.5f,
      .dropout_seed = 4,
      .dropout_offset = 9,
      .q_lengths = LENGTHS_PACKED,
      .k_lengths = LENGTHS_PACKED},
     NULL},
    {"bf16-decode",
     {.q_type = ATTN_BF16,
      .b = 2,
      .hq = 2,
      .sq = 1,
      .sk = 3000,
      .d = 64,
      .dropout = 0.3f,
      .num_splits = 5,
      .origin = {1, 2, 3, 4}},
     NULL},
    {"all-dropped", {.b = 2, .hq = 2, .sq = 20, .sk = 30, .d = 16, .dropout = 1}, all_dropped},
    {"sink",
     {.hq = 2,
      .sq = 20,
      .sk = 30,
      .d = 16,
      .dropout = 0.4f,
      .sink = 1,
      .softcap = 5,
      .seed_in_memory = 1,
      .dropout_seed = 8},
     NULL},
};

void suite_run_dropout(struct suite *s)
{
    char name[96];
    suite_once(s, 1, "dropout/philox-known-answers", known_answers, NULL);
    for (size_t n = 0; n < sizeof masks / sizeof *masks; n++) {
        snprintf(name, sizeof name, "dropout/mask-%s", masks[n].name);
        suite_each(s, 1, name, compare_mask, &masks[n]);
    }
    suite_each(s, 1, "dropout/keep-rate", keep_rate, NULL);
    suite_each(s, 1, "dropout/all-different", all_different, NULL);
    suite_each(s, 1, "dropout/shards", shards, NULL);
    for (size_t n = 0; n < sizeof forwards / sizeof *forwards; n++) {
        snprintf(name, sizeof name, "dropout/forward-%s", forwards[n].name);
        suite_forward_case(s, 1, name, &forwards[n].c, forwards[n].more);
    }
}
