/* SPDX-License-Identifier: Apache-2.0
 * The gradients of the reference backend against differences of a forward of the test's own (tiny.h), and its forward
 * against that forward too. Every feature on its own, then at random together. */
#include "tiny_run.h"

/* ---- problems -------------------------------------------------------------------------------------------------------------- */

/* Two sequences, three queries, five keys, two query heads for each of two kv heads, Dk 3, Dv 2. */
static tiny base(void)
{
    return (tiny){.b = 2, .hq = 4, .hkv = 2, .d = 3, .dv = 2, .q_side.rows = 3, .k_side.rows = 5};
}

static void plain(void **state)
{
    (void)state;
    tiny t = base();
    check("plain", t);
    t.accumulate = true;
    check("accumulate", t);
    t.no_dlse = true;
    check("no dlse, accumulate", t);
    t.accumulate = false;
    check("no dlse", t);
    t.scale = -0.75f;
    check("negative scale", t);
}

static void heads(void **state)
{
    (void)state;
    for (int64_t hkv = 1; hkv <= 6; hkv++)
        for (int64_t group = 1; group <= 3; group++)
            for (int64_t dv = 1; dv <= 4; dv++) {
                tiny t = base();
                t.b = 1;
                t.hkv = hkv;
                t.hq = hkv * group;
                t.d = 5 - dv;
                t.dv = dv;
                check("heads", t);
            }
}

static void softcap(void **state)
{
    (void)state;
    tiny t = base();
    t.softcap = 0.5f; /* strong: scores reach several times it */
    t.scale = 1.0f;
    check("softcap", t);
}

static void bias(void **state)
{
    (void)state;
    for (int kind = TINY_FLOAT; kind <= TINY_BOOL; kind++)
        for (int axes = 0; axes < 16; axes++) {
            tiny t = base();
            t.bias_kind = (tiny_bias)kind;
            t.bias_axes = axes;
            t.accumulate = axes % 3 == 0;
            check(kind == TINY_FLOAT ? "bias" : kind == TINY_HOLES ? "bias with holes" : "bool bias", t);
        }
}

static void alibi(void **state)
{
    (void)state;
    tiny t = base();
    t.alibi = 1;
    check("alibi", t);
    t.alibi = 2;
    t.mask = ATTN_TOP_LEFT;
    t.softcap = 1.0f;
    check("alibi of each sequence", t);
}

static void masks(void **state)
{
    (void)state;
    for (int64_t sq = 1; sq <= 5; sq++)
        for (uint32_t mask = 0; mask < 32; mask++) {
            if ((mask & ATTN_TOP_LEFT) && (mask & ATTN_DIAGONAL)) continue;
            tiny t = base();
            t.b = 1;
            t.q_side.rows = sq;
            t.k_side.rows = 6 - sq; /* more queries than keys: causal leaves empty rows */
            t.mask = mask;
            t.left = 1;
            t.diagonal = -1;
            t.sink = sq % 2;
            check("mask", t);
        }
}

static void sink(void **state)
{
    (void)state;
    tiny t = base();
    t.sink = 1;
    check("sink", t);
    t.sink = 2;
    t.accumulate = true;
    check("sink of -inf", t);
    t.mask = ATTN_DIAGONAL | ATTN_CAUSAL;
    t.diagonal = -2;
    check("sink and empty rows", t);
}

static void dropout(void **state)
{
    (void)state;
    tiny t = base();
    t.dropout = 0.3f;
    check("dropout", t);
    t.dropout = 0.9f;
    t.sink = 1;
    check("strong dropout", t);
    t.dropout = 1.0f;
    check("total dropout", t);
}

static void no_keys(void **state)
{
    (void)state;
    tiny t = base();
    t.k_side.rows = 0;
    check("no keys", t);
    t.sink = 1;
    check("no keys, sink", t);
}

static const int32_t used_3[] = {2, 3}, used_5[] = {4, 0}, start_3[] = {1, 0}, start_5[] = {1, 3};
static const int32_t offsets_9[] = {1, 4, 8}, offsets_12[] = {0, 5, 10}, used_9[] = {3, 2}, start_12[] = {1, 2};

static void lengths(void **state)
{
    (void)state;
    tiny t = base();
    t.q_side.used = used_3;
    t.k_side.used = used_5;
    check("used", t);
    t.q_side.start = start_3;
    t.k_side.start = start_5;
    t.k_side.used = NULL;
    t.bias_kind = TINY_FLOAT;
    t.bias_axes = 15;
    t.mask = ATTN_CAUSAL;
    check("left padding", t);
    t.accumulate = true;
    t.bias_axes = 4;
    check("left padding, accumulate", t);
}

static void packed(void **state)
{
    (void)state;
    tiny t = base();
    t.q_side = (tiny_side){.rows = 9, .offsets = offsets_9};
    t.k_side = (tiny_side){.rows = 12, .offsets = offsets_12};
    check("packed", t);
    t.q_side.used = used_9;
    t.k_side.start = start_12;
    t.bias_kind = TINY_FLOAT;
    t.bias_axes = 12;
    t.dropout = 0.4f;
    t.alibi = 2;
    check("packed and padded", t);
    t.accumulate = true;
    t.bias_axes = 15;
    check("packed and padded, accumulate", t);
}

static void types(void **state)
{
    (void)state;
    const int32_t all[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_I8};
    for (int n = 0; n < 16; n++) {
        tiny t = base();
        t.q_type = all[n % 3];
        t.k_type = all[n % 4];
        t.v_type = all[n / 4];
        check("types", t);
    }
}

