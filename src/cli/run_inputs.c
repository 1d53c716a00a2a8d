/* SPDX-License-Identifier: Apache-2.0
 * From files to an attn_problem. Shapes are compared here, so that an error names the files. */
#include "run.h"

#include "common/number.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ANY_FLOAT = -1 }; /* keep the type of the file, float64 as float32 */

static void shape_text(const int64_t *shape, int rank, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < rank && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%" PRId64, i ? ", " : "", shape[i]);
    if (used < size) snprintf(text + used, size - used, "]");
}

/* The file must have exactly this shape; `as` says in words what it should be. */
static int need_shape(const char *path, const struct cli_npy *array, const int64_t *shape, int rank, const char *as)
{
    if (array->rank == rank && memcmp(array->shape, shape, (size_t)rank * sizeof *shape) == 0) return CLI_OK;
    char got[192], need[192];
    shape_text(array->shape, array->rank, got, sizeof got);
    shape_text(shape, rank, need, sizeof need);
    return cli_fail(CLI_BAD_INPUT, "%s: the shape is %s, but %s need %s", path, got, as, need);
}

static int is_float(const struct cli_npy *array)
{
    return array->type == CLI_NPY_F16 || array->type == CLI_NPY_F32 || array->type == CLI_NPY_F64;
}

static int load_float_file(const char *path, struct cli_npy *array)
{
    int status = cli_npy_load(path, array);
    if (status || is_float(array)) return status;
    free(array->data);
    return cli_fail(CLI_BAD_INPUT, "%s: floating-point numbers are needed, the data type is '%s'", path,
                    cli_npy_descr(array->type));
}

static double npy_element(const struct cli_npy *array, int64_t n)
{
    switch (array->type) {
    case CLI_NPY_F16: return (double)attn_f16_to_f32(((const uint16_t *)array->data)[n]);
    case CLI_NPY_F32: return (double)((const float *)array->data)[n];
    case CLI_NPY_F64: return ((const double *)array->data)[n];
    case CLI_NPY_I32: return ((const int32_t *)array->data)[n];
    case CLI_NPY_I64: return (double)((const int64_t *)array->data)[n];
    case CLI_NPY_BOOL: break;
    }
    return ((const unsigned char *)array->data)[n];
}

/* Stores x as type and says whether it became infinite on the way. */
static int store_element(attn_dtype type, void *data, int64_t n, double x)
{
    float single = (float)x, stored = single;
    if (type == ATTN_F16) {
        uint16_t bits = ((uint16_t *)data)[n] = attn_f32_to_f16(single);
        stored = attn_f16_to_f32(bits);
    } else if (type == ATTN_BF16) {
        uint16_t bits = ((uint16_t *)data)[n] = attn_f32_to_bf16(single);
        stored = attn_bf16_to_f32(bits);
    } else {
        ((float *)data)[n] = single;
    }
    return isfinite(x) && !isfinite(stored);
}

/* The array's data in `type`, owned by the job. The array keeps its shape and loses its data. */
static int take_data(struct run_job *job, struct cli_npy *array, attn_dtype type, void **data)
{
    int same = (type == ATTN_F32 && array->type == CLI_NPY_F32) || (type == ATTN_F16 && array->type == CLI_NPY_F16);
    int status = run_keep(job, array->data);
    *data = array->data;
    if (status || same) return status;
    status = run_alloc(job, attn_dtype_bytes(type, array->count), data);
    if (status) return status;
    for (int64_t n = 0; n < array->count; n++) job->overflows += store_element(type, *data, n, npy_element(array, n));
    job->block_count--; /* the converted block takes the place of the file's own */
    job->blocks[job->block_count - 1] = *data;
    free(array->data);
    return CLI_OK;
}

static attn_dtype stored_type(const struct cli_npy *array) { return array->type == CLI_NPY_F16 ? ATTN_F16 : ATTN_F32; }

/* A floating-point file as a tensor. Its axes are [batch, head, sequence, feature] in the order of
 * --layout, and the batch axis may be missing. */
static int load_tensor(struct run_job *job, const char *path, int dtype, attn_tensor *tensor)
{
    struct cli_npy array;
    int status = load_float_file(path, &array);
    if (status) return status;
    void *data;
    status = take_data(job, &array, dtype == ANY_FLOAT ? stored_type(&array) : (attn_dtype)dtype, &data);
    if (status) return status;
    if (array.rank != 3 && array.rank != 4)
        return cli_fail(CLI_BAD_INPUT, "%s: an array of 4 axes (or 3, without the batch) is needed, it has %d", path,
                        array.rank);
    if (job->rank == 0) job->rank = array.rank;
    if (array.rank != job->rank)
        return cli_fail(CLI_BAD_INPUT, "%s: has %d axes, but %s has %d", path, array.rank, job->options->q, job->rank);
    int64_t batch = array.rank == 4 ? array.shape[0] : 1;
    const int64_t *s = array.shape + array.rank - 3;
    attn_dtype type = dtype == ANY_FLOAT ? stored_type(&array) : (attn_dtype)dtype;
    *tensor = job->options->layout == RUN_BSHD ? attn_bshd(data, type, batch, s[1], s[0], s[2])
                                               : attn_bhsd(data, type, batch, s[0], s[1], s[2]);
    return CLI_OK;
}

