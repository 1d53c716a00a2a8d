/* SPDX-License-Identifier: Apache-2.0
 * A covering design: few rows in which every pair of values of any two axes occurs. */
#ifndef ATTN_SUITE_PAIRWISE_H
#define ATTN_SUITE_PAIRWISE_H

enum { PAIRWISE_AXES = 16, PAIRWISE_VALUES = 24 };

struct pairwise_row {
    signed char value[PAIRWISE_AXES];
};

/* values[a] is the number of values of axis a. Returns the number of rows, at *rows for the caller to free; 0 without
 * memory. The same axes always give the same rows. */
int pairwise_design(const int *values, int axes, struct pairwise_row **rows);

#endif
