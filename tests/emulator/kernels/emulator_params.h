/* SPDX-License-Identifier: Apache-2.0
 * Parameters of the kernels that test the emulator, for C and C++. */
#ifndef ATTN_EMULATOR_PARAMS_H
#define ATTN_EMULATOR_PARAMS_H

#include <stdint.h>

/* One warp, one instruction: every lane's operand words in, accumulators in and out. */
struct mma_params {
    const uint32_t *a, *b; /* [lane][2]; a [lane][4] for 16 x 8 sums */
    float *c;              /* [lane][8]; [lane][4] for those */
};

/* Words in, words out, both one a thread; count means something else in each kernel. */
struct word_params {
    const uint32_t *in;
    uint32_t *out;
    int32_t count;
};

#endif
