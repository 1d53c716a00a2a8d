/* SPDX-License-Identifier: Apache-2.0
 * A validated attn_kv_append, and where its tokens go: plain data and inline rules for host and device, as
 * job.h. */
#ifndef ATTN_APPEND_JOB_H
#define ATTN_APPEND_JOB_H

#include "job.h"

typedef struct attn_append_job {
    attn_view k_new, v_new, k_cache, v_cache, q; /* v_*.data, q.data NULL: absent */
    attn_span new_span, cache_span;
    const int32_t *page_table;
    int64_t page_table_stride;
    int64_t page_size; /* 0: not paged */
    const int64_t *slots;
    attn_rope rope;                  /* if rotate */
    int64_t cache_batch, cache_rows; /* batch entries or pages of the cache, and rows of each */
    int64_t batch, heads_q, heads_kv, head_dim, head_dim_v;
    int64_t new_rows; /* sequence size of the new tensors */
    int64_t max_new;  /* bound of the new tokens of a sequence */
    int32_t rotate, set_scale;
} attn_append_job;

/* Index of new token i of sequence b in slots and positions; `row` is the sequence's first used row. */
ATTN_INLINE int64_t attn_append_token(const attn_append_job *job, int64_t b, int64_t row, int64_t i)
{
    return (job->new_span.offsets ? 0 : b * job->new_rows) + row + i;
}

/* Where it is written: batch entry or page, and row. 0: nowhere (slot -1, or a place outside the cache). */
ATTN_INLINE int attn_append_place(const attn_append_job *job, int64_t b, int64_t row, int64_t i, int64_t *batch,
                                  int64_t *place)
{
    int64_t base, room, first, used;
    if (job->slots) {
        int64_t slot = job->slots[attn_append_token(job, b, row, i)];
        if (slot < 0 || slot >= job->cache_batch * job->cache_rows) return 0;
        *batch = slot / job->cache_rows;
        *place = slot % job->cache_rows;
        return 1;
    }
    attn_span_rows(&job->cache_span, b, &base, &room, &first, &used);
    *batch = job->cache_span.offsets ? 0 : b;
    *place = first + used + i;
    if (job->page_size) {
        *batch = job->page_table[b * job->page_table_stride + *place / job->page_size];
        *place %= job->page_size;
    }
    return *batch >= 0 && *batch < job->cache_batch;
}

ATTN_INLINE int64_t attn_append_position(const attn_append_job *job, int64_t b, int64_t row, int64_t i)
{
    if (job->rope.positions) return job->rope.positions[attn_append_token(job, b, row, i)];
    return job->cache_span.used[b] + i;
}

#endif
