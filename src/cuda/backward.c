/* SPDX-License-Identifier: Apache-2.0
 * The backward on a GPU: rest = rowsum(dO o O) - dLSE of every row first, then the gradients that are asked for, then rows that sequences own
 * and do not use. Kernels on tensor cores (kernels/tensor_backward.cuh) compute dQ, dK and dV together; simt has a launch for each,
 * where dK and dV share one up to 256 columns, and dbias and dsink for both. The host reads no length: grids are made for the sizes of the
 * problem, and tasks that a sequence lacks end at once.
 *
 * Workspace, in GPU memory: rest, a float32 a query row; of tensor cores dQ in float32, a counter each block of rows of a head, and one
 * more. */
#include "calls.h"
#include "kernels/backward_params.h"
#include <stdio.h>

enum { BOTH_KEYS = 256 }; /* columns up to which a launch of simt sums dK and dV */

typedef struct kernel {
    const char *family, *label, *module, *name;
    int32_t dtype;
    int64_t head_dim, rows, keys; /* columns up to head_dim; of a step; of a block */
    unsigned shared_bytes, prepare_bytes;
} kernel;

#define KERNEL(family, module, suffix, dtype, d, rows, keys, teams) \
  {#family,                                                         \
   "backward_" #family "_d" #d "_" #rows "x" #keys suffix,          \
   #module,                                                         \
   #family "_backward_" #d "_" #rows "x" #keys suffix,              \
   dtype,                                                           \
   d,                                                               \
   rows,                                                            \
   keys,                                                            \
   (unsigned)BACKWARD_SHARED(family, d, rows, keys, teams),         \
   (unsigned)BACKWARD_PREPARE_SHARED(family, d, rows)},
#define SM70(module, d, rows, keys, s_warps, k_warps, q_warps, teams) \
  KERNEL(sm70, module, "", ATTN_F16, d, rows, keys, teams)
#define SM80(module, d, rows, keys, s_warps, k_warps, q_warps, teams) \
  KERNEL(sm80, module, "_f16", ATTN_F16, d, rows, keys, teams)        \
  KERNEL(sm80, module, "_bf16", ATTN_BF16, d, rows, keys, teams)
static const kernel kernels[] = {SM80_BACKWARD_SHAPES(SM80) SM70_BACKWARD_SHAPES(SM70)};
#define FITS_SM70(module, d, rows, keys, s_warps, k_warps, q_warps, teams)               \
  _Static_assert(BACKWARD_SHARED(sm70, d, rows, keys, teams) <= ATTN_VOLTA_SHARED_BYTES, \
                 "what a block of sm_70 may have");
SM70_BACKWARD_SHAPES(FITS_SM70)
enum { KERNELS = sizeof kernels / sizeof *kernels };
static const char simt_label[] = "backward_simt";

bool attn_cuda_is_backward(const char *word)
{
    for (int n = 0; n < KERNELS; n++)
        if (attn_kernel_is(kernels[n].label, word)) return true;
    return attn_kernel_is(simt_label, word);
}

/* ---- choice ---------------------------------------------------------------------------------- */

/* Blocks of keys. */
static double tasks_of(const kernel *k, const attn_job *job)
{
    return (double)job->batch * (double)job->heads_kv * (double)attn_ceil_div(job->max_k, k->keys);
}

/* Why tensor cores do not serve a problem, whatever its head sizes; NULL: they do. */
static const char *not_for_tensor_cores(const kernel *k, const attn_job *job)
{
    const int64_t most = (int64_t)1 << 29;
    const attn_view *const views[] = {&job->q, &job->k, &job->v, &job->out, &job->dout};
    for (size_t n = 0; n < sizeof views / sizeof *views; n++)
        if (views[n]->dtype != k->dtype)
            return k->dtype == ATTN_F16 ? "it takes q, k, v, out and dout in f16"
                                        : "it takes q, k, v, out and dout in bf16";
    if (job->max_k > most || job->max_q > most) return "it counts rows and keys up to 2^29";
    return tasks_of(k, job) > INT32_MAX ? "it counts blocks of keys up to 2^31" : NULL;
}

static bool serves(const kernel *k, const attn_job *job)
{
    return !not_for_tensor_cores(k, job) && job->lse.data && job->head_dim <= k->head_dim &&
           job->head_dim_v <= k->head_dim;
}

