/* SPDX-License-Identifier: Apache-2.0
 * The four forms of mma.m8n8k4, m16n8k16 and m16n8k8 against the formulas of the PTX ISA, the deferred products, the
 * truncating sums, and the number formats. */
#include "emulator_test.h"

#include "common/number.h"

#include <math.h>

/* ---- Layout ------------------------------------------------------------------------------------------------------ */

/* PTX ISA, mma.m8n8k4: of quad pair (lane >> 2) & 3, element i of a lane. */
static int c_row(int lane, int i) { return (lane & 1) + (i & 2) + (lane < 16 ? 0 : 4); }
static int c_column(int lane, int i) { return (i & 4) + (lane & 2) + (i & 1); }

static float a[4][8][4], b[4][4][8], c[4][8][8]; /* [quad pair][row][column] */

/* Small integers: products and sums are exact. */
static void fill(float *x, int n, uint64_t *seed)
{
    for (int i = 0; i < n; i++) x[i] = (float)unit_between(seed, -8, 8);
}

enum { A_BYTES = 512 }; /* the larger forms take all of it */

static void run_mma(const char *kernel, const void *wa, const void *wb, float *wc, size_t c_bytes)
{
    const CUdeviceptr da = test_upload(wa, A_BYTES), db = test_upload(wb, 256), dc = test_upload(wc, c_bytes);
    const struct mma_params p = {test_pointer(da), test_pointer(db), test_pointer(dc)};
    test_launch(kernel, 1, 32, 0, NULL, &p, sizeof p);
    test_download(wc, dc, c_bytes);
}

static void check_form(const char *kernel, int a_col, int b_row, uint64_t seed)
{
    uint16_t wa[64][4] = {{0}}, wb[32][4];
    float wc[32][8];
    fill(&a[0][0][0], 128, &seed);
    fill(&b[0][0][0], 128, &seed);
    fill(&c[0][0][0], 256, &seed);
    for (int lane = 0; lane < 32; lane++) {
        const int pair = lane >> 2 & 3, upper = lane >> 4, q = lane & 3;
        for (int i = 0; i < 4; i++) {
            wa[lane][i] = attn_f32_to_f16(a_col ? a[pair][4 * upper + i][q] : a[pair][q + 4 * upper][i]);
            wb[lane][i] = attn_f32_to_f16(b_row ? b[pair][q][4 * upper + i] : b[pair][i][q + 4 * upper]);
        }
        for (int i = 0; i < 8; i++) wc[lane][i] = c[pair][c_row(lane, i)][c_column(lane, i)];
    }
    run_mma(kernel, wa, wb, &wc[0][0], sizeof wc);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 8; i++) {
            const int pair = lane >> 2 & 3, row = c_row(lane, i), column = c_column(lane, i);
            float sum = c[pair][row][column];
            for (int k = 0; k < 4; k++) sum += a[pair][row][k] * b[pair][k][column];
            assert_true(wc[lane][i] == sum);
        }
}

static void check_forms(uint64_t seed)
{
    check_form("probe_mma_row_row", 0, 1, seed);
    check_form("probe_mma_row_col", 0, 0, seed + 1);
    check_form("probe_mma_col_row", 1, 1, seed + 2);
    check_form("probe_mma_col_col", 1, 0, seed + 3);
}

static void forms_follow_the_isa(void **state)
{
    (void)state;
    check_forms(1);
    driver.set("truncate", "1"); /* by plain code; what is exact stays exact */
    check_forms(5);
    driver.set("truncate", "0");
    driver.set("immediate", "1");
    driver.set("seed", "7");
    check_forms(9);
    driver.set("immediate", "0");
    driver.set("seed", "0");
}

/* Products are there after mma_complete, not before. */
static void products_are_deferred(void **state)
{
    (void)state;
    float d[64] = {0};
    const uint32_t none[A_BYTES / 4] = {0};
    run_mma("probe_mma_deferred", none, none, d, sizeof d);
    for (int i = 0; i < 32; i++) {
        assert_true(d[i] == 0);
        assert_true(d[32 + i] == 12);
    }
    driver.set("immediate", "1");
    run_mma("probe_mma_deferred", none, none, d, sizeof d);
    for (int i = 0; i < 64; i++) assert_true(d[i] == 12);
    driver.set("immediate", "0");
}

/* ---- 16 x 8 sums --------------------------------------------------------------------------------------------------- */

static const struct {
    const char *kernel;
    int terms, is_bf16;
} larger[] = {{"probe_mma_k16_f16", 16, 0}, {"probe_mma_k16_bf16", 16, 1}, {"probe_mma_k8_f16", 8, 0}};
enum { LARGER = sizeof larger / sizeof larger[0] };

