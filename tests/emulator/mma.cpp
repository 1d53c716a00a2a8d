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

static uint16_t word_half(const uint32_t (&words)[2], unsigned i) { return uint16_t(words[i / 2] >> 16 * (i % 2)); }

/* out[i][k] = row i of A (column i of B) of a quad pair. `by_vector`: a lane holds k = 0..3 of one row; otherwise
 * it holds four rows of one k. */
static void gather(uint16_t (&out)[8][4], const uint32_t (&words)[LANES][2], unsigned pair, bool by_vector)
{
    for (unsigned p = 0; p < 8; p++)
        for (unsigned i = 0; i < 4; i++) {
            const uint16_t half = word_half(words[mma_lane(pair, p)], i);
            if (by_vector) out[p][i] = half;
            else out[4 * (p >> 2) + i][p & 3] = half;
        }
}

static float rounded_sum(float c, const uint16_t (&a)[4], const uint16_t (&b)[4])
{
    for (int k = 0; k < 4; k++) c = fmaf(half_to_float(a[k]), half_to_float(b[k]), c);
    return c;
}

struct Term {
    int64_t significand;
    int unit, exponent; /* the value is significand * 2^unit; its size for the alignment is 2^exponent */
};

static Term half_term(uint16_t half)
{
    const int field = half >> 10 & 31, exponent = std::max(field, 1) - 15;
    const int64_t significand = (half & 1023) | (field != 0 ? 1024 : 0);
    return {half >> 15 ? -significand : significand, exponent - 10, exponent};
}

static Term float_term(float x)
{
    const uint32_t bits = attn_float_bits(x);
    const int field = int(bits >> 23 & 255), exponent = std::max(field, 1) - 127;
    const int64_t significand = (bits & 0x7fffff) | (field != 0 ? 0x800000 : 0);
    return {bits >> 31 ? -significand : significand, exponent - 23, exponent};
}

static bool is_finite(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

float mma_truncated_sum(float c, const uint16_t (&a)[4], const uint16_t (&b)[4])
{
    Term terms[5] = {float_term(c)};
    int top = terms[0].significand != 0 ? terms[0].exponent : -1000;
    for (int k = 0; k < 4; k++) {
        if (!is_finite(a[k]) || !is_finite(b[k])) return rounded_sum(c, a, b);
        const Term x = half_term(a[k]), y = half_term(b[k]);
        terms[k + 1] = {x.significand * y.significand, x.unit + y.unit, x.exponent + y.exponent};
        if (terms[k + 1].significand != 0) top = std::max(top, terms[k + 1].exponent);
    }
    if (top == -1000 || !std::isfinite(c)) return rounded_sum(c, a, b);
    int64_t sum = 0;
    for (const Term &term : terms) {
        const int shift = term.unit - (top - 23);
        const int64_t magnitude = std::abs(term.significand);
        const int64_t cut = shift >= 0 ? magnitude << std::min(shift, 3) : shift < -62 ? 0 : magnitude >> -shift;
        sum += term.significand < 0 ? -cut : cut;
    }
    int64_t magnitude = std::abs(sum);
    int unit = top - 23;
    for (; magnitude >= 1 << 24; unit++) magnitude >>= 1;
    const float result = ldexpf(float(magnitude), unit);
    return sum < 0 ? -result : result;
}

void mma_compute(const WarpMma &mma, MmaForm form)
{
    const bool truncate = settings.truncate != 0;
    if (!truncate && mma_compute_avx2(mma, form)) return;
    for (unsigned pair = 0; pair < 4; pair++) {
        uint16_t a[8][4], b[8][4];
        gather(a, mma.a, pair, form == MMA_ROW_ROW || form == MMA_ROW_COL);
        gather(b, mma.b, pair, form == MMA_ROW_COL || form == MMA_COL_COL);
        for (unsigned p = 0; p < 8; p++)
            for (unsigned i = 0; i < 8; i++) {
                float &c = mma.c[mma_lane(pair, p)][i];
                const unsigned row = (p & 1) + 4 * (p >> 2) + (i & 2), column = (p & 2) + (i & 1) + (i & 4);
                c = truncate ? mma_truncated_sum(c, a[row], b[column]) : rounded_sum(c, a[row], b[column]);
            }
    }
}

} // namespace emulator
