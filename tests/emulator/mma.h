/* SPDX-License-Identifier: Apache-2.0
 * mma of a whole warp, by the lane layouts that the PTX ISA fixes: m8n8k4, m16n8k16 and m16n8k8. */
#ifndef ATTN_EMULATOR_MMA_H
#define ATTN_EMULATOR_MMA_H

#include "device_emulated.h"

namespace emulator
{

enum : unsigned { LANES = 32 };

/* Of each lane. m8n8k4: 8 sums, 2 words of a, 2 of b. m16n8k16: 4 sums, 4 words of a, 2 of b; m16n8k8: half of these
 * words. */
struct WarpMma {
    float *c[LANES];
    uint32_t a[LANES][4], b[LANES][2];
};

/* c += a * b. Rounds at each product, k ascending, or truncates (settings.truncate). */
void mma_compute(const WarpMma &, MmaForm);

/* The rounding form by AVX2; false where the processor has none. */
bool mma_compute_avx2(const WarpMma &, MmaForm);

/* The truncating sum: products are exact; the terms and c are cut, toward zero, to a common unit, which is
 * 2^-fraction_bits of the largest exponent among them (a product's being the sum of its factors', as the
 * significand's carry comes later); their sum is cut to 24 bits, toward zero. At once are added
 *
 *   Volta            4 products, 23 bits
 *   Turing, Ampere   8 products, 24 bits; k16 is two steps
 *   Hopper          16 products, 25 bits
 *
 * After Fasi, Higham, Mikaitis, Pranesh: Numerical behavior of NVIDIA tensor cores, 2021, for the first three, and
 * Xie, Wang, Yang, Yang: MMA-Sim: bit-accurate reference model of tensor cores and matrix cores, arXiv 2511.10909,
 * 2025, which has all of it. */

/* Lane of position p (0..7) of a quad pair. */
inline unsigned mma_lane(unsigned pair, unsigned p) { return 4 * pair + (p & 3) + 16 * (p >> 2); }

} // namespace emulator
#endif
