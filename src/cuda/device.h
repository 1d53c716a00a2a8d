/* SPDX-License-Identifier: Apache-2.0
 * The GPUs of this process: their contexts, modules and launches.
 *
 * Devices belong to the process, not to an attn_context, as their primary contexts do: what is loaded serves every
 * attn_context, and threads share it. Every driver call that needs a current context stands between
 * attn_cuda_enter and attn_cuda_leave, which leave the thread's own choice of context as it was. */
#ifndef ATTN_CUDA_DEVICE_H
#define ATTN_CUDA_DEVICE_H

#include "driver.h"
#include <pthread.h>

enum { ATTN_CUDA_MAX_DEVICES = 64, ATTN_CUDA_MAX_MODULES = 512 };

typedef struct attn_cuda_device {
    const attn_cuda_driver *driver;
    CUdevice handle;
    int32_t ordinal;
    int32_t capability; /* 70 for 7.0, 120 for 12.0 */
    int32_t multiprocessors;
    int32_t clock_khz;    /* 0: the driver does not tell */
    int32_t shared_bytes; /* that a block may opt in to */
    int32_t toolkit;      /* that the driver is for: 12 */
    bool stands_in;       /* no GPU: the driver takes images of architecture 0 */
    uint64_t memory_bytes;
    char name[64];
    pthread_mutex_t lock; /* of what follows */
    CUcontext context;    /* the primary one; NULL until first used */
    CUmodule modules[ATTN_CUDA_MAX_MODULES];
} attn_cuda_device;

/* All GPUs that the driver shows; NO_DEVICE and why where there is none. Touches no GPU. */
attn_status attn_cuda_devices(attn_cuda_device **devices, int32_t *count);
/* NO_DEVICE if there is no such GPU. */
attn_status attn_cuda_find(int32_t ordinal, attn_cuda_device **device);

/* Makes the device's primary context current for this thread, retaining it on the device's first use. It is never
 * released: other contexts of the library or the runtime API may be using it, and the driver takes it back when the
 * process ends. */
attn_status attn_cuda_enter(attn_cuda_device *device);
/* Restores the thread's context and returns `status`, so that "return attn_cuda_leave(d, call)" reads well. */
attn_status attn_cuda_leave(attn_cuda_device *device, attn_status status);

/* ---- code (module.c) ------------------------------------------------------------------------- */

/* GPU code that the build embedded: one fat binary for each module and architecture, with machine code for the
 * architecture and, where it is needed, PTX for later ones. Architecture 0: the build had no nvcc that compiles the module, and the image is a
 * name that only a stand-in driver understands. The list ends with a NULL name. */
typedef struct attn_cuda_image {
    const char *module;
    int32_t architecture; /* 70 */
    int32_t toolkit;      /* whose nvcc has compiled it: 11, and 0 with architecture 0. Older drivers do not take it */
    bool has_ptx;
    const void *data;
} attn_cuda_image;
extern const attn_cuda_image attn_cuda_images[];

/* The image that serves a GPU: machine code of the same generation where there is some, else PTX, of the highest
 * architecture that is not above its compute capability. -1: none does. toolkit: of the driver,
 * unless it stands in for one. */
int attn_cuda_choose_image(const attn_cuda_image *images, const char *module, int32_t capability, int32_t toolkit,
                           bool stands_in);
bool attn_cuda_has_code(const attn_cuda_device *device, const char *module);
/* UNSUPPORTED, with the architectures that there is code for. */
attn_status attn_cuda_no_code(const attn_cuda_device *device, const char *module);

/* A kernel, ready to be launched with that much dynamic shared memory. The module is loaded the first time.
 * UNSUPPORTED, naming the compute capability, where no code fits the GPU. Between enter and leave; loading may
 * allocate, so this comes before any stream is looked at. */
attn_status attn_cuda_kernel(attn_cuda_device *device, const char *module, const char *kernel, size_t shared_bytes,
                             CUfunction *function);

typedef struct attn_cuda_launch {
    CUfunction function;
    unsigned blocks, threads, shared_bytes;
    const void *parameters; /* the kernel's one struct */
    size_t parameter_bytes;
} attn_cuda_launch;
attn_status attn_cuda_run(attn_cuda_device *device, const attn_cuda_launch *launch, CUstream stream);

/* ---- streams (stream.c), between enter and leave --------------------------------------------- */

/* A stream given by the caller: INVALID_ARGUMENT naming exec.stream unless it belongs to the device's primary
 * context, because a launch on another's stream fails with an error that explains nothing. */
attn_status attn_cuda_check_stream(attn_cuda_device *device, CUstream stream);
/* Whether it is recording a graph. What would be replayed with dangling host pointers, or ends the capture, must be
 * refused then. */
attn_status attn_cuda_capturing(attn_cuda_device *device, CUstream stream, bool *capturing);

/* The GPU of a stream, wherever it comes from; -1 where there is no GPU. Not between enter and leave. */
attn_status attn_cuda_stream_owner(CUstream stream, int32_t *ordinal);

#endif
