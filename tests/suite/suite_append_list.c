/* SPDX-License-Identifier: Apache-2.0
 * Which appends are tried: a pairwise list over formats, places and rotations, and those that must be refused whole. */
#include "suite_append.h"
#include "suite_format.h"
#include "suite_pairwise.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static const int32_t new_types[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
static const int32_t cache_types[] = {ATTN_F32,     ATTN_F16, ATTN_BF16, ATTN_F8_E4M3,
                                      ATTN_F8_E5M2, ATTN_I8,  ATTN_Q8_0, ATTN_Q4_0};
static const int new_lengths[] = {LENGTHS_FULL, LENGTHS_USED, LENGTHS_PACKED, LENGTHS_START};
static const int layouts[] = {LAYOUT_BHSD, LAYOUT_BSHD, LAYOUT_HOSTILE};
static const struct {
    int64_t d, dv;
} sizes[] = {{64, 64}, {96, 32}, {576, 512}, {32, 128}, {20, 7}};

enum {
    AXIS_NEW,
    AXIS_K,
    AXIS_V,
    AXIS_PLACE,
    AXIS_LENGTHS,
    AXIS_LAYOUT,
    AXIS_ROPE,
    AXIS_POSITIONS,
    AXIS_FACTORS,
    AXIS_Q,
    AXIS_SIZE,
    AXES
};

static const int axis_values[AXES] = {COUNT(new_types),
                                      COUNT(cache_types),
                                      COUNT(cache_types) + 1,
                                      PLACES,
                                      COUNT(new_lengths),
                                      COUNT(layouts),
                                      ROPES,
                                      2,
                                      FACTORS,
                                      2,
                                      COUNT(sizes)};

static const char *const place_names[PLACES] = {"plain", "started", "packed", "page1", "page16", "slots", "pool_slots"};
static const char *const rope_names[ROPES] = {"", "-rope", "-rope_interleaved", "-rope_partial", "-rope_last"};
static const char *const factor_names[FACTORS] = {"-given", "-chosen", "-absent"};

static struct append_case case_of(const signed char *v)
{
    struct append_case a = {.new_type = new_types[v[AXIS_NEW]],
                            .k_type = cache_types[v[AXIS_K]],
                            .place = v[AXIS_PLACE],
                            .new_lengths = new_lengths[v[AXIS_LENGTHS]],
                            .layout = layouts[v[AXIS_LAYOUT]],
                            .rope = v[AXIS_ROPE],
                            .factors = v[AXIS_FACTORS],
                            .d = sizes[v[AXIS_SIZE]].d,
                            .dv = sizes[v[AXIS_SIZE]].dv};
    if (v[AXIS_V] < COUNT(cache_types)) a.v_type = cache_types[v[AXIS_V]]; /* else there is no v */
    a.positions = a.rope != ROPE_NONE && v[AXIS_POSITIONS];
    a.rotate_q = a.rope != ROPE_NONE && v[AXIS_Q];
    if (suite_is_block(a.k_type) && a.d % SUITE_BLOCK) a.k_type = ATTN_I8;
    if (suite_is_block(a.v_type) && a.dv % SUITE_BLOCK) a.v_type = ATTN_F8_E4M3;
    if (a.factors == FACTORS_ABSENT && (a.k_type == ATTN_I8 || a.v_type == ATTN_I8)) a.factors = FACTORS_GIVEN;
    return a;
}

static void name_of(const struct append_case *a, char *name, size_t size)
{
    static const char *const lengths[] = {"", "-used", "-start", "-packed", ""};
    static const char *const layout[] = {"", "-bshd", "", "-hostile"};
    snprintf(name, size, "append/%s-%s-%s-%s-d%lldx%lld%s%s%s%s%s%s", attn_dtype_name((attn_dtype)a->new_type),
             attn_dtype_name((attn_dtype)a->k_type), a->v_type ? attn_dtype_name((attn_dtype)a->v_type) : "none",
             place_names[a->place], (long long)a->d, (long long)a->dv, lengths[a->new_lengths], layout[a->layout],
             rope_names[a->rope], a->positions ? "-positions" : "", a->rotate_q ? "-q" : "",
             suite_is_scaled(a->k_type) || suite_is_scaled(a->v_type) ? factor_names[a->factors] : "");
}

/* ---- refusals: nothing is written ------------------------------------------------------------------------------- */

static uint64_t hash_all(const struct append_run *r)
{
    uint64_t h = 1;
    for (int n = 0; n < r->t.buffers; n++) h = suite_mix(h) ^ suite_hash(r->t.buffer[n].data, r->t.buffer[n].bytes);
    return h;
}

