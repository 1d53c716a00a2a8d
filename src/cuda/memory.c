/* SPDX-License-Identifier: Apache-2.0
 * The API's memory functions on GPUs, and where pointers lead. */
#include "state.h"

attn_status attn_cuda_locate(const void *pointer, attn_cuda_kind *kind, int32_t *ordinal)
{
    attn_cuda_device *devices;
    int32_t count;
    *kind = ATTN_CUDA_HOST;
    *ordinal = -1;
    if (attn_cuda_devices(&devices, &count) != ATTN_OK) return ATTN_OK;
    unsigned type = 0, managed = 0; /* stay 0 for what the driver does not know */
    int device = -1;
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void *values[] = {&type, &managed, &device};
    ATTN_CUDA_TRY(devices->driver, pointer_attributes, 3, attributes, values, (CUdeviceptr)(uintptr_t)pointer);
    if (managed) *kind = ATTN_CUDA_MANAGED;
    else if (type == CU_MEMORYTYPE_DEVICE) *kind = ATTN_CUDA_DEVICE;
    else if (type == CU_MEMORYTYPE_HOST) *kind = ATTN_CUDA_PINNED;
    if (*kind == ATTN_CUDA_DEVICE || *kind == ATTN_CUDA_MANAGED) *ordinal = device;
    return ATTN_OK;
}

attn_status attn_cuda_place(const void *pointer, int32_t *ordinal, bool *readable)
{
    attn_cuda_kind kind;
    ATTN_TRY(attn_cuda_locate(pointer, &kind, ordinal));
    *readable = kind != ATTN_CUDA_DEVICE;
    return ATTN_OK;
}

/* ---- malloc and free ------------------------------------------------------------------------- */

attn_status attn_cuda_malloc(const attn_context *ctx, int32_t ordinal, size_t bytes, void **out)
{
    attn_cuda_device *d;
    ATTN_TRY(attn_cuda_find(ordinal, &d));
    if (bytes > d->memory_bytes)
        return attn_fail(ATTN_OUT_OF_MEMORY, "%zu bytes: GPU %d (%s) has %llu", bytes, ordinal, d->name,
                         (unsigned long long)d->memory_bytes);
    attn_cuda_allocation *a = attn_context_alloc(ctx, sizeof *a);
    if (!a) return attn_fail(ATTN_OUT_OF_MEMORY, "no host memory to note an allocation");
    a->address = 0;
    attn_status status = attn_cuda_open(ctx, ordinal, &a->device);
    if (status == ATTN_OK)
        status = attn_cuda_leave(d, ATTN_CUDA_CALL(d->driver, memory_allocate, &a->address, bytes ? bytes : 1));
    if (status != ATTN_OK) {
        attn_context_release(ctx, a);
        return status;
    }
    *out = (void *)(uintptr_t)a->address;
    pthread_mutex_lock(&ctx->cuda->lock);
    a->next = ctx->cuda->allocations;
    ctx->cuda->allocations = a;
    pthread_mutex_unlock(&ctx->cuda->lock);
    return ATTN_OK;
}

