/* SPDX-License-Identifier: Apache-2.0
 * The CUDA backend: its devices, what a context holds of them, and its table. */
#include "calls.h"
#include <stdio.h>

/* ---- devices --------------------------------------------------------------------------------- */

attn_status attn_cuda_count(int32_t *count)
{
    attn_cuda_device *devices;
    *count = 0;
    return attn_cuda_devices(&devices, count);
}

attn_status attn_cuda_info(int32_t ordinal, attn_device_info *info)
{
    attn_cuda_device *d;
    ATTN_TRY(attn_cuda_find(ordinal, &d));
    *info = (attn_device_info){
        .backend = ATTN_BACKEND_CUDA,
        .ordinal = ordinal,
        .units = d->multiprocessors,
        .memory_bytes = d->memory_bytes,
    };
    snprintf(info->name, sizeof info->name, "%s", d->name);
    snprintf(info->arch, sizeof info->arch, "sm_%d", d->capability);
    return ATTN_OK;
}

/* ---- what a context holds -------------------------------------------------------------------- */

attn_status attn_cuda_state_new(attn_context *ctx)
{
    struct attn_cuda_state *state = attn_context_alloc(ctx, sizeof *state);
    if (!state) return attn_fail(ATTN_OUT_OF_MEMORY, "no memory for a context");
    memset(state, 0, sizeof *state);
    pthread_mutex_init(&state->lock, NULL);
    ctx->cuda = state;
    return ATTN_OK;
}

/* Memory that the caller still holds stays: it is the caller's to lose. */
void attn_cuda_state_free(attn_context *ctx)
{
    struct attn_cuda_state *state = ctx->cuda;
    attn_cuda_device *d;
    for (int32_t n = 0; n < ATTN_CUDA_MAX_DEVICES; n++) {
        if (!(state->used >> n & 1) || attn_cuda_find(n, &d) != ATTN_OK || attn_cuda_enter(d) != ATTN_OK) continue;
        attn_cuda_workspace_trim(ctx, d);
        attn_cuda_ring_trim(ctx, d);
        attn_cuda_leave(d, ATTN_OK);
    }
    /* Of a GPU that could not be entered any more only our notes are left to release. */
    for (attn_cuda_workspace *w = state->workspaces, *next; w; w = next) {
        next = w->next;
        attn_log(ctx, 0, "GPU %d: a workspace is not freed", w->device->ordinal);
        attn_context_release(ctx, w);
    }
    for (attn_cuda_ring *r = state->rings, *next; r; r = next) {
        next = r->next;
        attn_log(ctx, 0, "GPU %d: host memory for copies is not freed", r->device->ordinal);
        attn_context_release(ctx, r);
    }
    for (attn_cuda_allocation *a = state->allocations, *next; a; a = next) {
        next = a->next;
        attn_context_release(ctx, a);
    }
    pthread_mutex_destroy(&state->lock);
    attn_context_release(ctx, state);
    ctx->cuda = NULL;
}

attn_status attn_cuda_open(const attn_context *ctx, int32_t ordinal, attn_cuda_device **device)
{
    if (ctx->backend == &attn_cuda_backend && ordinal != ctx->gpu)
        return attn_fail(ATTN_NO_DEVICE, "GPU %d: this context was made for GPU %d", ordinal, ctx->gpu);
    ATTN_TRY(attn_cuda_find(ordinal, device));
    pthread_mutex_lock(&ctx->cuda->lock);
    const bool first = !(ctx->cuda->used >> ordinal & 1);
    pthread_mutex_unlock(&ctx->cuda->lock);
    if (first) attn_log(ctx, 2, "GPU %d (%s): first use by this context", ordinal, (*device)->name);
    ATTN_TRY(attn_cuda_enter(*device));
    pthread_mutex_lock(&ctx->cuda->lock);
    ctx->cuda->used |= (uint64_t)1 << ordinal;
    pthread_mutex_unlock(&ctx->cuda->lock);
    return ATTN_OK;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static attn_status plan_cuda(const attn_context *ctx, attn_op op, const attn_job *job, attn_plan *plan)
{
    if (op == ATTN_OP_BACKWARD)
        return attn_fail(ATTN_UNSUPPORTED,
                         "backward: the cuda backend has no kernels for it yet; the cpu backend computes it, for "
                         "tensors in host memory");
    return attn_cuda_plan_forward(ctx, job, plan);
}

/* Operations without a function here are UNSUPPORTED. */
const attn_backend_table attn_cuda_backend = {
    .id = ATTN_BACKEND_CUDA,
    .name = "cuda",
    .has_kernel = attn_cuda_has_kernel,
    .plan = plan_cuda,
    .forward = attn_cuda_forward,
    .append = attn_cuda_append,
    .merge = attn_cuda_merge,
    .dropout_mask = attn_cuda_dropout_mask,
};