static uint16_t encode(int form, float x) { return larger[form].is_bf16 ? attn_f32_to_bf16(x) : attn_f32_to_f16(x); }

/* z += x * y by one instruction. PTX ISA, m16n8k16: with g = lane / 4, q = lane % 4, elements 2 i and 2 i + 1 of a are
 * row g + 8 (i % 2), k = 2 q + 8 (i / 2) and the next; of b column g and the same k; element i of c is row
 * g + 8 (i / 2), column 2 q + i % 2. m16n8k8 has the first half of k. */
static void run_larger(int form, float (*x)[16], float (*y)[8], float (*z)[8])
{
    uint16_t wa[32][8], wb[32][4];
    float wc[32][4];
    memset(wa, 0x3c, sizeof wa); /* what m16n8k8 does not take must not matter */
    memset(wb, 0x3c, sizeof wb);
    for (int lane = 0; lane < 32; lane++) {
        const int g = lane / 4, q = lane % 4;
        for (int i = 0; i < larger[form].terms / 4; i++)
            for (int j = 0; j < 2; j++) wa[lane][2 * i + j] = encode(form, x[g + i % 2 * 8][2 * q + j + i / 2 * 8]);
        for (int i = 0; i < larger[form].terms / 8; i++)
            for (int j = 0; j < 2; j++) wb[lane][2 * i + j] = encode(form, y[2 * q + j + 8 * i][g]);
        for (int i = 0; i < 4; i++) wc[lane][i] = z[g + i / 2 * 8][2 * q + i % 2];
    }
    run_mma(larger[form].kernel, wa, wb, &wc[0][0], sizeof wc);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++) z[lane / 4 + i / 2 * 8][2 * (lane % 4) + i % 2] = wc[lane][i];
}

static void check_larger(int form, uint64_t seed)
{
    float x[16][16], y[16][8], z[16][8], sum[16][8];
    fill(&x[0][0], 256, &seed);
    fill(&y[0][0], 128, &seed);
    fill(&z[0][0], 128, &seed);
    for (int row = 0; row < 16; row++)
        for (int column = 0; column < 8; column++) {
            sum[row][column] = z[row][column];
            for (int k = 0; k < larger[form].terms; k++) sum[row][column] += x[row][k] * y[k][column];
        }
    run_larger(form, x, y, z);
    for (int i = 0; i < 128; i++) assert_true(z[i / 8][i % 8] == sum[i / 8][i % 8]);
}

static void larger_forms_follow_the_isa(void **state)
{
    (void)state;
    for (int form = 0; form < LARGER; form++) {
        check_larger(form, 20 + (uint64_t)form);
        driver.set("truncate", "1");
        check_larger(form, 30 + (uint64_t)form);
        driver.set("capability", "9.0");
        check_larger(form, 40 + (uint64_t)form);
        driver.set("capability", "7.0");
        driver.set("truncate", "0");
        driver.set("seed", "5");
        check_larger(form, 50 + (uint64_t)form);
        driver.set("seed", "0");
    }
}

/* k ascending, rounded at each product; what is not exact, and NaN and infinities in one element. */
static void larger_forms_round(void **state)
{
    (void)state;
    for (int form = 0; form < LARGER; form++) {
        float x[16][16], y[16][8], z[16][8], sum[16][8];
        uint64_t seed = 60;
        for (int i = 0; i < 256; i++) x[i / 16][i % 16] = (float)unit_between(&seed, -200, 200) / 128;
        for (int i = 0; i < 128; i++) y[i / 8][i % 8] = (float)unit_between(&seed, -200, 200) / 1024;
        for (int i = 0; i < 128; i++) z[i / 8][i % 8] = (float)unit_between(&seed, -1000, 1000) / 3;
        x[3][5] = NAN;
        y[2][6] = INFINITY;
        z[9][1] = -INFINITY;
        for (int row = 0; row < 16; row++)
            for (int column = 0; column < 8; column++) {
                sum[row][column] = z[row][column];
                for (int k = 0; k < larger[form].terms; k++)
                    sum[row][column] = fmaf(x[row][k], y[k][column], sum[row][column]);
            }
        run_larger(form, x, y, z);
        for (int i = 0; i < 128; i++) {
            const float got = z[i / 8][i % 8], expected = sum[i / 8][i % 8];
            assert_true(isnan(expected) ? isnan(got) : got == expected);
            assert_true(isnan(got) || i / 8 != 3);
        }
    }
}

/* ---- Sums -------------------------------------------------------------------------------------------------------- */

