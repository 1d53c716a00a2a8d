/* SPDX-License-Identifier: Apache-2.0
 * mma.m8n8k4 of a whole warp, by the lane layout that the PTX ISA fixes. */
#ifndef ATTN_EMULATOR_MMA_H
#define ATTN_EMULATOR_MMA_H

#include "device_emulated.h"

namespace emulator
{

enum : unsigned { LANES = 32 };

/* c is 8 floats of each lane; a and b are 4 halves of each lane. */
struct WarpMma {
    float *c[LANES];
    uint32_t a[LANES][2], b[LANES][2];
};

/* c += a * b in the four quad pairs. Rounds each of the four sums, k ascending, or truncates (settings.truncate). */
void mma_compute(const WarpMma &, MmaForm);

/* The rounding form by AVX2; false where the processor has none. */
bool mma_compute_avx2(const WarpMma &, MmaForm);

/* c + sum of a[k] * b[k], as Volta's tensor core adds: products are exact; all five terms are cut, toward zero, to
 * the unit of a float32 with the largest exponent among them (a product's being the sum of its factors', as the
 * significand's carry comes later); their sum is cut to 24 bits, toward zero. After Fasi, Higham, Mikaitis, Pranesh:
 * Numerical behavior of NVIDIA tensor cores, 2021. */
float mma_truncated_sum(float c, const uint16_t (&a)[4], const uint16_t (&b)[4]);

/* Lane of position p (0..7) of a quad pair. */
inline unsigned mma_lane(unsigned pair, unsigned p) { return 4 * pair + (p & 3) + 16 * (p >> 2); }

} // namespace emulator
#endif
