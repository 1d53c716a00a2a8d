/* SPDX-License-Identifier: Apache-2.0
 * What every operation does around its launches. */
#include "calls.h"

unsigned attn_cuda_grid(double tasks)
{
    enum { MOST_BLOCKS = 0x7fffffff };
    return tasks < 1 ? 1 : tasks > MOST_BLOCKS ? MOST_BLOCKS : (unsigned)tasks;
}

static attn_status check_workspace(const void *pointer, int32_t ordinal)
{
    attn_cuda_kind kind;
    int32_t owner;
    ATTN_TRY(attn_cuda_locate(pointer, &kind, &owner));
    if (owner < 0) return attn_fail(ATTN_INVALID_ARGUMENT, "exec.workspace: host memory, but GPU %d computes", ordinal);
    if (kind == ATTN_CUDA_DEVICE && owner != ordinal)
        return attn_fail(ATTN_INVALID_ARGUMENT, "exec.workspace: memory of GPU %d, but GPU %d computes", owner,
                         ordinal);
    return ATTN_OK;
}

static attn_status compute(const attn_cuda_staging *s, attn_cuda_body *body, void *arg, void *workspace, bool wait)
{
    ATTN_TRY(body(s->device, arg, workspace, s->stream));
    return wait ? attn_cuda_late(ATTN_CUDA_CALL(s->device->driver, stream_synchronize, s->stream)) : ATTN_OK;
}

/* Memory that a graph replays with must be the caller's. */
static attn_status refuse_capture(const attn_cuda_staging *s, size_t workspace_bytes, const char *host_array)
{
    bool capturing = false;
    ATTN_TRY(attn_cuda_capturing(s->device, s->stream, &capturing));
    if (capturing && host_array)
        return attn_fail(ATTN_UNSUPPORTED,
                         "%s: host memory, while exec.stream captures a graph, which would read it when it is replayed",
                         host_array);
    if (capturing)
        return attn_fail(ATTN_UNSUPPORTED,
                         "exec.workspace is NULL: while exec.stream captures a graph, this call needs "
                         "%zu bytes of the caller's",
                         workspace_bytes);
    return ATTN_OK;
}

static attn_status run_with_cache(const attn_cuda_staging *s, size_t bytes, attn_cuda_body *body, void *arg, bool wait)
{
    attn_cuda_workspace *workspace;
    ATTN_TRY(refuse_capture(s, bytes, NULL));
    ATTN_TRY(attn_cuda_workspace_take(s->ctx, s->device, s->stream, bytes, &workspace));
    attn_status status = compute(s, body, arg, (void *)(uintptr_t)workspace->address, wait);
    attn_cuda_workspace_give(s->ctx, workspace);
    return status;
}

/* One piece of memory: copies, and behind them the workspace that the caller may not have given. */
static attn_status run_on_copies(attn_cuda_staging *s, size_t bytes, size_t workspace_bytes, void *workspace,
                                 attn_cuda_body *body, void *arg)
{
    attn_cuda_workspace *memory;
    if (bytes + workspace_bytes < bytes) return attn_fail(ATTN_OUT_OF_MEMORY, "no GPU has memory for host tensors");
    ATTN_TRY(attn_cuda_workspace_take(s->ctx, s->device, s->stream, bytes + workspace_bytes, &memory));
    s->copies = memory->address;
    if (!workspace && workspace_bytes) workspace = (void *)(uintptr_t)(memory->address + bytes);
    attn_status status = attn_cuda_staging_upload(s);
    if (status == ATTN_OK) status = body(s->device, arg, workspace, s->stream);
    if (status == ATTN_OK) status = attn_cuda_late(attn_cuda_staging_download(s));
    if (status != ATTN_OK) s->device->driver->stream_synchronize(s->stream); /* copies may be on their way */
    attn_cuda_workspace_give(s->ctx, memory);
    return status;
}

static attn_status run_staged(attn_cuda_staging *s, size_t workspace_bytes, void *workspace, attn_cuda_body *body,
                              void *arg)
{
    size_t bytes;
    attn_status status = attn_cuda_staging_layout(s, &bytes);
    if (status == ATTN_OK) status = run_on_copies(s, bytes, workspace_bytes, workspace, body, arg);
    attn_cuda_ring_give(s->ctx, s->ring);
    return status;
}

static attn_status run(attn_cuda_staging *s, const attn_plan *plan, const attn_exec *exec, attn_cuda_body *body,
                       void *arg)
{
    const bool wait = exec->flags & ATTN_EXEC_WAIT;
    void *workspace = plan->workspace_bytes ? exec->workspace : NULL;
    const char *first;
    ATTN_TRY(attn_cuda_check_stream(s->device, s->stream));
    if (workspace) ATTN_TRY(check_workspace(workspace, s->device->ordinal));
    ATTN_TRY(attn_cuda_staging_find(s, &first));
    if (first) {
        ATTN_TRY(refuse_capture(s, 0, first));
        return run_staged(s, workspace ? 0 : plan->workspace_bytes, workspace, body, arg);
    }
    if (workspace || !plan->workspace_bytes) return compute(s, body, arg, workspace, wait);
    return run_with_cache(s, plan->workspace_bytes, body, arg, wait);
}

attn_status attn_cuda_call(const attn_context *ctx, const attn_plan *plan, const attn_exec *exec,
                           const attn_cuda_arrays *arrays, attn_cuda_body *body, void *arg)
{
    attn_cuda_staging staging = {.ctx = ctx, .stream = exec->stream};
    if (plan->staged) {
        staging.operands = arrays->operands;
        staging.count = arrays->count;
    }
    ATTN_TRY(attn_cuda_open(ctx, plan->device - 1, &staging.device));
    return attn_cuda_leave(staging.device, run(&staging, plan, exec, body, arg));
}
