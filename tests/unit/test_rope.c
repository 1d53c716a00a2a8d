/* SPDX-License-Identifier: Apache-2.0
 * Rotary embedding: docs/semantics.md section 6 to the bit, and against a rotation in float64. */
#include "unit.h"

#include "rope.h"

enum { LARGEST = 64, BEYOND = 4 };

typedef struct row {
    float x[LARGEST + BEYOND];
    float cosine[LARGEST / 2], sine[LARGEST / 2];
} row;

static row random_row(uint64_t *random)
{
    row r;
    for (int n = 0; n < LARGEST + BEYOND; n++)
        r.x[n] = (float)ldexp((double)unit_between(random, -9999999, 9999999), -21);
    for (int n = 0; n < LARGEST / 2; n++) {
        double angle = (double)unit_between(random, -1000, 1000) / 100.0;
        r.cosine[n] = (float)cos(angle);
        r.sine[n] = (float)sin(angle);
    }
    return r;
}

static void pair_columns(int64_t n, int64_t dim, int interleaved, int64_t *a, int64_t *b)
{
    *a = interleaved ? 2 * n : n;
    *b = interleaved ? 2 * n + 1 : n + dim / 2;
}

static void check_row(const row *r, int64_t dim, int interleaved)
{
    row turned = *r;
    attn_rope_row(turned.x, r->cosine, r->sine, dim, interleaved);
    for (int64_t n = 0; n < dim / 2; n++) {
        int64_t at, bt;
        pair_columns(n, dim, interleaved, &at, &bt);
        float a = r->x[at], b = r->x[bt], c = r->cosine[n], s = r->sine[n];
        volatile float bs = b * s, as = a * s; /* rounded on their own */
        assert_true(turned.x[at] == fmaf(a, c, -bs));
        assert_true(turned.x[bt] == fmaf(b, c, as));
        double limit = 0x1p-23 * (fabs((double)a) + fabs((double)b));
        assert_true(fabs((double)turned.x[at] - ((double)a * (double)c - (double)b * (double)s)) <= limit);
        assert_true(fabs((double)turned.x[bt] - ((double)b * (double)c + (double)a * (double)s)) <= limit);
    }
    assert_memory_equal(turned.x + dim, r->x + dim, (size_t)(LARGEST + BEYOND - dim) * sizeof *r->x);
}

static void rotations(void **state)
{
    (void)state;
    uint64_t random = 4;
    for (int n = 0; n < 200; n++)
        for (int64_t dim = 2; dim <= LARGEST; dim += 2) {
            row r = random_row(&random);
            check_row(&r, dim, 0);
            check_row(&r, dim, 1);
        }
}

/* Position 0 has cos 1 and sin 0. */
static void no_rotation(void **state)
{
    (void)state;
    uint64_t random = 5;
    row r = random_row(&random);
    for (int n = 0; n < LARGEST / 2; n++) {
        r.cosine[n] = 1.0f;
        r.sine[n] = 0.0f;
    }
    row turned = r;
    attn_rope_row(turned.x, r.cosine, r.sine, LARGEST, 0);
    attn_rope_row(turned.x, r.cosine, r.sine, LARGEST, 1);
    assert_memory_equal(turned.x, r.x, sizeof r.x);
}

static void quarter_turn(void **state)
{
    (void)state;
    const float cosine[2] = {0.0f, 0.0f}, sine[2] = {1.0f, 1.0f};
    float halves[4] = {1.0f, 2.0f, 3.0f, 4.0f}, pairs[4] = {1.0f, 2.0f, 3.0f, 4.0f};
    attn_rope_row(halves, cosine, sine, 4, 0); /* (1, 3) and (2, 4) */
    assert_true(halves[0] == -3.0f && halves[1] == -4.0f && halves[2] == 1.0f && halves[3] == 2.0f);
    attn_rope_row(pairs, cosine, sine, 4, 1); /* (1, 2) and (3, 4) */
    assert_true(pairs[0] == -2.0f && pairs[1] == 1.0f && pairs[2] == -4.0f && pairs[3] == 3.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rotations),
        cmocka_unit_test(no_rotation),
        cmocka_unit_test(quarter_turn),
    };
    return cmocka_run_group_tests_name("rope", tests, NULL, NULL);
}
