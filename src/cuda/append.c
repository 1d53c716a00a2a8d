/* SPDX-License-Identifier: Apache-2.0
 * attn_kv_append and attn_dropout_mask on a GPU. No workspace, one launch each. */
#include "append_short.h"
#include "calls.h"

static attn_status launch(attn_cuda_device *d, const char *kernel, const void *parameters, size_t bytes, double tasks,
                          unsigned shared, CUstream stream)
{
    attn_cuda_launch l = {.blocks = attn_cuda_grid(tasks),
                          .threads = SIMT_APPEND_THREADS,
                          .shared_bytes = shared,
                          .parameters = parameters,
                          .parameter_bytes = bytes};
    ATTN_TRY(attn_cuda_kernel(d, "simt_append", kernel, shared, &l.function));
    return attn_cuda_run(d, &l, stream);
}

static attn_status run_append(attn_cuda_device *d, void *arg, void *workspace, CUstream stream)
{
    const attn_simt_append *p = arg;
    const attn_append_job *job = &p->job;
    double tokens = (double)job->batch * (double)(job->heads_kv + job->heads_q) * (double)job->max_new;
    (void)workspace;
    return tokens > 0 ? launch(d, "simt_append", p, sizeof *p, tokens, SIMT_APPEND_SHARED, stream) : ATTN_OK;
}

static attn_status append_staged(const attn_context *ctx, const attn_cuda_short *call, const attn_plan *plan,
                                 const attn_exec *exec)
{
    attn_cuda_operand list[ATTN_CUDA_APPEND_ARRAYS];
    attn_simt_append p = {.job = call->job};
    const attn_cuda_arrays arrays = {list, attn_cuda_append_arrays(&p.job, call->caches, list)};
    return attn_cuda_call(ctx, plan, exec, &arrays, run_append, &p);
}

attn_status attn_cuda_append(const attn_context *ctx, const attn_append_job *job, const attn_plan *plan,
                             const attn_exec *exec)
{
    attn_simt_append p = {.job = *job};
    attn_cuda_short call;
    if (!job->new_rows) return ATTN_OK;
    if (!plan->staged) return attn_cuda_call(ctx, plan, exec, NULL, run_append, &p);
    ATTN_TRY(attn_cuda_short_make(ctx, job, &call));
    attn_status status = append_staged(ctx, &call, plan, exec);
    if (status == ATTN_OK) attn_cuda_short_finish(job, &call);
    attn_context_release(ctx, call.memory);
    return status;
}

static attn_status run_mask(attn_cuda_device *d, void *arg, void *workspace, CUstream stream)
{
    const attn_simt_mask *p = arg;
    (void)workspace;
    double rows = (double)p->job.batch * (double)p->job.heads_q * (double)p->job.max_q;
    return rows > 0 && p->job.max_k ? launch(d, "simt_dropout_mask", p, sizeof *p, rows, 0, stream) : ATTN_OK;
}

attn_status attn_cuda_dropout_mask(const attn_context *ctx, const attn_job *job, const attn_view *keep,
                                   const attn_plan *plan, const attn_exec *exec)
{
    attn_cuda_operand list[ATTN_CUDA_MASK_ARRAYS];
    attn_simt_mask p = {.job = *job, .keep = *keep};
    const attn_cuda_arrays arrays = {list, attn_cuda_mask_arrays(&p, list)};
    return attn_cuda_call(ctx, plan, exec, &arrays, run_mask, &p);
}