struct refusal {
    const char *name, *text;
    int place;
    void (*spoil)(struct append_run *r);
};

static int32_t *used_of(struct append_run *r) { return (int32_t *)(void *)r->t.buffer[r->cache_used].data; }

static void one_token_too_many(struct append_run *r) { used_of(r)[2]++; }

static void negative_used(struct append_run *r) { used_of(r)[0] = -1; }

static void used_overflows(struct append_run *r) { used_of(r)[0] = INT32_MAX; }

static void page_beyond_pool(struct append_run *r)
{
    ((int32_t *)(void *)r->t.buffer[r->table].data)[0] = (int32_t)r->k_cache.t.shape[0];
}

static void page_missing(struct append_run *r)
{
    int32_t *table = (int32_t *)(void *)r->t.buffer[r->table].data;
    table[2 * (r->columns + 2) + r->columns - 1] = -1; /* of the last token of the last sequence */
}

static void slot_beyond_cache(struct append_run *r)
{
    ((int64_t *)(void *)r->t.buffer[r->slots].data)[r->new_rows + 2] = r->k_cache.t.shape[0] * r->k_cache.t.shape[2];
}

static void slot_below_minus_one(struct append_run *r)
{
    ((int64_t *)(void *)r->t.buffer[r->slots].data)[r->new_rows + 2] = -2;
}

static void position_beyond_table(struct append_run *r)
{
    ((int32_t *)(void *)r->t.buffer[r->positions].data)[2 * APPEND_NEW + 1] = MAX_POSITION;
}

static void position_negative(struct append_run *r) { ((int32_t *)(void *)r->t.buffer[r->positions].data)[1] = -1; }

static const struct refusal refusals[] = {
    {"no-room-plain", "used", PLACE_PLAIN, one_token_too_many},
    {"no-room-started", "used", PLACE_STARTED, one_token_too_many},
    {"no-room-packed", "used", PLACE_PACKED, one_token_too_many},
    {"no-room-page1", "used", PLACE_PAGE1, one_token_too_many},
    {"negative-used", "used", PLACE_PLAIN, negative_used},
    {"used-overflows", "used", PLACE_PLAIN, used_overflows},
    {"page-beyond-pool", "page_table", PLACE_PAGE16, page_beyond_pool},
    {"page-missing", "page_table", PLACE_PAGE1, page_missing},
    {"slot-beyond-cache", "slots", PLACE_SLOTS, slot_beyond_cache},
    {"slot-below-minus-one", "slots", PLACE_POOL_SLOTS, slot_below_minus_one},
    {"position-beyond-table", "positions", PLACE_PLAIN, position_beyond_table},
    {"position-negative", "positions", PLACE_PLAIN, position_negative},
};

static void check_refusal(struct suite_check *check, const void *arg)
{
    const struct refusal *f = arg;
    struct append_case a = {.new_type = ATTN_F16,
                            .k_type = ATTN_F8_E4M3,
                            .v_type = ATTN_I8,
                            .place = f->place,
                            .d = 16,
                            .dv = 8,
                            .rope = ROPE_HALF,
                            .positions = 1,
                            .rotate_q = 1,
                            .factors = FACTORS_CHOSEN};
    struct append_run r;
    attn_rope rope;
    attn_context *ctx = suite_checking_context(check->target);
    if (!suite_expect(check, ctx != NULL, "no context")) return;
    if (suite_expect(check, !suite_append_set_up(&r, &a), "no memory")) {
        f->spoil(&r);
        uint64_t before = hash_all(&r);
        attn_append p = suite_append_call(&r, &rope, check->target);
        suite_expect_status(check, attn_kv_append(ctx, &p, NULL), ATTN_INVALID_ARGUMENT, "attn_kv_append");
        suite_expect(check, strstr(attn_last_error(), f->text) != NULL, "the text \"%s\" does not name %s",
                     attn_last_error(), f->text);
        suite_fetch_outputs(check, &r.t);
        suite_expect(check, hash_all(&r) == before, "something was written by a call that failed");
    }
    suite_append_tear_down(&r);
    attn_destroy(ctx);
}

void suite_run_append(struct suite *s)
{
    struct pairwise_row *rows;
    int count = pairwise_design(axis_values, AXES, &rows);
    char name[200];
    for (int n = 0; n < count; n++) {
        struct append_case a = case_of(rows[n].value);
        name_of(&a, name, sizeof name);
        suite_each(s, 1, name, suite_append_check, &a);
    }
    free(rows);
    for (int n = 0; n < COUNT(refusals); n++) {
        snprintf(name, sizeof name, "append/%s", refusals[n].name);
        suite_each(s, 1, name, check_refusal, &refusals[n]);
    }
}
