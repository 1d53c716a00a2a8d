/* SPDX-License-Identifier: Apache-2.0
 * F16, BF16, F8 and I8 against rounding in float64, and F16 against the processor or the compiler too. */
#include "unit.h"

#include "number.h"

#include <fenv.h>
#include <float.h>

#if defined(__x86_64__)
#  include <immintrin.h>
#endif

/* ---- judges ------------------------------------------------------------------------------------------------------ */

/* Value of a finite code by the definition of the format. */
static double value_of(unsigned code, int mantissa, int bias)
{
    int exponent = (int)(code >> mantissa);
    double fraction = ldexp((double)(code & ((1u << mantissa) - 1u)), -mantissa);
    return exponent ? ldexp(1.0 + fraction, exponent - bias) : ldexp(fraction, 1 - bias);
}

/* x rounded to `mantissa` stored bits, ties to even, without an upper bound. float64 holds every step exactly. */
static double rounded(float x, int mantissa, int bias)
{
    int exponent, lowest = 1 - bias;
    frexp((double)x, &exponent);
    exponent = exponent - 1 < lowest ? lowest : exponent - 1;
    return ldexp(rint(ldexp((double)x, mantissa - exponent)), exponent - mantissa);
}

typedef void visit_float(float x);

/* Every 1009th of all bit patterns: each exponent, both signs, infinities and NaNs, 4 million in all. */
static void walk(visit_float *visit)
{
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 1009) visit(attn_bits_float((uint32_t)bits));
    visit(INFINITY);
    visit(-INFINITY);
    visit(0.0f);
    visit(-0.0f);
    visit(FLT_MAX);
    visit(-FLT_MAX);
    visit(FLT_MIN);
    visit(FLT_TRUE_MIN);
}

/* x, what lies next to it, and their negatives. */
static void visit_near(visit_float *visit, float x)
{
    const float near[] = {x, nextafterf(x, INFINITY), nextafterf(x, 0.0f)};
    for (int n = 0; n < 3; n++) {
        visit(near[n]);
        visit(-near[n]);
    }
}

/* All codes below `end`, the halves between neighbours, and the half above the last one. */
static void visit_ties(visit_float *visit, unsigned end, int mantissa, int bias)
{
    for (unsigned code = 0; code < end; code++) {
        double a = value_of(code, mantissa, bias), b = value_of(code + 1, mantissa, bias);
        visit_near(visit, (float)a);
        visit_near(visit, (float)((a + b) / 2)); /* exact unless below float32's smallest */
    }
}

/* ---- F16 --------------------------------------------------------------------------------------------------------- */

static void f16_codes(void **state)
{
    (void)state;
    for (unsigned code = 0; code <= 0xffff; code++) {
        float x = attn_f16_to_f32((uint16_t)code);
        unsigned a = code & 0x7fff;
        assert_int_equal(signbit(x) != 0, code >> 15);
        if (a > 0x7c00) {
            assert_true(isnan(x));
            assert_int_equal(attn_f32_to_f16(x), (code & 0x8000) | 0x7e00);
            continue;
        }
        double expected = a == 0x7c00 ? (double)INFINITY : value_of(a, 10, 15);
        if ((double)fabsf(x) != expected) fail_msg("code %04x gives %a", code, (double)x);
        assert_int_equal(attn_f32_to_f16(x), code);
    }
}

static void check_f16(float x)
{
    uint16_t code = attn_f32_to_f16(x);
    if (isnan(x)) {
        if ((code & 0x7e00) != 0x7e00) fail_msg("NaN gives %04x", code);
        return;
    }
    double expected = rounded(x, 10, 15);
    if (fabs(expected) > 65504.0) expected = copysign((double)INFINITY, expected);
    float got = attn_f16_to_f32(code);
    if ((double)got != expected || !signbit(got) != !signbit(x))
        fail_msg("%a gives %a, expected %a", (double)x, (double)got, expected);
}

