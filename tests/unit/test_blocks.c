/* SPDX-License-Identifier: Apache-2.0
 * Q8_0 and Q4_0 blocks: bytes worked out by hand from docs/semantics.md section 5, and what must hold of any block. */
#include "unit.h"

#include "cpu/rows.h"

#include <float.h>

static void check_q8_0(const float *x, uint16_t d, const int8_t *q)
{
    uint8_t block[ATTN_Q8_0_BYTES];
    memset(block, 0xaa, sizeof block);
    attn_q8_0_encode(x, block);
    assert_int_equal(attn_load_u16(block), d);
    for (int n = 0; n < ATTN_BLOCK; n++) assert_int_equal((int8_t)block[2 + n], q[n]);
}

static void check_q4_0(const float *x, uint16_t d, const uint8_t *bytes)
{
    uint8_t block[ATTN_Q4_0_BYTES];
    memset(block, 0xaa, sizeof block);
    attn_q4_0_encode(x, block);
    assert_int_equal(attn_load_u16(block), d);
    assert_memory_equal(block + 2, bytes, ATTN_BLOCK / 2);
}

static attn_view view_of(void *data, int32_t dtype)
{
    return (attn_view){.data = data, .dtype = dtype, .stride = {0, 0, ATTN_BLOCK, 1}};
}

/* ---- Q8_0 -------------------------------------------------------------------------------------------------------- */

static void q8_0_known(void **state)
{
    (void)state;
    /* d = 127/127 = 1: codes are the elements rounded, halves away from zero. */
    const float unit[ATTN_BLOCK] = {-127.0f, 127.0f, 0.5f,  -0.5f,  0.49f,   -0.49f,  1.5f, 2.5f,
                                    -1.5f,   -2.5f,  63.5f, 126.5f, 126.49f, -126.5f, 1.0f, -0.0f};
    const int8_t unit_codes[ATTN_BLOCK] = {-127, 127, 1, -1, 0, 0, 2, 3, -2, -3, 64, 127, 126, -127, 1, 0};
    check_q8_0(unit, 0x3c00, unit_codes);
    /* d = 2 */
    const float twice[ATTN_BLOCK] = {254.0f, 1.0f, -1.0f, 3.0f, -3.0f, 4.0f, 0.9f, [31] = -254.0f};
    const int8_t twice_codes[ATTN_BLOCK] = {127, 1, -1, 2, -2, 2, 0, [31] = -127};
    check_q8_0(twice, 0x4000, twice_codes);
}

/* d = 4097/4096, which F16 stores as 1: 64.505 / d = 64.489 is 64, where 64.505 / 1 would be 65. */
static void q8_0_divides_by_the_unrounded_scale(void **state)
{
    (void)state;
    const float x[ATTN_BLOCK] = {[7] = 520319.0f / 4096.0f, [8] = 64.505f, [9] = -64.505f};
    const int8_t q[ATTN_BLOCK] = {[7] = 127, [8] = 64, [9] = -64};
    check_q8_0(x, 0x3c00, q);
}

static void q8_0_zeros(void **state)
{
    (void)state;
    const float zeros[ATTN_BLOCK] = {[3] = -0.0f};
    const int8_t q[ATTN_BLOCK] = {0};
    check_q8_0(zeros, 0, q);
    /* 127 of float32's smallest number: d is that number, and too small for F16. */
    const float tiny[ATTN_BLOCK] = {[5] = FLT_TRUE_MIN};
    check_q8_0(tiny, 0, q);
}

/* ---- Q4_0 -------------------------------------------------------------------------------------------------------- */

static void q4_0_known(void **state)
{
    (void)state;
    float x[ATTN_BLOCK];
    uint8_t bytes[ATTN_BLOCK / 2];
    for (int n = 0; n < ATTN_BLOCK / 2; n++) { /* -8 .. 7 and 7 .. -8: d = 1, codes 0 .. 15 and 15 .. 0 */
        x[n] = (float)(n - 8);
        x[n + ATTN_BLOCK / 2] = (float)(7 - n);
        bytes[n] = (uint8_t)(n | (15 - n) << 4);
    }
    check_q4_0(x, 0x3c00, bytes);
}

static void q4_0_rounding(void **state)
{
    (void)state;
    /* d = 1; element n, and n + 16 in the high half; what is not given is 0, code 8 */
    const float x[ATTN_BLOCK] = {-8.0f, 0.5f,  -0.5f,  0.49f,       -0.51f, 6.5f,
                                 7.5f,  -7.5f, -7.51f, [16] = 8.0f, 7.49f,  -7.49f};
    uint8_t bytes[ATTN_BLOCK / 2];
    memset(bytes, 0x88, sizeof bytes);
    const uint8_t expected[] = {0xf0, 0xf9, 0x18, 0x88, 0x87, 0x8f, 0x8f, 0x81, 0x80};
    memcpy(bytes, expected, sizeof expected);
    check_q4_0(x, 0x3c00, bytes);
}

/* Of elements equally large the first one gives the sign of d, and gets code 0. */
static void q4_0_first_of_equals(void **state)
{
    (void)state;
    uint8_t bytes[ATTN_BLOCK / 2];
    memset(bytes, 0x88, sizeof bytes);
    bytes[3] = 0x80;
    bytes[5] = 0x8f;
    const float negative_first[ATTN_BLOCK] = {[3] = -4.0f, [5] = 4.0f};
    check_q4_0(negative_first, 0x3800, bytes);
    const float positive_first[ATTN_BLOCK] = {[3] = 4.0f, [5] = -4.0f};
    check_q4_0(positive_first, 0xb800, bytes);
}

