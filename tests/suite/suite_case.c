/* SPDX-License-Identifier: Apache-2.0
 * Case descriptions: what may be combined, their names, random ones. */
#include "suite_case.h"
#include "suite_format.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- what goes together ----------------------------------------------------------------------------------------- */

static void settle_types(struct suite_case *c)
{
    if (!c->q_type) c->q_type = ATTN_F32;
    if (!c->k_type) c->k_type = c->q_type;
    if (!c->v_type) c->v_type = c->q_type;
    if (!c->out_type) c->out_type = c->q_type;
    if (!c->dv) c->dv = c->d;
    if (suite_is_block(c->k_type) && c->d % SUITE_BLOCK) c->k_type = ATTN_I8;
    if (suite_is_block(c->v_type) && c->dv % SUITE_BLOCK) c->v_type = ATTN_I8;
    if (c->scaling == SCALING_NONE && (c->k_type == ATTN_I8 || c->v_type == ATTN_I8)) c->scaling = SCALING_ROW;
}

static void settle_layout(struct suite_case *c)
{
    if (c->layout == LAYOUT_MLA) {
        if (c->dv > c->d || (suite_is_block(c->k_type) && c->dv % SUITE_BLOCK)) c->layout = LAYOUT_BSHD;
        else c->v_type = c->k_type;
    }
    if (c->page) {
        if (c->page < 0) c->page = c->sk > 0 ? c->sk : 1;
        if (c->k_lengths == LENGTHS_PACKED) c->k_lengths = LENGTHS_USED;
        if (c->k_lengths == LENGTHS_PACKED_USED) c->k_lengths = LENGTHS_START;
        if (c->layout == LAYOUT_BROADCAST) c->layout = LAYOUT_BHSD;
    }
    if (c->layout == LAYOUT_BROADCAST) {
        if (c->k_lengths >= LENGTHS_PACKED) c->layout = LAYOUT_BSHD;
        else if (c->k_lengths == LENGTHS_START) c->k_lengths = LENGTHS_USED; /* shared rows cannot start differently */
    }
}

void suite_settle(struct suite_case *c)
{
    if (!c->b) c->b = 1;
    if (!c->hq) c->hq = 1;
    if (!c->hkv) c->hkv = 1;
    if (!c->kv_repeat) c->kv_repeat = 1;
    if (!c->key_shuffle) c->key_shuffle = 1;
    if ((c->mask & ATTN_TOP_LEFT) && (c->mask & ATTN_DIAGONAL)) c->mask &= ~(uint32_t)ATTN_TOP_LEFT;
    if (c->q_used && !c->q_lengths) c->q_lengths = LENGTHS_USED;
    if (c->k_used && !c->k_lengths) c->k_lengths = LENGTHS_USED;
    settle_types(c);
    settle_layout(c);
}

/* ---- names ------------------------------------------------------------------------------------------------------ */

static void append(char *name, size_t size, const char *format, ...) SUITE_PRINTF(3, 4);
static void append(char *name, size_t size, const char *format, ...)
{
    size_t used = strlen(name);
    va_list args;
    va_start(args, format);
    vsnprintf(name + used, size - used, format, args);
    va_end(args);
}

static void describe_mask(const struct suite_case *c, char *name, size_t size)
{
    if (c->mask & ATTN_CAUSAL) append(name, size, "-causal");
    if (c->mask & ATTN_TOP_LEFT) append(name, size, "-topleft");
    if (c->mask & ATTN_WINDOW_LEFT) append(name, size, "-left%lld", (long long)c->left);
    if (c->mask & ATTN_WINDOW_RIGHT) append(name, size, "-right%lld", (long long)c->right);
    if (c->mask & ATTN_DIAGONAL) append(name, size, "-diag%lld", (long long)c->diagonal);
}

static void describe_scores(const struct suite_case *c, char *name, size_t size)
{
    static const char *const bias[BIAS_KINDS] = {"",          "-bias_f32",  "-bias_f16",     "-bias_bf16",
                                                 "-bias_11",  "-bias_b11k", "-bias_1hq1",    "-bias_turned",
                                                 "-bias_inf", "-bias_bool", "-bias_boolkeys"};
    static const char *const alibi[ALIBI_KINDS] = {"", "-alibi", "-alibi_batch"};
    static const char *const sink[] = {"", "-sink", "-sink_none"};
    if (c->scale != 0) append(name, size, "-scale%g", (double)c->scale);
    if (c->softcap != 0) append(name, size, "-cap%g", (double)c->softcap);
    append(name, size, "%s%s%s", bias[c->bias], alibi[c->alibi], sink[c->sink]);
    if (c->dropout != 0) append(name, size, "-drop%g", (double)c->dropout);
}

void suite_describe(const struct suite_case *c, char *name, size_t size)
{
    static const char *const layout[LAYOUT_KINDS] = {"", "-bshd", "-packed", "-hostile", "-mla", "-shared"};
    static const char *const lengths[LENGTHS_KINDS] = {"full", "used", "start", "packed", "roomy"};
    static const char *const scaling[SCALING_KINDS] = {"", "-scale_tensor", "-scale_head", "-scale_row"};
    name[0] = 0;
    append(name, size, "%s", attn_dtype_name((attn_dtype)c->q_type));
    if (c->k_type != c->q_type) append(name, size, "-k_%s", attn_dtype_name((attn_dtype)c->k_type));
    if (c->v_type != c->q_type) append(name, size, "-v_%s", attn_dtype_name((attn_dtype)c->v_type));
    if (c->out_type != c->q_type) append(name, size, "-o_%s", attn_dtype_name((attn_dtype)c->out_type));
    append(name, size, "%s", scaling[c->scaling]);
    append(name, size, "-b%lldh%lldk%lld-s%lldx%lld-d%lld", (long long)c->b, (long long)c->hq, (long long)c->hkv,
           (long long)c->sq, (long long)c->sk, (long long)c->d);
    if (c->dv != c->d) append(name, size, "x%lld", (long long)c->dv);
    describe_mask(c, name, size);
    describe_scores(c, name, size);
    append(name, size, "%s", layout[c->layout]);
    if (c->q_lengths || c->k_lengths)
        append(name, size, "-%s_%s%s", lengths[c->q_lengths], lengths[c->k_lengths], c->with_max ? "_max" : "");
    if (c->page) append(name, size, "-page%lld", (long long)c->page);
    if (c->no_lse) append(name, size, "-nolse");
    if (c->num_splits) append(name, size, "-splits%d", c->num_splits);
    if (c->threads) append(name, size, "-threads%d", c->threads);
}

