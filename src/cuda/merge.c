/* SPDX-License-Identifier: Apache-2.0
 * attn_merge on a GPU: one launch for up to SIMT_PARTS parts, which then travel with it. More of them are described in a
 * workspace, to which the description is copied. */
#include "calls.h"

typedef struct merge_call {
    attn_simt_merge parameters;
    const attn_simt_part *parts; /* those that do not travel with the launch */
} merge_call;

static attn_simt_part part_of(const attn_merge_job *job, int32_t n)
{
    const attn_tensor *out = &job->out_parts[n], *lse = &job->lse_parts[n];
    attn_simt_part part = {.out = {.data = out->data, .dtype = out->dtype}, .lse = lse->data};
    part.out.stride[3] = 1;
    for (int axis = 0; axis < 3; axis++) {
        part.out.stride[axis] = job->shape[axis] > 1 ? out->stride[axis] : 0;
        part.lse_stride[axis] = job->shape[axis] > 1 ? lse->stride[axis] : 0;
    }
    return part;
}

static attn_status run_merge(attn_cuda_device *d, void *arg, void *workspace, CUstream stream)
{
    merge_call *call = arg;
    attn_simt_merge *p = &call->parameters;
    attn_cuda_launch l = {.threads = SIMT_FOLD_THREADS, .parameters = p, .parameter_bytes = sizeof *p};
    l.blocks = attn_cuda_grid((double)p->shape[0] * (double)p->shape[1] * (double)p->shape[2]);
    ATTN_TRY(attn_cuda_kernel(d, "simt_merge", "simt_merge", 0, &l.function));
    if (!workspace) return attn_cuda_run(d, &l, stream);
    p->more_parts = workspace;
    ATTN_CUDA_TRY(d->driver, upload, (CUdeviceptr)(uintptr_t)workspace, call->parts,
                  sizeof *call->parts * (size_t)p->parts, stream);
    attn_status status = attn_cuda_run(d, &l, stream);
    if (status == ATTN_OK) status = attn_cuda_late(ATTN_CUDA_CALL(d->driver, stream_synchronize, stream));
    /* The description is gone when this call returns. */
    if (status != ATTN_OK) d->driver->stream_synchronize(stream);
    return status;
}

static attn_status run_on_arrays(const attn_context *ctx, merge_call *call, attn_simt_part *parts,
                                 const attn_plan *plan, const attn_exec *exec)
{
    const size_t bytes = sizeof(attn_cuda_operand) * (2 + 2 * (size_t)call->parameters.parts);
    attn_cuda_operand *list = attn_context_alloc(ctx, bytes);
    if (!list) return attn_fail(ATTN_OUT_OF_MEMORY, "no host memory for a list of %d parts", call->parameters.parts);
    const attn_cuda_arrays arrays = {list, attn_cuda_merge_arrays(&call->parameters, parts, list)};
    attn_status status = attn_cuda_call(ctx, plan, exec, &arrays, run_merge, call);
    attn_context_release(ctx, list);
    return status;
}

attn_status attn_cuda_merge(const attn_context *ctx, const attn_merge_job *job, const attn_plan *plan,
                            const attn_exec *exec)
{
    merge_call call = {.parameters = {.out = job->out, .lse = job->lse, .parts = job->parts}};
    attn_simt_part *more = NULL;
    attn_plan with_room = *plan;
    attn_exec own = *exec;
    if (!job->shape[0] || !job->shape[1] || !job->shape[2]) return ATTN_OK;
    memcpy(call.parameters.shape, job->shape, sizeof job->shape);
    if (job->parts > SIMT_PARTS) {
        with_room.workspace_bytes = sizeof *more * (size_t)job->parts;
        own.workspace = NULL; /* the query asked for none */
        more = attn_context_alloc(ctx, with_room.workspace_bytes);
        if (!more) return attn_fail(ATTN_OUT_OF_MEMORY, "no host memory for a list of %d parts", job->parts);
    }
    attn_simt_part *parts = more ? more : call.parameters.part;
    for (int32_t n = 0; n < job->parts; n++) parts[n] = part_of(job, n);
    call.parts = more;
    attn_status status = plan->staged ? run_on_arrays(ctx, &call, parts, &with_room, &own)
                                      : attn_cuda_call(ctx, &with_room, &own, NULL, run_merge, &call);
    attn_context_release(ctx, more);
    return status;
}
