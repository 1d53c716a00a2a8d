/* SPDX-License-Identifier: Apache-2.0 */
#include "choice.h"
#include <stdarg.h>
#include <stdio.h>

/* A named stream orders work of a GPU that the caller has in mind, but host tensors need no GPU: the CPU serves them, as
 * everywhere without one. A forced level or kernel is the CPU's in a context for all devices. */
bool attn_choice_is_free(const attn_context *ctx, const attn_exec *exec, const attn_survey *survey)
{
    const attn_force *force = &ctx->force;
    return ctx->cuda && ctx->backend == &attn_cpu_backend && survey->gpu < 0 && !exec->device && !exec->stream &&
           !force->stage_never && !force->isa[0] && !force->kernel[0];
}

__attribute__((format(printf, 2, 3))) static void add_reason(attn_plan *plan, const char *format, ...)
{
    const size_t length = strlen(plan->reason);
    va_list args;
    va_start(args, format);
    vsnprintf(plan->reason + length, sizeof plan->reason - length, format, args);
    va_end(args);
}

static attn_status plan_gpu(const attn_context *ctx, const attn_job *job, int32_t ordinal, attn_plan *plan)
{
    *plan = (attn_plan){.backend = ATTN_BACKEND_CUDA, .device = ordinal + 1, .num_splits = 1, .staged = 1};
    return attn_cuda_backend.plan(ctx, ATTN_OP_FORWARD, job, plan);
}

static void note_figures(attn_plan *plan, double cpu_seconds, const attn_gpu_offer *offer)
{
    const bool gpu = plan->backend == ATTN_BACKEND_CUDA;
    plan->cpu_seconds = cpu_seconds;
    plan->gpu_seconds = offer->seconds;
    plan->estimated_seconds = gpu ? offer->seconds : cpu_seconds;
    add_reason(plan, "; CPU %s, ", attn_cost_text(cpu_seconds).text);
    if (offer->ordinal < 0) add_reason(plan, "%s", offer->why_not);
    else add_reason(plan, "GPU %s with copies", attn_cost_text(offer->seconds).text);
}

void attn_choose(const attn_context *ctx, const attn_job *job, const attn_survey *survey, attn_exec *exec,
                 attn_plan *plan)
{
    const double least = attn_cost_worth_asking(survey->asks);
    attn_gpu_offer offer;
    attn_plan other;
    attn_work work;
    if (attn_cost_cpu_bound(plan->isa, plan->threads, ctx->cores, job) < least) return;
    attn_cost_work(job, &work);
    const double cpu_seconds = attn_cost_cpu(attn_cost_level(plan->isa, job), plan->threads, ctx->cores, &work);
    if (cpu_seconds < least) return;
    if (!survey->asks) attn_log(ctx, 2, "the CPU would take %s: a GPU is looked for", attn_cost_text(cpu_seconds).text);
    attn_cuda_offer(ctx, job, &work, &offer);
    if (offer.ordinal >= 0 && offer.seconds < cpu_seconds && plan_gpu(ctx, job, offer.ordinal, &other) == ATTN_OK) {
        *plan = other;
        exec->device = offer.ordinal + 2;
    }
    note_figures(plan, cpu_seconds, &offer);
}

attn_status attn_choice_fit_workspace(const attn_survey *survey, attn_exec *exec, const attn_plan *plan)
{
    const bool gpu = plan->backend == ATTN_BACKEND_CUDA;
    int32_t owner = -1;
    bool readable = true;
    if (!exec->workspace || (!survey->asks && !gpu)) return ATTN_OK;
    ATTN_TRY(attn_cuda_place(exec->workspace, &owner, &readable));
    if (gpu ? owner == plan->device - 1 : readable) return ATTN_OK;
    exec->workspace = NULL;
    exec->workspace_bytes = 0;
    return ATTN_OK;
}

/* What says something about the GPU, not about the call. */
static bool is_of_device(attn_status status)
{
    return status == ATTN_DEVICE_ERROR || status == ATTN_OUT_OF_MEMORY || status == ATTN_NO_DEVICE ||
           status == ATTN_UNSUPPORTED;
}

bool attn_choice_falls_back(const attn_context *ctx, const attn_job *job, attn_status status, attn_exec *exec,
                            attn_plan *plan)
{
    const int32_t ordinal = plan->device - 1;
    const bool chosen = plan->backend == ATTN_BACKEND_CUDA && plan->cpu_seconds > 0;
    if (!chosen || !is_of_device(status)) return false;
    attn_log(ctx, 1, "GPU %d has failed and is not chosen any more, the CPU computes: %s", ordinal, attn_last_error());
    attn_cuda_give_up(ctx, ordinal);
    *plan = (attn_plan){.backend = ATTN_BACKEND_CPU, .num_splits = 1, .threads = ctx->threads};
    exec->device = 0;
    exec->workspace = NULL;
    exec->workspace_bytes = 0;
    return attn_cpu_backend.plan(ctx, ATTN_OP_FORWARD, job, plan) == ATTN_OK;
}