static void q4_0_zeros(void **state)
{
    (void)state;
    const float zeros[ATTN_BLOCK] = {[31] = -0.0f};
    uint8_t block[ATTN_Q4_0_BYTES], bytes[ATTN_BLOCK / 2];
    attn_q4_0_encode(zeros, block);
    memset(bytes, 0x88, sizeof bytes);
    assert_memory_equal(block + 2, bytes, sizeof bytes);
    assert_int_equal(attn_load_u16(block) & 0x7fff, 0); /* 0 / -8 is -0 */
}

static void q4_0_code_order(void **state)
{
    (void)state;
    uint8_t block[ATTN_Q4_0_BYTES] = {0};
    for (int n = 0; n < ATTN_BLOCK / 2; n++) block[2 + n] = (uint8_t)(n | (15 - n) << 4);
    for (int n = 0; n < ATTN_BLOCK; n++) assert_int_equal(attn_q4_0_code(block, n), n < 16 ? n - 8 : 23 - n);
}

/* ---- any block ----------------------------------------------------------------------------------------------------- */

static float random_element(uint64_t *random, int exponent)
{
    return (float)ldexp((double)unit_between(random, -1000000, 1000000), exponent);
}

/* Two rows of one block each, read back: no element is further off than half a step and the rounding of d. The last code
 * upwards of Q4_0 stands for a whole step. */
static void check_distance(int32_t dtype, const float *x)
{
    uint8_t blocks[2 * ATTN_Q8_0_BYTES];
    float back[ATTN_BLOCK], largest = 0.0f;
    int bytes = dtype == ATTN_Q8_0 ? ATTN_Q8_0_BYTES : ATTN_Q4_0_BYTES;
    for (int row = 0; row < 2; row++)
        (dtype == ATTN_Q8_0 ? attn_q8_0_encode : attn_q4_0_encode)(x + row * ATTN_BLOCK, blocks + row * bytes);
    attn_view view = view_of(blocks, dtype);
    for (int row = 0; row < 2; row++, x += ATTN_BLOCK, largest = 0.0f) {
        attn_read_row(&view, 0, 0, row, ATTN_BLOCK, back);
        for (int n = 0; n < ATTN_BLOCK; n++) largest = fmaxf(largest, fabsf(x[n]));
        double d = (double)largest / (dtype == ATTN_Q8_0 ? 127.0 : 8.0);
        double limit = d * (dtype == ATTN_Q8_0 ? 0.5001 : 1.0001) + (double)largest * 0x1p-11;
        for (int n = 0; n < ATTN_BLOCK; n++)
            if (!(fabs((double)back[n] - (double)x[n]) <= limit))
                fail_msg("%s: %a came back as %a, step %a", attn_dtype_name((attn_dtype)dtype), (double)x[n],
                         (double)back[n], d);
    }
}

static void distances(void **state)
{
    (void)state;
    uint64_t random = 1;
    for (int round = 0; round < 2000; round++) {
        float x[2 * ATTN_BLOCK];
        int exponent = (int)unit_between(&random, -26, -8); /* d stays normal and finite in F16 */
        for (int n = 0; n < 2 * ATTN_BLOCK; n++) x[n] = random_element(&random, exponent);
        check_distance(ATTN_Q8_0, x);
        check_distance(ATTN_Q4_0, x);
    }
}

/* Codes of such blocks mean nothing, but the sanitizers must find nothing and Q8_0 never writes -128. */
static void not_finite(void **state)
{
    (void)state;
    const float strange[] = {NAN, INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, FLT_MIN, FLT_TRUE_MIN, -1e-38f, 0.0f, 1.0f};
    enum { STRANGE = sizeof strange / sizeof *strange };
    uint64_t random = 2;
    for (int round = 0; round < 5000; round++) {
        float x[ATTN_BLOCK];
        uint8_t block[ATTN_Q8_0_BYTES];
        int kinds = (int)unit_between(&random, 1, 3), kind[3];
        for (int n = 0; n < 3; n++) kind[n] = (int)unit_between(&random, 0, STRANGE - 1);
        for (int n = 0; n < ATTN_BLOCK; n++) x[n] = strange[kind[unit_between(&random, 0, kinds - 1)]];
        attn_q4_0_encode(x, block);
        attn_q8_0_encode(x, block);
        for (int n = 0; n < ATTN_BLOCK; n++) assert_int_not_equal((int8_t)block[2 + n], -128);
    }
    float one_nan[ATTN_BLOCK] = {NAN, 127.0f, -127.0f, 3.0f};
    const int8_t q[ATTN_BLOCK] = {0, 127, -127, 3};
    check_q8_0(one_nan, 0x3c00, q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(q8_0_known),    cmocka_unit_test(q8_0_divides_by_the_unrounded_scale),
        cmocka_unit_test(q8_0_zeros),    cmocka_unit_test(q4_0_known),
        cmocka_unit_test(q4_0_rounding), cmocka_unit_test(q4_0_first_of_equals),
        cmocka_unit_test(q4_0_zeros),    cmocka_unit_test(q4_0_code_order),
        cmocka_unit_test(distances),     cmocka_unit_test(not_finite),
    };
    return cmocka_run_group_tests_name("blocks", tests, NULL, NULL);
}
