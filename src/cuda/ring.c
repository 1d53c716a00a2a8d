/* SPDX-License-Identifier: Apache-2.0
 * Rings between calls: as many as calls have run at the same time. */
#include "state.h"

static void discard(const attn_context *ctx, attn_cuda_ring *r)
{
    const attn_cuda_driver *driver = r->device->driver;
    for (int n = 0; n < ATTN_CUDA_SLOTS; n++)
        if (r->done[n]) driver->event_destroy(r->done[n]);
    if (r->is_pinned) driver->host_free(r->memory);
    else attn_context_release(ctx, r->memory);
    attn_context_release(ctx, r);
}

/* Ordinary memory serves as well, only slower: the driver then copies it once more. */
static attn_status fill(const attn_context *ctx, attn_cuda_ring *r)
{
    enum { BYTES = ATTN_CUDA_SLOTS * ATTN_CUDA_SLOT_BYTES };
    const attn_cuda_driver *driver = r->device->driver;
    void *memory = NULL;
    for (int n = 0; n < ATTN_CUDA_SLOTS; n++) ATTN_CUDA_TRY(driver, event_create, &r->done[n], CU_EVENT_DISABLE_TIMING);
    r->is_pinned = ATTN_CUDA_CALL(driver, host_allocate, &memory, BYTES, 0) == ATTN_OK;
    if (!r->is_pinned) {
        attn_log(ctx, 1, "GPU %d: no pinned memory, host tensors are copied more slowly: %s", r->device->ordinal,
                 attn_last_error());
        memory = attn_context_alloc(ctx, BYTES);
    }
    r->memory = memory;
    return memory ? ATTN_OK : attn_fail(ATTN_OUT_OF_MEMORY, "no host memory to copy host tensors through");
}

static attn_cuda_ring *unlink_one(const attn_context *ctx, const attn_cuda_device *d)
{
    attn_cuda_ring *found, **link = &ctx->cuda->rings;
    pthread_mutex_lock(&ctx->cuda->lock);
    while (*link && (*link)->device != d) link = &(*link)->next;
    found = *link;
    if (found) *link = found->next;
    pthread_mutex_unlock(&ctx->cuda->lock);
    return found;
}

attn_status attn_cuda_ring_take(const attn_context *ctx, attn_cuda_device *d, attn_cuda_ring **out)
{
    *out = unlink_one(ctx, d);
    if (*out) return ATTN_OK;
    attn_cuda_ring *made = attn_context_alloc(ctx, sizeof *made);
    if (!made) return attn_fail(ATTN_OUT_OF_MEMORY, "no host memory for a ring");
    *made = (attn_cuda_ring){.device = d};
    attn_status status = fill(ctx, made);
    if (status == ATTN_OK) *out = made;
    else discard(ctx, made);
    return status;
}

void attn_cuda_ring_give(const attn_context *ctx, attn_cuda_ring *ring)
{
    if (!ring) return;
    pthread_mutex_lock(&ctx->cuda->lock);
    ring->next = ctx->cuda->rings;
    ctx->cuda->rings = ring;
    pthread_mutex_unlock(&ctx->cuda->lock);
}

void attn_cuda_ring_trim(const attn_context *ctx, const attn_cuda_device *d)
{
    attn_cuda_ring *ring;
    while ((ring = unlink_one(ctx, d))) discard(ctx, ring);
}
