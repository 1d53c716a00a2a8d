/* SPDX-License-Identifier: Apache-2.0
 * The kernels of the forward on tensor cores: one list for the host, the device and the tests. */
#ifndef ATTN_CUDA_TENSOR_SHAPES_H
#define ATTN_CUDA_TENSOR_SHAPES_H

#include "params.h"

/* X(module, dk, dv, keys, blocks, warps, q_in_registers, one_buffer, blocks_per_sm): head sizes up to dk and dv; keys of
 * a step; blocks of 16 rows a warp; whether K and V share one buffer, which takes a barrier more. Registers allow 8 warps
 * an SM. The order is that of preference. */
#define SM70_SHAPES_64(X)                       \
  X(sm70_forward_64, 32, 32, 64, 2, 4, 1, 0, 2) \
  X(sm70_forward_64, 64, 64, 64, 2, 4, 0, 0, 2)
#define SM70_SHAPES_128(X)                       \
  X(sm70_forward_128, 96, 96, 32, 2, 8, 0, 0, 1) \
  X(sm70_forward_128, 128, 128, 32, 2, 8, 0, 0, 1)
#define SM70_SHAPES_256(X)                         \
  X(sm70_forward_256, 192, 128, 64, 1, 8, 0, 1, 1) \
  X(sm70_forward_256, 192, 192, 64, 1, 8, 0, 1, 1) \
  X(sm70_forward_256, 256, 256, 32, 1, 8, 0, 1, 1) \
  X(sm70_forward_256, 320, 256, 32, 1, 6, 0, 1, 1)
#define SM70_SHAPES_512(X) X(sm70_forward_512, 576, 512, 32, 1, 8, 0, 1, 1)
#define SM70_BF16_SHAPES(X) SM70_SHAPES_64(X) SM70_SHAPES_128(X) SM70_SHAPES_256(X)
#define SM70_SHAPES(X) SM70_BF16_SHAPES(X) SM70_SHAPES_512(X)

/* f16 alone; 64 KB of shared memory an SM. */
#define SM75_SHAPES(X)                         \
  X(sm75_forward, 32, 32, 64, 2, 4, 0, 0, 2)   \
  X(sm75_forward, 64, 64, 64, 2, 4, 0, 1, 2)   \
  X(sm75_forward, 96, 96, 64, 1, 8, 0, 0, 1)   \
  X(sm75_forward, 128, 128, 64, 1, 8, 0, 1, 1) \
  X(sm75_forward, 192, 128, 32, 1, 6, 0, 1, 1) \
  X(sm75_forward, 192, 192, 32, 1, 6, 0, 1, 1) \
  X(sm75_forward, 256, 256, 32, 1, 4, 0, 1, 1) \
  X(sm75_forward, 320, 256, 32, 1, 2, 0, 1, 1)

#define SM80_SHAPES_64(X)                        \
  X(sm80_forward_64, 32, 32, 128, 2, 4, 0, 0, 2) \
  X(sm80_forward_64, 64, 64, 128, 2, 4, 0, 0, 2)
#define SM80_SHAPES_128(X)                       \
  X(sm80_forward_128, 96, 96, 64, 2, 4, 0, 0, 2) \
  X(sm80_forward_128, 128, 128, 64, 2, 4, 0, 0, 2)
#define SM80_SHAPES_256(X)                         \
  X(sm80_forward_256, 192, 128, 64, 1, 8, 0, 0, 1) \
  X(sm80_forward_256, 192, 192, 64, 1, 8, 0, 0, 1) \
  X(sm80_forward_256, 256, 256, 64, 1, 4, 0, 0, 2) \
  X(sm80_forward_256, 320, 256, 64, 1, 8, 0, 0, 1)
#define SM80_SHAPES(X) SM80_SHAPES_64(X) SM80_SHAPES_128(X) SM80_SHAPES_256(X)
/* Laid out as sm75's are, and small enough for every GPU. */
#define SM80_SHAPES_512(X) X(sm80_forward_512, 576, 512, 32, 1, 8, 0, 1, 1)
/* Where a block has 99 KB and an SM 100 (sm_86, sm_89). */
#define SM80_SMALL_SHAPES(X)                         \
  X(sm80_forward_small, 32, 32, 64, 2, 4, 0, 0, 2)   \
  X(sm80_forward_small, 64, 64, 64, 2, 4, 0, 0, 2)   \
  X(sm80_forward_small, 192, 192, 32, 1, 8, 0, 0, 1) \
  X(sm80_forward_small, 256, 256, 32, 1, 4, 0, 0, 1) \
  X(sm80_forward_small, 320, 256, 32, 1, 4, 0, 0, 1)

