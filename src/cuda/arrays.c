/* SPDX-License-Identifier: Apache-2.0 */
#include "arrays.h"

enum { READS = ATTN_CUDA_READS, WRITES = ATTN_CUDA_WRITES };

typedef struct shape {
    int64_t size[4];
} shape;

static int32_t element_bytes(int32_t dtype) { return (int32_t)attn_dtype_bytes((attn_dtype)dtype, 1); }

/* Rows of shape.size[3] elements side by side. */
static attn_cuda_operand rows(const char *name, attn_view *view, shape s, int access)
{
    const bool block = view->dtype == ATTN_Q8_0 || view->dtype == ATTN_Q4_0;
    attn_cuda_operand o = {.name = name, .field = &view->data, .stride = view->stride, .axes = 3, .access = access};
    memcpy(o.count, s.size, sizeof o.count);
    o.run = s.size[3];
    o.unit = block ? ATTN_BLOCK : 1;
    o.unit_bytes = element_bytes(view->dtype); /* of a block too */
    return o;
}

/* Any strides. */
static attn_cuda_operand elements(const char *name, attn_view *view, const int64_t size[4])
{
    attn_cuda_operand o = {.name = name, .field = &view->data, .stride = view->stride, .axes = 4, .access = READS};
    memcpy(o.count, size, sizeof o.count);
    o.run = o.unit = 1;
    o.unit_bytes = element_bytes(view->dtype);
    return o;
}

/* Factors of rows. */
static attn_cuda_operand scales(const char *name, attn_view *view, shape s, int access)
{
    attn_cuda_operand o = {.name = name, .field = &view->scale, .stride = view->scale_stride, .axes = 3};
    o.access = access;
    memcpy(o.count, s.size, 3 * sizeof *o.count);
    o.run = o.unit = 1;
    o.unit_bytes = sizeof(float);
    return o;
}

static attn_cuda_operand array(const char *name, void *field, int64_t count, size_t size)
{
    attn_cuda_operand o = {.name = name, .field = field, .access = READS, .run = count, .unit = 1};
    o.unit_bytes = (int32_t)size;
    return o;
}

/* `count` rows of `row` elements, *stride apart. */
static attn_cuda_operand table(const char *name, void *field, int64_t count, int64_t row, int64_t *stride, size_t size)
{
    attn_cuda_operand o = array(name, field, row, size);
    o.axes = 1;
    o.count[0] = count;
    o.stride = stride;
    return o;
}

static attn_cuda_operand *lengths(attn_cuda_operand *next, const char *const names[3], attn_span *span, int64_t batch)
{
    *next++ = array(names[0], &span->used, batch, sizeof *span->used);
    *next++ = array(names[1], &span->offsets, batch + 1, sizeof *span->offsets);
    *next++ = array(names[2], &span->start, batch, sizeof *span->start);
    return next;
}

static bool is_readable(const void *pointer)
{
    int32_t unused;
    bool readable;
    return !pointer || (attn_cuda_place(pointer, &unused, &readable) == ATTN_OK && readable);
}

/* Of a cache with room to grow, what any sequence uses, if the host can read that. */
static int64_t rows_in_use(const attn_span *span, int64_t batch)
{
    int64_t most = 0;
    if (span->offsets || !span->used || !is_readable(span->used) || !is_readable(span->start)) return span->room;
    for (int64_t b = 0; b < batch; b++) {
        int64_t base, room, row, used;
        attn_span_rows(span, b, &base, &room, &row, &used);
        most = attn_max(most, row + used);
    }
    return most;
}

/* Rows that belong to no sequence are not written, so what is there goes the whole way. */
static int output_access(const attn_span *span) { return span->offsets ? READS | WRITES : WRITES; }

static int gradient_access(const attn_job *job, const attn_span *span)
{
    return output_access(span) | (job->accumulate ? READS : 0);
}

int attn_cuda_job_arrays(attn_job *job, attn_cuda_operand list[ATTN_CUDA_JOB_ARRAYS])
{
    static const char *const q_len[] = {"q_len.used", "q_len.offsets", "q_len.start"};
    static const char *const kv_len[] = {"kv_len.used", "kv_len.offsets", "kv_len.start"};
    const int64_t q_batch = job->q_span.offsets ? 1 : job->batch, q_rows = job->q_span.room;
    const int64_t k_batch = job->page_size ? job->page_count : job->kv_span.offsets ? 1 : job->batch;
    const int64_t k_rows = job->page_size ? job->page_size : rows_in_use(&job->kv_span, job->batch);
    const int64_t columns = job->page_size ? job->kv_span.room / job->page_size : 0;
    const shape q = {{q_batch, job->heads_q, q_rows, job->head_dim}};
    const shape k = {{k_batch, job->heads_kv, k_rows, job->head_dim}};
    const shape v = {{k_batch, job->heads_kv, k_rows, job->head_dim_v}};
    const shape out = {{q_batch, job->heads_q, q_rows, job->head_dim_v}};
    const shape lse = {{q_batch, job->heads_q, q_rows, 1}};
    const shape dk = {{k_batch, job->heads_kv, job->kv_span.room, job->head_dim}};
    const shape dv = {{k_batch, job->heads_kv, job->kv_span.room, job->head_dim_v}};
    const int forward_result = job->dout.data ? READS : output_access(&job->q_span);
    attn_cuda_operand *next = list;
    *next++ = rows("q", &job->q, q, READS);
    *next++ = rows("k", &job->k, k, READS);
    *next = rows("v", &job->v, v, READS);
    next->holder = next - 1;
    next++;
    *next++ = scales("k.scale", &job->k, k, READS);
    *next++ = scales("v.scale", &job->v, v, READS);
    *next++ = rows("out", &job->out, out, forward_result);
    *next++ = rows("lse", &job->lse, lse, forward_result);
    *next++ = elements("bias", &job->bias, job->bias_shape);
    next = lengths(next, q_len, &job->q_span, job->batch);
    next = lengths(next, kv_len, &job->kv_span, job->batch);
    *next++ = table("page_table", &job->page_table, job->batch, columns, &job->page_table_stride, sizeof(int32_t));
    *next++ = table("alibi", &job->alibi, job->batch, job->heads_q, &job->alibi_batch_stride, sizeof(float));
    *next++ = array("sink", &job->sink, job->heads_q, sizeof(float));
    *next++ = array("seed_offset", &job->seed_offset, 2, sizeof(uint64_t));
    *next++ = rows("dout", &job->dout, out, READS);
    *next++ = rows("dlse", &job->dlse, lse, READS);
    *next++ = rows("dq", &job->dq, q, gradient_access(job, &job->q_span));
    *next++ = rows("dk", &job->dk, dk, gradient_access(job, &job->kv_span));
    *next++ = rows("dv", &job->dv, dv, gradient_access(job, &job->kv_span));
    *next = elements("dbias", &job->dbias, job->bias_shape);
    next++->access = WRITES | (job->accumulate ? READS : 0);
    *next = array("dsink", &job->dsink, job->heads_q, sizeof(float));
    next++->access = WRITES | (job->accumulate ? READS : 0);
    return (int)(next - list);
}

