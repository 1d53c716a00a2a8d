/* SPDX-License-Identifier: Apache-2.0
 * The backward on a GPU: rowsum(dO o O) - dLSE of every row first, then a launch for each gradient that is asked for (dK and dV share one up
 * to 256 columns), then rows that sequences own and do not use. The host reads no length: grids are made for the sizes of the problem, and
 * tasks that a sequence lacks end at once.
 *
 * Workspace, in GPU memory: a float32 a query row. */
#include "calls.h"
#include "kernels/params.h"
#include <stdio.h>

enum { BOTH_KEYS = 256 }; /* columns up to which a launch sums dK and dV */

static double rest_bytes(const attn_job *job)
{
    const int64_t batch = job->q_span.offsets ? 1 : job->batch;
    return (double)batch * (double)job->heads_q * (double)job->q_span.room * sizeof(float);
}

bool attn_cuda_is_backward(const char *word) { return attn_kernel_is("backward_simt", word); }

attn_status attn_cuda_plan_backward(const attn_context *ctx, const attn_job *job, attn_plan *plan)
{
    attn_cuda_device *d;
    const double bytes = rest_bytes(job);
    (void)ctx;
    ATTN_TRY(attn_cuda_find(plan->device - 1, &d));
    if (attn_cuda_choose_image(attn_cuda_images, "simt_backward", d->capability) < 0)
        return attn_cuda_no_code(d, "simt_backward");
    if (bytes > 7e13) return attn_fail(ATTN_OUT_OF_MEMORY, "this problem needs a workspace of %.3g bytes", bytes);
    plan->workspace_bytes = (size_t)bytes;
    snprintf(plan->isa, sizeof plan->isa, "simt");
    snprintf(plan->kernel, sizeof plan->kernel, "backward_simt");
    snprintf(plan->reason, sizeof plan->reason,
             "%s GPU %d (sm_%d); float32 multiply-adds, which serve everything: tensor cores have no backward yet",
             plan->staged ? "host tensors are staged on" : "tensors of", d->ordinal, d->capability);
    return ATTN_OK;
}

/* kernel: without the module's name. */
static attn_status launch(attn_cuda_device *d, const char *kernel, const attn_simt_backward *p, double tasks,
                          unsigned tasks_of_block, unsigned threads, unsigned shared, CUstream stream)
{
    attn_simt_backward own = *p;
    char name[48];
    attn_cuda_launch l = {.blocks = attn_cuda_grid(tasks / tasks_of_block),
                          .threads = threads,
                          .shared_bytes = shared,
                          .parameters = &own,
                          .parameter_bytes = sizeof own};
    own.tasks = (int64_t)tasks;
    snprintf(name, sizeof name, "simt_backward_%s", kernel);
    ATTN_TRY(attn_cuda_kernel(d, "simt_backward", name, shared, &l.function));
    return attn_cuda_run(d, &l, stream);
}

static attn_status launch_tiles(attn_cuda_device *d, const char *kernel, const attn_simt_backward *p, double tasks,
                                CUstream stream)
{
    return attn_cuda_late(launch(d, kernel, p, tasks, 1, SIMT_THREADS, SIMT_BACKWARD_SHARED, stream));
}

static attn_status launch_dkv(attn_cuda_device *d, const attn_simt_backward *p, CUstream stream)
{
    const attn_job *job = &p->job;
    const double tasks = (double)job->batch * (double)job->heads_kv * (double)p->key_blocks;
    const int64_t columns = attn_max(job->head_dim, job->head_dim_v);
    if (!tasks) return ATTN_OK;
    if (columns <= BOTH_KEYS) return launch_tiles(d, columns <= 128 ? "dkv_128" : "dkv_256", p, tasks, stream);
    if (job->dk.data) ATTN_TRY(launch_tiles(d, "dk_576", p, tasks, stream));
    return job->dv.data ? launch_tiles(d, "dv_576", p, tasks, stream) : ATTN_OK;
}

static attn_status run_backward(attn_cuda_device *d, void *arg, void *workspace, CUstream stream)
{
    attn_simt_backward *p = arg;
    const attn_job *job = &p->job;
    const int64_t *bias = job->bias_shape;
    const double heads = (double)job->batch * (double)job->heads_q, rows = heads * (double)job->max_q;
    p->rest = workspace;
    p->row_blocks = attn_max(1, attn_ceil_div(job->max_q * job->group, SIMT_KEYS));
    p->key_blocks = attn_ceil_div(job->max_k, SIMT_KEYS);
    if (rows) ATTN_TRY(launch(d, "rest", p, rows, SIMT_FOLD_THREADS, SIMT_FOLD_THREADS, 0, stream));
    if (job->dq.data && rows)
        ATTN_TRY(launch_tiles(d, job->head_dim <= 128 ? "dq_128" : "dq_576", p,
                              (double)job->batch * (double)job->heads_kv * (double)p->row_blocks, stream));
    if (job->dk.data || job->dv.data) ATTN_TRY(launch_dkv(d, p, stream));
    if (job->dbias.data)
        ATTN_TRY(launch_tiles(d, "dbias", p,
                              (double)bias[0] * (double)bias[1] * (double)attn_ceil_div(bias[2], SIMT_KEYS) *
                                  (double)attn_ceil_div(bias[3], SIMT_KEYS),
                              stream));
    if (job->dsink)
        ATTN_TRY(attn_cuda_late(launch(d, "dsink", p, (double)job->heads_q, 1, SIMT_FOLD_THREADS,
                                       SIMT_FOLD_THREADS * sizeof(double), stream)));
    const bool pads = job->q_span.used || job->q_span.start || job->kv_span.used || job->kv_span.start;
    if (!pads || job->accumulate) return ATTN_OK;
    return attn_cuda_late(launch(d, "pad", p, (double)job->batch * (double)attn_max(job->heads_q, job->heads_kv), 1,
                                 SIMT_FOLD_THREADS, 0, stream));
}

attn_status attn_cuda_backward(const attn_context *ctx, const attn_job *job, const attn_plan *plan,
                               const attn_exec *exec)
{
    attn_cuda_operand list[ATTN_CUDA_JOB_ARRAYS];
    attn_simt_backward p = {.job = *job};
    const attn_cuda_arrays arrays = {list, plan->staged ? attn_cuda_job_arrays(&p.job, list) : 0};
    return attn_cuda_call(ctx, plan, exec, &arrays, run_backward, &p);
}
