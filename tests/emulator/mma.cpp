/* SPDX-License-Identifier: Apache-2.0 */
#include "mma.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "common/number.h"
#include "settings.h"

namespace emulator
{

float half_to_float(uint16_t half) { return attn_f16_to_f32(half); }
uint16_t float_to_half(float value) { return attn_f32_to_f16(value); }

/* ---- Sums -------------------------------------------------------------------------------------------------------- */

struct Format {
    int mantissa_bits;
    float (*value)(uint16_t);
};

static float bf16_to_float(uint16_t bits) { return attn_bits_float(uint32_t(bits) << 16); }

static const Format f16_format = {10, half_to_float}, bf16_format = {7, bf16_to_float};

/* How a sum is made: of all `terms` factors, `step` at a time if they are truncated. */
struct Arithmetic {
    const Format &format;
    bool truncate;
    unsigned terms, step;
    int fraction_bits; /* of the common unit below the largest exponent */
};

static float rounded_sum(const Format &format, float c, const uint16_t *a, const uint16_t *b, unsigned terms)
{
    for (unsigned k = 0; k < terms; k++) c = fmaf(format.value(a[k]), format.value(b[k]), c);
    return c;
}

struct Term {
    int64_t significand;
    int unit, exponent; /* the value is significand * 2^unit; its size for the alignment is 2^exponent */
};

static Term factor_term(const Format &format, uint16_t bits)
{
    const int mantissa = format.mantissa_bits, bias = (1 << (14 - mantissa)) - 1;
    const int field = (bits & 0x7fff) >> mantissa, exponent = std::max(field, 1) - bias;
    const int64_t significand = (bits & ((1 << mantissa) - 1)) | (field != 0 ? 1 << mantissa : 0);
    return {bits >> 15 ? -significand : significand, exponent - mantissa, exponent};
}

static Term float_term(float x)
{
    const uint32_t bits = attn_float_bits(x);
    const int field = int(bits >> 23 & 255), exponent = std::max(field, 1) - 127;
    const int64_t significand = (bits & 0x7fffff) | (field != 0 ? 0x800000 : 0);
    return {bits >> 31 ? -significand : significand, exponent - 23, exponent};
}

/* magnitude * 2^unit, cut to what a float32 has. */
static float cut_to_float(int64_t magnitude, int unit)
{
    for (; magnitude >= 1 << 24 || (unit < -149 && magnitude != 0); unit++) magnitude >>= 1;
    return ldexpf(float(magnitude), unit);
}

static float truncated_step(const Arithmetic &by, float c, const uint16_t *a, const uint16_t *b)
{
    enum { NONE = -1000 };
    Term terms[17] = {float_term(c)};
    int top = terms[0].significand != 0 ? terms[0].exponent : NONE;
    for (unsigned k = 0; k < by.step; k++) {
        if (!std::isfinite(by.format.value(a[k])) || !std::isfinite(by.format.value(b[k])))
            return rounded_sum(by.format, c, a, b, by.step);
        const Term x = factor_term(by.format, a[k]), y = factor_term(by.format, b[k]);
        terms[k + 1] = {x.significand * y.significand, x.unit + y.unit, x.exponent + y.exponent};
        if (terms[k + 1].significand != 0) top = std::max(top, terms[k + 1].exponent);
    }
    if (top == NONE || !std::isfinite(c)) return rounded_sum(by.format, c, a, b, by.step);
    const int unit = top - by.fraction_bits;
    int64_t sum = 0;
    for (unsigned i = 0; i <= by.step; i++) {
        if (terms[i].significand == 0) continue;
        const int shift = terms[i].unit - unit;
        const int64_t magnitude = std::abs(terms[i].significand);
        const int64_t cut = shift >= 0 ? magnitude << shift : shift < -62 ? 0 : magnitude >> -shift;
        sum += terms[i].significand < 0 ? -cut : cut;
    }
    const float result = cut_to_float(std::abs(sum), unit);
    return sum < 0 ? -result : result;
}

static float sum_of(const Arithmetic &by, float c, const uint16_t *a, const uint16_t *b)
{
    if (!by.truncate) return rounded_sum(by.format, c, a, b, by.terms);
    for (unsigned k = 0; k < by.terms; k += by.step) c = truncated_step(by, c, a + k, b + k);
    return c;
}

/* ---- Layouts ----------------------------------------------------------------------------------------------------- */

static uint16_t word_half(const uint32_t *words, unsigned i) { return uint16_t(words[i / 2] >> 16 * (i % 2)); }

/* m8n8k4: out[i][k] = row i of A (column i of B) of a quad pair. `by_vector`: a lane holds k = 0..3 of one row;
 * otherwise it holds four rows of one k. */
template <unsigned WORDS>
static void gather(uint16_t (&out)[8][4], const uint32_t (&words)[LANES][WORDS], unsigned pair, bool by_vector)
{
    for (unsigned p = 0; p < 8; p++)
        for (unsigned i = 0; i < 4; i++) {
            const uint16_t half = word_half(words[mma_lane(pair, p)], i);
            if (by_vector) out[p][i] = half;
            else out[4 * (p >> 2) + i][p & 3] = half;
        }
}

static void compute_quad_pairs(const WarpMma &mma, MmaForm form, bool truncate)
{
    const Arithmetic by = {f16_format, truncate, 4, 4, 23};
    for (unsigned pair = 0; pair < 4; pair++) {
        uint16_t a[8][4], b[8][4];
        gather(a, mma.a, pair, form == MMA_ROW_ROW || form == MMA_ROW_COL);
        gather(b, mma.b, pair, form == MMA_ROW_COL || form == MMA_COL_COL);
        for (unsigned p = 0; p < 8; p++)
            for (unsigned i = 0; i < 8; i++) {
                float &c = mma.c[mma_lane(pair, p)][i];
                const unsigned row = (p & 1) + 4 * (p >> 2) + (i & 2), column = (p & 2) + (i & 1) + (i & 4);
                c = sum_of(by, c, a[row], b[column]);
            }
    }
}

/* m16n8k16 and m16n8k8: group g = lane / 4 has rows g and g + 8 of A and C and column g of B; the lane's place q in it
 * gives two neighbours of k, or of the columns of C. */
static void compute_16x8(const WarpMma &mma, MmaForm form, bool truncate)
{
    const bool hopper = settings.capability >= 90;
    const unsigned terms = form == MMA_K8_F16 ? 8 : 16;
    const Arithmetic by = {form == MMA_K16_BF16 ? bf16_format : f16_format, truncate, terms, hopper ? terms : 8,
                           hopper ? 25 : 24};
    uint16_t a[16][16], b[8][16];
    for (unsigned lane = 0; lane < LANES; lane++)
        for (unsigned i = 0; i < terms / 2; i++) {
            const unsigned k = 2 * (lane % 4) + i % 2 + 8 * (i / 4);
            a[lane / 4 + 8 * (i / 2 % 2)][k] = word_half(mma.a[lane], i);
            if (i < terms / 4) b[lane / 4][2 * (lane % 4) + i % 2 + 8 * (i / 2)] = word_half(mma.b[lane], i);
        }
    for (unsigned lane = 0; lane < LANES; lane++)
        for (unsigned i = 0; i < 4; i++) {
            float &c = mma.c[lane][i];
            c = sum_of(by, c, a[lane / 4 + 8 * (i / 2)], b[2 * (lane % 4) + i % 2]);
        }
}

void mma_compute(const WarpMma &mma, MmaForm form)
{
    const bool truncate = settings.truncate != 0;
    if (!truncate && mma_compute_avx2(mma, form)) return;
    if (form <= MMA_COL_COL) compute_quad_pairs(mma, form, truncate);
    else compute_16x8(mma, form, truncate);
}

} // namespace emulator
