/* SPDX-License-Identifier: Apache-2.0
 * What the levels make of stored rows, against attn_read_row to the bit: with one key P is 1, so that out is the row of V,
 * and LSE of a query that is 1 at d and 0 elsewhere is element d of the row of K. One query goes the way of few rows, many
 * queries that of packed panels. */
#include "unit.h"

#include "cpu/rows.h"
#include "cpu/level.h"

#include <stdlib.h>

enum { MOST = 320, QUERIES = 61 };

typedef struct stored {
    int32_t type;
    int64_t n;
    float factor;
    uint8_t bytes[MOST * 2];
} stored;

static float q[QUERIES * MOST], out[QUERIES * MOST], lse[QUERIES];

static attn_tensor tensor_of(stored *s)
{
    attn_tensor t = attn_bhsd(s->bytes, (attn_dtype)s->type, 1, 1, 1, s->n);
    const int scaled = s->type == ATTN_I8 || s->type == ATTN_F8_E4M3 || s->type == ATTN_F8_E5M2;
    if (scaled && (s->factor != 1.0f || s->type == ATTN_I8)) t.scale = &s->factor;
    return t;
}

static void read_back(const stored *s, float *x)
{
    stored copy = *s;
    attn_tensor t = tensor_of(&copy);
    attn_view view = {.data = (char *)copy.bytes, .dtype = s->type, .scale = t.scale};
    attn_read_row(&view, 0, 0, 0, s->n, x);
}

static int is_same(float a, float b) { return a == b || (a != a && b != b); }

static void check(attn_context *ctx, const char *level, stored *k, stored *v, int64_t queries)
{
    float keys[MOST], values[MOST];
    read_back(k, keys);
    read_back(v, values);
    memset(q, 0, sizeof q);
    for (int64_t i = 0; i < queries; i++) q[i * k->n + i * 7 % k->n] = 1.0f;
    attn_problem p = ATTN_PROBLEM_INIT;
    p.q = attn_bhsd(q, ATTN_F32, 1, 1, queries, k->n);
    p.k = tensor_of(k);
    p.v = tensor_of(v);
    p.out = attn_bhsd(out, ATTN_F32, 1, 1, queries, v->n);
    p.lse = attn_bhsd(lse, ATTN_F32, 1, 1, queries, 1);
    p.scale = 1.0f;
    if (attn_forward(ctx, &p, NULL) != ATTN_OK) fail_msg("%s", attn_last_error());
    for (int64_t i = 0; i < queries; i++) {
        const float key = keys[i * 7 % k->n];
        if (!is_same(lse[i], key)) fail_msg("%s type %d n %d: %a is %a", level, k->type, (int)k->n, lse[i], key);
        for (int64_t d = 0; d < v->n; d++)
            if (!is_same(out[i * v->n + d], values[d]))
                fail_msg("%s type %d n %d, element %d: %a is %a", level, v->type, (int)v->n, (int)d, out[i * v->n + d],
                         values[d]);
    }
}

/* Codes from `first` on in their order, but those that are not finite where there must be none: they would be in every sum. */
static void fill(stored *s, int32_t type, int64_t n, float factor, unsigned first, int finite)
{
    *s = (stored){.type = type, .n = n, .factor = factor};
    for (size_t b = 0; b < sizeof s->bytes; b++) {
        uint8_t code = (uint8_t)(first + b);
        if (finite && type == ATTN_F8_E4M3 && (code & 0x7f) == 0x7f) code = 0;
        if (finite && type == ATTN_F8_E5M2 && (code & 0x7f) >= 0x7c) code = 0;
        s->bytes[b] = code;
    }
    const int64_t block = type == ATTN_Q8_0 ? ATTN_Q8_0_BYTES : ATTN_Q4_0_BYTES;
    if (type != ATTN_Q8_0 && type != ATTN_Q4_0) return;
    for (int64_t b = 0; b < n / ATTN_BLOCK; b++)
        attn_store_u16(s->bytes + b * block, attn_f32_to_f16(factor * (float)(b + 1) * 0x1p-4f));
}

static void compare(attn_context *ctx, const char *level, int32_t type, int64_t n)
{
    static const float k_factors[] = {1.0f,      0.37f,    -1234.5f,
                                      0x1p-141f, 0x1p111f, 3.0f}; /* finite scores, LSE is NaN else */
    static const float v_factors[] = {1.0f, 0.37f, -1234.5f, 0x1p-141f, 0x1p121f, INFINITY};
    static stored k, v;
    const int blocks = type == ATTN_Q8_0 || type == ATTN_Q4_0, count = (int)(sizeof v_factors / sizeof *v_factors);
    for (int f = 0; f < count; f++)
        for (unsigned first = 0; first < 256; first += 16) {
            fill(&k, type, n, blocks && f == 4 ? 0x1p-20f : k_factors[f], first, 1);
            fill(&v, type, n, v_factors[f], first, f % 2);
            check(ctx, level, &k, &v, 1);
            check(ctx, level, &k, &v, QUERIES);
        }
}

static void compare_levels(void **state)
{
    static const int32_t types[] = {ATTN_I8, ATTN_F8_E4M3, ATTN_F8_E5M2, ATTN_Q8_0, ATTN_Q4_0};
    static const int64_t sizes[] = {1, 7, 8, 16, 31, 32, 40, 96, 129, 256, 288, 320};
    (void)state;
#define LEVEL(name) #name,
    static const char *const levels[] = {
#include "cpu/levels.inc"
    };
#undef LEVEL
    for (size_t n = 0; n < sizeof levels / sizeof *levels; n++) {
        char force[32];
        attn_config config = ATTN_CONFIG_INIT;
        attn_context *ctx;
        if (!attn_cpu_find_level(levels[n])) {
            printf("SKIP: this processor has no %s\n", levels[n]);
            continue;
        }
        snprintf(force, sizeof force, "isa=%s", levels[n]);
        config.backend = ATTN_BACKEND_CPU;
        config.force = force;
        config.num_threads = 1;
        if (attn_create(&config, &ctx) != ATTN_OK) fail_msg("%s", attn_last_error());
        for (size_t t = 0; t < sizeof types / sizeof *types; t++)
            for (size_t d = 0; d < sizeof sizes / sizeof *sizes; d++)
                if (sizes[d] % ATTN_BLOCK == 0 || (types[t] != ATTN_Q8_0 && types[t] != ATTN_Q4_0))
                    compare(ctx, levels[n], types[t], sizes[d]);
        attn_destroy(ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(compare_levels)};
    return cmocka_run_group_tests_name("widen", tests, NULL, NULL);
}
