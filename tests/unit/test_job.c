/* SPDX-License-Identifier: Apache-2.0
 * Where rows lie and which keys a query sees: docs/semantics.md sections 2 and 3, from the public description through
 * validation to the inline rules that all backends share. */
#include "unit.h"

#include "append_job.h"
#include "internal.h"

/* ---- bands --------------------------------------------------------------------------------------------------------- */

enum { NONE = -1000 }; /* a window flag that is not set */

typedef struct band {
    int64_t sq, sk;
    uint32_t mask;
    int64_t left, right, diagonal;
} band;

/* Section 2, word by word. */
static bool sees(const band *w, int64_t i, int64_t j)
{
    int64_t diagonal = w->mask & ATTN_DIAGONAL ? w->diagonal : w->mask & ATTN_TOP_LEFT ? 0 : w->sk - w->sq;
    int64_t c = i + diagonal;
    if ((w->mask & ATTN_CAUSAL) && !(j <= c)) return false;
    if ((w->mask & ATTN_WINDOW_RIGHT) && !(j - c <= w->right)) return false;
    if ((w->mask & ATTN_WINDOW_LEFT) && !(c - j <= w->left)) return false;
    return 0 <= j && j < w->sk;
}

static attn_problem problem_of(const band *w)
{
    static float data[64];
    attn_problem p = ATTN_PROBLEM_INIT;
    p.q = attn_bhsd(data, ATTN_F32, 1, 1, w->sq, 1);
    p.k = attn_bhsd(data, ATTN_F32, 1, 1, w->sk, 1);
    p.v = p.k;
    p.out = p.q;
    p.mask = w->mask;
    p.window_left = w->left;
    p.window_right = w->right;
    p.diagonal = w->diagonal;
    return p;
}

static void check_band(const band *w)
{
    attn_problem p = problem_of(w);
    attn_job job;
    if (attn_validate_problem(&p, true, &job) != ATTN_OK) fail_msg("%s", attn_last_error());
    attn_sequence s = attn_sequence_of(&job, 0);
    int64_t last_first = INT64_MIN, last_end = INT64_MIN;
    for (int64_t i = 0; i < w->sq; i++) {
        int64_t first, end;
        attn_visible(&job, &s, i, &first, &end);
        for (int64_t j = -3; j < w->sk + 3; j++)
            if ((first <= j && j < end) != sees(w, i, j))
                fail_msg("Sq %d Sk %d mask %x left %ld right %ld diagonal %ld: query %d, key %d", (int)w->sq,
                         (int)w->sk, w->mask, (long)w->left, (long)w->right, (long)w->diagonal, (int)i, (int)j);
        assert_true(first >= last_first && end >= last_end); /* both grow with i */
        last_first = first;
        last_end = end;
    }
}

static void check_windows(band w)
{
    static const int64_t sides[] = {NONE, 0, 1, 2, 5, 9, (int64_t)1 << 41, ((int64_t)1 << 41) + 1, INT64_MAX};
    uint32_t mask = w.mask;
    for (size_t l = 0; l < sizeof sides / sizeof *sides; l++)
        for (size_t r = 0; r < sizeof sides / sizeof *sides; r++) {
            w.left = sides[l];
            w.right = sides[r];
            w.mask = mask | (w.left == NONE ? 0 : ATTN_WINDOW_LEFT) | (w.right == NONE ? 0 : ATTN_WINDOW_RIGHT);
            check_band(&w);
        }
}

static void bands(void **state)
{
    (void)state;
    for (int64_t sq = 0; sq <= 5; sq++)
        for (int64_t sk = 0; sk <= 5; sk++)
            for (uint32_t causal = 0; causal <= ATTN_CAUSAL; causal++) {
                check_windows((band){.sq = sq, .sk = sk, .mask = causal, .diagonal = 3});
                check_windows((band){.sq = sq, .sk = sk, .mask = causal | ATTN_TOP_LEFT, .diagonal = 3});
                for (int64_t diagonal = -7; diagonal <= 7; diagonal++)
                    check_windows((band){.sq = sq, .sk = sk, .mask = causal | ATTN_DIAGONAL, .diagonal = diagonal});
            }
}

/* Far away nothing may overflow. */
static void far_diagonals(void **state)
{
    (void)state;
    const int64_t far[] = {ATTN_MAX_SIZE, -ATTN_MAX_SIZE};
    for (int n = 0; n < 2; n++)
        for (uint32_t causal = 0; causal <= ATTN_CAUSAL; causal++)
            check_windows((band){.sq = 3, .sk = 4, .mask = causal | ATTN_DIAGONAL, .diagonal = far[n]});
}

