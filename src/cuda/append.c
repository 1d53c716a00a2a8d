/* SPDX-License-Identifier: Apache-2.0
 * attn_kv_append and attn_dropout_mask on a GPU. No workspace, one launch each. */
#include "calls.h"
#include "kernels/params.h"

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

attn_status attn_cuda_append(const attn_context *ctx, const attn_append_job *job, const attn_plan *plan,
                             const attn_exec *exec)
{
    attn_simt_append p = {.job = *job};
    if (!job->new_rows) return ATTN_OK;
    ATTN_TRY(attn_cuda_check_append(job, plan->device - 1));
    return attn_cuda_call(ctx, plan, exec, run_append, &p);
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
    attn_simt_mask p = {.job = *job, .keep = *keep};
    ATTN_TRY(attn_cuda_check_array(keep->data, "keep", plan->device - 1));
    ATTN_TRY(attn_cuda_check_array(job->seed_offset, "seed_offset", plan->device - 1));
    return attn_cuda_call(ctx, plan, exec, run_mask, &p);
}
