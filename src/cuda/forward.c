/* SPDX-License-Identifier: Apache-2.0
 * The forward on a GPU: one of forward_kernels.c for all rows and pieces of keys, simt_forward_fold where sequences were cut, and
 * simt_forward_pad for rows that a sequence owns and does not use. The host reads no length: grids are made for the
 * sizes of the problem, and tasks that a sequence lacks end at once.
 *
 * A kernel that has doubts is followed by one of simt, which does again what the first has marked; it is always launched, as the host
 * waits for nothing, and leaves at once where nothing is marked.
 *
 * Where a kernel for few queries serves some sequences of a batch and another the rest, each has a launch, which passes over the other's:
 * they round differently, and neither the longest nor any other sequence of a batch may decide how one is rounded.
 *
 * Workspace, in GPU memory: partial results [B][Hkv][row][piece][Dv + 4, a multiple of 4] in float32, if any sequence can be cut; doubts [task][2]. */
#include "calls.h"
#include "kernels/params.h"
#include <math.h>
#include <stdio.h>

/* Bounds that hold whatever the length arrays say. */
static attn_simt_forward parameters_of(const attn_job *job, const attn_forward_kernel *kernel)
{
    attn_simt_forward p = {.job = *job, .pieces = 1};
    const int64_t few = attn_min(job->max_q, SIMT_FEW);
    const int64_t rows = kernel->few ? attn_min(few * job->group, SIMT_FEW_ROWS) : job->max_q * job->group;
    p.row_blocks = attn_max(1, attn_ceil_div(rows, kernel->rows));
    if (job->num_splits) p.pieces = attn_max(1, attn_min(job->num_splits, attn_ceil_div(job->max_k, SIMT_KEYS)));
    else if (job->max_q <= SIMT_FEW || attn_cuda_has_lengths(&job->q_span))
        p.pieces = attn_max(attn_simt_pieces(job, few, job->max_k),
                            attn_simt_pieces(job, few, attn_min(job->max_k, SIMT_PIECE * SIMT_PIECES)));
    p.row_room = (job->num_splits ? job->max_q : few) * job->group;
    return p;
}

/* Doubles, because the sizes may be anything and only what fits in memory has to be exact. */
static double partial_bytes(const attn_simt_forward *p)
{
    const attn_job *job = &p->job;
    if (p->pieces == 1) return 0;
    return (double)job->batch * (double)job->heads_kv * (double)p->row_room * (double)p->pieces *
           (double)attn_simt_partial_floats(job->head_dim_v) * sizeof(float);
}

static double task_count(const attn_simt_forward *p)
{
    return (double)p->job.batch * (double)p->job.heads_kv * (double)p->row_blocks * (double)p->pieces;
}

static double workspace_bytes(const attn_simt_forward *p, const attn_forward_kernel *kernel)
{
    return partial_bytes(p) + (kernel->has_doubts ? task_count(p) * 2 * sizeof(uint32_t) : 0);
}

double attn_cuda_forward_blocks(const attn_job *job, const attn_forward_kernel *kernel, double *bytes)
{
    const attn_simt_forward p = parameters_of(job, kernel);
    *bytes = workspace_bytes(&p, kernel);
    return task_count(&p);
}

attn_status attn_cuda_plan_forward(const attn_context *ctx, const attn_job *job, attn_plan *plan)
{
    const attn_forward_kernel *kernel;
    attn_cuda_device *d;
    char why[80];
    ATTN_TRY(attn_cuda_find(plan->device - 1, &d));
    ATTN_TRY(attn_cuda_choose_forward(d, job, &ctx->force, &kernel, why, sizeof why));
    const attn_simt_forward p = parameters_of(job, kernel);
    const double bytes = workspace_bytes(&p, kernel);
    if (bytes > 7e13 || task_count(&p) > 9e18)
        return attn_fail(ATTN_OUT_OF_MEMORY, "this problem needs a workspace of %.3g bytes", bytes);
    plan->workspace_bytes = attn_job_is_empty(job) ? 0 : (size_t)bytes;
    plan->num_splits = (int32_t)attn_simt_pieces(job, job->max_q, job->max_k);
    snprintf(plan->isa, sizeof plan->isa, "%s", kernel->family);
    snprintf(plan->kernel, sizeof plan->kernel, "%s", kernel->label);
    const attn_forward_kernel *few = attn_cuda_few_forward(d, job, &ctx->force, kernel);
    snprintf(plan->reason, sizeof plan->reason, "%s GPU %d (sm_%d); %s%s%s",
             plan->staged ? "host tensors are staged on" : "tensors of", d->ordinal, d->capability, why,
             few ? "; few queries by " : "", few ? few->label : "");
    return ATTN_OK;
}