/* ---- sequences ----------------------------------------------------------------------------------------------------- */

static void check_sequence(const attn_sequence *s, const attn_sequence *expected)
{
    assert_int_equal(s->q_batch, expected->q_batch);
    assert_int_equal(s->k_batch, expected->k_batch);
    assert_int_equal(s->q_row, expected->q_row);
    assert_int_equal(s->q_len, expected->q_len);
    assert_int_equal(s->q_room_row, expected->q_room_row);
    assert_int_equal(s->q_room, expected->q_room);
    assert_int_equal(s->k_row, expected->k_row);
    assert_int_equal(s->k_len, expected->k_len);
    assert_int_equal(s->diagonal, expected->diagonal);
}

static void plain_sequences(void **state)
{
    (void)state;
    attn_job job = {.q_span.room = 6, .kv_span.room = 9, .bottom_right = 1, .diagonal = 77};
    attn_sequence s = attn_sequence_of(&job, 2);
    check_sequence(&s, &(attn_sequence){2, 2, 0, 6, 0, 6, 0, 9, 3});
    job.bottom_right = 0;
    s = attn_sequence_of(&job, 0);
    check_sequence(&s, &(attn_sequence){0, 0, 0, 6, 0, 6, 0, 9, 77});
}

static void padded_sequences(void **state)
{
    (void)state;
    const int32_t q_used[] = {0, 4}, q_start[] = {6, 1}, k_used[] = {9, 0}, k_start[] = {0, 3};
    attn_job job = {.q_span = {.used = q_used, .start = q_start, .room = 6},
                    .kv_span = {.used = k_used, .start = k_start, .room = 9},
                    .bottom_right = 1};
    attn_sequence s = attn_sequence_of(&job, 0);
    check_sequence(&s, &(attn_sequence){0, 0, 6, 0, 0, 6, 0, 9, 9});
    s = attn_sequence_of(&job, 1);
    check_sequence(&s, &(attn_sequence){1, 1, 1, 4, 0, 6, 3, 0, -4});
    job.q_span.used = NULL; /* by default what start leaves */
    job.kv_span.used = NULL;
    s = attn_sequence_of(&job, 1);
    check_sequence(&s, &(attn_sequence){1, 1, 1, 5, 0, 6, 3, 6, 1});
}

static void packed_sequences(void **state)
{
    (void)state;
    const int32_t q_offsets[] = {2, 2, 7, 20}, k_offsets[] = {0, 10, 11, 15}, q_used[] = {0, 3, 13},
                  k_start[] = {1, 1, 2};
    attn_job job = {.q_span = {.used = q_used, .offsets = q_offsets, .room = 30},
                    .kv_span = {.offsets = k_offsets, .start = k_start, .room = 40},
                    .bottom_right = 1};
    attn_sequence s = attn_sequence_of(&job, 0);
    check_sequence(&s, &(attn_sequence){0, 0, 2, 0, 2, 0, 1, 9, 9});
    s = attn_sequence_of(&job, 1);
    check_sequence(&s, &(attn_sequence){0, 0, 2, 3, 2, 5, 11, 0, -3});
    s = attn_sequence_of(&job, 2);
    check_sequence(&s, &(attn_sequence){0, 0, 7, 13, 7, 13, 13, 2, -11});
    job.kv_span = (attn_span){.room = 5}; /* packed queries, keys in a batch */
    s = attn_sequence_of(&job, 2);
    check_sequence(&s, &(attn_sequence){0, 2, 7, 13, 7, 13, 0, 5, -8});
}

/* ---- places ---------------------------------------------------------------------------------------------------------- */

static void check_key(const attn_job *job, int64_t b, int64_t j, int64_t batch, int64_t row)
{
    attn_sequence s = attn_sequence_of(job, b);
    int64_t got_batch, got_row;
    attn_key_place(job, &s, b, j, &got_batch, &got_row);
    assert_int_equal(got_batch, batch);
    assert_int_equal(got_row, row);
}

