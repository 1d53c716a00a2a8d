/* SPDX-License-Identifier: Apache-2.0
 * The calls that compute: import, validate, plan, find a workspace, run. */
#include "validate.h"
#include <stdio.h>

static attn_status check_context(const attn_context *ctx)
{
    return ctx ? ATTN_OK : attn_fail(ATTN_INVALID_ARGUMENT, "ctx is NULL");
}

static attn_plan first_plan(const attn_context *ctx)
{
    return (attn_plan){.backend = (int32_t)ctx->backend->id, .threads = ctx->threads, .num_splits = 1};
}

/* Operations without a choice of kernels. */
static void plan_portable(const attn_context *ctx, const char *operation, attn_plan *plan)
{
    snprintf(plan->kernel, sizeof plan->kernel, "%s_%s", operation, ctx->backend->name);
    snprintf(plan->isa, sizeof plan->isa, "portable");
    snprintf(plan->reason, sizeof plan->reason, "host tensors; one portable implementation");
}

/* Runs the whole way from the caller's structs to a plan; nothing has been written when it fails. */
static attn_status prepare(const attn_context *ctx, attn_op op, const attn_problem *problem, const attn_grads *grads,
                           const attn_exec *given, attn_job *job, attn_exec *exec, attn_plan *plan)
{
    attn_problem p;
    attn_grads g;
    ATTN_TRY(check_context(ctx));
    ATTN_TRY(attn_check_exec(given, exec));
    ATTN_TRY(attn_import(&p, sizeof p, problem, "problem"));
    ATTN_TRY(attn_validate_problem(&p, job));
    if (op == ATTN_OP_BACKWARD) {
        ATTN_TRY(attn_import(&g, sizeof g, grads, "grads"));
        ATTN_TRY(attn_validate_grads(&p, &g, job));
    } else if (op != ATTN_OP_FORWARD && op != ATTN_OP_DROPOUT_MASK) {
        return attn_fail(ATTN_INVALID_ARGUMENT, "op: %d is no attn_op", (int)op);
    }
    if (!job->num_splits) job->num_splits = ctx->force.splits;
    *plan = first_plan(ctx);
    if (op == ATTN_OP_DROPOUT_MASK) plan_portable(ctx, "dropout_mask", plan);
    else ATTN_TRY(ctx->backend->plan(ctx, op, job, plan));
    /* A forced forward kernel leaves backward free, and the other way round. */
    size_t operation = strcspn(plan->kernel, "_");
    if (strncmp(ctx->force.kernel, plan->kernel, operation) == 0 && strcmp(ctx->force.kernel, plan->kernel) != 0)
        return attn_fail(ATTN_UNSUPPORTED, "kernel=%s is forced, but this problem is served by %s", ctx->force.kernel,
                         plan->kernel);
    return ATTN_OK;
}

typedef attn_status attn_run(const attn_context *ctx, const attn_job *job, const attn_plan *plan, void *workspace);

static attn_status run(const attn_context *ctx, attn_run *body, const attn_job *job, const attn_exec *exec,
                       const attn_plan *plan)
{
    if (exec->workspace) {
        if (exec->workspace_bytes < plan->workspace_bytes)
            return attn_fail(ATTN_WORKSPACE_TOO_SMALL, "exec.workspace_bytes: %zu, this call needs %zu",
                             exec->workspace_bytes, plan->workspace_bytes);
        return body(ctx, job, plan, exec->workspace);
    }
    void *workspace = attn_context_alloc(ctx, plan->workspace_bytes);
    if (!workspace)
        return attn_fail(ATTN_OUT_OF_MEMORY, "no host memory for a workspace of %zu bytes", plan->workspace_bytes);
    attn_status status = body(ctx, job, plan, workspace);
    attn_context_release(ctx, workspace);
    return status;
}

attn_status attn_query(attn_context *ctx, attn_op op, const attn_problem *problem, const attn_grads *grads,
                       const attn_exec *exec, attn_plan *plan)
{
    attn_job job;
    attn_exec e;
    attn_plan made;
    ATTN_TRY(prepare(ctx, op, problem, grads, exec, &job, &e, &made));
    return plan ? attn_export(plan, &made, sizeof made, "plan") : ATTN_OK;
}