static bool is_wanted(const kernel *k, const attn_cuda_device *d, const attn_force *force)
{
    const bool forced = strncmp(force->kernel, "backward", 8) == 0;
    if ((int64_t)k->shared_bytes > d->shared_bytes) return false;
    if (forced && !attn_kernel_is(k->label, force->kernel)) return false;
    if (force->family[0]) return strcmp(k->family, force->family) == 0;
    return forced || attn_cuda_is_made_for(attn_cuda_family_of(k->family), d->capability);
}

static attn_status none_serves(const attn_job *job, const char *forced)
{
    const char *why = "its head sizes, or the GPU has not the shared memory";
    for (int n = 0; n < KERNELS; n++) {
        const char *other = attn_kernel_is(kernels[n].label, forced) ? not_for_tensor_cores(&kernels[n], job) : NULL;
        if (other) why = other;
    }
    return attn_fail(ATTN_UNSUPPORTED, "kernel=%s is forced, which does not serve this problem: %s", forced, why);
}

/* *chosen: NULL for simt. */
static attn_status choose(const attn_cuda_device *d, const attn_job *job, const attn_force *force,
                          const kernel **chosen, const char **why)
{
    const char *module = "simt_backward";
    *chosen = NULL;
    *why = attn_cuda_family_of("simt")->what;
    for (int n = 0; n < KERNELS; n++) {
        const kernel *k = &kernels[n], *found = *chosen;
        if (!is_wanted(k, d, force) || !serves(k, job)) continue;
        /* Where most of the GPU would have nothing to do, small steps are over sooner. But which tiles there are then depends on the batch, and
         * with them the last bits: for who has given up their order. */
        if (!found ||
            (job->unordered && k->head_dim == found->head_dim && 2 * tasks_of(found, job) <= d->multiprocessors))
            *chosen = k;
    }
    if (*chosen) *why = attn_cuda_family_of((*chosen)->family)->what, module = (*chosen)->module;
    else if (force->kernel[0] && attn_cuda_is_backward(force->kernel) && !attn_kernel_is(simt_label, force->kernel))
        return none_serves(job, force->kernel);
    const bool has_code = attn_cuda_has_code(d, module) && attn_cuda_has_code(d, "simt_backward");
    return has_code ? ATTN_OK : attn_cuda_no_code(d, module);
}

/* ---- workspace ------------------------------------------------------------------------------- */

enum { ALIGNMENT = 256 };

/* Exact up to 2^53. */
static double rounded(double bytes) { return ((double)(int64_t)(bytes / ALIGNMENT) + 1) * ALIGNMENT; }

static double rest_bytes(const attn_job *job)
{
    const int64_t batch = job->q_span.offsets ? 1 : job->batch;
    return rounded((double)batch * (double)job->heads_q * (double)job->q_span.room * sizeof(float));
}

static double dq_bytes(const attn_job *job, const kernel *k)
{
    if (!job->dq.data) return 0;
    return (double)job->heads_q * (double)attn_backward_tiles(job, k->rows) * (double)k->rows * (double)k->head_dim *
           sizeof(float);
}

static double counter_bytes(const attn_job *job, const kernel *k)
{
    return rounded((double)job->heads_q * (double)attn_backward_tiles(job, k->rows) * sizeof(uint32_t) +
                   sizeof(uint32_t));
}

static double workspace_bytes(const attn_job *job, const kernel *k)
{
    return rest_bytes(job) + (k ? dq_bytes(job, k) + counter_bytes(job, k) : 0);
}

attn_status attn_cuda_plan_backward(const attn_context *ctx, const attn_job *job, attn_plan *plan)
{
    attn_cuda_device *d;
    const kernel *k;
    const char *why;
    ATTN_TRY(attn_cuda_find(plan->device - 1, &d));
    ATTN_TRY(choose(d, job, &ctx->force, &k, &why));
    const double bytes = workspace_bytes(job, k);
    if (bytes > 7e13) return attn_fail(ATTN_OUT_OF_MEMORY, "this problem needs a workspace of %.3g bytes", bytes);
    plan->workspace_bytes = (size_t)bytes;
    snprintf(plan->isa, sizeof plan->isa, "%s", k ? k->family : "simt");
    snprintf(plan->kernel, sizeof plan->kernel, "%s", k ? k->label : simt_label);
    snprintf(plan->reason, sizeof plan->reason, "%s GPU %d (sm_%d); %s%s",
             plan->staged ? "host tensors are staged on" : "tensors of", d->ordinal, d->capability,
             ctx->force.family[0] || strncmp(ctx->force.kernel, "backward", 8) == 0 ? "forced; " : "", why);
    return ATTN_OK;
}

