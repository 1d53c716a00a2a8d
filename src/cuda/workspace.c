/* SPDX-License-Identifier: Apache-2.0
 * Workspaces between calls. A call finds that of its own stream, or one that no GPU work uses any more; it takes
 * one whose work is unfinished only if memory is short, because that makes its stream wait for the other. */
#include "state.h"

enum { GRAIN_BYTES = 1 << 20 }; /* so that a growing problem does not allocate at every call */

/* Outside the lock: freeing waits for the GPU. */
static void discard(const attn_context *ctx, attn_cuda_workspace *w)
{
    const attn_cuda_driver *driver = w->device->driver;
    if (w->done) {
        driver->event_synchronize(w->done);
        driver->event_destroy(w->done);
    }
    if (w->address) driver->memory_free(w->address);
    attn_context_release(ctx, w);
}

/* Unlinks the first free one that `device` (NULL: any) has. */
static attn_cuda_workspace *pick(struct attn_cuda_state *state, const attn_cuda_device *device, CUstream stream,
                                 bool any_stream, bool any_time, size_t bytes)
{
    for (attn_cuda_workspace **link = &state->workspaces; *link; link = &(*link)->next) {
        attn_cuda_workspace *w = *link;
        if (w->taken || (device && w->device != device) || w->bytes < bytes) continue;
        if (!any_stream && w->stream != stream) continue;
        if (any_stream && !any_time && w->device->driver->event_query(w->done) != CUDA_SUCCESS) continue;
        *link = w->next;
        return w;
    }
    return NULL;
}

static void insert(struct attn_cuda_state *state, attn_cuda_workspace *w)
{
    w->next = state->workspaces;
    state->workspaces = w;
}

static attn_status allocate(const attn_context *ctx, attn_cuda_device *d, size_t bytes, attn_cuda_workspace **out)
{
    attn_cuda_workspace *w = attn_context_alloc(ctx, sizeof *w);
    if (!w) return attn_fail(ATTN_OUT_OF_MEMORY, "no host memory for a workspace");
    const size_t grains = bytes / GRAIN_BYTES + (!bytes || bytes % GRAIN_BYTES);
    *w = (attn_cuda_workspace){.device = d, .bytes = grains * GRAIN_BYTES};
    attn_status status = ATTN_CUDA_CALL(d->driver, event_create, &w->done, CU_EVENT_DISABLE_TIMING);
    if (status == ATTN_OK) status = ATTN_CUDA_CALL(d->driver, memory_allocate, &w->address, w->bytes);
    if (status != ATTN_OK) discard(ctx, w);
    else *out = w;
    return status;
}

/* Smaller ones of the stream are replaced, so that a growing problem leaves none behind. */
static attn_status replace(const attn_context *ctx, attn_cuda_device *d, CUstream stream, size_t bytes,
                           attn_cuda_workspace **out)
{
    struct attn_cuda_state *state = ctx->cuda;
    pthread_mutex_lock(&state->lock);
    attn_cuda_workspace *small = pick(state, d, stream, false, true, 0);
    pthread_mutex_unlock(&state->lock);
    if (small) discard(ctx, small);
    attn_status status = allocate(ctx, d, bytes, out);
    if (status != ATTN_OUT_OF_MEMORY) return status;
    pthread_mutex_lock(&state->lock);
    *out = pick(state, d, stream, true, true, bytes);
    pthread_mutex_unlock(&state->lock);
    if (*out) return ATTN_OK;
    attn_cuda_workspace_trim(ctx, d);
    return allocate(ctx, d, bytes, out);
}

attn_status attn_cuda_workspace_take(const attn_context *ctx, attn_cuda_device *d, CUstream stream, size_t bytes,
                                     attn_cuda_workspace **out)
{
    struct attn_cuda_state *state = ctx->cuda;
    if (bytes > d->memory_bytes)
        return attn_fail(ATTN_OUT_OF_MEMORY, "%zu bytes for workspace and copies of host tensors: GPU %d (%s) has %llu",
                         bytes, d->ordinal, d->name, (unsigned long long)d->memory_bytes);
    pthread_mutex_lock(&state->lock);
    attn_cuda_workspace *w = pick(state, d, stream, false, true, bytes);
    if (!w) w = pick(state, d, stream, true, false, bytes);
    pthread_mutex_unlock(&state->lock);
    if (!w) ATTN_TRY(replace(ctx, d, stream, bytes, &w));
    /* Also on the same stream: a destroyed stream's handle may come back while its last work still runs. An event
     * that was never recorded waits for nothing. */
    attn_status status = ATTN_CUDA_CALL(d->driver, stream_wait, stream, w->done, 0);
    w->taken = status == ATTN_OK;
    w->stream = stream;
    pthread_mutex_lock(&state->lock);
    insert(state, w);
    pthread_mutex_unlock(&state->lock);
    if (status == ATTN_OK) *out = w;
    return status;
}

void attn_cuda_workspace_give(const attn_context *ctx, attn_cuda_workspace *w)
{
    /* Without the event nobody would know when the work ends; so wait for it here. If even that fails, the context
     * is lost and runs nothing any more. */
    if (w->device->driver->event_record(w->done, w->stream) != CUDA_SUCCESS)
        w->device->driver->stream_synchronize(w->stream);
    pthread_mutex_lock(&ctx->cuda->lock);
    w->taken = false;
    pthread_mutex_unlock(&ctx->cuda->lock);
}

void attn_cuda_workspace_trim(const attn_context *ctx, attn_cuda_device *device)
{
    struct attn_cuda_state *state = ctx->cuda;
    attn_cuda_workspace *w;
    do {
        pthread_mutex_lock(&state->lock);
        w = pick(state, device, NULL, true, true, 0);
        pthread_mutex_unlock(&state->lock);
        if (w) discard(ctx, w);
    } while (w);
}