attn_status attn_forward(attn_context *ctx, const attn_problem *problem, const attn_exec *exec)
{
    attn_job job;
    attn_exec e;
    attn_plan plan;
    ATTN_TRY(prepare(ctx, ATTN_OP_FORWARD, problem, NULL, exec, &job, &e, &plan));
    return run(ctx, ctx->backend->forward, &job, &e, &plan);
}

attn_status attn_backward(attn_context *ctx, const attn_problem *problem, const attn_grads *grads,
                          const attn_exec *exec)
{
    attn_job job;
    attn_exec e;
    attn_plan plan;
    ATTN_TRY(prepare(ctx, ATTN_OP_BACKWARD, problem, grads, exec, &job, &e, &plan));
    return run(ctx, ctx->backend->backward, &job, &e, &plan);
}

/* ---- append, merge, dropout mask: no workspace, one kernel each ------------------------------ */

static attn_status export_plan(const attn_context *ctx, const char *operation, attn_plan *plan)
{
    attn_plan made = first_plan(ctx);
    plan_portable(ctx, operation, &made);
    return plan ? attn_export(plan, &made, sizeof made, "plan") : ATTN_OK;
}

static attn_status prepare_append(const attn_context *ctx, const attn_append *append, const attn_exec *exec,
                                  attn_append_job *job)
{
    attn_append a;
    attn_exec e;
    ATTN_TRY(check_context(ctx));
    ATTN_TRY(attn_check_exec(exec, &e));
    ATTN_TRY(attn_import(&a, sizeof a, append, "append"));
    return attn_validate_append(&a, job);
}

attn_status attn_query_append(attn_context *ctx, const attn_append *append, const attn_exec *exec, attn_plan *plan)
{
    attn_append_job job;
    ATTN_TRY(prepare_append(ctx, append, exec, &job));
    return export_plan(ctx, "append", plan);
}

attn_status attn_kv_append(attn_context *ctx, const attn_append *append, const attn_exec *exec)
{
    attn_append_job job;
    ATTN_TRY(prepare_append(ctx, append, exec, &job));
    return ctx->backend->append(ctx, &job);
}

static attn_status prepare_merge(const attn_context *ctx, int32_t n, const attn_tensor *out_parts,
                                 const attn_tensor *lse_parts, const attn_tensor *out, const attn_tensor *lse,
                                 const attn_exec *exec, attn_merge_job *job)
{
    attn_exec e;
    ATTN_TRY(check_context(ctx));
    ATTN_TRY(attn_check_exec(exec, &e));
    return attn_validate_merge(n, out_parts, lse_parts, out, lse, job);
}

attn_status attn_query_merge(attn_context *ctx, int32_t n, const attn_tensor *out_parts, const attn_tensor *lse_parts,
                             const attn_tensor *out, const attn_tensor *lse, const attn_exec *exec, attn_plan *plan)
{
    attn_merge_job job;
    ATTN_TRY(prepare_merge(ctx, n, out_parts, lse_parts, out, lse, exec, &job));
    return export_plan(ctx, "merge", plan);
}

attn_status attn_merge(attn_context *ctx, int32_t n, const attn_tensor *out_parts, const attn_tensor *lse_parts,
                       const attn_tensor *out, const attn_tensor *lse, const attn_exec *exec)
{
    attn_merge_job job;
    ATTN_TRY(prepare_merge(ctx, n, out_parts, lse_parts, out, lse, exec, &job));
    return ctx->backend->merge(ctx, &job);
}

attn_status attn_dropout_mask(attn_context *ctx, const attn_problem *problem, const attn_tensor *keep,
                              const attn_exec *exec)
{
    attn_job job;
    attn_exec e;
    attn_plan plan;
    attn_view view;
    ATTN_TRY(prepare(ctx, ATTN_OP_DROPOUT_MASK, problem, NULL, exec, &job, &e, &plan));
    if (!keep) return attn_fail(ATTN_INVALID_ARGUMENT, "keep is NULL");
    ATTN_TRY(attn_validate_keep(&job, keep, &view));
    return ctx->backend->dropout_mask(ctx, &job, &view);
}
