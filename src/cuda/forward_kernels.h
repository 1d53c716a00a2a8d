/* SPDX-License-Identifier: Apache-2.0
 * The forward's kernels, and which of them serves a problem. */
#ifndef ATTN_CUDA_FORWARD_KERNELS_H
#define ATTN_CUDA_FORWARD_KERNELS_H

#include "device.h"

typedef struct attn_forward_kernel {
    const char *family; /* "sm70" */
    const char *label;  /* as plans and `force` have it: "forward_sm80_d64_64_f16" */
    const char *module, *name;
    int32_t head_dim, head_dim_v; /* at most */
    int32_t rows;                 /* of a block */
    int32_t most_rows;            /* of a sequence; 0: any */
    uint32_t threads, shared_bytes;
    int32_t blocks_per_sm; /* that the kernel is made for */
    bool everything;       /* more than masks */
    int32_t dtype;         /* of q, k and v on tensor cores; simt takes all */
    bool has_doubts;       /* leaves tasks to a launch of simt behind it (kernels/bf16_halves.cuh) */
    bool few;              /* takes sequences of few queries alone (attn_simt_is_few) */
    int32_t stored;        /* attn_stored (kernels/tensor_shapes.h) */
    bool persistent;       /* a block goes from task to task: no more than an SM holds at once */
    int32_t capability;    /* at least, where the family's lowest does not do */
} attn_forward_kernel;

static inline bool attn_cuda_has_lengths(const attn_span *span) { return span->used || span->offsets || span->start; }

/* That a block of sm_70, or all blocks of a multiprocessor, may have. */
enum { ATTN_VOLTA_SHARED_BYTES = 98304 };

/* Families of kernels by the GPUs that they are made for: compute capabilities from, and below. */
typedef struct attn_cuda_family {
    const char *name;
    int32_t from, below;
    const char *what;
} attn_cuda_family;

/* name: one of the list. */
const attn_cuda_family *attn_cuda_family_of(const char *name);
static inline bool attn_cuda_is_made_for(const attn_cuda_family *family, int32_t capability)
{
    return capability >= family->from && capability < family->below;
}

/* Whether `force` may name it: a label, or the start of labels up to a "_". */
bool attn_cuda_is_forward(const char *word);
/* attn_cuda_is_family(word): isa=sm70 takes that family where it serves a problem, and simt elsewhere; isa=simt simt alone. */

/* The kernel for a problem on a GPU, and why. UNSUPPORTED where it serves no such problem, or
 * the library has no code of it for the GPU. Depends on nothing but its arguments. */
attn_status attn_cuda_choose_forward(const attn_cuda_device *device, const attn_job *job, const attn_force *force,
                                     const attn_forward_kernel **kernel, char *reason, size_t reason_bytes);

/* Where sequences differ in length and `kernel` leaves those of few queries to another one: that one, else NULL. */
const attn_forward_kernel *attn_cuda_few_forward(const attn_cuda_device *device, const attn_job *job,
                                                 const attn_force *force, const attn_forward_kernel *kernel);

/* Blocks of a persistent kernel that a GPU holds at once. */
int64_t attn_cuda_resident_blocks(const attn_cuda_device *device, const attn_forward_kernel *kernel);

/* That of simt, which serves every problem. */
const attn_forward_kernel *attn_cuda_plain_forward(const attn_job *job);

#endif