/* c + the sum of x[k] * y[k], in every element. */
static float dot(float start, const float *x, const float *y)
{
    uint16_t wa[64][4] = {{0}}, wb[32][4];
    float wc[32][8];
    for (int lane = 0; lane < 32; lane++) {
        for (int k = 0; k < 4; k++) {
            wa[lane][k] = attn_f32_to_f16(x[k]);
            wb[lane][k] = attn_f32_to_f16(y[k]);
        }
        for (int i = 0; i < 8; i++) wc[lane][i] = start;
    }
    run_mma("probe_mma_row_col", wa, wb, &wc[0][0], sizeof wc);
    for (int i = 1; i < 256; i++) assert_memory_equal(&wc[0][0] + i, &wc[0][0], sizeof(float));
    return wc[0][0];
}

/* What each way of adding gives, worked out by hand. Units of 2^-23 below the largest exponent, here 0. */
static void sums_round_or_truncate(void **state)
{
    (void)state;
    static const struct {
        float c, x[4], y[4], rounded, truncated;
    } cases[] = {
        /* 2^-24 + 2^-24 beside 1: each is half a unit. To even, one by one: 1. Cut: 1. */
        {1, {0x1p-12f, 0x1p-12f}, {0x1p-12f, 0x1p-12f}, 1, 1},
        /* 3 * 2^-24 is one unit and a half: rounded to two, cut to one. */
        {1, {0x1.8p-12f}, {0x1p-11f}, 1 + 0x1p-22f, 1 + 0x1p-23f},
        /* Toward zero, not down. */
        {-1, {-0x1.8p-12f}, {0x1p-11f}, -1 - 0x1p-22f, -1 - 0x1p-23f},
        /* Large terms cancel. One by one 2^-20 is lost beside 2^12, whose unit is 2^-11, but not if it comes last. */
        {0x1p-20f, {0x1p6f, 0x1p6f}, {0x1p6f, -0x1p6f}, 0, 0},
        {0, {0x1p6f, 0x1p6f, 0x1p-10f}, {0x1p6f, -0x1p6f, 0x1p-10f}, 0x1p-20f, 0},
        /* 1.5 * 1.5 has exponent 0 for the alignment: its unit stays 2^-23, and the sum 2.25 + 3 * 2^-23 is cut to 24
         * bits, whose unit is 2^-22. */
        {0x1.8p-22f, {1.5f}, {1.5f}, 2.25f + 0x1p-21f, 2.25f + 0x1p-22f},
        /* Infinities and NaN are the usual ones. */
        {INFINITY, {1}, {1}, INFINITY, INFINITY},
        {0, {INFINITY}, {-1}, -INFINITY, -INFINITY},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_true(dot(cases[i].c, cases[i].x, cases[i].y) == cases[i].rounded);
        driver.set("truncate", "1");
        assert_true(dot(cases[i].c, cases[i].x, cases[i].y) == cases[i].truncated);
        driver.set("truncate", "0");
    }
    const float one[4] = {1}, nan[4] = {NAN};
    driver.set("truncate", "1");
    assert_true(isnan(dot(0, one, nan)));
    assert_true(isnan(dot(NAN, one, one)));
    driver.set("truncate", "0");
}

/* Of the larger forms, in every element; a and b have the same in each row and column. */
static float larger_dot(int form, float start, const float *x, const float *y)
{
    float a_rows[16][16], b_columns[16][8], sums[16][8];
    for (int i = 0; i < 256; i++) a_rows[i / 16][i % 16] = x[i % 16];
    for (int i = 0; i < 128; i++) b_columns[i / 8][i % 8] = y[i / 8];
    for (int i = 0; i < 128; i++) sums[i / 8][i % 8] = start;
    run_larger(form, a_rows, b_columns, sums);
    for (int i = 1; i < 128; i++) assert_true(sums[i / 8][i % 8] == sums[0][0]);
    return sums[0][0];
}

/* Worked out by hand: the common unit is 2^-24 on Turing and Ampere, 2^-25 on Hopper, below the largest exponent; the
 * result has 24 bits. */
