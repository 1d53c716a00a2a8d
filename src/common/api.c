/* SPDX-License-Identifier: Apache-2.0
 * The calls that compute: import, validate, plan, find a workspace, run. */
#include "choice.h"
#include "validate.h"
#include <stdio.h>

static attn_status check_context(const attn_context *ctx)
{
    return ctx ? ATTN_OK : attn_fail(ATTN_INVALID_ARGUMENT, "ctx is NULL");
}

/* Who serves a call, once the survey has had its say. */
static const attn_backend_table *serving(const attn_context *ctx, const attn_exec *exec)
{
    return exec->device > 1 ? &attn_cuda_backend : ctx->backend;
}

static attn_status first_plan(const attn_context *ctx, const attn_exec *exec, const attn_survey *survey,
                              attn_plan *plan)
{
    const attn_backend_table *backend = serving(ctx, exec);
    *plan = (attn_plan){.backend = (int32_t)backend->id, .num_splits = 1};
    if (backend != &attn_cuda_backend) {
        plan->threads = ctx->threads;
        return ATTN_OK;
    }
    plan->device = survey->gpu + 1;
    plan->staged = survey->host != NULL;
    if (plan->staged && ctx->force.stage_never)
        return attn_fail(ATTN_UNSUPPORTED, "%s: host memory, GPU %d computes, and stage=never is forced",
                         attn_survey_name(survey->host, survey->part).text, survey->gpu);
    return ATTN_OK;
}

/* Operations without a choice of kernels; `there` is the backend's function. seconds: of one thread of a CPU, about; below
 * 0.1 ms waking others costs more than they save. */
static attn_status plan_portable(const attn_context *ctx, const attn_backend_table *backend, bool there,
                                 const char *operation, double seconds, attn_plan *plan)
{
    if (!there)
        return attn_fail(ATTN_UNSUPPORTED, "%s: the %s backend has no kernel for it yet; the cpu backend computes it",
                         operation, backend->name);
    bool gpu = backend == &attn_cuda_backend;
    if (!gpu && !ctx->force.threads && seconds < 1e-4) plan->threads = 1;
    const char *kernel_end = plan->kernel + sizeof plan->kernel, *reason_end = plan->reason + sizeof plan->reason;
    char *at = attn_add_text(plan->kernel, kernel_end, operation);
    at = attn_add_text(at, kernel_end, "_");
    attn_add_text(at, kernel_end, backend->name);
    attn_add_text(plan->isa, plan->isa + sizeof plan->isa, gpu ? "simt" : "portable");
    if (gpu)
        snprintf(plan->reason, sizeof plan->reason, "%s GPU %d; one implementation for all GPUs",
                 plan->staged ? "host tensors are staged on" : "tensors of", plan->device - 1);
    else attn_add_text(plan->reason, reason_end, "host tensors; one portable implementation");
    return ATTN_OK;
}

static attn_status plan_mask(const attn_context *ctx, const attn_backend_table *backend, const attn_job *job,
                             attn_plan *plan)
{
    const double pairs = (double)job->batch * (double)job->heads_q * (double)job->max_q * (double)job->max_k;
    return plan_portable(ctx, backend, backend->dropout_mask, "dropout_mask", 12e-9 * pairs, plan);
}

/* From here on exec names the GPU where one computes. */
static void settle_device(const attn_survey *survey, attn_exec *exec)
{
    if (survey->gpu >= 0) exec->device = survey->gpu + 2;
}

static bool must_check_indices(const attn_context *ctx, const attn_survey *survey)
{
    return (ctx->flags & ATTN_CFG_CHECK_INDICES) && !survey->readable;
}

/* Runs the whole way from the caller's structs to a plan; nothing has been written when it fails. `keep`: of
 * attn_dropout_mask, else NULL. */