static void key_places(void **state)
{
    (void)state;
    const int32_t start[] = {0, 5, 2}, offsets[] = {0, 10, 20, 30};
    attn_job job = {.kv_span = {.start = start, .room = 12}};
    check_key(&job, 1, 4, 1, 9);
    job.kv_span.offsets = offsets;
    check_key(&job, 2, 4, 0, 26);

    const int32_t table[] = {9, 4, 7, -1, -1, 0, 3, 9, 1, -1, 6, 6, 2, 8, -1}; /* rows of 5 */
    attn_job paged = {
        .kv_span = {.start = start, .room = 12}, .page_table = table, .page_table_stride = 5, .page_size = 3};
    check_key(&paged, 0, 0, 9, 0);
    check_key(&paged, 0, 2, 9, 2);
    check_key(&paged, 0, 3, 4, 0);
    check_key(&paged, 0, 8, 7, 2);
    check_key(&paged, 1, 0, 3, 2); /* token 5: left padding counts */
    check_key(&paged, 1, 1, 9, 0);
    check_key(&paged, 2, 0, 6, 2);
    paged.page_size = 1;
    check_key(&paged, 0, 2, 7, 0);
    check_key(&paged, 2, 1, 8, 0);
}

static void bias_places(void **state)
{
    (void)state;
    attn_problem p = ATTN_PROBLEM_INIT;
    static float data[2 * 4 * 3 * 5];
    p.q = attn_bhsd(data, ATTN_F32, 2, 4, 3, 1);
    p.k = p.v = attn_bhsd(data, ATTN_F32, 2, 2, 5, 1);
    p.out = p.q;
    for (int axes = 0; axes < 16; axes++) {
        p.bias = attn_bhsd(data, ATTN_F32, axes & 1 ? 2 : 1, axes & 2 ? 4 : 1, axes & 4 ? 3 : 1, axes & 8 ? 5 : 1);
        attn_job job;
        assert_int_equal(attn_validate_problem(&p, true, &job), ATTN_OK);
        int64_t at[4] = {axes & 1 ? 1 : 0, axes & 2 ? 3 : 0, axes & 4 ? 2 : 0, axes & 8 ? 4 : 0}, expected = 0;
        for (int axis = 0; axis < 4; axis++) expected += at[axis] * p.bias.stride[axis];
        assert_int_equal(attn_bias_offset(&job.bias, 1, 3, 2, 4), expected);
    }
}

static void appended_places(void **state)
{
    (void)state;
    const int32_t used[] = {2, 5}, start[] = {1, 0}, table[] = {3, 0, 2, 1, 4, 0};
    int64_t batch, row;
    attn_append_job job = {.cache_span = {.used = used, .start = start, .room = 8},
                           .new_span.room = 4,
                           .new_rows = 4,
                           .cache_batch = 5,
                           .cache_rows = 8};
    assert_true(attn_append_place(&job, 0, 0, 3, &batch, &row));
    assert_true(batch == 0 && row == 6); /* start 1, used 2, third after */
    job.page_table = table;
    job.page_table_stride = 3;
    job.page_size = job.cache_rows = 3;
    assert_true(attn_append_place(&job, 1, 0, 2, &batch, &row));
    assert_true(batch == 0 && row == 1); /* token 7 of sequence 1: page table[1][2] */

    const int64_t slots[] = {14, -1, 0, 3, 15, 1, 2, 4};
    job.slots = slots;
    assert_true(attn_append_place(&job, 0, 0, 0, &batch, &row));
    assert_true(batch == 4 && row == 2);
    assert_false(attn_append_place(&job, 0, 0, 1, &batch, &row)); /* -1 */
    assert_false(attn_append_place(&job, 1, 0, 0, &batch, &row)); /* 15 is one too far */
    assert_int_equal(attn_append_token(&job, 1, 2, 1), 7);        /* [B, Snew], left padding of 2 */
    const int32_t offsets[] = {0, 3, 5};
    job.new_span.offsets = offsets;
    assert_int_equal(attn_append_token(&job, 1, 3, 1), 4); /* packed: a row of the tensor */

    const int32_t positions[] = {10, 11, 12, 13, 14};
    assert_int_equal(attn_append_position(&job, 1, 3, 1), 6);
    job.rope.positions = positions;
    assert_int_equal(attn_append_position(&job, 1, 3, 1), 14);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bands),
        cmocka_unit_test(far_diagonals),
        cmocka_unit_test(plain_sequences),
        cmocka_unit_test(padded_sequences),
        cmocka_unit_test(packed_sequences),
        cmocka_unit_test(key_places),
        cmocka_unit_test(bias_places),
        cmocka_unit_test(appended_places),
    };
    return cmocka_run_group_tests_name("job", tests, NULL, NULL);
}
