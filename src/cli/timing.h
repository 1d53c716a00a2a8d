/* SPDX-License-Identifier: Apache-2.0
 * The clock of the commands that measure. */
#ifndef ATTN_CLI_TIMING_H
#define ATTN_CLI_TIMING_H

#include <stdint.h>

double cli_now(void); /* seconds since some moment; never steps back */
/* Sorts the values, of which there is at least one, so that the least comes first. Of an even number the mean of the
 * middle two. */
double cli_median(double *values, int64_t count);

#endif
