/* SPDX-License-Identifier: Apache-2.0
 * The forward on a GPU: simt_forward for all rows and pieces of keys, simt_forward_fold where sequences were cut, and
 * simt_forward_pad for rows that a sequence owns and does not use. The host reads no length: grids are made for the
 * sizes of the problem, and tasks that a sequence lacks end at once.
 *
 * Workspace, in GPU memory: partial results [B][Hkv][row][piece][Dv + 2] in float32, if any sequence can be cut. */
#include "calls.h"
#include <stdio.h>

/* One kernel a number of column chunks, because O lies in registers. */
static const struct {
    int32_t columns;
    const char *kernel;
} simt_kernels[] = {
    {64, "simt_forward_64"}, {128, "simt_forward_128"}, {256, "simt_forward_256"}, {576, "simt_forward_576"}};

static const char *simt_kernel(const attn_job *job)
{
    int n = 0;
    while (simt_kernels[n].columns < job->head_dim_v) n++;
    return simt_kernels[n].kernel;
}

static bool has_lengths(const attn_span *span) { return span->used || span->offsets || span->start; }

/* Bounds that hold whatever the length arrays say. */
static attn_simt_forward parameters_of(const attn_job *job)
{
    attn_simt_forward p = {.job = *job, .pieces = 1};
    const int64_t few = attn_min(job->max_q, SIMT_FEW);
    p.row_blocks = attn_max(1, attn_ceil_div(job->max_q * job->group, SIMT_ROWS));
    if (job->num_splits) p.pieces = attn_max(1, attn_min(job->num_splits, attn_ceil_div(job->max_k, SIMT_KEYS)));
    else if (job->max_q <= SIMT_FEW || has_lengths(&job->q_span))
        p.pieces = attn_max(1, attn_ceil_div(job->max_k, SIMT_PIECE));
    p.row_room = (job->num_splits ? job->max_q : few) * job->group;
    return p;
}

/* Doubles, because the sizes may be anything and only what fits in memory has to be exact. */
static double partial_bytes(const attn_simt_forward *p)
{
    const attn_job *job = &p->job;
    if (p->pieces == 1) return 0;
    return (double)job->batch * (double)job->heads_kv * (double)p->row_room * (double)p->pieces *
           (double)(job->head_dim_v + 2) * sizeof(float);
}

static double task_count(const attn_simt_forward *p)
{
    return (double)p->job.batch * (double)p->job.heads_kv * (double)p->row_blocks * (double)p->pieces;
}

bool attn_cuda_has_kernel(const char *kernel) { return strcmp(kernel, "forward_simt") == 0; }

attn_status attn_cuda_plan_forward(const attn_context *ctx, const attn_job *job, attn_plan *plan)
{
    const attn_simt_forward p = parameters_of(job);
    attn_cuda_device *d;
    (void)ctx;
    ATTN_TRY(attn_cuda_find(plan->device - 1, &d));
    if (partial_bytes(&p) > 7e13 || task_count(&p) > 9e18)
        return attn_fail(ATTN_OUT_OF_MEMORY, "this problem needs a workspace of %.3g bytes", partial_bytes(&p));
    plan->workspace_bytes = attn_job_is_empty(job) ? 0 : (size_t)partial_bytes(&p);
    plan->num_splits = (int32_t)attn_simt_pieces(job, job->max_q, job->max_k);
    snprintf(plan->isa, sizeof plan->isa, "simt");
    snprintf(plan->kernel, sizeof plan->kernel, "forward_simt");
    snprintf(plan->reason, sizeof plan->reason, "%s GPU %d (sm_%d); float32 multiply-adds, which serve everything",
             plan->staged ? "host tensors are staged on" : "tensors of", d->ordinal, d->capability);
    return ATTN_OK;
}

static attn_status launch(attn_cuda_device *d, const char *kernel, const attn_simt_forward *p, double blocks,
                          unsigned threads, unsigned shared, CUstream stream)
{
    attn_cuda_launch l = {.blocks = attn_cuda_grid(blocks),
                          .threads = threads,
                          .shared_bytes = shared,
                          .parameters = p,
                          .parameter_bytes = sizeof *p};
    ATTN_TRY(attn_cuda_kernel(d, "simt_forward", kernel, shared, &l.function));
    return attn_cuda_run(d, &l, stream);
}

static attn_status launch_all(attn_cuda_device *d, const attn_simt_forward *p, CUstream stream)
{
    const attn_job *job = &p->job;
    const double heads = (double)job->batch * (double)job->heads_kv;
    if (job->max_q) ATTN_TRY(launch(d, simt_kernel(job), p, task_count(p), SIMT_THREADS, SIMT_SHARED, stream));
    if (job->max_q && p->pieces > 1)
        ATTN_TRY(attn_cuda_late(
            launch(d, "simt_forward_fold", p, heads * (double)p->row_room, SIMT_FOLD_THREADS, 0, stream)));
    if (!job->q_span.used && !job->q_span.start) return ATTN_OK;
    return attn_cuda_late(
        launch(d, "simt_forward_pad", p, (double)job->batch * (double)job->heads_q, SIMT_FOLD_THREADS, 0, stream));
}

static attn_status run_forward(attn_cuda_device *d, void *arg, void *workspace, CUstream stream)
{
    attn_simt_forward *p = arg;
    p->tasks = (int64_t)task_count(p);
    p->partials = workspace;
    return launch_all(d, p, stream);
}

attn_status attn_cuda_forward(const attn_context *ctx, const attn_job *job, const attn_plan *plan,
                              const attn_exec *exec)
{
    attn_cuda_operand list[ATTN_CUDA_JOB_ARRAYS];
    attn_simt_forward p = parameters_of(job);
    if (attn_job_is_empty(job)) return ATTN_OK;
    const attn_cuda_arrays arrays = {list, plan->staged ? attn_cuda_job_arrays(&p.job, list) : 0};
    return attn_cuda_call(ctx, plan, exec, &arrays, run_forward, &p);
}