/* ---- random cases ----------------------------------------------------------------------------------------------- */

static int chance(struct suite_random *r, int percent) { return suite_below(r, 100) < percent; }

static int64_t pick(struct suite_random *r, const int64_t *list, int count) { return list[suite_below(r, count)]; }

static void random_types(struct suite_random *r, struct suite_case *c)
{
    static const int64_t floats[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
    static const int64_t kv[] = {ATTN_F32,     ATTN_F16, ATTN_BF16, ATTN_F8_E4M3,
                                 ATTN_F8_E5M2, ATTN_I8,  ATTN_Q8_0, ATTN_Q4_0};
    static const int64_t sizes[] = {1, 2, 3, 5, 8, 16, 24, 31, 32, 33, 40, 48, 64, 64, 65, 80, 96, 128};
    c->q_type = (int32_t)pick(r, floats, 3);
    if (chance(r, 50)) {
        c->k_type = (int32_t)pick(r, kv, 8);
        c->v_type = chance(r, 60) ? c->k_type : (int32_t)pick(r, kv, 8);
    }
    if (chance(r, 25)) c->out_type = (int32_t)pick(r, floats, 3);
    c->scaling = (int)suite_below(r, SCALING_KINDS);
    c->d = pick(r, sizes, 18);
    c->dv = chance(r, 70) ? c->d : pick(r, sizes, 18);
}

static void random_sizes(struct suite_random *r, struct suite_case *c)
{
    c->b = 1 + suite_below(r, 3);
    c->hkv = 1 + suite_below(r, 3);
    c->hq = c->hkv * (1 + suite_below(r, 4));
    c->sq = chance(r, 25) ? 1 : chance(r, 4) ? 0 : 1 + suite_below(r, 40);
    c->sk = chance(r, 4) ? 0 : chance(r, 10) ? 200 + suite_below(r, 1000) : 1 + suite_below(r, 80);
    if (chance(r, 20)) c->sk = c->sq;
}

static void random_mask(struct suite_random *r, struct suite_case *c)
{
    if (chance(r, 40)) c->mask |= ATTN_CAUSAL;
    if (chance(r, 20)) c->mask |= ATTN_WINDOW_LEFT;
    if (chance(r, 15)) c->mask |= ATTN_WINDOW_RIGHT;
    if (chance(r, 15)) c->mask |= ATTN_TOP_LEFT;
    else if (chance(r, 15)) c->mask |= ATTN_DIAGONAL;
    c->left = suite_below(r, c->sk + 3);
    c->right = suite_below(r, 10);
    c->diagonal = suite_below(r, c->sk + c->sq + 9) - c->sq - 4;
}

static void random_features(struct suite_random *r, struct suite_case *c)
{
    if (chance(r, 20)) c->scale = 0.05f + 0.01f * (float)suite_below(r, 50);
    if (chance(r, 5)) c->scale = -0.1f;
    if (chance(r, 25)) c->softcap = 1.0f + (float)suite_below(r, 30);
    if (chance(r, 40)) c->bias = 1 + (int)suite_below(r, BIAS_KINDS - 1);
    if (chance(r, 25)) c->alibi = 1 + (int)suite_below(r, ALIBI_KINDS - 1);
    if (chance(r, 25)) c->sink = 1;
    if (chance(r, 20)) c->dropout = chance(r, 10) ? 1.0f : 0.1f * (float)(1 + suite_below(r, 8));
    c->dropout_seed = suite_next(r);
    c->dropout_offset = suite_next(r);
    c->seed_in_memory = chance(r, 20);
    for (int n = 0; n < 4; n++) c->origin[n] = chance(r, 20) ? suite_below(r, 100000) : 0;
}

struct suite_case suite_random_case(uint64_t seed)
{
    static const int64_t pages[] = {1, 2, 3, 7, 16, 64, 256, -1};
    struct suite_random r = suite_random_of(seed, 0x72616e646f6d);
    struct suite_case c = {.seed = seed};
    random_types(&r, &c);
    random_sizes(&r, &c);
    random_mask(&r, &c);
    random_features(&r, &c);
    c.layout = (int)suite_below(&r, LAYOUT_KINDS);
    if (chance(&r, 50)) c.q_lengths = (int)suite_below(&r, LENGTHS_KINDS);
    if (chance(&r, 50)) c.k_lengths = (int)suite_below(&r, LENGTHS_KINDS);
    c.with_max = chance(&r, 30);
    if (chance(&r, 30)) c.page = pick(&r, pages, 8);
    c.no_lse = chance(&r, 30);
    if (chance(&r, 30)) c.num_splits = 1 + (int)suite_below(&r, 9);
    if (chance(&r, 40)) c.threads = 1 + (int)suite_below(&r, 4);
    if (chance(&r, 10)) c.fill_q = (struct suite_fill){FILL_NORMAL, 30};
    suite_settle(&c);
    return c;
}
