/* SPDX-License-Identifier: Apache-2.0
 * The calls that compute: import, validate, plan, find a workspace, run. */
#include "validate.h"
#include <stdio.h>

static attn_status check_context(const attn_context *ctx)
{
    return ctx ? ATTN_OK : attn_fail(ATTN_INVALID_ARGUMENT, "ctx is NULL");
}

/* Who serves a call. A context for all devices sends it to a GPU only where exec asks for one: nothing is there yet
 * to choose between. */
static const attn_backend_table *serving(const attn_context *ctx, const attn_exec *exec)
{
    return exec->device > 1 ? &attn_cuda_backend : ctx->backend;
}

static attn_plan first_plan(const attn_context *ctx, const attn_exec *exec)
{
    const attn_backend_table *backend = serving(ctx, exec);
    attn_plan plan = {.backend = (int32_t)backend->id, .num_splits = 1};
    if (backend == &attn_cuda_backend) plan.device = exec->device ? exec->device - 1 : ctx->gpu + 1;
    else plan.threads = ctx->threads;
    return plan;
}

/* Operations without a choice of kernels; `there` is the backend's function. */
static attn_status plan_portable(const attn_backend_table *backend, bool there, const char *operation, attn_plan *plan)
{
    if (!there)
        return attn_fail(ATTN_UNSUPPORTED, "%s: the %s backend has no kernel for it yet; the cpu backend computes it",
                         operation, backend->name);
    snprintf(plan->kernel, sizeof plan->kernel, "%s_%s", operation, backend->name);
    bool gpu = backend == &attn_cuda_backend;
    snprintf(plan->isa, sizeof plan->isa, "%s", gpu ? "simt" : "portable");
    snprintf(plan->reason, sizeof plan->reason, "%s",
             gpu ? "a GPU's tensors; one implementation for all GPUs" : "host tensors; one portable implementation");
    return ATTN_OK;
}

/* Whether the host may read length arrays and page tables, which live where `data` lives. */
static attn_status find_readable(const attn_backend_table *backend, const void *data, bool *readable)
{
    *readable = true;
    return backend == &attn_cuda_backend ? attn_cuda_readable(data, readable) : ATTN_OK;
}

/* Runs the whole way from the caller's structs to a plan; nothing has been written when it fails. */
static attn_status prepare(const attn_context *ctx, attn_op op, const attn_problem *problem, const attn_grads *grads,
                           const attn_exec *given, attn_job *job, attn_exec *exec, attn_plan *plan)
{
    attn_problem p;
    attn_grads g;
    bool readable;
    ATTN_TRY(check_context(ctx));
    ATTN_TRY(attn_check_exec(ctx, given, exec));
    ATTN_TRY(attn_import(&p, sizeof p, problem, "problem"));
    const attn_backend_table *backend = serving(ctx, exec);
    ATTN_TRY(find_readable(backend, p.q.data, &readable));
    ATTN_TRY(attn_validate_problem(&p, readable, job));
    if (op == ATTN_OP_BACKWARD) {
        ATTN_TRY(attn_import(&g, sizeof g, grads, "grads"));
        ATTN_TRY(attn_validate_grads(&p, &g, job));
    } else if (op != ATTN_OP_FORWARD && op != ATTN_OP_DROPOUT_MASK) {
        return attn_fail(ATTN_INVALID_ARGUMENT, "op: %d is no attn_op", (int)op);
    }
    if (!job->num_splits) job->num_splits = ctx->force.splits;
    *plan = first_plan(ctx, exec);
    if (op == ATTN_OP_DROPOUT_MASK) ATTN_TRY(plan_portable(backend, backend->dropout_mask, "dropout_mask", plan));
    else ATTN_TRY(backend->plan(ctx, op, job, plan));
    /* A forced forward kernel leaves backward free, and the other way round. */
    size_t operation = strcspn(plan->kernel, "_");
    if (strncmp(ctx->force.kernel, plan->kernel, operation) == 0 && strcmp(ctx->force.kernel, plan->kernel) != 0)
        return attn_fail(ATTN_UNSUPPORTED, "kernel=%s is forced, but this problem is served by %s", ctx->force.kernel,
                         plan->kernel);
    return ATTN_OK;
}

typedef attn_status attn_run(const attn_context *ctx, const attn_job *job, const attn_plan *plan,
                             const attn_exec *exec);

