/* SPDX-License-Identifier: Apache-2.0
 * What one instruction-set level offers: its kernels and their tile sizes, in one table, the only symbol that
 * its object library exports. */
#ifndef ATTN_CPU_LEVEL_H
#define ATTN_CPU_LEVEL_H

#include "features.h"
#include "internal.h"

/* A block of query rows of one kv head against a range of keys. Row r is query r / group of head
 * hkv * group + r % group, so that all heads of a group share each loaded key. */
typedef struct attn_cpu_block {
    const attn_job *job;
    attn_sequence seq;
    int64_t b, hkv;
    int64_t row; /* first row */
    int rows;    /* 1 .. what scratch was sized for */
    int64_t key, key_end;
    uint64_t dropout_key;
} attn_cpu_block;

/* Query and head of row r of the block. */
static inline int64_t attn_block_query(const attn_cpu_block *w, int64_t r) { return (w->row + r) / w->job->group; }

static inline int64_t attn_block_head(const attn_cpu_block *w, int64_t r)
{
    return w->hkv * w->job->group + (w->row + r) % w->job->group;
}

/* From those of a row to those of the next one, without a division. */
static inline void attn_block_next(const attn_cpu_block *w, int64_t *query, int64_t *head)
{
    if (++*head < (w->hkv + 1) * w->job->group) return;
    *head -= w->job->group;
    ++*query;
}

/* The block's keys that some row sees, [*first, *end): bands move right with the query. */
static inline void attn_block_band(const attn_cpu_block *w, int64_t *first, int64_t *end)
{
    int64_t unused;
    attn_visible(w->job, &w->seq, attn_block_query(w, 0), first, &unused);
    attn_visible(w->job, &w->seq, attn_block_query(w, w->rows - 1), &unused, end);
    *first = attn_max(*first, w->key);
    *end = attn_min(*end, w->key_end);
}

/* Running softmax of a block, from fresh: m the largest score, l the sum of exp(score - m), o the sum of
 * exp(score - m) * keep * v. A row that saw no key has m = -inf, l = 0, o = 0. */
typedef struct attn_cpu_state {
    float *m, *l; /* [rows] */
    float *o;     /* [rows][o_stride] */
    int64_t o_stride;
} attn_cpu_state;

/* What backward sums up for the keys of a block, without the scale. */
typedef struct attn_cpu_key_sums {
    float *dk, *dv; /* [keys][stride], a stride of whole vectors */
    int64_t dk_stride, dv_stride;
} attn_cpu_key_sums;

typedef struct attn_cpu_level {
    const char *name;
    unsigned needs;       /* attn_cpu_features */
    unsigned wants;       /* of the same: without them it runs, but is not taken by itself */
    bool multiplies_bf16; /* where Q, K and V are all bf16 and the rows are many */
    int row_step;         /* rows of a block: multiples of it, except the last block's; results do not depend on them */
    int key_step;         /* pieces of a sequence's keys begin at multiples of it */
    int (*task_rows)(const attn_job *job, size_t l2_bytes); /* most rows of a block, a multiple of row_step */
    size_t (*scratch_bytes)(const attn_job *job, int rows); /* of one thread; a multiple of 64; grows with rows */
    /* Fills `state` with pointers into scratch. */
    void (*forward)(const attn_cpu_block *block, void *scratch, attn_cpu_state *state);
    /* n elements of out from `offset` on = o * factor / divisor, rounded to out's type (a float type). */
    void (*store_row)(const attn_view *out, int64_t offset, int64_t n, const float *o, float factor, float divisor);

    /* Backward goes by tiles: at most back_rows rows of a block against its keys [key, key_end), at most back_keys of them.
     * Both numbers are part of the result, because they decide in which order is summed. */
    int back_rows, back_keys;
    /* A chain goes by steps of back_keys keys, which are one tile; where a sequence's group has no more than few_rows rows, of
     * few_keys keys, several tiles whose dQ is one sum. */
    int few_rows, few_keys;
    size_t (*back_scratch_bytes)(const attn_job *job); /* of one thread; a multiple of 64 */
    /* delta[r] = D of the block's rows. */
    void (*deltas)(const attn_cpu_block *block, void *scratch, float *delta);
    /* Begins a step: the block's keys into scratch, whose sums start at 0; `sums` shows where they are. NULL: the rows are few,
     * and add_keys writes dK and dV of the keys that they see. */
    void (*load_keys)(const attn_cpu_block *block, void *scratch, attn_cpu_key_sums *sums);
    /* P and dS of the block's rows against these keys, into scratch. Of each row: lse, +inf for an empty one, and rest =
     * dLSE - D. raw: NULL, or [rows][back_keys] for dS as a bias gets it, 0 where masked. */
    void (*tile_gradients)(const attn_cpu_block *block, void *scratch, const float *lse, const float *rest, float *raw);
    void (*add_keys)(const attn_cpu_block *block, void *scratch); /* the tile's dK and dV to the sums */
    /* The step's dQ, without the scale, to dq [rows][stride]; fresh: into it. stride: D rounded up to 16 */
    void (*add_queries)(const attn_cpu_block *block, void *scratch, int fresh, float *dq, int64_t stride);
} attn_cpu_level;