int attn_cuda_append_arrays(attn_append_job *job, bool is_short, attn_cuda_operand list[ATTN_CUDA_APPEND_ARRAYS])
{
    static const char *const new_len[] = {"new_len.used", "new_len.offsets", "new_len.start"};
    static const char *const cache_len[] = {"cache_len.used", "cache_len.offsets", "cache_len.start"};
    const int64_t batch = job->new_span.offsets ? 1 : job->batch, tokens = batch * job->new_rows;
    const int64_t columns = job->page_size ? job->cache_span.room / job->page_size : 0;
    const int64_t angles = job->rotate ? attn_min(job->rope.max_pos, ATTN_MAX_SIZE) * (job->rope.rotary_dim / 2) : 0;
    const shape k_new = {{batch, job->heads_kv, job->new_rows, job->head_dim}};
    const shape v_new = {{batch, job->heads_kv, job->new_rows, job->head_dim_v}};
    const shape q = {{batch, job->heads_q, job->new_rows, job->head_dim}};
    const shape k_cache = {{job->cache_batch, job->heads_kv, job->cache_rows, job->head_dim}};
    const shape v_cache = {{job->cache_batch, job->heads_kv, job->cache_rows, job->head_dim_v}};
    const int cache = is_short ? WRITES : READS | WRITES, scale = job->set_scale ? cache : READS;
    attn_cuda_operand *next = list;
    *next++ = rows("k_new", &job->k_new, k_new, READS);
    *next++ = rows("v_new", &job->v_new, v_new, READS);
    *next++ = rows("q", &job->q, q, READS | WRITES);
    *next++ = rows("k_cache", &job->k_cache, k_cache, cache);
    *next++ = scales("k_cache.scale", &job->k_cache, k_cache, scale);
    *next++ = rows("v_cache", &job->v_cache, v_cache, cache);
    *next++ = scales("v_cache.scale", &job->v_cache, v_cache, scale);
    next = lengths(next, new_len, &job->new_span, job->batch);
    next = lengths(next, cache_len, &job->cache_span, job->batch);
    *next++ = table("page_table", &job->page_table, job->batch, columns, &job->page_table_stride, sizeof(int32_t));
    *next++ = array("slots", &job->slots, tokens, sizeof *job->slots);
    *next++ = array("rope.cos", &job->rope.cos, angles, sizeof(float));
    *next++ = array("rope.sin", &job->rope.sin, angles, sizeof(float));
    *next++ = array("rope.positions", &job->rope.positions, tokens, sizeof *job->rope.positions);
    return (int)(next - list);
}

int attn_cuda_mask_arrays(attn_simt_mask *mask, attn_cuda_operand list[ATTN_CUDA_MASK_ARRAYS])
{
    const attn_job *job = &mask->job;
    list[0] = rows("keep", &mask->keep, (shape){{job->batch, job->heads_q, job->max_q, job->max_k}}, WRITES);
    list[1] = array("seed_offset", &mask->job.seed_offset, 2, sizeof(uint64_t));
    return 2;
}

int attn_cuda_merge_arrays(attn_simt_merge *merge, attn_simt_part *part, attn_cuda_operand *list)
{
    const int64_t *s = merge->shape;
    const shape out = {{s[0], s[1], s[2], s[3]}}, lse = {{s[0], s[1], s[2], 1}};
    attn_cuda_operand *next = list;
    *next++ = rows("out", &merge->out, out, WRITES);
    *next++ = rows("lse", &merge->lse, lse, WRITES);
    for (int32_t n = 0; n < merge->parts; n++) {
        *next++ = rows("out_parts[]", &part[n].out, out, READS);
        *next = array("lse_parts[]", &part[n].lse, 1, sizeof(float));
        next->axes = 3;
        next->stride = part[n].lse_stride;
        memcpy(next->count, s, 3 * sizeof *s);
        next++;
    }
    return (int)(next - list);
}
