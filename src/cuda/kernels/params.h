/* SPDX-License-Identifier: Apache-2.0
 * The one parameter of each kernel, for the host (C11) and the device. */
#ifndef ATTN_CUDA_PARAMS_H
#define ATTN_CUDA_PARAMS_H

#include "append_job.h"
#ifndef __cplusplus
#  include <stdbool.h>
#endif

enum {
    SIMT_THREADS = 256,
    SIMT_KEYS = 64,               /* of a step */
    SIMT_CHUNK = 64,              /* elements of rows that are in shared memory at a time */
    SIMT_STRIDE = SIMT_CHUNK + 4, /* floats between rows there: eight rows start in different banks */
    SIMT_FOLD_THREADS = 128,
    SIMT_FOLD_COLUMNS = 64, /* of a warp */
    SIMT_PARTS = 24,        /* of a merge, that travel with the launch */
    SIMT_APPEND_THREADS = 128,
    SIMT_APPEND_SHARED = (ATTN_MAX_HEAD_DIM + SIMT_APPEND_THREADS / 32) * 4,
    SIMT_PIECE = 256,       /* keys of a piece of a sequence of few queries */
    SIMT_PIECES = 16,       /* of so many; those of longer ones have twice as many keys */
    SIMT_FEW = 16,          /* up to so many queries */
    SIMT_FEW_ROWS = 64,     /* of a group, that kernels for few queries take */
    SIMT_BLOCK_BYTES = 208, /* what all threads know of their task */
    /* Two tiles; places of rows and keys, LSE and the like of each. */
    SIMT_BACKWARD_SHARED = 2 * SIMT_KEYS * SIMT_STRIDE * 4 + SIMT_KEYS * (6 * 8 + 4 * 4) + SIMT_BLOCK_BYTES
};

/* Everything of a forward call. Block n does tasks n, n + blocks, ...; task = ((b Hkv + hkv) row_blocks +
 * block) pieces + piece, of which sequences shorter than the bounds have only some. */
typedef struct attn_simt_forward {
    attn_job job;
    float *partials;           /* [B][Hkv][row_room][pieces][attn_simt_partial_floats]; NULL: pieces is 1 */
    int64_t tasks, row_blocks; /* bounds by max_q and max_k */
    int64_t pieces, row_room;
    /* [task][2] of a kernel with scaled halves (bf16_halves.cuh): whether O may be too far off, and whether that matters, as V
     * is not all zeros. A launch of simt behind it, whose blocks are others, does only what overlaps tasks with both. */
    uint32_t *doubts;
    int64_t doubt_rows, doubt_blocks; /* rows of a block and row_blocks of that kernel; 0: everything is to be done */
    int32_t sequences, pad;           /* attn_simt_sequences */
} attn_simt_forward;

/* Which sequences of a batch a launch does: where some have few queries (attn_simt_is_few), two share it. */
enum attn_simt_sequences { ATTN_SIMT_ALL, ATTN_SIMT_FEW, ATTN_SIMT_MANY };

/* Everything of a backward call. Block n does tasks n, n + blocks, ... of its launch. */
typedef struct attn_simt_backward {
    attn_job job;
    float *rest;                           /* [batch axis of q][Hq][row of the tensor]: rowsum(dO o O) - dLSE */
    int64_t tasks, row_blocks, key_blocks; /* bounds by max_q and max_k; blocks of SIMT_KEYS */
} attn_simt_backward;

typedef struct attn_simt_append {
    attn_append_job job;
} attn_simt_append;

typedef struct attn_simt_mask {
    attn_job job;
    attn_view keep; /* [B][Hq][Sq][Sk] bytes */
} attn_simt_mask;

typedef struct attn_simt_part {
    attn_view out;
    const float *lse;
    int64_t lse_stride[3];
} attn_simt_part;

typedef struct attn_simt_merge {
    attn_view out, lse;
    const attn_simt_part *more_parts; /* in device memory, if there are more than fit below */
    int64_t shape[4];
    int32_t parts, pad;
    attn_simt_part part[SIMT_PARTS];
} attn_simt_merge;

/* Whether kernels for few queries take a sequence, where there are any: a rule on it alone, as they round differently. */
ATTN_INLINE bool attn_simt_is_few(const attn_job *job, int64_t q_len)
{
    return q_len <= SIMT_FEW && q_len * job->group <= SIMT_FEW_ROWS;
}

/* A partial result: m, l, two places of nothing, O, and nothing up to the next multiple of 16 bytes. */
enum { SIMT_PARTIAL_HEAD = 4 };
ATTN_INLINE int64_t attn_simt_partial_floats(int64_t head_dim_v)
{
    return SIMT_PARTIAL_HEAD + (head_dim_v + 3) / 4 * 4;
}

/* Keys of a piece of a sequence: a rule on the sequence alone, so that neither batch nor device decides a bit. */
ATTN_INLINE int64_t attn_simt_piece_keys(const attn_job *job, int64_t q_len, int64_t k_len)
{
    if (job->num_splits) return attn_max(SIMT_KEYS, attn_round_up(attn_ceil_div(k_len, job->num_splits), SIMT_KEYS));
    if (q_len > SIMT_FEW) return attn_max(k_len, 1);
    return k_len <= SIMT_PIECE * SIMT_PIECES ? SIMT_PIECE : 2 * SIMT_PIECE;
}

ATTN_INLINE int64_t attn_simt_pieces(const attn_job *job, int64_t q_len, int64_t k_len)
{
    const int64_t keys = attn_simt_piece_keys(job, q_len, k_len);
    if (keys == SIMT_PIECE || keys == 2 * SIMT_PIECE) /* by shifts, on a GPU a tenth of the time */
        return attn_max(1, keys == SIMT_PIECE ? (k_len + SIMT_PIECE - 1) / SIMT_PIECE
                                              : (k_len + 2 * SIMT_PIECE - 1) / (2 * SIMT_PIECE));
    return attn_max(1, attn_ceil_div(k_len, keys));
}

#endif