/* ---- launches -------------------------------------------------------------------------------- */

typedef struct backward_call {
    const kernel *k; /* NULL: simt */
    attn_backward_tensor p;
} backward_call;

static attn_status launch(attn_cuda_device *d, const char *module, const char *name, const char *suffix, const void *p,
                          size_t bytes, double blocks, unsigned threads, unsigned shared, CUstream stream)
{
    char whole[64];
    attn_cuda_launch l = {.blocks = attn_cuda_grid(blocks),
                          .threads = threads,
                          .shared_bytes = shared,
                          .parameters = p,
                          .parameter_bytes = bytes};
    snprintf(whole, sizeof whole, "%s%s%s", name, suffix[0] ? "_" : "", suffix);
    ATTN_TRY(attn_cuda_kernel(d, module, whole, shared, &l.function));
    return attn_cuda_run(d, &l, stream);
}

static attn_status launch_simt(attn_cuda_device *d, const char *name, const attn_simt_backward *p, double tasks,
                               unsigned tasks_of_block, unsigned threads, unsigned shared, CUstream stream)
{
    attn_simt_backward own = *p;
    own.tasks = (int64_t)tasks;
    return launch(d, "simt_backward", "simt_backward", name, &own, sizeof own, tasks / tasks_of_block, threads, shared,
                  stream);
}

static attn_status launch_tiles(attn_cuda_device *d, const char *name, const attn_simt_backward *p, double tasks,
                                CUstream stream)
{
    return attn_cuda_late(launch_simt(d, name, p, tasks, 1, SIMT_THREADS, SIMT_BACKWARD_SHARED, stream));
}

static attn_status launch_dkv(attn_cuda_device *d, const attn_simt_backward *p, CUstream stream)
{
    const attn_job *job = &p->job;
    const double tasks = (double)job->batch * (double)job->heads_kv * (double)p->key_blocks;
    const int64_t columns = attn_max(job->head_dim, job->head_dim_v);
    if (tasks == 0) return ATTN_OK;
    if (columns <= BOTH_KEYS) return launch_tiles(d, columns <= 128 ? "dkv_128" : "dkv_256", p, tasks, stream);
    if (job->dk.data) ATTN_TRY(launch_tiles(d, "dk_576", p, tasks, stream));
    return job->dv.data ? launch_tiles(d, "dv_576", p, tasks, stream) : ATTN_OK;
}

static double query_rows(const attn_job *job) { return (double)job->batch * (double)job->heads_q * (double)job->max_q; }

static attn_status run_simt(attn_cuda_device *d, const attn_simt_backward *p, CUstream stream)
{
    const attn_job *job = &p->job;
    const double rows = query_rows(job);
    if (rows > 0) ATTN_TRY(launch_simt(d, "rest", p, rows, SIMT_FOLD_THREADS, SIMT_FOLD_THREADS, 0, stream));
    if (job->dq.data && rows > 0)
        ATTN_TRY(launch_tiles(d, job->head_dim <= 128 ? "dq_128" : "dq_576", p,
                              (double)job->batch * (double)job->heads_kv * (double)p->row_blocks, stream));
    return job->dk.data || job->dv.data ? launch_dkv(d, p, stream) : ATTN_OK;
}

static attn_status launch_tensor(attn_cuda_device *d, const backward_call *call, const char *suffix, double blocks,
                                 unsigned shared, CUstream stream)
{
    return launch(d, call->k->module, call->k->name, suffix, &call->p, sizeof call->p, blocks, BACKWARD_THREADS, shared,
                  stream);
}

static bool is_eightfold(const attn_view *t, int64_t n)
{
    return ((t->stride[0] | t->stride[1] | t->stride[2] | n) & 7) == 0 && ((uintptr_t)t->data & 15) == 0;
}

static bool has_more_than_masks(const attn_job *job)
{
    return job->softcap > 0 || job->bias.data || job->alibi || job->has_dropout;
}

/* Blocks at work on few heads share these heads' Q, dO and dQ in L2. In order, those of one head are a step apart each, which costs about
 * multiprocessors / heads steps once: at most one in a hundred of all. */
static int64_t heads_of_set(const attn_cuda_device *d, const attn_backward_tensor *p)
{
    const attn_job *job = &p->simt.job;
    const double sms = d->multiprocessors, heads = (double)job->batch * (double)job->heads_kv,
                 steps = heads * (double)p->key_blocks * (double)p->row_blocks * (double)job->group;
    const int64_t least = 2;
    if (!p->counters || steps == 0) return least;
    return attn_max(least, (int64_t)(100 * sms * sms / steps));
}

