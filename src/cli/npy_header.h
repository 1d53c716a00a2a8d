/* SPDX-License-Identifier: Apache-2.0
 * The text in front of the data of an NPY file: a dictionary as Python would print it,
 * {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }. */
#ifndef ATTN_CLI_NPY_HEADER_H
#define ATTN_CLI_NPY_HEADER_H

#include "npy.h"

struct cli_npy_header {
    char descr[32]; /* cut off if longer; no type this program reads is                           */
    int fortran_order;
    int rank;
    int64_t shape[CLI_NPY_RANK_MAX]; /* each >= 0                                                 */
};

/* Returns NULL, or what is wrong. Reads text[0 .. length - 1] only; no terminator is needed. */
const char *cli_npy_parse_header(const char *text, size_t length, struct cli_npy_header *header);

#endif
