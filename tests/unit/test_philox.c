/* SPDX-License-Identifier: Apache-2.0
 * Philox against the known answers that Random123 ships (kat_vectors), and the dropout mask of docs/semantics.md
 * section 4, written down once more. */
#include "unit.h"

#include "job.h"

static void known_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4];
        uint64_t key; /* high word, low word */
        uint32_t words[4];
    } vectors[] = {
        {{0, 0, 0, 0}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         0xffffffffffffffff,
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         0x299f31d0a4093822,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t n = 0; n < sizeof vectors / sizeof *vectors; n++) {
        const uint32_t *c = vectors[n].counter;
        attn_philox r = attn_philox_4x32_10(c[0], c[1], c[2], c[3], vectors[n].key);
        for (int word = 0; word < 4; word++) assert_int_equal(r.word[word], vectors[n].words[word]);
    }
}

/* Every aligned eight uses the eight words of two calls, each once. */
static void columns_to_words(void **state)
{
    (void)state;
    const int group_of[8] = {0, 0, 1, 1, 0, 0, 1, 1}, word_of[8] = {0, 1, 0, 1, 2, 3, 2, 3};
    for (uint64_t eight = 0; eight < 5000; eight++) {
        int used[2][4] = {{0}};
        for (uint64_t n = 0; n < 8; n++) {
            uint32_t group = attn_dropout_group(8 * eight + n);
            int word = attn_dropout_word(8 * eight + n);
            assert_int_equal(group / 2, eight);
            assert_int_equal(group % 2, group_of[n]);
            assert_int_equal(word, word_of[n]);
            assert_int_equal(used[group % 2][word]++, 0);
        }
    }
    assert_int_equal(attn_dropout_group(0xffffffff), 0x3fffffff);
    assert_int_equal(attn_dropout_word(0xffffffff), 3);
}

static void thresholds(void **state)
{
    (void)state;
    assert_true(attn_dropout_threshold(0.0f) == 0);
    assert_true(attn_dropout_threshold(0x1p-149f) == 0);
    assert_true(attn_dropout_threshold(0x1.fffffep-33f) == 0);
    assert_true(attn_dropout_threshold(0x1p-32f) == 1);
    assert_true(attn_dropout_threshold(0x1.8p-32f) == 1);
    assert_true(attn_dropout_threshold(0.1f) == 429496736); /* 0.1f is 13421773 / 2^27 */
    assert_true(attn_dropout_threshold(0.5f) == (uint64_t)1 << 31);
    assert_true(attn_dropout_threshold(1.0f - 0x1p-24f) == ((uint64_t)1 << 32) - 256);
    assert_true(attn_dropout_threshold(1.0f) == (uint64_t)1 << 32);
}

static attn_job job_of(float p, uint64_t seed, uint64_t offset)
{
    attn_job job;
    memset(&job, 0, sizeof job);
    job.keep_threshold = attn_dropout_threshold(p);
    job.seed = seed;
    job.offset = offset;
    return job;
}

static void key_of_seed_and_offset(void **state)
{
    (void)state;
    attn_job job = job_of(0.5f, 5, 2);
    assert_true(attn_job_dropout_key(&job) == 5 + 2 * 0x9E3779B97F4A7C15u);
    const uint64_t given[2] = {UINT64_MAX, 3}; /* wins over seed and offset, and wraps */
    job.seed_offset = given;
    assert_true(attn_job_dropout_key(&job) == 3 * 0x9E3779B97F4A7C15u - 1);
}

/* Pair by pair, from random places with random origins. */
static void mask(void **state)
{
    (void)state;
    uint64_t random = 3;
    for (int n = 0; n < 20000; n++) {
        float p = (float)unit_between(&random, 0, 16) / 16.0f;
        attn_job job = job_of(p, unit_random(&random), unit_random(&random));
        job.batch_origin = unit_between(&random, 0, UINT32_MAX - 1000);
        job.head_origin = unit_between(&random, 0, UINT32_MAX - 1000);
        job.row_origin = unit_between(&random, 0, UINT32_MAX - 1000);
        job.column_origin = unit_between(&random, 0, UINT32_MAX - 1000);
        int64_t b = unit_between(&random, 0, 999), h = unit_between(&random, 0, 999);
        int64_t i = unit_between(&random, 0, 999), j = unit_between(&random, 0, 999);

        uint64_t key = job.seed + job.offset * 0x9E3779B97F4A7C15u, column = (uint64_t)(job.column_origin + j);
        attn_philox r =
            attn_philox_4x32_10((uint32_t)(2 * (column / 8) + column / 2 % 2), (uint32_t)(job.row_origin + i),
                                (uint32_t)(job.head_origin + h), (uint32_t)(job.batch_origin + b), key);
        int keep = (double)r.word[column % 2 + 2 * (column / 4 % 2)] >= (double)p * 0x1p32;
        assert_int_equal(attn_dropout_keep(&job, attn_job_dropout_key(&job), b, h, i, j), keep);
    }
}

/* Shares of kept pairs, rows and columns, within six standard deviations. */
static void frequency(void **state)
{
    (void)state;
    enum { SIZE = 256 };
    const float p = 0.25f;
    attn_job job = job_of(p, 42, 7);
    uint64_t key = attn_job_dropout_key(&job);
    double deviation = sqrt((double)p * (1.0 - (double)p)), total = 0.0, column[SIZE] = {0};
    for (int64_t i = 0; i < SIZE; i++) {
        double row = 0.0;
        for (int64_t j = 0; j < SIZE; j++) {
            int keep = attn_dropout_keep(&job, key, 0, 0, i, j);
            row += keep;
            column[j] += keep;
        }
        assert_true(fabs(row - SIZE * 0.75) < 6.0 * deviation * sqrt(SIZE));
        total += row;
    }
    for (int j = 0; j < SIZE; j++) assert_true(fabs(column[j] - SIZE * 0.75) < 6.0 * deviation * sqrt(SIZE));
    assert_true(fabs(total - SIZE * SIZE * 0.75) < 6.0 * deviation * SIZE);
}

static void all_or_nothing(void **state)
{
    (void)state;
    attn_job none = job_of(1.0f, 1, 0), all = job_of(0.0f, 1, 0);
    for (int64_t j = 0; j < 4096; j++) {
        assert_int_equal(attn_dropout_keep(&none, 1, 0, 0, 0, j), 0);
        assert_int_equal(attn_dropout_keep(&all, 1, 0, 0, 0, j), 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers),  cmocka_unit_test(columns_to_words),
        cmocka_unit_test(thresholds),     cmocka_unit_test(key_of_seed_and_offset),
        cmocka_unit_test(mask),           cmocka_unit_test(frequency),
        cmocka_unit_test(all_or_nothing),
    };
    return cmocka_run_group_tests_name("philox", tests, NULL, NULL);
}
