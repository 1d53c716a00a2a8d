/* SPDX-License-Identifier: Apache-2.0
 * The reference as a backend. */
#include "../cpu/level.h"
#include "ref.h"
#include <stdio.h>

static bool has_kernel(const char *kernel)
{
    return strcmp(kernel, "forward_reference") == 0 || strcmp(kernel, "backward_reference") == 0;
}

static attn_status plan_reference(const attn_context *ctx, attn_op op, const attn_job *job, attn_plan *plan)
{
    double rows =
        op == ATTN_OP_BACKWARD ? (job->q_span.offsets ? 1.0 : (double)job->batch) * (double)job->heads_q : 0.0;
    double statistics = rows * (double)attn_round_up(job->q_span.room, 8) * 3 * sizeof(double);
    if (statistics > 7e13)
        return attn_fail(ATTN_OUT_OF_MEMORY, "this problem needs a workspace of %.3g bytes", statistics);
    if (op == ATTN_OP_BACKWARD || !attn_job_is_empty(job))
        plan->workspace_bytes = (size_t)statistics + (size_t)ctx->threads * attn_ref_tiles_bytes(job);
    snprintf(plan->isa, sizeof plan->isa, "float64");
    snprintf(plan->kernel, sizeof plan->kernel, "%s_reference", op == ATTN_OP_BACKWARD ? "backward" : "forward");
    snprintf(plan->reason, sizeof plan->reason, "the float64 reference was asked for");
    return ATTN_OK;
}

/* Appending is arithmetic that leaves no choice, the mask is integer arithmetic, and merging is done in
 * float64 anyway: all three are the CPU's. */
const attn_backend_table attn_ref_backend = {
    .id = ATTN_BACKEND_REFERENCE,
    .name = "reference",
    .has_kernel = has_kernel,
    .plan = plan_reference,
    .forward = attn_ref_forward,
    .backward = attn_ref_backward,
    .append = attn_cpu_append,
    .merge = attn_cpu_merge,
    .dropout_mask = attn_cpu_dropout_mask,
};