static attn_status prepare(const attn_context *ctx, attn_op op, const attn_problem *problem, const attn_grads *grads,
                           const attn_tensor *keep, const attn_exec *given, attn_job *job, attn_exec *exec,
                           attn_plan *plan)
{
    attn_problem p;
    attn_grads g;
    attn_survey survey;
    ATTN_TRY(check_context(ctx));
    ATTN_TRY(attn_check_exec(ctx, given, exec));
    ATTN_TRY(attn_import(&p, sizeof p, problem, "problem"));
    attn_survey_begin(&survey, ctx, exec);
    if (survey.asks) ATTN_TRY(attn_survey_problem(&survey, &p));
    ATTN_TRY(attn_validate_problem(&p, survey.readable, job));
    if (op == ATTN_OP_BACKWARD) {
        ATTN_TRY(attn_import(&g, sizeof g, grads, "grads"));
        if (survey.asks) ATTN_TRY(attn_survey_grads(&survey, &g));
        ATTN_TRY(attn_validate_grads(&p, &g, job));
    } else if (op == ATTN_OP_DROPOUT_MASK) {
        if (keep && survey.asks) ATTN_TRY(attn_survey_mask(&survey, job, keep));
    } else if (op != ATTN_OP_FORWARD) {
        return attn_fail(ATTN_INVALID_ARGUMENT, "op: %d is no attn_op", (int)op);
    }
    settle_device(&survey, exec);
    if (must_check_indices(ctx, &survey)) ATTN_TRY(attn_check_problem_indices(ctx, exec, &p, job));
    if (!job->num_splits) job->num_splits = ctx->force.splits;
    const attn_backend_table *backend = serving(ctx, exec);
    ATTN_TRY(first_plan(ctx, exec, &survey, plan));
    if (op == ATTN_OP_DROPOUT_MASK) ATTN_TRY(plan_mask(ctx, backend, job, plan));
    else ATTN_TRY(backend->plan(ctx, op, job, plan));
    if (op == ATTN_OP_FORWARD && attn_choice_is_free(ctx, exec, &survey)) {
        attn_choose(ctx, job, &survey, exec, plan);
        ATTN_TRY(attn_choice_fit_workspace(&survey, exec, plan));
    }
    if (!ctx->force.kernel[0]) return ATTN_OK;
    /* A forced forward kernel leaves backward free, and the other way round. */
    size_t operation = strcspn(plan->kernel, "_");
    if (strncmp(ctx->force.kernel, plan->kernel, operation) == 0 && !attn_kernel_is(plan->kernel, ctx->force.kernel))
        return attn_fail(ATTN_UNSUPPORTED, "kernel=%s is forced, but this problem is served by %s", ctx->force.kernel,
                         plan->kernel);
    return ATTN_OK;
}

typedef attn_status attn_run(const attn_context *ctx, const attn_job *job, const attn_plan *plan,
                             const attn_exec *exec);

enum { SMALL_WORKSPACE = 48 << 10 };

/* A workspace on the stack: what small calls need costs them no allocation. */
static __attribute__((noinline)) attn_status run_small(const attn_context *ctx, attn_run *body, const attn_job *job,
                                                       attn_exec *exec, const attn_plan *plan)
{
    _Alignas(64) char workspace[SMALL_WORKSPACE];
    exec->workspace = workspace;
    return body(ctx, job, plan, exec);
}

/* The host's workspace comes from here, a GPU's from its backend. */
static attn_status run(const attn_context *ctx, attn_run *body, const attn_job *job, attn_exec *exec,
                       const attn_plan *plan)
{
    if (exec->workspace && exec->workspace_bytes < plan->workspace_bytes)
        return attn_fail(ATTN_WORKSPACE_TOO_SMALL, "exec.workspace_bytes: %zu, this call needs %zu",
                         exec->workspace_bytes, plan->workspace_bytes);
    if (exec->workspace || plan->backend == ATTN_BACKEND_CUDA) return body(ctx, job, plan, exec);
    if (plan->workspace_bytes <= SMALL_WORKSPACE) return run_small(ctx, body, job, exec, plan);
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
    ATTN_TRY(prepare(ctx, op, problem, grads, NULL, exec, &job, &e, &made));
    return plan ? attn_export(plan, &made, sizeof made, "plan") : ATTN_OK;
}