/* The reference works on tiles of 16 queries x 64 keys. */
static void many_tiles(void **state)
{
    (void)state;
    for (int axes = 0; axes < 4; axes++) {
        tiny t = {.b = 1, .hq = 2, .hkv = 1, .d = 2, .dv = 1, .q_side.rows = 33, .k_side.rows = 66};
        t.bias_kind = TINY_FLOAT;
        t.bias_axes = axes == 3 ? 0 : axes << 2;
        t.mask = axes == 1 ? ATTN_CAUSAL : axes == 2 ? ATTN_WINDOW_LEFT | ATTN_WINDOW_RIGHT : 0;
        t.left = t.right = 20;
        t.dropout = axes == 3 ? 0.5f : 0.0f;
        t.sink = 1;
        check("many tiles", t);
    }
    tiny t = {.b = 1, .hq = 1, .hkv = 1, .d = 1, .dv = 1, .q_side.rows = 17, .k_side.rows = 65};
    t.bias_kind = TINY_FLOAT;
    t.bias_axes = 15;
    t.softcap = 2.0f;
    check("many tiles of bias", t);
}

/* ---- at random ------------------------------------------------------------------------------------------------------------- */

static void together(void **state)
{
    (void)state;
    uint64_t random = 7;
    for (int n = 0; n < 150; n++) {
        char called[32];
        snprintf(called, sizeof called, "random %d", n);
        tiny t = {.b = unit_between(&random, 1, 2), .hkv = unit_between(&random, 1, 2)};
        t.hq = t.hkv * unit_between(&random, 1, 2);
        t.d = unit_between(&random, 1, 4);
        t.dv = unit_between(&random, 1, 4);
        t.q_side.rows = unit_between(&random, 1, 5);
        t.k_side.rows = unit_between(&random, 1, 5);
        t.mask = (uint32_t)unit_between(&random, 0, 15); /* top-left, windows, causal */
        t.left = unit_between(&random, 0, 3);
        t.right = unit_between(&random, 0, 3);
        t.softcap = (float)unit_between(&random, 0, 1) * 0.75f;
        t.dropout = (float)unit_between(&random, 0, 2) * 0.25f;
        t.bias_kind = (tiny_bias)unit_between(&random, 0, 3);
        t.bias_axes = (int)unit_between(&random, 0, 15);
        t.alibi = (int)unit_between(&random, 0, 2);
        t.sink = (int)unit_between(&random, 0, 2);
        t.no_dlse = unit_between(&random, 0, 1);
        t.accumulate = unit_between(&random, 0, 1);
        check(called, t);
    }
}

/* ---- sums that vanish -------------------------------------------------------------------------------------------------------- */

static void is_zero(const char *what, const float *x, int64_t count, float limit)
{
    for (int64_t n = 0; n < count; n++)
        if (!(fabsf(x[n]) <= limit)) fail_msg("%s: %s[%d] is %g, expected 0", name, what, (int)n, (double)x[n]);
}

static void vanishing(void **state)
{
    (void)state;
    static tiny_values values;
    static arrays a;
    tiny t = base();
    t.no_dlse = true;
    tiny_settle(&t, &values);
    name = "one visible key";
    t.mask = ATTN_WINDOW_LEFT | ATTN_WINDOW_RIGHT;
    fill_all(&t, 2);
    run(&t, &a);
    is_zero("dq", a.dq, q_rows(&t) * t.d, 0.0f);
    is_zero("dk", a.dk, k_rows(&t) * t.d, 0.0f);

    name = "constant v";
    t.mask = 0;
    t.bias_kind = TINY_FLOAT;
    for (int64_t n = 0; n < k_rows(&t) * t.dv; n++) values.v[n] = 0.5;
    run(&t, &a);
    is_zero("dq", a.dq, q_rows(&t) * t.d, 1e-14f);
    is_zero("dk", a.dk, k_rows(&t) * t.d, 1e-14f);

    /* A shift of all scores changes nothing: dS of a row sums to 0, and so does a bias that broadcasts over the keys. */
    name = "dbias of a row";
    t.bias_axes = 7;
    tiny_settle(&t, &values);
    fill_all(&t, 3);
    run(&t, &a);
    is_zero("dbias", a.dbias, bias_size(&t), 1e-14f);

    name = "total dropout";
    t.dropout = 1.0f;
    run(&t, &a);
    is_zero("out", a.out, q_rows(&t) * t.dv, 0.0f);
    is_zero("dq", a.dq, q_rows(&t) * t.d, 0.0f);
    is_zero("dv", a.dv, k_rows(&t) * t.dv, 0.0f);
}

static int create(void **state)
{
    (void)state;
    attn_config config = ATTN_CONFIG_INIT;
    config.backend = ATTN_BACKEND_REFERENCE;
    config.num_threads = 1; /* teams for problems this small would only wait for each other */
    return attn_create(&config, &reference) != ATTN_OK;
}

static int destroy(void **state)
{
    (void)state;
    attn_destroy(reference);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain),      cmocka_unit_test(heads),    cmocka_unit_test(softcap),
        cmocka_unit_test(bias),       cmocka_unit_test(alibi),    cmocka_unit_test(masks),
        cmocka_unit_test(sink),       cmocka_unit_test(dropout),  cmocka_unit_test(no_keys),
        cmocka_unit_test(lengths),    cmocka_unit_test(packed),   cmocka_unit_test(types),
        cmocka_unit_test(many_tiles), cmocka_unit_test(together), cmocka_unit_test(vanishing),
    };
    return cmocka_run_group_tests_name("gradient", tests, create, destroy);
}