/* Of few queries, K and V into registers (few_forward.cuh). X(module, head sizes up to, rows of a block, blocks_per_sm) */
#define SM70_FEW_SHAPES(X) X(sm70_few, 64, 8, 4) X(sm70_few, 128, 8, 3) X(sm70_few, 256, 8, 2)
/* The same by rings in shared memory (ring_forward.cuh). X(module, head sizes up to, rows of a block, of a sequence at most or 0, keys of a step, steps
 * of a ring, blocks_per_sm). A row has the same bits in blocks of 8 and of 16, and the last of a head size takes any number. */
#define SM75_RING_SHAPES(X) X(sm75_few, 64, 8, 0, 16, 1, 2) X(sm75_few, 128, 8, 0, 16, 1, 1)
#define SM80_RING_SHAPES_64(X) X(sm80_few, 64, 8, 8, 32, 1, 4) X(sm80_few, 64, 16, 0, 32, 1, 3)
#define SM80_RING_SHAPES_MORE(X)    \
  X(sm80_few, 128, 8, 8, 32, 1, 2)  \
  X(sm80_few, 128, 16, 0, 32, 1, 2) \
  X(sm80_few, 256, 8, 0, 16, 1, 2)
#define SM80_RING_SHAPES(X) SM80_RING_SHAPES_64(X) SM80_RING_SHAPES_MORE(X)
/* By bulk copies; 64 columns are slower so, and left to the list above. */
#define SM90_RING_SHAPES(X)         \
  X(sm90_few, 128, 4, 4, 16, 2, 3)  \
  X(sm90_few, 128, 8, 8, 16, 2, 2)  \
  X(sm90_few, 128, 16, 0, 16, 2, 2) \
  X(sm90_few, 256, 8, 0, 16, 1, 2)
/* Which K and V a kernel reads as they are stored (stored.cuh), beside f16 queries: none, all but halves, all, or both of one type, without questions in a
 * step. */
enum attn_stored { ATTN_STORED_NONE, ATTN_STORED_CODES, ATTN_STORED_ANY, ATTN_STORED_Q8_0, ATTN_STORED_Q4_0 };
#define STORED_HAS_HALVES(stored) ((stored) == ATTN_STORED_NONE || (stored) == ATTN_STORED_ANY)
#define SM70_STORED_SHAPES(X)         \
  X(sm70_stored, 64, 8, 0, 16, 1, 3)  \
  X(sm70_stored, 128, 8, 0, 16, 1, 2) \
  X(sm70_stored, 256, 8, 0, 16, 1, 1)
#define SM75_STORED_SHAPES(X) X(sm75_stored, 64, 8, 0, 16, 1, 2) X(sm75_stored, 128, 8, 0, 16, 1, 1)
#define SM80_STORED_SHAPES(X)          \
  X(sm80_stored, 64, 8, 0, 16, 2, 4)   \
  X(sm80_stored, 128, 8, 8, 16, 2, 3)  \
  X(sm80_stored, 128, 16, 0, 16, 2, 2) \
  X(sm80_stored, 256, 8, 0, 16, 1, 2)
#define SM80_MIXED_SHAPES(X)         \
  X(sm80_mixed, 64, 8, 0, 32, 1, 3)  \
  X(sm80_mixed, 128, 8, 0, 32, 1, 2) \
  X(sm80_mixed, 256, 8, 0, 16, 1, 2)
enum { FEW_WARPS = 4, FEW_THREADS = 32 * FEW_WARPS, FEW_HEAD = (SIMT_BLOCK_BYTES + 15) / 16 * 16 };
#define FEW_PITCH(d) ((d) + 4)                                         /* floats */
#define FEW_SUMS(d, rows) ((rows)*FEW_WARPS * (12 + FEW_PITCH(d) * 4)) /* what warps fold */
#define FEW_SHARED(d, rows) (FEW_HEAD + (rows) * (d)*2 + FEW_SUMS(d, rows))
/* Bytes from row to row of a stage: an odd number of 16, so that eight rows meet 32 banks. */
#define STORED_PITCH(bytes) ((bytes) / 32 * 32 + ((bytes) % 32 > 16 ? 48 : 16))
#define RING_SHARED(d, rows, keys, depth, has_halves)                                                          \
  (RING_HEAD(depth, 0) + FEW_WARPS * (depth)*2 * (keys)*STORED_PITCH((has_halves) ? 2 * (d) : 34 * (d) / 32) + \
   FEW_SUMS(d, rows))