#define LEVEL(name) extern const attn_cpu_level attn_cpu_level_##name;
#include "levels.inc"
#undef LEVEL

const attn_cpu_level *attn_cpu_find_level(const char *name); /* NULL: not built, or not on this processor */
const attn_cpu_level *attn_cpu_best_level(void);             /* of this processor */
const char *attn_cpu_level_names(void);                      /* of the build, " scalar ..." */
/* The level that is forced, by itself or by a kernel "`operation`_NAME", else the best. */
const attn_cpu_level *attn_cpu_choose_level(const attn_force *force, const char *operation);
/* plan's isa, kernel and reason. */
void attn_cpu_name_plan(const attn_context *ctx, const char *operation, const attn_job *job,
                        const attn_cpu_level *level, attn_plan *plan);

/* A sequence's place in the order: those with most work come first, so that no thread begins a long one last. */
typedef struct attn_cpu_start {
    int64_t b;
    int64_t work;   /* Sq Sk */
    int64_t place;  /* of sequence number n, n being the index of this entry */
    int64_t pieces; /* that forward cuts its keys into */
    /* What all sequences before in this order have: tasks and partial results of forward, rows and row blocks of backward. */
    int64_t task, partial;
    int64_t row, row_block;
} attn_cpu_start;

/* Fills b, work and place of the job's sequences, order.c. */
void attn_cpu_order_sequences(const attn_job *job, attn_cpu_start *start);

/* Multiply-adds below which a call stays on its own thread. Forward on 2 cores of an EPYC at avx512, in us alone and with a
 * second thread, where OpenMP's threads wait actively (as by default, for some ms) and where they sleep
 * (OMP_WAIT_POLICY=passive): 2^18 9.3, 7.0, 22; 2^19 18, 13, 29; 2^20.2 34, 21, 35; 2^21.2 67, 38, 53; 2^22 109, 56, 86. So the
 * second pays from 2^17 or from 2^20 on; between them, because avx2 takes twice as long and scalar ten times. */
enum { ATTN_CPU_SMALL = 1 << 18 };

/* The backend's operations, forward.c to dropout.c. */
attn_status attn_cpu_plan_forward(const attn_context *ctx, const attn_job *job, attn_plan *plan);
attn_status attn_cpu_forward(const attn_context *ctx, const attn_job *job, const attn_plan *plan,
                             const attn_exec *exec);
attn_status attn_cpu_plan_backward(const attn_context *ctx, const attn_job *job, attn_plan *plan);
attn_status attn_cpu_backward(const attn_context *ctx, const attn_job *job, const attn_plan *plan,
                              const attn_exec *exec);
attn_status attn_cpu_append(const attn_context *ctx, const attn_append_job *job, const attn_plan *plan,
                            const attn_exec *exec);
attn_status attn_cpu_merge(const attn_context *ctx, const attn_merge_job *job, const attn_plan *plan,
                           const attn_exec *exec);
attn_status attn_cpu_dropout_mask(const attn_context *ctx, const attn_job *job, const attn_view *keep,
                                  const attn_plan *plan, const attn_exec *exec);

#endif
