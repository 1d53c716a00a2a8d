/* SPDX-License-Identifier: Apache-2.0
 * Memory of a job, its result tensors and how they become files. */
#include "run.h"

#include "common/number.h"

#include <stdlib.h>
#include <string.h>

const char *const run_result_names[RUN_RESULTS] = {"out", "lse", "dq", "dk", "dv", "dbias", "dsinks", "keep"};

int run_keep(struct run_job *job, void *block)
{
    if (job->block_count < RUN_BLOCKS_MAX) {
        job->blocks[job->block_count++] = block;
        return CLI_OK;
    }
    free(block);
    return cli_fail(CLI_DEVICE_ERROR, "internal: more than %d blocks", RUN_BLOCKS_MAX);
}

int run_alloc(struct run_job *job, size_t bytes, void **block)
{
    *block = cli_npy_alloc(bytes);
    if (!*block) return cli_fail(CLI_CANNOT, "out of memory for %zu bytes", bytes);
    memset(*block, 0, bytes);
    return run_keep(job, *block);
}

int64_t run_count(const attn_tensor *tensor)
{
    return tensor->shape[0] * tensor->shape[1] * tensor->shape[2] * tensor->shape[3];
}

double run_element(const attn_tensor *tensor, int64_t n)
{
    switch (tensor->dtype) {
    case ATTN_F16: return (double)attn_f16_to_f32(((const uint16_t *)tensor->data)[n]);
    case ATTN_BF16: return (double)attn_bf16_to_f32(((const uint16_t *)tensor->data)[n]);
    case ATTN_BOOL: return ((const unsigned char *)tensor->data)[n];
    default: return (double)((const float *)tensor->data)[n];
    }
}

/* The sizes of a result need not fit in memory: inputs with an empty or tiny axis can ask for any. */
int run_new_tensor(struct run_job *job, attn_dtype dtype, const int64_t shape[4], attn_tensor *tensor)
{
    int64_t bytes = (int64_t)attn_dtype_bytes(dtype, 1);
    int too_large = 0;
    for (int i = 0; i < 4; i++) too_large |= __builtin_mul_overflow(bytes, shape[i], &bytes);
    if (too_large || bytes > INT64_MAX / 2 || (uint64_t)bytes > SIZE_MAX / 2)
        return cli_fail(CLI_CANNOT, "out of memory: a result is too large for this machine");
    void *data;
    int status = run_alloc(job, (size_t)bytes, &data);
    *tensor = job->options->layout == RUN_BSHD ? attn_bshd(data, dtype, shape[0], shape[1], shape[2], shape[3])
                                               : attn_bhsd(data, dtype, shape[0], shape[1], shape[2], shape[3]);
    return status;
}

static int wanted(const struct run_job *job, enum run_result which)
{
    const struct run_options *o = job->options;
    switch (which) {
    case RUN_OUT: return 1;
    case RUN_LSE: return o->results[RUN_LSE] || job->backward;
    default: return o->results[which] != NULL;
    }
}

/* Logical shape and type of a result; RUN_LSE, RUN_DSINKS and RUN_KEEP are the same in each layout. */
static attn_dtype describe(const struct run_job *job, enum run_result which, int64_t shape[4])
{
    const struct cli_shape *s = &job->shape;
    attn_dtype type = (attn_dtype)job->problem.q.dtype;
    const int64_t shapes[RUN_RESULTS][4] = {
        [RUN_OUT] = {s->batch, s->heads_q, s->seq_q, s->head_dim_v},
        [RUN_LSE] = {s->batch, s->heads_q, s->seq_q, 1},
        [RUN_DQ] = {s->batch, s->heads_q, s->seq_q, s->head_dim},
        [RUN_DK] = {s->batch, s->heads_kv, s->seq_k, s->head_dim},
        [RUN_DV] = {s->batch, s->heads_kv, s->seq_k, s->head_dim_v},
        [RUN_DSINKS] = {1, 1, 1, s->heads_q},
        [RUN_KEEP] = {s->batch, s->heads_q, s->seq_q, s->seq_k},
    };
    memcpy(shape, which == RUN_DBIAS ? job->problem.bias.shape : shapes[which], sizeof shapes[which]);
    if (which == RUN_KEEP) return ATTN_BOOL;
    if (which == RUN_DBIAS) return (attn_dtype)job->problem.bias.dtype;
    return which == RUN_LSE || which == RUN_DSINKS ? ATTN_F32 : type;
}

static int has_layout(enum run_result which)
{
    return which == RUN_OUT || which == RUN_DQ || which == RUN_DK || which == RUN_DV;
}

/* The axes as the file has them. RUN_DBIAS was described when the bias was read. */
static void describe_file(const struct run_job *job, enum run_result which, const int64_t shape[4], struct cli_npy *npy)
{
    int swapped = job->options->layout == RUN_BSHD && has_layout(which);
    int64_t axes[4] = {shape[0], shape[swapped ? 2 : 1], shape[swapped ? 1 : 2], shape[3]};
    int skip = 4 - job->rank, rank = job->rank;
    if (which == RUN_DBIAS) return;
    if (which == RUN_LSE) rank--;
    if (which == RUN_DSINKS) {
        skip = 3;
        rank = 1;
    }
    npy->rank = rank;
    memcpy(npy->shape, axes + skip, (size_t)rank * sizeof *axes);
}

int run_new_results(struct run_job *job)
{
    attn_tensor *tensors[RUN_RESULTS] = {&job->problem.out, &job->problem.lse, &job->grads.dq, &job->grads.dk,
                                         &job->grads.dv,    &job->grads.dbias, NULL,           NULL};
    for (int r = 0; r < RUN_RESULTS; r++) {
        enum run_result which = (enum run_result)r;
        if (!wanted(job, which)) continue;
        struct run_tensor *result = &job->results[r];
        int64_t shape[4];
        attn_dtype type = describe(job, which, shape);
        int status = run_new_tensor(job, type, shape, &result->tensor);
        if (status) return status;
        if (!has_layout(which))
            result->tensor = attn_bhsd(result->tensor.data, type, shape[0], shape[1], shape[2], shape[3]);
        describe_file(job, which, shape, &result->npy);
        if (tensors[r]) *tensors[r] = result->tensor;
        if (which == RUN_DSINKS) job->grads.dsink = result->tensor.data;
    }
    return CLI_OK;
}

/* NPY has no bf16, so that becomes float32; the others are stored as they are. */
static int store(struct run_job *job, struct run_tensor *result)
{
    const attn_tensor *tensor = &result->tensor;
    struct cli_npy *npy = &result->npy;
    npy->count = run_count(tensor);
    npy->data = tensor->data;
    npy->type = tensor->dtype == ATTN_BOOL ? CLI_NPY_BOOL : tensor->dtype == ATTN_F16 ? CLI_NPY_F16 : CLI_NPY_F32;
    if (tensor->dtype != ATTN_BF16) return CLI_OK;
    int status = run_alloc(job, (size_t)npy->count * sizeof(float), &npy->data);
    if (status) return status;
    for (int64_t n = 0; n < npy->count; n++) ((float *)npy->data)[n] = (float)run_element(tensor, n);
    return CLI_OK;
}

int run_store(struct run_job *job)
{
    for (int r = 0; r < RUN_RESULTS; r++) {
        if (!job->options->results[r]) continue;
        int status = store(job, &job->results[r]);
        if (status) return status;
    }
    return CLI_OK;
}
