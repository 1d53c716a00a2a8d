/* SPDX-License-Identifier: Apache-2.0
 * Copies of a call's host arrays in GPU memory, and the way back for what the call writes.
 *
 * A copy is as large as the elements that the array's view names: rows lie in it in the order of the host's memory, side
 * by side, and broadcast axes stay broadcast. Only those elements are read and written on the host.
 *
 * Most copies go through a ring of pinned slots (ring.c): while the GPU copies one slot, the host works on the next. What
 * lies side by side in GPU memory shares slots, so a small call has one copy there and one back. */
#ifndef ATTN_CUDA_STAGING_H
#define ATTN_CUDA_STAGING_H

#include "state.h"

enum { ATTN_CUDA_READS = 1, ATTN_CUDA_WRITES = 2 };

/* Host memory as runs of bytes: axes in ascending order of their steps, which are positive. */
typedef struct attn_cuda_box {
    char *low; /* the first byte of all */
    size_t run;
    int axes;
    int axis[4]; /* which of the operand's */
    int64_t count[4], step[4];
} attn_cuda_box;

/* One array of a call, with what has to change among the kernel's parameters when it moves. */
typedef struct attn_cuda_operand {
    const char *name;
    void *field;     /* the pointer to it, of whatever type */
    int64_t *stride; /* of its axes, in elements */
    int axes;
    int access; /* ATTN_CUDA_READS, ATTN_CUDA_WRITES */
    int64_t count[4];
    int64_t run;              /* elements of the innermost, contiguous part */
    int32_t unit, unit_bytes; /* elements and bytes of what is stored together: blocks, else one element */
    const struct attn_cuda_operand *holder; /* whose copy serves if it contains this one; NULL: none */
    /* What attn_cuda_staging_find and _layout find. */
    bool staged, held;
    bool is_pinned;       /* all of it */
    bool is_direct;       /* each run is a driver call, without the ring */
    size_t bytes, offset; /* in the memory for copies */
    attn_cuda_box box;
} attn_cuda_operand;

/* Of the memory for copies: a part that goes through the ring. */
typedef struct attn_cuda_range {
    size_t from, to;
} attn_cuda_range;

typedef struct attn_cuda_staging {
    const attn_context *ctx;
    attn_cuda_device *device;
    CUstream stream;
    attn_cuda_operand *operands;
    int count;
    CUdeviceptr copies;
    attn_cuda_range there, back;
    attn_cuda_ring *ring; /* NULL: nothing needs one */
} attn_cuda_staging;

/* Which arrays are the host's. *first: the name of one; NULL: there is none. */
attn_status attn_cuda_staging_find(attn_cuda_staging *staging, const char **first);
/* The bytes that their copies take. Takes the ring, which is the caller's to give back, also after an error. */
attn_status attn_cuda_staging_layout(attn_cuda_staging *staging, size_t *bytes);
/* Copies what the call reads to staging->copies and lets the parameters lead there. The host arrays and the ring are in use
 * until the stream has been waited for. */
attn_status attn_cuda_staging_upload(attn_cuda_staging *staging);
/* Brings back what the call wrote, and waits for the stream. */
attn_status attn_cuda_staging_download(attn_cuda_staging *staging);

#endif
