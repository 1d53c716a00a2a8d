/* SPDX-License-Identifier: Apache-2.0
 * A validated problem in the form that backends work on: plain data, fixed width, no defaults left open,
 * passed to CUDA kernels by value. validate.c makes it from the public structs; the inline functions below
 * are the indexing rules of docs/semantics.md sections 2 and 3, shared by every backend. */
#ifndef ATTN_JOB_H
#define ATTN_JOB_H

#include "attn/attn.h"
#include "number.h"
#include "philox.h"

#define ATTN_MAX_HEAD_DIM 576
#define ATTN_OPEN ((int64_t)1 << 60)     /* a window side without a limit */
#define ATTN_MAX_SIZE ((int64_t)1 << 40) /* of any axis, window or diagonal: sums of a few cannot overflow */

/* Strides are in elements; on broadcast axes and axes of size 1 they are 0. data == NULL: absent. */
typedef struct attn_view {
    char *data;
    float *scale; /* I8, F8; NULL: 1 */
    int64_t stride[4];
    int64_t scale_stride[3];
    int32_t dtype;
    int32_t pad;
} attn_view;

typedef struct attn_span { /* attn_lengths, plus the room where there are no offsets */
    const int32_t *used, *offsets, *start;
    int64_t room;
} attn_span;

typedef struct attn_job {
    attn_view q, k, v, out, lse, bias;
    attn_view dout, dq, dk, dv, dbias, dlse; /* backward */
    attn_span q_span, kv_span;
    const int32_t *page_table;
    int64_t page_table_stride;
    int64_t page_size;  /* 0: not paged */
    int64_t page_count; /* pages in the pool */
    const float *alibi, *sink;
    float *dsink;
    const uint64_t *seed_offset;
    uint64_t seed, offset;
    int64_t alibi_batch_stride;
    int64_t batch, heads_q, heads_kv, group; /* group = heads_q / heads_kv */
    int64_t head_dim, head_dim_v;
    int64_t max_q, max_k;              /* bounds of the used lengths: max if given, else the largest room */
    int64_t bias_shape[4];             /* 1 where it broadcasts */
    int64_t window_left, window_right; /* ATTN_OPEN: no limit; causal is window_right <= 0 */
    int64_t diagonal;
    int32_t bottom_right; /* 1: the diagonal is k_len - q_len of each sequence */
    int32_t num_splits;   /* 0: by rule */
    int32_t accumulate, unordered;
    int32_t loose_q, loose_k; /* 1: max_q, max_k may be above the longest sequence, whose length only a GPU can read */
    float scale, softcap;
    float keep_factor; /* 1/(1-p); 0 for p = 1 */
    int32_t has_dropout;
    uint64_t keep_threshold; /* keep if word >= this */
    int64_t batch_origin, head_origin, row_origin, column_origin;
} attn_job;

/* One sequence: where its rows lie and how it is aligned. */
typedef struct attn_sequence {
    int64_t q_batch, k_batch;   /* index on the tensors' batch axis: 0 for packed tensors */
    int64_t q_row, q_len;       /* first used row, used rows */
    int64_t q_room_row, q_room; /* all rows that the sequence owns */
    int64_t k_row, k_len;       /* paged: k_row is a token index of the page table */
    int64_t diagonal;
} attn_sequence;

/* No element of the forward's outputs. */
ATTN_INLINE int attn_job_is_empty(const attn_job *job)
{
    return !job->batch || !job->heads_q || !job->head_dim_v || !job->q_span.room;
}

/* Levels that multiply bf16 do it for these. */
ATTN_INLINE int attn_job_is_bf16(const attn_job *job)
{
    return job->q.dtype == ATTN_BF16 && job->k.dtype == ATTN_BF16 && job->v.dtype == ATTN_BF16;
}

ATTN_INLINE void attn_span_rows(const attn_span *s, int64_t b, int64_t *base, int64_t *room, int64_t *row, int64_t *len)
{
    int64_t start = s->start ? s->start[b] : 0;
    *base = s->offsets ? s->offsets[b] : 0;
    *room = s->offsets ? (int64_t)s->offsets[b + 1] - s->offsets[b] : s->room;
    *row = *base + start;
    *len = s->used ? s->used[b] : *room - start;
}

/* The most rows that a sequence can have, whatever length arrays hold: `max` is read from offsets unless it is given. */
ATTN_INLINE int64_t attn_span_most(const attn_span *s, int64_t max)
{
    return s->offsets ? s->room : attn_min(s->room, max);
}

ATTN_INLINE attn_sequence attn_sequence_of(const attn_job *job, int64_t b)
{
    attn_sequence s;
    int64_t k_base, k_room;
    attn_span_rows(&job->q_span, b, &s.q_room_row, &s.q_room, &s.q_row, &s.q_len);
    attn_span_rows(&job->kv_span, b, &k_base, &k_room, &s.k_row, &s.k_len);
    s.q_batch = job->q_span.offsets ? 0 : b;
    s.k_batch = job->kv_span.offsets ? 0 : b;
    s.diagonal = job->bottom_right ? s.k_len - s.q_len : job->diagonal;
    return s;
}

