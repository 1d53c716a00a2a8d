/* SPDX-License-Identifier: Apache-2.0
 * The operations on a GPU, and what they share: the way into the device, its stream and its workspace. */
#ifndef ATTN_CUDA_CALLS_H
#define ATTN_CUDA_CALLS_H

#include "arrays.h"
#include "forward_kernels.h"

bool attn_cuda_is_backward(const char *word); /* as attn_cuda_is_forward */
attn_status attn_cuda_plan_forward(const attn_context *ctx, const attn_job *job, attn_plan *plan);
attn_status attn_cuda_forward(const attn_context *ctx, const attn_job *job, const attn_plan *plan,
                              const attn_exec *exec);
attn_status attn_cuda_plan_backward(const attn_context *ctx, const attn_job *job, attn_plan *plan);
attn_status attn_cuda_backward(const attn_context *ctx, const attn_job *job, const attn_plan *plan,
                               const attn_exec *exec);
attn_status attn_cuda_append(const attn_context *ctx, const attn_append_job *job, const attn_plan *plan,
                             const attn_exec *exec);
attn_status attn_cuda_merge(const attn_context *ctx, const attn_merge_job *job, const attn_plan *plan,
                            const attn_exec *exec);
attn_status attn_cuda_dropout_mask(const attn_context *ctx, const attn_job *job, const attn_view *keep,
                                   const attn_plan *plan, const attn_exec *exec);

/* Blocks of the launch, and bytes of its partial results. */
double attn_cuda_forward_blocks(const attn_job *job, const attn_forward_kernel *kernel, double *partial_bytes);

/* Puts work on the stream. `workspace` has plan->workspace_bytes. */
typedef attn_status attn_cuda_body(attn_cuda_device *device, void *arg, void *workspace, CUstream stream);

/* What a call touches: `operands` point into the kernel's parameters, which move with the copies. */
typedef struct attn_cuda_arrays {
    attn_cuda_operand *operands;
    int count;
} attn_cuda_arrays;

/* Runs body on the plan's GPU with a workspace, the caller's or one from the cache, and waits if exec says so. If the
 * plan says so, host arrays are copied there before and back afterwards; `arrays` is looked at only then. */
attn_status attn_cuda_call(const attn_context *ctx, const attn_plan *plan, const attn_exec *exec,
                           const attn_cuda_arrays *arrays, attn_cuda_body *body, void *arg);

/* The statuses 1 to 5 promise that nothing has been written; this is for what fails after the first launch. */
static inline attn_status attn_cuda_late(attn_status status) { return status == ATTN_OK ? ATTN_OK : ATTN_DEVICE_ERROR; }

/* Blocks of a grid for so many tasks; kernels go on with every grid'th task. */
unsigned attn_cuda_grid(double tasks);

#endif