static void f16_rounding(void **state)
{
    (void)state;
    visit_ties(check_f16, 0x7c00, 10, 15);
    walk(check_f16);
    assert_int_equal(attn_f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(attn_f32_to_f16(65520.0f), 0x7c00); /* the tie goes to even, which is infinity */
    assert_int_equal(attn_f32_to_f16(-1e30f), 0xfc00);
    assert_int_equal(attn_f32_to_f16(0x1p-25f), 0);
    assert_int_equal(attn_f32_to_f16(0x1.000002p-25f), 1);
    assert_int_equal(attn_f32_to_f16(attn_bits_float(0xff800001u)), 0xfe00); /* signalling, payload lost by the cut */
}

#if defined(__x86_64__)
static int have_second_opinion(void) { return __builtin_cpu_supports("avx2") != 0; } /* which none has without F16C */
__attribute__((target("f16c"))) static uint16_t second_opinion(float x)
{
    return (uint16_t)_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
}
#elif defined(__FLT16_MAX__)
__extension__ typedef _Float16 half;
static int have_second_opinion(void) { return 1; }
static uint16_t second_opinion(float x)
{
    half h = (half)x;
    uint16_t code;
    memcpy(&code, &h, sizeof code);
    return code;
}
#else
static int have_second_opinion(void) { return 0; }
static uint16_t second_opinion(float x) { return attn_f32_to_f16(x); }
#endif

static void compare_f16(float x)
{
    uint16_t code = attn_f32_to_f16(x), other = second_opinion(x);
    if (isnan(x)) other = (uint16_t)((other & 0x8000) | 0x7e00); /* payloads may differ */
    if (code != other) fail_msg("%a gives %04x, but here %04x", (double)x, code, other);
}

static void f16_second_opinion(void **state)
{
    (void)state;
    if (!have_second_opinion()) {
        printf("SKIP: test_number: no F16 conversion of the processor or compiler to compare with\n");
        skip();
    }
    visit_ties(compare_f16, 0x7c00, 10, 15);
    walk(compare_f16);
}

/* ---- BF16 -------------------------------------------------------------------------------------------------------- */

static void bf16_codes(void **state)
{
    (void)state;
    for (unsigned code = 0; code <= 0xffff; code++) {
        float x = attn_bf16_to_f32((uint16_t)code);
        unsigned a = code & 0x7fff;
        assert_int_equal(signbit(x) != 0, code >> 15);
        if (a > 0x7f80) {
            assert_true(isnan(x));
            assert_int_equal(attn_f32_to_bf16(x), code | 0x40);
            continue;
        }
        double expected = a == 0x7f80 ? (double)INFINITY : value_of(a, 7, 127);
        if ((double)fabsf(x) != expected) fail_msg("code %04x gives %a", code, (double)x);
        assert_int_equal(attn_f32_to_bf16(x), code);
    }
}

static void check_bf16(float x)
{
    uint16_t code = attn_f32_to_bf16(x);
    if (isnan(x)) {
        if ((code & 0x7fc0) != 0x7fc0 || !(code & 0x8000) != !signbit(x)) fail_msg("NaN gives %04x", code);
        return;
    }
    double expected = rounded(x, 7, 127);
    if (fabs(expected) >= 0x1p128) expected = copysign((double)INFINITY, expected);
    float got = attn_bf16_to_f32(code);
    if ((double)got != expected || !signbit(got) != !signbit(x))
        fail_msg("%a gives %a, expected %a", (double)x, (double)got, expected);
}

static void bf16_rounding(void **state)
{
    (void)state;
    visit_ties(check_bf16, 0x7f7f, 7, 127);
    walk(check_bf16);
    assert_int_equal(attn_f32_to_bf16(FLT_MAX), 0x7f80);
    assert_int_equal(attn_f32_to_bf16(0x1.fefffep127f), 0x7f7f);
    assert_int_equal(attn_f32_to_bf16(attn_bits_float(0x7f800001u)), 0x7fc0);
}

/* ---- F8 ---------------------------------------------------------------------------------------------------------- */

static const struct f8_format {
    int mantissa, bias;
    unsigned end; /* one above the largest finite code */
    float largest;
    float (*decode)(uint8_t code);
    uint8_t (*encode)(float x);
} e4m3 = {3, 7, 0x7f, 448.0f, attn_e4m3_to_f32, attn_f32_to_e4m3},
  e5m2 = {2, 15, 0x7c, 57344.0f, attn_e5m2_to_f32, attn_f32_to_e5m2};

static const struct f8_format *f8; /* of the running test */
static double f8_value[0x80];

static void use_f8(const struct f8_format *format)
{
    f8 = format;
    for (unsigned code = 0; code < format->end; code++) f8_value[code] = value_of(code, format->mantissa, format->bias);
}

static void f8_codes(const struct f8_format *format)
{
    use_f8(format);
    for (unsigned code = 0; code <= 0xff; code++) {
        float x = format->decode((uint8_t)code);
        unsigned a = code & 0x7f;
        assert_int_equal(signbit(x) != 0, code >> 7);
        if (a >= format->end) {
            if (format == &e5m2 && a == 0x7c) assert_true(isinf(x));
            else assert_true(isnan(x));
            continue;
        }
        if ((double)fabsf(x) != f8_value[a]) fail_msg("code %02x gives %a", code, (double)x);
        assert_int_equal(format->encode(x), code);
    }
    assert_true(f8_value[format->end - 1] == (double)format->largest);
}

/* The nearest of all codes, of two equally near ones the even one: beyond the largest code that is the largest. */
static void check_f8(float x)
{
    uint8_t code = f8->encode(x);
    if (isnan(x)) {
        if (code != (signbit(x) ? 0xff : 0x7f)) fail_msg("NaN gives %02x", code);
        return;
    }
    double magnitude = fmin(fabs((double)x), 1e6); /* so that the differences below stay exact */
    unsigned nearest = 0;
    for (unsigned n = 1; n < f8->end; n++) {
        double closer = fabs(f8_value[nearest] - magnitude) - fabs(f8_value[n] - magnitude);
        if (closer > 0.0 || (closer == 0.0 && n % 2 == 0)) nearest = n;
    }
    if (code != (nearest | (signbit(x) ? 0x80u : 0u)))
        fail_msg("%a gives %02x, nearest is %02x", (double)x, code, nearest);
}

static void f8_rounding(const struct f8_format *format)
{
    use_f8(format);
    visit_ties(check_f8, format->end - 1, format->mantissa, format->bias);
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 16381) check_f8(attn_bits_float((uint32_t)bits));
    visit_near(check_f8, format->largest);
    visit_near(check_f8, format->largest * 1.25f);
    visit_near(check_f8, FLT_MAX);
    check_f8(INFINITY);
    check_f8(-INFINITY);
}