/* Visible keys of query i: [*first, *end), empty as *first >= *end. Both grow with i. */
ATTN_INLINE void attn_visible(const attn_job *job, const attn_sequence *s, int64_t i, int64_t *first, int64_t *end)
{
    int64_t c = i + s->diagonal;
    *first = job->window_left == ATTN_OPEN ? 0 : attn_max(0, c - job->window_left);
    *end = job->window_right == ATTN_OPEN ? s->k_len : attn_min(s->k_len, c + job->window_right + 1);
}

/* Element offset of row `row` (as attn_sequence counts) of head h. */
ATTN_INLINE int64_t attn_row_offset(const attn_view *t, int64_t batch, int64_t h, int64_t row)
{
    return batch * t->stride[0] + h * t->stride[1] + row * t->stride[2];
}

/* Factor of a row of an I8 or F8 tensor that has any: t->scale is not NULL. */
ATTN_INLINE float *attn_row_scale(const attn_view *t, int64_t batch, int64_t h, int64_t row)
{
    return t->scale + batch * t->scale_stride[0] + h * t->scale_stride[1] + row * t->scale_stride[2];
}

/* Batch (or page) and row of key j of sequence b, for the data and its scales alike. */
ATTN_INLINE void attn_key_place(const attn_job *job, const attn_sequence *s, int64_t b, int64_t j, int64_t *batch,
                                int64_t *row)
{
    int64_t token = s->k_row + j;
    *batch = s->k_batch;
    *row = token;
    if (job->page_size) {
        *batch = job->page_table[b * job->page_table_stride + token / job->page_size];
        *row = token % job->page_size;
    }
}

ATTN_INLINE int64_t attn_bias_offset(const attn_view *bias, int64_t b, int64_t h, int64_t i, int64_t j)
{
    return b * bias->stride[0] + h * bias->stride[1] + i * bias->stride[2] + j * bias->stride[3];
}

ATTN_INLINE float attn_alibi_slope(const attn_job *job, int64_t b, int64_t h)
{
    return job->alibi[b * job->alibi_batch_stride + h];
}

/* 1 if the pair is kept. Kernels that work on whole groups call Philox once for four columns instead. */
ATTN_INLINE int attn_dropout_keep(const attn_job *job, uint64_t key, int64_t b, int64_t h, int64_t i, int64_t j)
{
    uint64_t column = (uint64_t)(job->column_origin + j);
    attn_philox r = attn_philox_4x32_10(attn_dropout_group(column), (uint32_t)(job->row_origin + i),
                                        (uint32_t)(job->head_origin + h), (uint32_t)(job->batch_origin + b), key);
    /* Chosen, not indexed: on a GPU an index would put the words into memory. */
    const int n = attn_dropout_word(column);
    const uint32_t low = n & 1 ? r.word[1] : r.word[0], high = n & 1 ? r.word[3] : r.word[2];
    return (n & 2 ? high : low) >= job->keep_threshold;
}

ATTN_INLINE uint64_t attn_job_dropout_key(const attn_job *job)
{
    return job->seed_offset ? attn_dropout_key(job->seed_offset[0], job->seed_offset[1])
                            : attn_dropout_key(job->seed, job->offset);
}

/* ---- rows of floats -------------------------------------------------------------------------- */

/* Byte address of element `offset`; block types: offset is a multiple of 32. */
ATTN_INLINE char *attn_element(const attn_view *t, int64_t offset)
{
    switch (t->dtype) {
    case ATTN_F32: return t->data + 4 * offset;
    case ATTN_F16:
    case ATTN_BF16: return t->data + 2 * offset;
    case ATTN_Q8_0: return t->data + offset / ATTN_BLOCK * ATTN_Q8_0_BYTES;
    case ATTN_Q4_0: return t->data + offset / ATTN_BLOCK * ATTN_Q4_0_BYTES;
    default: return t->data + offset;
    }
}

/* A float element of F32, F16 or BF16 (bias, outputs). */
ATTN_INLINE float attn_load_float(const attn_view *t, int64_t offset)
{
    const char *p = attn_element(t, offset);
    if (t->dtype == ATTN_F16) return attn_f16_to_f32(attn_load_u16(p));
    if (t->dtype == ATTN_BF16) return attn_bf16_to_f32(attn_load_u16(p));
    float x;
    memcpy(&x, p, sizeof x);
    return x;
}

ATTN_INLINE void attn_store_float(const attn_view *t, int64_t offset, float x)
{
    char *p = attn_element(t, offset);
    if (t->dtype == ATTN_F16) attn_store_u16(p, attn_f32_to_f16(x));
    else if (t->dtype == ATTN_BF16) attn_store_u16(p, attn_f32_to_bf16(x));
    else memcpy(p, &x, sizeof x);
}

#endif