attn_status attn_forward(attn_context *ctx, const attn_problem *problem, const attn_exec *exec)
{
    attn_job job;
    attn_exec e;
    attn_plan plan;
    ATTN_TRY(prepare(ctx, ATTN_OP_FORWARD, problem, NULL, NULL, exec, &job, &e, &plan));
    attn_status status = run(ctx, serving(ctx, &e)->forward, &job, &e, &plan);
    if (status != ATTN_OK && attn_choice_falls_back(ctx, &job, status, &e, &plan))
        status = run(ctx, attn_cpu_backend.forward, &job, &e, &plan);
    return status;
}

attn_status attn_backward(attn_context *ctx, const attn_problem *problem, const attn_grads *grads,
                          const attn_exec *exec)
{
    attn_job job;
    attn_exec e;
    attn_plan plan;
    ATTN_TRY(prepare(ctx, ATTN_OP_BACKWARD, problem, grads, NULL, exec, &job, &e, &plan));
    return run(ctx, serving(ctx, &e)->backward, &job, &e, &plan);
}

/* ---- append, merge, dropout mask: no workspace, one kernel each ------------------------------ */

/* What `prepare` is for problems: from the caller's structs to a plan. */
static attn_status prepare_append(const attn_context *ctx, const attn_append *append, const attn_exec *given,
                                  attn_append_job *job, attn_exec *exec, attn_plan *plan)
{
    attn_append a;
    attn_survey survey;
    ATTN_TRY(check_context(ctx));
    ATTN_TRY(attn_check_exec(ctx, given, exec));
    ATTN_TRY(attn_import(&a, sizeof a, append, "append"));
    attn_survey_begin(&survey, ctx, exec);
    if (survey.asks) ATTN_TRY(attn_survey_append(&survey, &a));
    ATTN_TRY(attn_validate_append(&a, survey.readable, job));
    settle_device(&survey, exec);
    if (must_check_indices(ctx, &survey)) ATTN_TRY(attn_check_append_indices(ctx, exec, &a, job));
    ATTN_TRY(first_plan(ctx, exec, &survey, plan));
    const attn_backend_table *backend = serving(ctx, exec);
    const double rows = (double)job->batch * (double)job->max_new * (double)(job->heads_kv + job->heads_q);
    const double elements = rows * (double)(job->head_dim + job->head_dim_v);
    return plan_portable(ctx, backend, backend->append, "append", 1.5e-9 * elements, plan);
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
    attn_survey survey;
    ATTN_TRY(check_context(ctx));
    ATTN_TRY(attn_check_exec(ctx, given, exec));
    ATTN_TRY(attn_validate_merge(n, out_parts, lse_parts, out, lse, job));
    attn_survey_begin(&survey, ctx, exec);
    if (survey.asks) ATTN_TRY(attn_survey_merge(&survey, job, out, lse));
    settle_device(&survey, exec);
    ATTN_TRY(first_plan(ctx, exec, &survey, plan));
    const attn_backend_table *backend = serving(ctx, exec);
    const double rows = (double)job->shape[0] * (double)job->shape[1] * (double)job->shape[2];
    const double elements = rows * (double)job->shape[3] * (double)job->parts;
    return plan_portable(ctx, backend, backend->merge, "merge", 3e-9 * elements, plan);
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
    ATTN_TRY(prepare(ctx, ATTN_OP_DROPOUT_MASK, problem, NULL, keep, exec, &job, &e, &plan));
    if (!keep) return attn_fail(ATTN_INVALID_ARGUMENT, "keep is NULL");
    ATTN_TRY(attn_validate_keep(&job, keep, &view));
    return serving(ctx, &e)->dropout_mask(ctx, &job, &view, &plan, &e);
}
