/* SPDX-License-Identifier: Apache-2.0
 * Kernels with one planted mistake each, marked by a comment that names it, and their right twins. */
#include "device.cuh"
#include "emulator_params.h"

DEVICE uint32_t *words() { return reinterpret_cast<uint32_t *>(shared_memory()); }
DEVICE uint8_t *bytes() { return reinterpret_cast<uint8_t *>(shared_memory()); }

/* Neighbours of other warps exchange values. */
KERNEL(right_barrier, 128, 1, word_params, p)
{
    const unsigned i = thread_index();
    words()[i] = i;
    block_barrier();
    p.out[i] = words()[i ^ 33];
}

KERNEL(wrong_barrier, 128, 1, word_params, p)
{
    const unsigned i = thread_index();
    words()[i] = i; /* fault: no barrier */
    p.out[i] = words()[i ^ 33];
}

KERNEL(right_warp_barrier, 128, 1, word_params, p)
{
    const unsigned i = thread_index();
    words()[i] = i;
    warp_barrier();
    p.out[i] = words()[i ^ 1];
}

/* Lanes of a warp ran in lockstep on older GPUs; not since sm_70. */
KERNEL(wrong_warp_barrier, 128, 1, word_params, p)
{
    const unsigned i = thread_index();
    words()[i] = i; /* fault: no warp barrier */
    p.out[i] = words()[i ^ 1];
}

KERNEL(wrong_shared_cell, 128, 1, word_params, p)
{
    const unsigned i = thread_index();
    words()[i / 2] = 1; /* fault: two writers */
    block_barrier();
    p.out[i] = words()[i / 2];
}

/* Each thread has a byte of its own of a word of four. */
KERNEL(right_bytes, 128, 1, word_params, p)
{
    const unsigned i = thread_index();
    bytes()[i] = uint8_t(i);
    block_barrier();
    p.out[i] = bytes()[127 - i];
}

KERNEL(wrong_bytes, 128, 1, word_params, p)
{
    const unsigned i = thread_index();
    bytes()[i] = uint8_t(i);
    if (i == 77) bytes()[78] = 1; /* fault: a neighbour's byte */
    block_barrier();
    p.out[i] = bytes()[127 - i];
}

KERNEL(wrong_shuffle, 128, 1, word_params, p)
{
    uint32_t x = thread_index();
    if (x % 32 < 16) x += shuffle_xor(x, 1); /* fault: half a warp */
    p.out[thread_index()] = x;
}

/* Both sides shuffle, but not at the same instruction. */
KERNEL(wrong_two_sided_shuffle, 128, 1, word_params, p)
{
    uint32_t x = thread_index();
    if (x % 32 < 16)
        x += shuffle_xor(x, 16); /* fault: one side */
    else
        x -= shuffle_xor(x, 16);
    p.out[thread_index()] = x;
}

KERNEL(wrong_skipped_barrier, 128, 1, word_params, p)
{
    if (thread_index() < 96) block_barrier(); /* fault: skipped */
    p.out[thread_index()] = 0;
}

KERNEL(wrong_two_barriers, 128, 1, word_params, p)
{
    if (thread_index() < 64)
        block_barrier(); /* fault: another barrier */
    else
        block_barrier();
    p.out[thread_index()] = 0;
}

KERNEL(wrong_mma_count, 32, 1, word_params, p)
{
    const uint32_t a[2] = {0, 0};
    float d[8] = {};
    mma_m8n8k4_row_col(d, a, uint2{0, 0});
    if (thread_index() == 5) mma_m8n8k4_row_col(d, a, uint2{0, 0});
    mma_complete(); /* fault: one lane has more */
    p.out[thread_index()] = uint32_t(d[0]);
}

KERNEL(wrong_mma_end, 32, 1, word_params, p)
{
    const uint32_t a[2] = {0, 0};
    float d[8] = {};
    mma_m8n8k4_row_col(d, a, uint2{0, 0});
    p.out[thread_index()] = uint32_t(d[0]);
}

KERNEL(wrong_shared_size, 128, 1, word_params, p)
{
    const unsigned i = thread_index();
    words()[i + 1] = i; /* fault: thread 127 writes beyond */
    block_barrier();
    p.out[i] = words()[i == 0 ? 1 : i];
}

KERNEL(wrong_shared_start, 128, 1, word_params, p)
{
    const unsigned i = thread_index();
    words()[i] = i;
    block_barrier();
    p.out[i] = words()[int(i) - p.count]; /* fault: thread 0 reads before */
}

KERNEL(right_initialised, 128, 1, word_params, p)
{
    const unsigned i = thread_index();
    words()[i] = 7;
    block_barrier();
    p.out[i] = words()[i];
}

KERNEL(wrong_initialised, 128, 1, word_params, p)
{
    const unsigned i = thread_index();
    if (i != 77) words()[i] = 7;
    block_barrier();
    p.out[i] = words()[i]; /* fault: 77 was never written */
}

KERNEL(right_global, 128, 1, word_params, p) { p.out[thread_index()] = p.in[thread_index()]; }

KERNEL(wrong_global_write, 128, 1, word_params, p)
{
    p.out[thread_index() + 1] = 0; /* fault: thread 127 writes beyond */
}

KERNEL(wrong_global_read, 128, 1, word_params, p)
{
    p.out[thread_index()] = p.in[thread_index() + 1]; /* fault: thread 127 reads beyond */
}

KERNEL(wrong_pointer, 128, 1, word_params, p)
{
    p.out[thread_index()] = p.in[0]; /* fault: in is the host's */
}

KERNEL(right_vector, 32, 1, word_params, p)
{
    store_vector(p.out + 4 * thread_index(), load_vector<uint4>(p.in + 4 * thread_index()));
}

/* What compilers join to vectors is aligned as its words are. */
KERNEL(right_scalars, 32, 1, word_params, p)
{
    for (int i = 0; i < 4; i++) p.out[5 * (thread_index() % 8) + i] = p.in[i + 1];
}

KERNEL(wrong_vector, 32, 1, word_params, p)
{
    p.out[thread_index()] = load_vector<uint4>(p.in + 2 * thread_index()).x; /* fault: odd lanes are misaligned */
}

/* As a plain access, which the compiler may split. */
KERNEL(wrong_plain_vector, 32, 1, word_params, p)
{
    const uint2 *pair = reinterpret_cast<const uint2 *>(p.in + thread_index());
    p.out[thread_index()] = pair->x + pair->y; /* fault: odd lanes are misaligned again */
}

KERNEL(wrong_register_array, 32, 1, word_params, p)
{
    uint32_t x[4] = {1, 2, 3, 4};
    x[p.count + 3] = 5; /* fault: index */
    p.out[thread_index()] = x[0] + x[1] + x[2] + x[3];
}

KERNEL(wrong_null, 32, 1, word_params, p)
{
    p.out[thread_index()] = 1; /* fault: null */
}