static void e4m3_codes(void **state)
{
    (void)state;
    f8_codes(&e4m3);
}

static void e4m3_rounding(void **state)
{
    (void)state;
    f8_rounding(&e4m3);
}

static void e5m2_codes(void **state)
{
    (void)state;
    f8_codes(&e5m2);
}

static void e5m2_rounding(void **state)
{
    (void)state;
    f8_rounding(&e5m2);
}

/* ---- I8 ---------------------------------------------------------------------------------------------------------- */

static void check_i8(float x)
{
    double magnitude = floor(fabs((double)x) + 0.5);
    int expected = isnan(x) ? 0 : magnitude >= 127.0 ? 127 : (int)magnitude;
    if (signbit(x)) expected = -expected;
    if (attn_f32_to_i8(x) != expected) fail_msg("%a gives %d, expected %d", (double)x, attn_f32_to_i8(x), expected);
}

static void i8_rounding(void **state)
{
    (void)state;
    for (int n = 0; n < 260; n++) visit_near(check_i8, (float)n / 2);
    walk(check_i8);
}

/* ---- rounding modes ------------------------------------------------------------------------------------------------ */

static uint64_t code_sum;

static void add_codes(float x)
{
    code_sum = code_sum * 31 + attn_f32_to_f16(x);
    code_sum = code_sum * 31 + attn_f32_to_bf16(x);
    code_sum = code_sum * 31 + attn_f32_to_e4m3(x);
    code_sum = code_sum * 31 + attn_f32_to_e5m2(x);
}

static uint64_t all_codes(void)
{
    code_sum = 0;
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 65521) add_codes(attn_bits_float((uint32_t)bits));
    return code_sum;
}

static void modes(void **state)
{
    (void)state;
    static const int mode[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    uint64_t nearest = all_codes();
    for (int n = 0; n < 3; n++) {
        assert_int_equal(fesetround(mode[n]), 0);
        uint64_t sum = all_codes();
        fesetround(FE_TONEAREST);
        assert_true(sum == nearest);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_codes),     cmocka_unit_test(f16_rounding),  cmocka_unit_test(f16_second_opinion),
        cmocka_unit_test(bf16_codes),    cmocka_unit_test(bf16_rounding), cmocka_unit_test(e4m3_codes),
        cmocka_unit_test(e4m3_rounding), cmocka_unit_test(e5m2_codes),    cmocka_unit_test(e5m2_rounding),
        cmocka_unit_test(i8_rounding),   cmocka_unit_test(modes),
    };
    return cmocka_run_group_tests_name("number", tests, NULL, NULL);
}
