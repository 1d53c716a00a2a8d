/* SPDX-License-Identifier: Apache-2.0
 * What every operation does around its launches. */
#include "calls.h"

unsigned attn_cuda_grid(double tasks)
{
    enum { MOST_BLOCKS = 0x7fffffff };
    return tasks < 1 ? 1 : tasks > MOST_BLOCKS ? MOST_BLOCKS : (unsigned)tasks;
}

/* Memory that a graph replays with must be the caller's. */
static attn_status run_with_cache(const attn_context *ctx, attn_cuda_device *d, size_t bytes, CUstream stream,
                                  attn_cuda_body *body, void *arg)
{
    attn_cuda_workspace *workspace;
    bool capturing = false;
    ATTN_TRY(attn_cuda_capturing(d, stream, &capturing));
    if (capturing)
        return attn_fail(ATTN_UNSUPPORTED,
                         "exec.workspace is NULL: while exec.stream captures a graph, this call needs "
                         "%zu bytes of the caller's",
                         bytes);
    ATTN_TRY(attn_cuda_workspace_take(ctx, d, stream, bytes, &workspace));
    attn_status status = body(d, arg, (void *)(uintptr_t)workspace->address, stream);
    attn_cuda_workspace_give(ctx, workspace);
    return status;
}

static attn_status run(const attn_context *ctx, attn_cuda_device *d, const attn_plan *plan, const attn_exec *exec,
                       attn_cuda_body *body, void *arg)
{
    CUstream stream = exec->stream;
    ATTN_TRY(attn_cuda_check_stream(d, stream));
    if (!plan->workspace_bytes) {
        ATTN_TRY(body(d, arg, NULL, stream));
    } else if (exec->workspace) {
        ATTN_TRY(attn_cuda_check_array(exec->workspace, "exec.workspace", d->ordinal));
        ATTN_TRY(body(d, arg, exec->workspace, stream));
    } else {
        ATTN_TRY(run_with_cache(ctx, d, plan->workspace_bytes, stream, body, arg));
    }
    return exec->flags & ATTN_EXEC_WAIT ? ATTN_CUDA_CALL(d->driver, stream_synchronize, stream) : ATTN_OK;
}

attn_status attn_cuda_call(const attn_context *ctx, const attn_plan *plan, const attn_exec *exec, attn_cuda_body *body,
                           void *arg)
{
    attn_cuda_device *d;
    ATTN_TRY(attn_cuda_open(ctx, plan->device - 1, &d));
    return attn_cuda_leave(d, run(ctx, d, plan, exec, body, arg));
}