static attn_status launch(attn_cuda_device *d, const char *module, const char *kernel, const attn_simt_forward *p,
                          double blocks, unsigned threads, unsigned shared, CUstream stream)
{
    attn_cuda_launch l = {.blocks = attn_cuda_grid(blocks),
                          .threads = threads,
                          .shared_bytes = shared,
                          .parameters = p,
                          .parameter_bytes = sizeof *p};
    ATTN_TRY(attn_cuda_kernel(d, module, kernel, shared, &l.function));
    return attn_cuda_run(d, &l, stream);
}

typedef struct forward_call {
    const attn_forward_kernel *kernel, *few; /* few: that sequences of few queries are left to, or NULL */
    attn_simt_forward p;
} forward_call;

static attn_status launch_rows(attn_cuda_device *d, const char *kernel, const attn_simt_forward *p, double blocks,
                               CUstream stream)
{
    return launch(d, "simt_forward", kernel, p, blocks, SIMT_FOLD_THREADS, 0, stream);
}

/* A warp a row and so many columns. */
static double fold_blocks(const attn_simt_forward *p)
{
    const attn_job *job = &p->job;
    const double warps = (double)job->batch * (double)job->heads_kv * (double)p->row_room *
                         (double)attn_ceil_div(job->head_dim_v, SIMT_FOLD_COLUMNS);
    return ceil(warps / (SIMT_FOLD_THREADS / 32));
}

static attn_status launch_tasks(attn_cuda_device *d, const attn_forward_kernel *k, const attn_simt_forward *p,
                                CUstream stream)
{
    const int64_t blocks = k->persistent ? attn_min(p->tasks, attn_cuda_resident_blocks(d, k)) : p->tasks;
    return launch(d, k->module, k->name, p, (double)blocks, k->threads, k->shared_bytes, stream);
}

/* What the launch before has marked. */
static attn_status launch_again(attn_cuda_device *d, const forward_call *call, CUstream stream)
{
    const attn_simt_forward *first = &call->p;
    const attn_forward_kernel *plain = attn_cuda_plain_forward(&first->job);
    attn_simt_forward p = parameters_of(&first->job, plain);
    p.tasks = (int64_t)task_count(&p);
    p.partials = first->partials;
    p.sequences = first->sequences;
    p.doubts = first->doubts;
    p.doubt_rows = call->kernel->rows;
    p.doubt_blocks = first->row_blocks;
    return launch_tasks(d, plain, &p, stream);
}

static attn_status launch_beside(attn_cuda_device *d, const forward_call *call, CUstream stream)
{
    attn_simt_forward p = parameters_of(&call->p.job, call->few);
    p.tasks = (int64_t)task_count(&p);
    p.partials = call->p.partials;
    p.sequences = ATTN_SIMT_FEW;
    return launch_tasks(d, call->few, &p, stream);
}

static attn_status run_forward(attn_cuda_device *d, void *arg, void *workspace, CUstream stream)
{
    forward_call *call = arg;
    const attn_forward_kernel *k = call->kernel;
    attn_simt_forward *p = &call->p;
    const attn_job *job = &p->job;
    p->tasks = (int64_t)task_count(p);
    p->partials = workspace;
    if (k->has_doubts) p->doubts = (uint32_t *)workspace + (size_t)partial_bytes(p) / sizeof(uint32_t);
    if (call->few) p->sequences = ATTN_SIMT_MANY;
    if (job->max_q) ATTN_TRY(launch_tasks(d, k, p, stream));
    if (job->max_q && call->few) ATTN_TRY(attn_cuda_late(launch_beside(d, call, stream)));
    if (job->max_q && k->has_doubts) ATTN_TRY(attn_cuda_late(launch_again(d, call, stream)));
    if (job->max_q && p->pieces > 1)
        ATTN_TRY(attn_cuda_late(launch_rows(d, "simt_forward_fold", p, fold_blocks(p), stream)));
    if (!job->q_span.used && !job->q_span.start) return ATTN_OK;
    return attn_cuda_late(launch_rows(d, "simt_forward_pad", p, (double)job->batch * (double)job->heads_q, stream));
}

attn_status attn_cuda_forward(const attn_context *ctx, const attn_job *job, const attn_plan *plan,
                              const attn_exec *exec)
{
    attn_cuda_operand list[ATTN_CUDA_JOB_ARRAYS];
    forward_call call;
    attn_cuda_device *d;
    char why[80];
    if (attn_job_is_empty(job)) return ATTN_OK;
    ATTN_TRY(attn_cuda_find(plan->device - 1, &d));
    ATTN_TRY(attn_cuda_choose_forward(d, job, &ctx->force, &call.kernel, why, sizeof why));
    call.few = attn_cuda_few_forward(d, job, &ctx->force, call.kernel);
    call.p = parameters_of(job, call.kernel);
    const attn_cuda_arrays arrays = {list, plan->staged ? attn_cuda_job_arrays(&call.p.job, list) : 0};
    return attn_cuda_call(ctx, plan, exec, &arrays, run_forward, &call);
}
