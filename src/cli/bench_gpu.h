/* SPDX-License-Identifier: Apache-2.0
 * What `attn bench` needs of the CUDA driver itself: a stream, and copies within a GPU's memory. It knows of the driver
 * only what CUDA's manual says, as a program has it that calls the library. */
#ifndef ATTN_CLI_BENCH_GPU_H
#define ATTN_CLI_BENCH_GPU_H

#include <stddef.h>

struct bench_gpu {
    const char *what; /* it is for: errors begin with it */
    void *library;
    struct {
        int (*error_name)(int code, const char **name);
        int (*device_get)(int *device, int ordinal);
        int (*primary_retain)(void **context, int device);
        int (*primary_release)(int device);
        int (*context_push)(void *context);
        int (*context_pop)(void **context);
        int (*stream_create)(void **stream, unsigned flags);
        int (*stream_destroy)(void *stream);
        int (*stream_synchronize)(void *stream);
        int (*copy)(unsigned long long to, unsigned long long from, size_t bytes, void *stream);
    } driver;
    int device;
    void *context, *current; /* the primary one; the same, once it is current */
    void *stream;
};

/* Each returns an exit status and has reported the error. */
int bench_gpu_check(const struct bench_gpu *gpu, const char *symbol, int code);
/* Entry points by their exported names, into as many pointers. */
int bench_gpu_find(const struct bench_gpu *gpu, const char *const *symbols, int count, void *pointers);
/* The driver that the library has loaded, the primary context, a stream. For bench_gpu_close also after a failure. */
int bench_gpu_open(struct bench_gpu *gpu, const char *what, int ordinal);
void bench_gpu_close(struct bench_gpu *gpu);

#endif
