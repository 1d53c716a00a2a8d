/* SPDX-License-Identifier: Apache-2.0
 * All that kernels know of the machine: one interface, implemented by nvcc's header and by the emulator's.
 *
 *   KERNEL(name, threads, min_blocks, type, p) { ... }    an entry point with one parameter struct, read as p
 *   DEVICE                                                before every other function
 *   thread_index() block_index() block_count()            blocks and grids have one dimension
 *   thread_index_again()                                  the same, found anew: no register keeps it for rare code
 *   shared_memory()                                       dynamic shared memory, aligned to 16 bytes; no other exists
 *   block_barrier() warp_barrier()
 *   shuffle_xor(v, mask) shuffle_from(v, lane)            v is float, int32_t or uint32_t; all 32 lanes take part
 *   any_of_warp(condition)                                all 32 lanes take part
 *   load_vector<T>(p) store_vector(p, v)                  T is 4, 8 or 16 bytes; one aligned access
 *   load_if(condition, p)                                 a uint4 of global memory, or zeros without access
 *   load_once(p) load_once_if(condition, p)               the same of what this block alone reads, and once
 *   hint_once(once)                                       a cache_hint for bulk copies: what is read once leaves L2 first, if `once`
 *   store_kept(p, v) load_kept(p)                         a float4 of global memory that is read soon, and then not again: L2 keeps it until then
 *   mma_m8n8k4_<A>_<B>(d, a, b)                           d += a * b; <A>, <B> are row or col
 *   mma_complete()                                        before a d is read, changed otherwise or leaves its scope
 *   keep_sum(p)                                           p, a pointer or an int, as it is: it is not found anew from what went into it
 *   add_float(to, x)                                      *to += x in global memory, atomically, in no order
 *   take_ticket(counter)                                  what it was, and one more for the next
 *   current_turn(counter)                                 what it is
 *   wait_for_turn(counter, n, seen) signal_turn(counter)  until it is n; one more. Only for blocks that have taken later tickets. seen: an earlier current_turn.
 *                                                         What its block did before the barrier in front of a signal is there for who waits and, behind a barrier, his block
 *   tile_of(p)                                            a tile_address, to which bytes may be added: of shared memory
 *   exp2_approx log2_approx reciprocal_approx             subnormal results are zero
 *   multiply_half2(a, b) add_half2(a, b)                   two halves each, rounded to nearest
 *   permute_bytes(a, b, selector)                         byte n of the result is byte (selector >> 4 n) & 7 of b:a
 *   and_xor(a, b, c) and_or(a, b, c)                      (a & b) ^ c, (a & b) | c
 *   multiply_high(a, b)                                   upper half of a 32 x 32 bit product
 *   float_bits bits_float pack_half2 low_half high_half pack_bf16x2 low_bf16 high_bf16
 *   fmaf fmaxf fminf fabsf INFINITY, min and max of int   as C and CUDA have them
 * From sm_75 on:
 *   load_matrices(r, row) load_matrices_transposed(r, row)   ldmatrix: four 8 x 8 of 16-bit elements, a row's address a lane
 *   mma_m16n8k8_f16(d, a0, a1, b0)
 *   transpose_pairs(word)                                 movmatrix: an 8 x 8 of 16-bit elements, row lane / 4, elements 2 (lane % 4) and one more
 * From sm_80 on:
 *   mma_m16n8k16_<type>(d, a, b0, b1)                     f16, bf16
 *   copy_async<bytes>(to, from, wanted)                   4, 8 or 16 (if not said) bytes to shared memory, zeros if not wanted; without `wanted`: it is
 *   close_copies()                                        those of this thread since the last are a group, which may be empty
 *   copies_complete()                                     this thread's have arrived; others' behind a barrier
 *   copies_complete_but<n>()                              those of all groups but the last n closed ones
 * From sm_90 on, by nvcc from 12.0 on. A gate is 8 bytes of shared memory at a multiple of 8, of one warp:
 *   open_gate(gate)                                       once, by one lane, in front of a block barrier
 *   expect_bytes(gate, bytes)                             by one lane, in front of the copies: so many, or none, come until the gate is passed
 *   copy_bulk(to, from, bytes, gate, hint)                to shared memory; all but the hint multiples of 16. Other places than multiples of 128 cost a tenth
 *   pass_gate(gate, phase)                                all lanes of the warp: what was expected is there. phase: 0, 1, 0, ...
 *   stores_before_bulk()                                  this thread's stores to shared memory so far come before its bulk copies from now on
 *
 * 16-bit floats are never a C++ type: they travel as words of two, the lower address in the lower half.
 * Collectives (barriers, shuffles, mma) need all lanes of the warp at the same line. docs/design.md, "The
 * emulator", has the rules in full. */
#ifndef ATTN_CUDA_DEVICE_CUH
#define ATTN_CUDA_DEVICE_CUH

#include <stdint.h>

#ifdef __CUDACC__
#  include "device_cuda.cuh"
#else
#  include "device_emulated.h"
#endif

/* bf16 by integer arithmetic, because sm_70 has no instruction for it. */
DEVICE float low_bf16(uint32_t pair) { return bits_float(pair << 16); }
DEVICE float high_bf16(uint32_t pair) { return bits_float(pair & 0xffff0000u); }

/* Rounds to nearest even; NaN stays NaN and becomes quiet. */
DEVICE uint32_t bf16_bits(float x)
{
    const uint32_t u = float_bits(x);
    return x != x ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
}

#ifndef HAS_PACK_BF16X2
DEVICE uint32_t pack_bf16x2(float low, float high) { return bf16_bits(low) | bf16_bits(high) << 16; }
#endif

#endif
