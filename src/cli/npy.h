/* SPDX-License-Identifier: Apache-2.0
 * Arrays in NPY files, the format of NumPy: versions 1.0 to 3.0 are read, 1.0 is written. */
#ifndef ATTN_CLI_NPY_H
#define ATTN_CLI_NPY_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { CLI_NPY_RANK_MAX = 8 };

enum cli_npy_type { CLI_NPY_BOOL, CLI_NPY_I32, CLI_NPY_I64, CLI_NPY_F16, CLI_NPY_F32, CLI_NPY_F64 };

struct cli_npy {
    enum cli_npy_type type;
    int rank;
    int64_t shape[CLI_NPY_RANK_MAX];
    int64_t count; /* elements; the product of shape                                              */
    void *data;    /* in C order, from cli_npy_alloc; the caller frees it                        */
};

size_t cli_npy_item_bytes(enum cli_npy_type type);
const char *cli_npy_descr(enum cli_npy_type type); /* "<f4"                                        */

/* A block for bytes, also for 0, aligned to 64 bytes and released by free; NULL: out of memory. */
void *cli_npy_alloc(size_t bytes);

/* Reads a whole file. Returns CLI_OK, or has reported an error that names the file; then array
 * holds nothing to free. */
int cli_npy_load(const char *path, struct cli_npy *array);
/* The same from an open stream of file_bytes bytes, at its start; name is for messages. */
int cli_npy_read(FILE *file, uint64_t file_bytes, const char *name, struct cli_npy *array);

/* Writes header and data. Returns 0, or -1 with errno set. */
int cli_npy_write(FILE *file, const struct cli_npy *array);

#endif
