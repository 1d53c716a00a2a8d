/* SPDX-License-Identifier: Apache-2.0
 * The CUDA driver, loaded at run time, so that the library needs no CUDA library to link or to start. */
#ifndef ATTN_CUDA_DRIVER_H
#define ATTN_CUDA_DRIVER_H

#include "driver_types.h"
#include "internal.h"

typedef struct attn_cuda_driver {
#define DRIVER(member, symbol, parameters) CUresult(*member) parameters;
#include "driver_table.h"
#undef DRIVER
} attn_cuda_driver;

/* The exported name behind each member, for error texts. */
typedef struct attn_cuda_names {
#define DRIVER(member, symbol, parameters) const char *member;
#include "driver_table.h"
#undef DRIVER
} attn_cuda_names;
extern const attn_cuda_names attn_cuda_symbols;

/* Loads ATTN_CUDA_DRIVER, or libcuda.so.1, and calls cuInit: once a process, on the first call. NO_DEVICE with the
 * reason where that fails, also in a child made by fork() after it. Nothing that only uses the CPU may call this. */
attn_status attn_cuda_load(const attn_cuda_driver **driver);

/* The major version of CUDA that the driver is for. */
int32_t attn_cuda_driver_toolkit(void);
/* Whether what was loaded has an attn_stand_in() that is not 0: it runs the library's kernels without a GPU. */
bool attn_cuda_stands_in(void);

/* OK, or the status that stands for the code with the text
 * "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (out of memory)". */
attn_status attn_cuda_check(const attn_cuda_driver *driver, const char *symbol, CUresult code);

/* Cleaning up after an error calls the table directly, without these, so that the first error keeps its text. */
#define ATTN_CUDA_CALL(driver, member, ...) \
  attn_cuda_check((driver), attn_cuda_symbols.member, (driver)->member(__VA_ARGS__))
#define ATTN_CUDA_TRY(driver, member, ...) ATTN_TRY(ATTN_CUDA_CALL(driver, member, __VA_ARGS__))

#endif
