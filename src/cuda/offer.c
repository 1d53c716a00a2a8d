/* SPDX-License-Identifier: Apache-2.0
 * What the GPUs of a process offer for a forward of host tensors. */
#include "calls.h"
#include <stdio.h>

/* Of a GPU's memory; the rest is for its context, its code and others. */
static const double usable_share = 0.9;

static bool has_failed(const attn_context *ctx, int32_t ordinal)
{
    pthread_mutex_lock(&ctx->cuda->lock);
    const bool failed = ctx->cuda->failed >> ordinal & 1;
    pthread_mutex_unlock(&ctx->cuda->lock);
    return failed;
}

void attn_cuda_give_up(const attn_context *ctx, int32_t ordinal)
{
    pthread_mutex_lock(&ctx->cuda->lock);
    ctx->cuda->failed |= (uint64_t)1 << ordinal;
    pthread_mutex_unlock(&ctx->cuda->lock);
}

/* Seconds, or 0 and why not. */
static double estimate(const attn_context *ctx, const attn_cuda_device *d, const attn_job *job, const attn_work *work,
                       char *why_not, size_t room)
{
    const attn_forward_kernel *kernel;
    char unused[80];
    double partial_bytes;
    if (has_failed(ctx, d->ordinal)) {
        snprintf(why_not, room, "GPU %d has failed before", d->ordinal);
        return 0;
    }
    if (attn_cuda_choose_forward(d, job, &ctx->force, &kernel, unused, sizeof unused) != ATTN_OK) {
        snprintf(why_not, room, "GPU %d has no kernel for it", d->ordinal);
        return 0;
    }
    const attn_gpu_rates rates = {.family = kernel->family,
                                  .capability = d->capability,
                                  .multiprocessors = d->multiprocessors,
                                  .clock_hz = 1e3 * d->clock_khz,
                                  .blocks = attn_cuda_forward_blocks(job, kernel, &partial_bytes)};
    if (work->in_bytes + work->out_bytes + partial_bytes > usable_share * (double)d->memory_bytes) {
        snprintf(why_not, room, "it does not fit into GPU %d", d->ordinal);
        return 0;
    }
    return attn_cost_gpu(&rates, work);
}

void attn_cuda_offer(const attn_context *ctx, const attn_job *job, const attn_work *work, attn_gpu_offer *offer)
{
    attn_cuda_device *devices;
    int32_t count;
    *offer = (attn_gpu_offer){.ordinal = -1, .why_not = "no GPU"};
    if (attn_cuda_devices(&devices, &count) != ATTN_OK) return;
    for (int32_t n = 0; n < count; n++) {
        const double seconds = estimate(ctx, &devices[n], job, work, offer->why_not, sizeof offer->why_not);
        if (seconds <= 0 || (offer->ordinal >= 0 && seconds >= offer->seconds)) continue;
        offer->ordinal = n;
        offer->seconds = seconds;
    }
}
