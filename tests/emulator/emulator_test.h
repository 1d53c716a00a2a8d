/* SPDX-License-Identifier: Apache-2.0
 * What the tests of the emulator share: the library, loaded as the host side loads a driver, and short forms for what
 * most of them do. */
#ifndef ATTN_EMULATOR_TEST_H
#define ATTN_EMULATOR_TEST_H

#include "unit.h"

#include "cuda/driver_types.h"
#include "emulator.h"
#include "kernels/emulator_params.h"

/* The entry points of driver_table.h, and those that only tests use. */
struct test_driver {
#define DRIVER(member, symbol, parameters) CUresult(*member) parameters;
#include "cuda/driver_table.h"
#undef DRIVER
    CUresult (*context_create)(CUcontext *context, unsigned flags, CUdevice device);
    CUresult (*context_destroy)(CUcontext context);
    CUresult (*stream_create)(CUstream *stream, unsigned flags);
    CUresult (*stream_destroy)(CUstream stream);
    CUresult (*capture_begin)(CUstream stream, int mode);
    CUresult (*capture_end)(CUstream stream, void **graph);
    CUresult (*graph_instantiate)(void **executable, void *graph, unsigned long long flags);
    CUresult (*graph_launch)(void *executable, CUstream stream);
    CUresult (*graph_destroy)(void *graph);
    CUresult (*graph_free)(void *executable);
    int (*set)(const char *name, const char *value);
    int (*checked)(void);
    int (*usable)(void);
    size_t (*reports)(char *text, size_t bytes);
    void (*count)(struct emulator_counts *counts);
    size_t (*banks)(struct emulator_bank_line *lines, size_t capacity);
};
extern struct test_driver driver;

enum { NON_BLOCKING = 1 }; /* CU_STREAM_NON_BLOCKING */

/* Loads the library that the command line names and starts the driver; ends the program where it cannot run. */
void test_open(int argc, char **argv);
void *test_symbol(const char *name); /* null if it is not exported */

/* A test's fixture: device 0 with its primary context current, and none of that afterwards. */
int test_begin(void **state);
int test_end(void **state);

#define assert_success(call) assert_int_equal(call, CUDA_SUCCESS)

CUdeviceptr test_allocate(size_t bytes);
CUdeviceptr test_upload(const void *from, size_t bytes); /* waits until it is there */
void test_download(void *to, CUdeviceptr from, size_t bytes);
static inline void *test_pointer(CUdeviceptr address) { return (void *)(uintptr_t)address; }

CUfunction test_function(const char *name);
void test_launch(const char *kernel, unsigned blocks, unsigned threads, unsigned shared_bytes, CUstream stream,
                 const void *params, size_t bytes);
/* With word_params. */
void test_words(const char *kernel, unsigned blocks, unsigned threads, unsigned shared_bytes, CUstream stream,
                CUdeviceptr in, CUdeviceptr out, int count);

#endif
