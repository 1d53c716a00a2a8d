/* SPDX-License-Identifier: Apache-2.0
 * The parameter and the shapes of the backward on tensor cores, for the host (C11), the device and the tests. */
#ifndef ATTN_CUDA_BACKWARD_PARAMS_H
#define ATTN_CUDA_BACKWARD_PARAMS_H

#include "tensor_shapes.h"

enum { BACKWARD_THREADS = 256 };

/* X(module, d, rows, keys, s_warps, k_warps, q_warps, teams): head sizes up to d; query rows of a step, all of one head; keys that a block owns; warps that
 * share the rows of S, the keys of dK, the rows of dQ; 2 teams: one computes S, the other dP. The order is that of preference. */
#define SM70_BACKWARD_SHAPES(X)             \
  X(sm70_backward, 64, 64, 128, 2, 4, 4, 1) \
  X(sm70_backward, 128, 64, 64, 4, 2, 2, 1) \
  X(sm70_backward, 256, 32, 32, 2, 1, 1, 2)
/* A block has 227 KB on sm_90, 163 on sm_80, 99 on sm_86 and sm_89. */
#define SM80_BACKWARD_SHAPES(X)              \
  X(sm80_backward, 64, 128, 128, 2, 4, 2, 1) \
  X(sm80_backward, 64, 64, 128, 2, 4, 2, 1)  \
  X(sm80_backward, 64, 32, 64, 2, 4, 2, 1)   \
  X(sm80_backward, 128, 64, 128, 2, 4, 2, 1) \
  X(sm80_backward, 128, 32, 64, 2, 2, 1, 1)  \
  X(sm80_backward, 256, 64, 64, 4, 2, 2, 1)  \
  X(sm80_backward, 256, 32, 64, 2, 2, 2, 1)  \
  X(sm80_backward, 256, 32, 32, 2, 1, 1, 2)

#define BACKWARD_SLOTS(asynchronous) ((asynchronous) ? 2 : 1) /* pairs of tiles of Q and dO */
#define BACKWARD_SLOTS_sm70 BACKWARD_SLOTS(0)
#define BACKWARD_SLOTS_sm80 BACKWARD_SLOTS(1)
/* What comes before the tiles in shared memory: the task, its ticket, LSE and rest of two blocks of rows. */
#define BACKWARD_HEAD(rows) ((SIMT_BLOCK_BYTES + 16 + 4 * (rows)*4 + 127) / 128 * 128)
/* K and V; Q and dO; P and dS; what teams exchange. */
#define BACKWARD_SHARED(family, d, rows, keys, teams)                                                       \
  (BACKWARD_HEAD(rows) + 2 * (keys)*TENSOR_PITCH_##family(d) +                                              \
   2 * BACKWARD_SLOTS_##family * (rows)*TENSOR_PITCH_##family(d) + 2 * (rows)*TENSOR_PITCH_##family(keys) + \
   ((teams) > 1 ? (teams) * (rows) * (keys)*4 : 0))
#define BACKWARD_PREPARE_SHARED(family, d, rows) (2 * (rows)*TENSOR_PITCH_##family(d))
#define BACKWARD_FINISH_SHARED (BACKWARD_THREADS / 32 * 16 * 20 * 4)

typedef struct attn_backward_tensor {
    attn_simt_backward simt;
    float *dq;          /* [Hq][tiles_of_head][rows * d], as lanes hold them; NULL: not wanted */
    uint32_t *counters; /* [Hq][tiles_of_head]: blocks of keys that have added theirs; NULL: in any order */
    uint32_t *ticket;
    int64_t tiles_of_head;
    int64_t row_blocks, key_blocks; /* bounds by max_q and max_k */
    int64_t heads_of_set;           /* kv heads whose blocks of keys are taken in turn */
    int32_t eightfold, pad;         /* vector copies of eight reach all rows */
} attn_backward_tensor;

/* Blocks of rows, of one head: that of query i of sequence b, and how many there are. Packed sequences leave at most one unused
 * each. */
ATTN_INLINE int64_t attn_backward_tile(const attn_job *job, int64_t b, int64_t i, int64_t rows)
{
    const int64_t first =
        job->q_span.offsets ? job->q_span.offsets[b] / rows + b : b * attn_ceil_div(job->q_span.room, rows);
    return first + i / rows;
}

ATTN_INLINE int64_t attn_backward_tiles(const attn_job *job, int64_t rows)
{
    if (job->q_span.offsets) return job->q_span.room / rows + job->batch + 1;
    return job->batch * attn_ceil_div(job->q_span.room, rows);
}

#endif