#define RING_BULK_SHARED(d, rows, keys, depth) \
  (RING_HEAD(depth, 1) + FEW_WARPS * (depth)*2 * (keys)*2 * (d) + FEW_SUMS(d, rows))
/* Four known tasks, and gates of bulk copies. */
#define RING_HEAD(depth, bulk) ((bulk) ? (4 * FEW_HEAD + FEW_WARPS * (depth)*8 + 127) / 128 * 128 : 4 * FEW_HEAD)

/* Bytes from row to row in shared memory, and what tiles there begin at multiples of. */
#define TENSOR_PITCH_sm70(d) (2 * (d) + 16)
#define TENSOR_PITCH_sm75(d) TENSOR_PITCH_sm70(d)
#define TENSOR_PITCH_sm80(d) (((d) + 63) / 64 * 128)
#define TENSOR_PLACES_sm70 0 /* bytes a row: where results go */
#define TENSOR_PLACES_sm75 0
#define TENSOR_PLACES_sm80 20
#define TENSOR_SUMS_sm70(dv) ((dv) > 64 ? 256 : 0) /* bytes a warp and block: sums of P as rounded */
#define TENSOR_SUMS_sm75(dv) 0
#define TENSOR_SUMS_sm80(dv) 0
#define TENSOR_ALIGNMENT_sm70 16
#define TENSOR_ALIGNMENT_sm75 16
#define TENSOR_ALIGNMENT_sm80 128
#define TENSOR_OUTPUT_PITCH 36 /* floats */
/* Bytes a warp, of the body with everything. */
#define TENSOR_SCRATCH(keys, blocks) TENSOR_LARGER(256, 128 * (blocks) * (((keys) + 63) / 64))
#define TENSOR_BF16_BYTES 128 /* what kernels with scaled halves have besides */

#define TENSOR_SPLIT(dv) ((dv) > 256 ? 4 : 1) /* warps that share rows: O of 16 rows is dv / 2 registers of one */
#define TENSOR_ROWS(dv, blocks, warps) (16 * (blocks) * (warps) / TENSOR_SPLIT(dv))
#define TENSOR_LARGER(a, b) ((a) > (b) ? (a) : (b))
/* Q, K and V, and parts of S where warps share rows. */
#define TENSOR_TILES(family, dk, dv, keys, blocks, warps, q_in_registers, one_buffer)    \
  (((q_in_registers) ? 0 : TENSOR_ROWS(dv, blocks, warps) * TENSOR_PITCH_##family(dk)) + \
   ((one_buffer) ? (keys)*TENSOR_PITCH_##family(TENSOR_LARGER(dk, dv))                   \
                 : (keys) * (TENSOR_PITCH_##family(dk) + TENSOR_PITCH_##family(dv))) +   \
   (TENSOR_SPLIT(dv) > 1 ? 16 * (blocks) * (warps) * (keys)*4 : 0))
#define TENSOR_END(dv, blocks, warps) (TENSOR_ROWS(dv, blocks, warps) * 12 + (warps)*16 * TENSOR_OUTPUT_PITCH * 4)
/* What comes before them. */
#define TENSOR_HEAD(family, scaled, dv, keys, blocks, warps, all)                                                     \
  TENSOR_MULTIPLE(SIMT_BLOCK_BYTES + (keys)*32 + 16 + TENSOR_ROWS(dv, blocks, warps) * (8 + TENSOR_PLACES_##family) + \
                      TENSOR_SUMS_##family(dv) * (blocks) * (warps) +                                                 \
                      ((all) ? TENSOR_SCRATCH(keys, blocks) * (warps) : 0) + ((scaled) ? TENSOR_BF16_BYTES : 0),      \
                  TENSOR_ALIGNMENT_##family)
#define TENSOR_MULTIPLE(bytes, of) (((bytes) + (of)-1) / (of) * (of))
#define TENSOR_SHARED(family, scaled, dk, dv, keys, blocks, warps, q_in_registers, one_buffer, all)             \
  (TENSOR_HEAD(family, scaled, dv, keys, blocks, warps, all) +                                                  \
   TENSOR_MULTIPLE(TENSOR_LARGER(TENSOR_TILES(family, dk, dv, keys, blocks, warps, q_in_registers, one_buffer), \
                                 TENSOR_END(dv, blocks, warps)),                                                \
                   TENSOR_ALIGNMENT_##family))

#endif
