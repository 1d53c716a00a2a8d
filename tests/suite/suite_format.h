/* SPDX-License-Identifier: Apache-2.0
 * Number formats and random bits, written a second time from docs/semantics.md sections 4 and 5 and by other means than
 * the library's, so that an error in one is seen by the other. */
#ifndef ATTN_SUITE_FORMAT_H
#define ATTN_SUITE_FORMAT_H

#include <stdint.h>

enum { SUITE_BLOCK = 32 };

int suite_is_block(int32_t dtype);  /* Q8_0, Q4_0 */
int suite_is_scaled(int32_t dtype); /* I8, F8: may have a scale */
double suite_unit(int32_t dtype);   /* unit roundoff of F32, F16, BF16 */

/* A row of n elements in a storage type, and back. scale is for I8 and F8; block types: n a multiple of 32. */
void suite_encode(int32_t dtype, void *row, const float *x, int64_t n, float scale);
void suite_decode(int32_t dtype, const void *row, double *x, int64_t n, float scale);
/* The value that a float type makes of x: rounded once, overflow to infinity. */
double suite_round(int32_t dtype, double x);
/* The factor that ATTN_APPEND_SET_SCALE chooses for a row. */
float suite_row_scale(int32_t dtype, const float *x, int64_t n);

/* Philox-4x32-10. */
void suite_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t word[4]);
/* Whether (batch, head, row, column) is kept, origins added by the caller. */
int suite_keeps(uint64_t seed, uint64_t offset, float dropout, int64_t batch, int64_t head, int64_t row,
                int64_t column);

#endif