/* The host's workspace comes from here, a GPU's from its backend. */
static attn_status run(const attn_context *ctx, attn_run *body, const attn_job *job, attn_exec *exec,
                       const attn_plan *plan)
{
    if (exec->workspace && exec->workspace_bytes < plan->workspace_bytes)
        return attn_fail(ATTN_WORKSPACE_TOO_SMALL, "exec.workspace_bytes: %zu, this call needs %zu",
                         exec->workspace_bytes, plan->workspace_bytes);
    if (exec->workspace || plan->backend == ATTN_BACKEND_CUDA) return body(ctx, job, plan, exec);
    exec->workspace = attn_context_alloc(ctx, plan->workspace_bytes);
    if (!exec->workspace)
        return attn_fail(ATTN_OUT_OF_MEMORY, "no host memory for a workspace of %zu bytes", plan->workspace_bytes);
    attn_status status = body(ctx, job, plan, exec);
    attn_context_release(ctx, exec->workspace);
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
    return run(ctx, serving(ctx, &e)->forward, &job, &e, &plan);
}

attn_status attn_backward(attn_context *ctx, const attn_problem *problem, const attn_grads *grads,
                          const attn_exec *exec)
{
    attn_job job;
    attn_exec e;
    attn_plan plan;
    ATTN_TRY(prepare(ctx, ATTN_OP_BACKWARD, problem, grads, exec, &job, &e, &plan));
    return run(ctx, serving(ctx, &e)->backward, &job, &e, &plan);
}

/* ---- append, merge, dropout mask: no workspace, one kernel each ------------------------------ */

/* What `prepare` is for problems: from the caller's structs to a plan. */
static attn_status prepare_append(const attn_context *ctx, const attn_append *append, const attn_exec *given,
                                  attn_append_job *job, attn_exec *exec, attn_plan *plan)
{
    attn_append a;
    bool readable;
    ATTN_TRY(check_context(ctx));
    ATTN_TRY(attn_check_exec(ctx, given, exec));
    ATTN_TRY(attn_import(&a, sizeof a, append, "append"));
    const attn_backend_table *backend = serving(ctx, exec);
    ATTN_TRY(find_readable(backend, a.k_new.data, &readable));
    ATTN_TRY(attn_validate_append(&a, readable, job));
    *plan = first_plan(ctx, exec);
    return plan_portable(backend, backend->append, "append", plan);
}

attn_status attn_query_append(attn_context *ctx, const attn_append *append, const attn_exec *exec, attn_plan *plan)
{
    attn_append_job job;
    attn_exec e;
    attn_plan made;
    ATTN_TRY(prepare_append(ctx, append, exec, &job, &e, &made));
    return plan ? attn_export(plan, &made, sizeof made, "plan") : ATTN_OK;
}

attn_status attn_kv_append(attn_context *ctx, const attn_append *append, const attn_exec *exec)
{
    attn_append_job job;
    attn_exec e;
    attn_plan plan;
    ATTN_TRY(prepare_append(ctx, append, exec, &job, &e, &plan));
    return serving(ctx, &e)->append(ctx, &job, &plan, &e);
}

static attn_status prepare_merge(const attn_context *ctx, int32_t n, const attn_tensor *out_parts,
                                 const attn_tensor *lse_parts, const attn_tensor *out, const attn_tensor *lse,
                                 const attn_exec *given, attn_merge_job *job, attn_exec *exec, attn_plan *plan)
{
    ATTN_TRY(check_context(ctx));
    ATTN_TRY(attn_check_exec(ctx, given, exec));
    ATTN_TRY(attn_validate_merge(n, out_parts, lse_parts, out, lse, job));
    *plan = first_plan(ctx, exec);
    return plan_portable(serving(ctx, exec), serving(ctx, exec)->merge, "merge", plan);
}

attn_status attn_query_merge(attn_context *ctx, int32_t n, const attn_tensor *out_parts, const attn_tensor *lse_parts,
                             const attn_tensor *out, const attn_tensor *lse, const attn_exec *exec, attn_plan *plan)
{
    attn_merge_job job;
    attn_exec e;
    attn_plan made;
    ATTN_TRY(prepare_merge(ctx, n, out_parts, lse_parts, out, lse, exec, &job, &e, &made));
    return plan ? attn_export(plan, &made, sizeof made, "plan") : ATTN_OK;
}

attn_status attn_merge(attn_context *ctx, int32_t n, const attn_tensor *out_parts, const attn_tensor *lse_parts,
                       const attn_tensor *out, const attn_tensor *lse, const attn_exec *exec)
{
    attn_merge_job job;
    attn_exec e;
    attn_plan plan;
    ATTN_TRY(prepare_merge(ctx, n, out_parts, lse_parts, out, lse, exec, &job, &e, &plan));
    return serving(ctx, &e)->merge(ctx, &job, &plan, &e);
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
    return serving(ctx, &e)->dropout_mask(ctx, &job, &view, &plan, &e);
}