static int need_equal(const char *path, const char *what, int64_t size, const char *other, int64_t other_size)
{
    if (size == other_size) return CLI_OK;
    return cli_fail(CLI_BAD_INPUT, "%s: %s is %" PRId64 ", but in %s it is %" PRId64, path, what, size, other,
                    other_size);
}

static int check_qkv(const struct run_job *job)
{
    const struct run_options *o = job->options;
    const int64_t *q = job->problem.q.shape, *k = job->problem.k.shape, *v = job->problem.v.shape;
    int status = need_equal(o->k, "the batch", k[0], o->q, q[0]);
    if (!status) status = need_equal(o->k, "the head size", k[3], o->q, q[3]);
    if (!status) status = need_equal(o->v, "the batch", v[0], o->k, k[0]);
    if (!status) status = need_equal(o->v, "the number of heads", v[1], o->k, k[1]);
    if (!status) status = need_equal(o->v, "the number of tokens", v[2], o->k, k[2]);
    if (!status && q[1] != 0 && (k[1] == 0 || q[1] % k[1] != 0))
        status = cli_fail(CLI_BAD_INPUT, "%s: %" PRId64 " query heads are not a multiple of %" PRId64 " in %s", o->q,
                          q[1], k[1], o->k);
    return status;
}

static int load_qkv(struct run_job *job)
{
    const struct run_options *o = job->options;
    attn_problem *p = &job->problem;
    int type = o->dtype == RUN_AS_STORED ? ANY_FLOAT : (int)cli_float_types[o->dtype];
    int kv_type = o->kv_dtype >= 0 && o->kv_dtype < 3 ? (int)cli_kv_types[o->kv_dtype] : type;
    int status = load_tensor(job, o->q, type, &p->q);
    if (!status) status = load_tensor(job, o->k, kv_type, &p->k);
    if (!status) status = load_tensor(job, o->v, kv_type, &p->v);
    if (!status) status = check_qkv(job);
    const int64_t *q = p->q.shape;
    job->shape = (struct cli_shape){q[0], q[1], p->k.shape[1], q[2], p->k.shape[2], q[3], p->v.shape[3]};
    return status;
}

static int load_bias(struct run_job *job)
{
    const char *path = job->options->bias;
    struct cli_npy array;
    if (!path) return CLI_OK;
    int status = cli_npy_load(path, &array);
    if (status) return status;
    void *data = array.data;
    int boolean = array.type == CLI_NPY_BOOL;
    attn_dtype type = boolean ? ATTN_BOOL : stored_type(&array);
    if (!boolean && !is_float(&array)) {
        free(array.data);
        return cli_fail(CLI_BAD_INPUT, "%s: a bias is floating-point or bool, the data type is '%s'", path,
                        cli_npy_descr(array.type));
    }
    status = boolean ? run_keep(job, data) : take_data(job, &array, type, &data);
    if (status) return status;
    const struct cli_shape *s = &job->shape;
    int64_t need[4] = {s->batch, s->heads_q, s->seq_q, s->seq_k}, shape[4] = {1, 1, 1, 1};
    int fits = array.rank <= 4;
    for (int i = 0; i < array.rank && fits; i++) {
        int axis = 4 - array.rank + i;
        shape[axis] = array.shape[i];
        fits = shape[axis] == 1 || shape[axis] == need[axis];
    }
    if (!fits) return need_shape(path, &array, need, 4, "biases (an axis may be 1, leading ones absent)");
    job->problem.bias = attn_bhsd(data, type, shape[0], shape[1], shape[2], shape[3]);
    job->results[RUN_DBIAS].npy.rank = array.rank;
    memcpy(job->results[RUN_DBIAS].npy.shape, array.shape, sizeof array.shape);
    return CLI_OK;
}

/* One float a head; with by_batch also [B, Hq]. */
static int load_head_values(struct run_job *job, const char *path, const char *as, int by_batch, const float **values,
                            int64_t *batch_stride)
{
    struct cli_npy array;
    if (!path) return CLI_OK;
    int status = load_float_file(path, &array);
    if (status) return status;
    void *data;
    status = take_data(job, &array, ATTN_F32, &data);
    *values = data;
    int64_t shape[2] = {job->shape.batch, job->shape.heads_q};
    int batched = by_batch && array.rank == 2;
    if (batch_stride) *batch_stride = batched ? shape[1] : 0;
    if (status) return status;
    return batched ? need_shape(path, &array, shape, 2, as) : need_shape(path, &array, shape + 1, 1, as);
}

