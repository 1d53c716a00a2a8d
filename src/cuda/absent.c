/* SPDX-License-Identifier: Apache-2.0
 * In place of the CUDA backend in a library built with ATTN_CUDA=OFF. Contexts never hold a GPU, so only the two
 * questions for devices are ever asked. */
#include "internal.h"

static attn_status absent(void) { return attn_fail(ATTN_NO_DEVICE, "this library was built without CUDA"); }

bool attn_cuda_is_family(const char *word)
{
    (void)word;
    return false;
}

attn_status attn_cuda_count(int32_t *count)
{
    *count = 0;
    return absent();
}

attn_status attn_cuda_info(int32_t ordinal, attn_device_info *info)
{
    (void)ordinal, (void)info;
    return absent();
}

void attn_cuda_driver_text(char *text, size_t room)
{
    if (room) *text = '\0';
}

attn_status attn_cuda_state_new(attn_context *ctx)
{
    ctx->cuda = NULL;
    return ATTN_OK;
}

void attn_cuda_state_free(attn_context *ctx) { (void)ctx; }

attn_status attn_cuda_malloc(const attn_context *ctx, int32_t ordinal, size_t bytes, void **out)
{
    (void)ctx, (void)ordinal, (void)bytes, (void)out;
    return absent();
}

bool attn_cuda_free(const attn_context *ctx, void *pointer)
{
    (void)ctx, (void)pointer;
    return false;
}

attn_status attn_cuda_copy(const attn_context *ctx, void *dst, const void *src, size_t bytes, bool upload,
                           const attn_exec *exec, bool *done)
{
    (void)ctx, (void)dst, (void)src, (void)bytes, (void)upload, (void)exec;
    *done = false;
    return ATTN_OK;
}

attn_status attn_cuda_sync(const attn_context *ctx, const attn_exec *exec)
{
    (void)ctx, (void)exec;
    return ATTN_OK;
}

bool attn_cuda_active(void) { return false; }

attn_status attn_cuda_place(const void *pointer, int32_t *ordinal, bool *readable)
{
    (void)pointer;
    *ordinal = -1;
    *readable = true;
    return ATTN_OK;
}

void attn_cuda_offer(const attn_context *ctx, const attn_job *job, const attn_work *work, attn_gpu_offer *offer)
{
    (void)ctx, (void)job, (void)work;
    *offer = (attn_gpu_offer){.ordinal = -1, .why_not = "this library was built without CUDA"};
}

void attn_cuda_give_up(const attn_context *ctx, int32_t ordinal) { (void)ctx, (void)ordinal; }

static bool has_kernel(const char *kernel)
{
    (void)kernel;
    return false;
}

static attn_status plan_none(const attn_context *ctx, attn_op op, const attn_job *job, attn_plan *plan)
{
    (void)ctx, (void)op, (void)job, (void)plan;
    return absent();
}

const attn_backend_table attn_cuda_backend = {
    .id = ATTN_BACKEND_CUDA,
    .name = "cuda",
    .has_kernel = has_kernel,
    .plan = plan_none,
};