/* The list tells our memory from the host's without asking the driver, which may be past answering. */
bool attn_cuda_free(const attn_context *ctx, void *pointer)
{
    attn_cuda_allocation *a, **link = &ctx->cuda->allocations;
    pthread_mutex_lock(&ctx->cuda->lock);
    while (*link && (*link)->address != (CUdeviceptr)(uintptr_t)pointer) link = &(*link)->next;
    a = *link;
    if (a) *link = a->next;
    pthread_mutex_unlock(&ctx->cuda->lock);
    if (!a) return false;
    if (attn_cuda_enter(a->device) == ATTN_OK) {
        CUresult code = a->device->driver->memory_free(a->address);
        if (code != CUDA_SUCCESS) attn_log(ctx, 0, "GPU %d: memory is not freed: error %d", a->device->ordinal, code);
        attn_cuda_leave(a->device, ATTN_OK);
    }
    attn_context_release(ctx, a);
    return true;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* A stream that exec may have named, once it is known to be this GPU's and not to capture. */
static attn_status plain_stream(attn_cuda_device *d, CUstream stream, const char *what)
{
    bool capturing = false;
    ATTN_TRY(attn_cuda_check_stream(d, stream));
    ATTN_TRY(attn_cuda_capturing(d, stream, &capturing));
    if (capturing) return attn_fail(ATTN_UNSUPPORTED, "exec.stream captures a graph: %s", what);
    return ATTN_OK;
}

static attn_status copy(attn_cuda_device *d, void *dst, const void *src, size_t bytes, bool upload,
                        const attn_exec *exec)
{
    CUstream stream = exec->stream;
    ATTN_TRY(plain_stream(d, stream, "a copy would use the host memory when the graph is replayed"));
    if (upload) ATTN_TRY(ATTN_CUDA_CALL(d->driver, upload, (CUdeviceptr)(uintptr_t)dst, src, bytes, stream));
    else ATTN_TRY(ATTN_CUDA_CALL(d->driver, download, dst, (CUdeviceptr)(uintptr_t)src, bytes, stream));
    if (stream && !(exec->flags & ATTN_EXEC_WAIT)) return ATTN_OK;
    attn_status status = ATTN_CUDA_CALL(d->driver, stream_synchronize, stream);
    if (status != ATTN_OK) d->driver->stream_synchronize(stream); /* the host's memory may be gone afterwards */
    return status;
}

attn_status attn_cuda_copy(const attn_context *ctx, void *dst, const void *src, size_t bytes, bool upload,
                           const attn_exec *exec, bool *done)
{
    attn_cuda_device *d;
    attn_cuda_kind unused_kind, host_side;
    int32_t ordinal, unused;
    ATTN_TRY(attn_cuda_locate(upload ? dst : src, &unused_kind, &ordinal));
    ATTN_TRY(attn_cuda_locate(upload ? src : dst, &host_side, &unused));
    *done = ordinal >= 0;
    if (host_side == ATTN_CUDA_DEVICE)
        return attn_fail(ATTN_INVALID_ARGUMENT, "%s: memory of a GPU, where host memory is expected",
                         upload ? "src" : "dst");
    if (!*done) return ATTN_OK;
    if (exec->device && exec->device != ordinal + 2)
        return attn_fail(ATTN_INVALID_ARGUMENT, "exec.device: %d, but %s is memory of GPU %d", exec->device,
                         upload ? "dst" : "src", ordinal);
    ATTN_TRY(attn_cuda_open(ctx, ordinal, &d));
    return attn_cuda_leave(d, copy(d, dst, src, bytes, upload, exec));
}

/* ---- waiting --------------------------------------------------------------------------------- */

static attn_status wait_for(const attn_context *ctx, int32_t ordinal, CUstream stream)
{
    attn_cuda_device *d;
    ATTN_TRY(attn_cuda_open(ctx, ordinal, &d));
    attn_status status = plain_stream(d, stream, "waiting for it would end the capture");
    if (status == ATTN_OK) status = ATTN_CUDA_CALL(d->driver, stream_synchronize, stream);
    return attn_cuda_leave(d, status);
}

/* Without a device: the stream's; without a stream either, the context's GPU, or those that it has used. */
attn_status attn_cuda_sync(const attn_context *ctx, const attn_exec *exec)
{
    if (exec->device == 1) return ATTN_OK;
    if (exec->device) return wait_for(ctx, exec->device - 2, exec->stream);
    if (ctx->backend == &attn_cuda_backend) return wait_for(ctx, ctx->gpu, exec->stream);
    if (exec->stream) {
        int32_t ordinal;
        ATTN_TRY(attn_cuda_stream_owner(exec->stream, &ordinal));
        return ordinal < 0 ? ATTN_OK : wait_for(ctx, ordinal, exec->stream);
    }
    pthread_mutex_lock(&ctx->cuda->lock);
    uint64_t used = ctx->cuda->used;
    pthread_mutex_unlock(&ctx->cuda->lock);
    for (int32_t n = 0; n < ATTN_CUDA_MAX_DEVICES; n++)
        if (used >> n & 1) ATTN_TRY(wait_for(ctx, n, NULL));
    return ATTN_OK;
}