/* Used lengths, one a sequence, from 0 to limit. */
static int load_lengths(struct run_job *job, const char *path, int64_t limit, attn_lengths *lengths)
{
    struct cli_npy array;
    if (!path) return CLI_OK;
    int status = cli_npy_load(path, &array);
    if (!status) status = run_keep(job, array.data);
    if (status) return status;
    if (array.type != CLI_NPY_I32 && array.type != CLI_NPY_I64)
        return cli_fail(CLI_BAD_INPUT, "%s: lengths are integers, the data type is '%s'", path,
                        cli_npy_descr(array.type));
    status = need_shape(path, &array, &job->shape.batch, 1, "lengths");
    void *block;
    if (!status) status = run_alloc(job, (size_t)array.count * sizeof(int32_t), &block);
    if (status) return status;
    int32_t *used = block;
    for (int64_t b = 0; b < array.count; b++) {
        int64_t x = array.type == CLI_NPY_I32 ? ((int32_t *)array.data)[b] : ((int64_t *)array.data)[b];
        if (x < 0 || x > limit || x > INT32_MAX)
            return cli_fail(CLI_BAD_INPUT, "%s: length %" PRId64 " of sequence %" PRId64 " is outside 0 to %" PRId64,
                            path, x, b, limit);
        used[b] = (int32_t)x;
    }
    if (array.count) lengths->used = used; /* no sequence, no lengths */
    return CLI_OK;
}

static int load_gradients(struct run_job *job)
{
    const struct run_options *o = job->options;
    const struct cli_shape *s = &job->shape;
    if (!o->grad_out) return CLI_OK;
    job->backward = 1;
    int status = load_tensor(job, o->grad_out, job->problem.q.dtype, &job->grads.dout);
    if (status) return status;
    int64_t out[4] = {s->batch, s->heads_q, s->seq_q, s->head_dim_v};
    struct cli_npy logical = {.rank = 4};
    memcpy(logical.shape, job->grads.dout.shape, sizeof out);
    status = need_shape(o->grad_out, &logical, out, 4, "gradients of [batch, head, token, feature]");
    if (status || !o->grad_lse) return status;
    struct cli_npy array;
    status = load_float_file(o->grad_lse, &array);
    if (status) return status;
    void *data;
    status = take_data(job, &array, ATTN_F32, &data);
    if (!status) status = need_shape(o->grad_lse, &array, out + 4 - job->rank, job->rank - 1, "gradients of the LSE");
    job->grads.dlse = attn_bhsd(data, ATTN_F32, s->batch, s->heads_q, s->seq_q, 1);
    return status;
}

static int load_expected(struct run_job *job)
{
    const char *path = job->options->expect;
    const struct cli_shape *s = &job->shape;
    struct cli_npy *array = &job->expected;
    if (!path) return CLI_OK;
    int status = load_float_file(path, array);
    if (!status) status = run_keep(job, array->data);
    if (status) return status;
    int swapped = job->options->layout == RUN_BSHD;
    int64_t out[4] = {s->batch, swapped ? s->seq_q : s->heads_q, swapped ? s->heads_q : s->seq_q, s->head_dim_v};
    return need_shape(path, array, out + 4 - job->rank, job->rank, "outputs of these arrays");
}

int run_load_inputs(struct run_job *job)
{
    const struct run_options *o = job->options;
    attn_problem *p = &job->problem;
    p->mask = o->mask;
    p->window_left = o->window_left;
    p->window_right = o->window_right;
    p->diagonal = o->diagonal;
    p->scale = o->scale;
    p->softcap = o->softcap;
    p->num_splits = (int32_t)o->splits;
    p->dropout = o->dropout > 0 ? o->dropout : 0;
    p->seed = o->seed;
    p->offset = o->offset;
    int status = load_qkv(job);
    if (!status) status = load_bias(job);
    if (!status) status = load_head_values(job, o->alibi, "slopes", 1, &p->alibi, &p->alibi_batch_stride);
    if (!status) status = load_head_values(job, o->sinks, "sinks", 0, &p->sink, NULL);
    if (!status) status = load_lengths(job, o->q_lengths, job->shape.seq_q, &p->q_len);
    if (!status) status = load_lengths(job, o->kv_lengths, job->shape.seq_k, &p->kv_len);
    if (!status) status = load_gradients(job);
    return status ? status : load_expected(job);
}