static void larger_sums_are_cut(void **state)
{
    (void)state;
    static const struct {
        float c, x[16], y[16], rounded, ampere, hopper;
        int only_k16;
    } cases[] = {
        /* Two halves of a last place: to even, one by one, they vanish; the bit more that Ampere has keeps them. */
        {1, {0x1p-12f, 0x1p-12f}, {0x1p-12f, 0x1p-12f}, 1, 1 + 0x1p-23f, 1 + 0x1p-23f, 0},
        /* Four quarters: kept on Hopper only. */
        {1, {0x1p-13f, 0x1p-13f, 0x1p-13f, 0x1p-13f}, {0x1p-12f, 0x1p-12f, 0x1p-12f, 0x1p-12f}, 1, 1, 1 + 0x1p-23f, 0},
        /* Toward zero. */
        {-1, {-0x1.8p-12f}, {0x1p-11f}, -1 - 0x1p-22f, -1 - 0x1p-23f, -1 - 0x1p-23f, 0},
        /* Halves in different steps of 8 do not meet on Ampere. */
        {1, {[0] = 0x1p-12f, [8] = 0x1p-12f}, {[0] = 0x1p-12f, [8] = 0x1p-12f}, 1, 1, 1 + 0x1p-23f, 1},
        /* What cancels in one step takes the small term with it; a step later it is kept. */
        {0, {0x1p7f, 0x1p7f, [8] = 0x1p-7f}, {0x1p7f, -0x1p7f, [8] = 0x1p-7f}, 0x1p-14f, 0x1p-14f, 0, 1},
        {INFINITY, {1}, {1}, INFINITY, INFINITY, INFINITY, 0},
        {0, {INFINITY}, {-1}, -INFINITY, -INFINITY, -INFINITY, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int form = 0; form < LARGER; form++) {
            if (cases[i].only_k16 && larger[form].terms != 16) continue;
            assert_true(larger_dot(form, cases[i].c, cases[i].x, cases[i].y) == cases[i].rounded);
            driver.set("truncate", "1");
            assert_true(larger_dot(form, cases[i].c, cases[i].x, cases[i].y) == cases[i].ampere);
            driver.set("capability", "9.0");
            assert_true(larger_dot(form, cases[i].c, cases[i].x, cases[i].y) == cases[i].hopper);
            driver.set("capability", "7.0");
            driver.set("truncate", "0");
        }
}

/* ---- Number formats ---------------------------------------------------------------------------------------------- */

static float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }

static uint32_t pair_of(uint16_t low, uint16_t high) { return low | (uint32_t)high << 16; }

/* NaNs of conversions are any NaN. */
static void assert_word(uint32_t got, uint32_t expected, int is_nan)
{
    if (!is_nan) assert_int_equal(got, expected);
}

static void check_numbers(const uint32_t *in, const uint32_t *out)
{
    for (int i = 0; i < 32; i++, out += 8) {
        const float x = attn_bits_float(in[i]);
        const uint16_t low = (uint16_t)in[i];
        const int half_is_nan = (low & 0x7fff) > 0x7c00;
        assert_word(out[0], pair_of(attn_f32_to_f16(x), attn_f32_to_f16(-x)), isnan(x));
        assert_int_equal(out[1], pair_of(attn_f32_to_bf16(x), attn_f32_to_bf16(-x)));
        if (!half_is_nan) assert_int_equal(out[2], 0);
        assert_int_equal(out[3], in[i]);
        assert_int_equal(out[4], (uint32_t)((uint64_t)in[i] * 0xD2511F53u >> 32));
        if (isnan(x)) continue;
        assert_int_equal(out[5], attn_float_bits(flushed(exp2f(flushed(x)))));
        assert_word(out[6], attn_float_bits(log2f(flushed(x))), x < 0);
        assert_int_equal(out[7], attn_float_bits(flushed(1 / flushed(x))));
    }
}

static void numbers_are_converted(void **state)
{
    (void)state;
    uint32_t in[32] = {0,          0x80000000, 0x3f800000, 0xbf800000, 0x7f800000, 0xff800000, 0x7fc00000,
                       0x7f800001, 1,          0x007fffff, 0x477fe000, 0x477ff000, 0x33000000, 0x33000001,
                       0x38800000, 0x3f808000, 0x3f818000, 0x7f7fffff, 0x42fe0000, 0xc2fc0000, 0xc3160000};
    uint32_t out[256];
    uint64_t seed = 3;
    for (int round = 0; round < 20; round++) {
        const CUdeviceptr din = test_upload(in, sizeof in), dout = test_allocate(sizeof out);
        test_words("probe_numbers", 1, 32, 0, NULL, din, dout, 0);
        test_download(out, dout, sizeof out);
        check_numbers(in, out);
        for (int i = 0; i < 32; i++) in[i] = (uint32_t)unit_random(&seed);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(forms_follow_the_isa, test_begin, test_end),
        cmocka_unit_test_setup_teardown(products_are_deferred, test_begin, test_end),
        cmocka_unit_test_setup_teardown(larger_forms_follow_the_isa, test_begin, test_end),
        cmocka_unit_test_setup_teardown(larger_forms_round, test_begin, test_end),
        cmocka_unit_test_setup_teardown(larger_sums_are_cut, test_begin, test_end),
        cmocka_unit_test_setup_teardown(sums_round_or_truncate, test_begin, test_end),
        cmocka_unit_test_setup_teardown(numbers_are_converted, test_begin, test_end),
    };
    test_open(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