static attn_status run_tensor(attn_cuda_device *d, backward_call *call, char *memory, CUstream stream)
{
    attn_backward_tensor *p = &call->p;
    const attn_job *job = &p->simt.job;
    const kernel *k = call->k;
    const double heads = (double)job->batch * (double)job->heads_q;
    p->tiles_of_head = attn_backward_tiles(job, k->rows);
    p->row_blocks = attn_ceil_div(job->max_q, k->rows);
    p->key_blocks = attn_ceil_div(job->max_k, k->keys);
    p->eightfold = is_eightfold(&job->q, job->head_dim) && is_eightfold(&job->k, job->head_dim) &&
                   is_eightfold(&job->v, job->head_dim_v) && is_eightfold(&job->dout, job->head_dim_v) &&
                   is_eightfold(&job->out, job->head_dim_v);
    p->dq = job->dq.data ? (float *)(void *)memory : NULL;
    memory += (size_t)dq_bytes(job, k);
    p->ticket = (uint32_t *)(void *)memory;
    p->counters = job->unordered ? NULL : p->ticket + 1;
    p->heads_of_set = heads_of_set(d, p);
    const double rows = heads * (double)p->row_blocks,
                 blocks = (double)job->batch * (double)job->heads_kv * (double)p->key_blocks;
    if (rows > 0) ATTN_TRY(launch_tensor(d, call, "prepare", rows, k->prepare_bytes, stream));
    if (rows == 0) return blocks > 0 ? run_simt(d, &p->simt, stream) : ATTN_OK; /* zeros */
    if (blocks > 0)
        ATTN_TRY(attn_cuda_late(
            launch_tensor(d, call, has_more_than_masks(job) ? "all" : "", blocks, k->shared_bytes, stream)));
    return p->dq ? attn_cuda_late(launch_tensor(d, call, "finish", rows, BACKWARD_FINISH_SHARED, stream)) : ATTN_OK;
}

static attn_status run_backward(attn_cuda_device *d, void *arg, void *workspace, CUstream stream)
{
    backward_call *call = arg;
    attn_simt_backward *p = &call->p.simt;
    const attn_job *job = &p->job;
    const int64_t *bias = job->bias_shape;
    p->rest = workspace;
    p->row_blocks = attn_max(1, attn_ceil_div(job->max_q * job->group, SIMT_KEYS));
    p->key_blocks = attn_ceil_div(job->max_k, SIMT_KEYS);
    ATTN_TRY(call->k ? run_tensor(d, call, (char *)workspace + (size_t)rest_bytes(job), stream)
                     : run_simt(d, p, stream));
    if (job->dbias.data)
        ATTN_TRY(launch_tiles(d, "dbias", p,
                              (double)bias[0] * (double)bias[1] * (double)attn_ceil_div(bias[2], SIMT_KEYS) *
                                  (double)attn_ceil_div(bias[3], SIMT_KEYS),
                              stream));
    if (job->dsink)
        ATTN_TRY(attn_cuda_late(launch_simt(d, "dsink", p, (double)job->heads_q, 1, SIMT_FOLD_THREADS,
                                            SIMT_FOLD_THREADS * sizeof(double), stream)));
    const bool pads = job->q_span.used || job->q_span.start || job->kv_span.used || job->kv_span.start;
    if (!pads || job->accumulate) return ATTN_OK;
    return attn_cuda_late(launch_simt(d, "pad", p, (double)job->batch * (double)attn_max(job->heads_q, job->heads_kv),
                                      1, SIMT_FOLD_THREADS, 0, stream));
}

attn_status attn_cuda_backward(const attn_context *ctx, const attn_job *job, const attn_plan *plan,
                               const attn_exec *exec)
{
    attn_cuda_operand list[ATTN_CUDA_JOB_ARRAYS];
    backward_call call = {.p.simt.job = *job};
    attn_cuda_device *d;
    const char *why;
    ATTN_TRY(attn_cuda_find(plan->device - 1, &d));
    ATTN_TRY(choose(d, job, &ctx->force, &call.k, &why));
    const attn_cuda_arrays arrays = {list, plan->staged ? attn_cuda_job_arrays(&call.p.simt.job, list) : 0};
    return attn_cuda_call(ctx, plan, exec, &arrays, run_backward, &call);
}
