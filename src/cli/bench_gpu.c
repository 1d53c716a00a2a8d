/* SPDX-License-Identifier: Apache-2.0
 * The CUDA driver for `attn bench`, and how fast it copies within a GPU's memory: what decoding is held against. */
#include "bench_gpu.h"

#include "bench.h"
#include "timing.h"

#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Values of the driver's ABI. */
enum { SUCCESS = 0, OUT_OF_MEMORY = 2, NON_BLOCKING = 1 };

/* Larger than any cache, but no large part of the memory. */
enum { COPY_BYTES = 256 << 20, COPY_SHARE = 64, COPIES = 8, TIMES_MIN = 3, TIMES_MAX = 1000 };

/* As in struct bench_gpu. */
static const char *const symbols[] = {
    "cuGetErrorName",      "cuDeviceGet",         "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2",
    "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2",  "cuStreamCreate",           "cuStreamDestroy_v2",
    "cuStreamSynchronize", "cuMemcpyDtoDAsync_v2"};
enum { SYMBOLS = sizeof symbols / sizeof *symbols };
_Static_assert(sizeof((struct bench_gpu *)0)->driver == SYMBOLS * sizeof(void *), "one pointer a symbol");

int bench_gpu_check(const struct bench_gpu *g, const char *symbol, int code)
{
    const char *name = NULL;
    if (code == SUCCESS) return CLI_OK;
    if (g->driver.error_name(code, &name) != SUCCESS || !name) name = "CUDA error";
    return cli_fail(code == OUT_OF_MEMORY ? CLI_CANNOT : CLI_DEVICE_ERROR, "%s: %s: %s (%d)", g->what, symbol, name,
                    code);
}

int bench_gpu_find(const struct bench_gpu *g, const char *const *names, int count, void *pointers)
{
    for (int n = 0; n < count; n++) {
        void *address = dlsym(g->library, names[n]);
        if (!address) return cli_fail(CLI_CANNOT, "%s: the CUDA driver has no %s: it is too old", g->what, names[n]);
        /* ISO C has no conversion from void * to a function pointer; POSIX promises equal bits. */
        memcpy((char *)pointers + (size_t)n * sizeof address, &address, sizeof address);
    }
    return CLI_OK;
}

/* By the rule that the library goes by. */
static int load(struct bench_gpu *g)
{
    const char *name = getenv("ATTN_CUDA_DRIVER");
    if (!name || !*name) name = "libcuda.so.1";
    g->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!g->library) return cli_fail(CLI_CANNOT, "%s: no CUDA driver: %s", g->what, dlerror());
    return bench_gpu_find(g, symbols, SYMBOLS, &g->driver);
}

/* The library computes in the primary context and takes no stream of another one. */
int bench_gpu_open(struct bench_gpu *g, const char *what, int ordinal)
{
    *g = (struct bench_gpu){.what = what};
    int status = load(g);
    if (!status) status = bench_gpu_check(g, "cuDeviceGet", g->driver.device_get(&g->device, ordinal));
    if (!status)
        status = bench_gpu_check(g, "cuDevicePrimaryCtxRetain", g->driver.primary_retain(&g->context, g->device));
    if (!status) status = bench_gpu_check(g, "cuCtxPushCurrent_v2", g->driver.context_push(g->context));
    if (status) return status;
    g->current = g->context;
    return bench_gpu_check(g, "cuStreamCreate", g->driver.stream_create(&g->stream, NON_BLOCKING));
}

void bench_gpu_close(struct bench_gpu *g)
{
    if (g->stream) g->driver.stream_destroy(g->stream);
    if (g->current) g->driver.context_pop(&g->current);
    if (g->context) g->driver.primary_release(g->device);
    if (g->library) dlclose(g->library); /* the library keeps it */
}

static int copy_once(const struct bench_gpu *g, void *const blocks[2], size_t bytes, double *seconds)
{
    const double start = cli_now();
    int status = CLI_OK;
    for (int n = 0; n < COPIES && !status; n++)
        status =
            bench_gpu_check(g, "cuMemcpyDtoDAsync_v2",
                            g->driver.copy((uintptr_t)blocks[n % 2], (uintptr_t)blocks[1 - n % 2], bytes, g->stream));
    if (!status) status = bench_gpu_check(g, "cuStreamSynchronize", g->driver.stream_synchronize(g->stream));
    *seconds = (cli_now() - start) / COPIES;
    return status;
}

static int time_copies(const struct bench_run *run, void *const blocks[2], size_t bytes, double *gbps)
{
    static double times[TIMES_MAX];
    double spent = 0, seconds;
    struct bench_gpu g;
    int count = 0;
    int status = bench_gpu_open(&g, "the ceiling of copying", (int)run->options->ordinal);
    if (!status) status = copy_once(&g, blocks, bytes, &seconds); /* to warm up */
    while (!status && count < TIMES_MAX && (count < TIMES_MIN || spent < bench_aside(run->options))) {
        status = copy_once(&g, blocks, bytes, &times[count]);
        spent += COPIES * times[count++];
    }
    if (!status) *gbps = 2e-9 * (double)bytes / cli_median(times, count);
    bench_gpu_close(&g);
    return status;
}

int bench_copy_speed(const struct bench_run *run, double *gbps)
{
    const int32_t gpu = bench_gpu(run->options);
    const size_t bytes = (size_t)fmin(COPY_BYTES, run->memory_bytes / COPY_SHARE);
    void *blocks[2] = {NULL, NULL};
    attn_status room = ATTN_OK;
    int status = CLI_OK;
    *gbps = 0;
    for (int n = 0; n < 2 && room == ATTN_OK; n++) room = attn_malloc(run->context, gpu, bytes, &blocks[n]);
    if (room == ATTN_OK) status = time_copies(run, blocks, bytes, gbps);
    else if (room != ATTN_OUT_OF_MEMORY) status = cli_fail_library(room, "the ceiling of copying");
    for (int n = 0; n < 2; n++) attn_free(run->context, blocks[n]);
    return status;
}
