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

DEVICE void fill_words()
{
    for (unsigned i = thread_index() % 32; i < 128; i += 32) words()[i] = i;
}

KERNEL(right_matrices, 32, 1, word_params, p)
{
    uint32_t r[4];
    fill_words();
    warp_barrier();
    load_matrices(r, tile_of(words() + 4 * thread_index()));
    p.out[thread_index()] = r[0];
}

KERNEL(wrong_matrices_order, 32, 1, word_params, p)
{
    uint32_t r[4];
    fill_words();
    load_matrices(r, tile_of(words() + 4 * thread_index())); /* fault: no barrier before */
    p.out[thread_index()] = r[0];
}

KERNEL(wrong_matrices_sides, 32, 1, word_params, p)
{
    uint32_t r[4];
    fill_words();
    warp_barrier();
    if (thread_index() < 8)
        load_matrices(r, tile_of(words() + 4 * thread_index()));
    else
        load_matrices_transposed(r, tile_of(words() + 4 * thread_index())); /* fault: two instructions */
    p.out[thread_index()] = r[0];
}

KERNEL(wrong_matrices_half, 32, 1, word_params, p)
{
    uint32_t r[4] = {0, 0, 0, 0};
    fill_words();
    warp_barrier();
    if (thread_index() < 16) load_matrices(r, tile_of(words() + 4 * thread_index())); /* fault: two matrices */
    block_barrier();
    p.out[thread_index()] = r[0];
}

KERNEL(wrong_matrices_row, 32, 1, word_params, p)
{
    uint32_t r[4];
    fill_words();
    warp_barrier();
    load_matrices(r, tile_of(words() + 2 * thread_index())); /* fault: odd rows are misaligned */
    p.out[thread_index()] = r[0];
}

KERNEL(wrong_matrices_size, 32, 1, word_params, p)
{
    uint32_t r[4];
    fill_words();
    warp_barrier();
    load_matrices(r, tile_of(words() + 4 * thread_index() + 4)); /* fault: row 31 is beyond */
    p.out[thread_index()] = r[0];
}

KERNEL(wrong_matrices_unset, 32, 1, word_params, p)
{
    uint32_t r[4];
    if (thread_index() != 9) fill_words();
    warp_barrier();
    load_matrices(r, tile_of(words() + 4 * thread_index())); /* fault: words of 9 are not set */
    p.out[thread_index()] = r[0];
}

KERNEL(wrong_matrices_global, 32, 1, word_params, p)
{
    uint32_t r[4];
    load_matrices(r, tile_of(p.in + 4 * thread_index())); /* fault: not shared */
    p.out[thread_index()] = r[0];
}

/* Two buffers of 256 bytes in turns, 16 bytes a thread; each is used up before it is filled again. */
KERNEL(right_copy, 16, 1, word_params, p)
{
    const unsigned i = thread_index();
    uint32_t sum = 0;
    copy_async(tile_of(words() + 4 * i), p.in + 4 * i, true);
    for (unsigned step = 0; step < 4; step++) {
        copies_complete();
        block_barrier();
        if (step < 3) copy_async(tile_of(words() + 64 * (1 - step % 2) + 4 * i), p.in + 4 * i, step != 1);
        sum += words()[64 * (step % 2) + 4 * (15 - i)];
    }
    p.out[i] = sum;
}

KERNEL(wrong_copy_wait, 32, 1, word_params, p)
{
    const unsigned i = thread_index();
    copy_async(tile_of(words() + 4 * i), p.in + 4 * i, true);
    block_barrier();
    p.out[i] = words()[4 * (31 - i)]; /* fault: not there yet */
    block_barrier();
    copies_complete();
}

KERNEL(wrong_copy_own, 32, 1, word_params, p)
{
    const unsigned i = thread_index();
    copy_async(tile_of(words() + 4 * i), p.in + 4 * i, true);
    p.out[i] = words()[4 * i]; /* fault: one's own is not there either */
    copies_complete();
}

KERNEL(wrong_copy_group, 32, 1, word_params, p)
{
    const unsigned i = thread_index();
    copy_async<8>(tile_of(words() + 2 * i), p.in + 2 * i);
    close_copies();
    copy_async<8>(tile_of(words() + 64 + 2 * i), p.in + 2 * i);
    close_copies();
    copies_complete_but<1>();
    p.out[i] = words()[2 * i] + words()[64 + 2 * i]; /* fault: the later group is not there */
    copies_complete();
}

KERNEL(wrong_copy_over, 32, 1, word_params, p)
{
    const unsigned i = thread_index();
    copy_async(tile_of(words() + 4 * i), p.in + 4 * i, true);
    words()[4 * i + 1] = 1; /* fault: the copy comes later */
    copies_complete();
    p.out[i] = words()[4 * i];
}

KERNEL(wrong_copy_barrier, 64, 1, word_params, p)
{
    const unsigned i = thread_index();
    if (i < 32) copy_async(tile_of(words() + 4 * i), p.in + 4 * i, true); /* fault: others read at once */
    copies_complete();
    p.out[i] = words()[4 * (i ^ 32) % 128];
}

/* Waits, but only behind the barrier. */
KERNEL(wrong_copy_late, 64, 1, word_params, p)
{
    const unsigned i = thread_index();
    if (i < 32) copy_async(tile_of(words() + 4 * i), p.in + 4 * i, true); /* fault: waits behind the barrier */
    block_barrier();
    copies_complete();
    p.out[i] = words()[4 * (i % 32)];
}

KERNEL(wrong_copy_reuse, 32, 1, word_params, p)
{
    const unsigned i = thread_index();
    fill_words();
    block_barrier();
    p.out[i] = words()[4 * (31 - i)];
    copy_async(tile_of(words() + 4 * i), p.in + 4 * i, true); /* fault: others still read */
    copies_complete();
}

KERNEL(wrong_copy_end, 32, 1, word_params, p)
{
    copy_async(tile_of(words() + 4 * thread_index()), p.in + 4 * thread_index(), true); /* fault: never waits */
    p.out[thread_index()] = 0;
}

KERNEL(wrong_copy_twice, 32, 1, word_params, p)
{
    const unsigned i = thread_index();
    copy_async(tile_of(words() + 4 * i), p.in + 4 * i, true);
    copy_async(tile_of(words() + 4 * i), p.in, true); /* fault: which of the two */
    copies_complete();
    p.out[i] = words()[4 * i];
}

KERNEL(wrong_copy_to, 16, 1, word_params, p)
{
    const unsigned i = thread_index();
    copy_async(tile_of(words() + 4 * i + 2), p.in + 4 * i, true); /* fault: misaligned in shared memory */
    copies_complete();
    p.out[i] = words()[4 * i];
}

KERNEL(wrong_copy_from, 16, 1, word_params, p)
{
    const unsigned i = thread_index();
    copy_async(tile_of(words() + 4 * i), p.in + 4 * i + 2, true); /* fault: misaligned in global memory */
    copies_complete();
    p.out[i] = words()[4 * i];
}

KERNEL(wrong_copy_global, 16, 1, word_params, p)
{
    const unsigned i = thread_index();
    copy_async(tile_of(p.out + 4 * i), p.in + 4 * i, true); /* fault: to global memory */
    copies_complete();
}

KERNEL(wrong_copy_source, 32, 1, word_params, p)
{
    const unsigned i = thread_index();
    copy_async(tile_of(words() + 4 * i), p.in + 4 * i + 4, true); /* fault: thread 31 reads beyond */
    copies_complete();
    p.out[i] = words()[4 * i];
}

KERNEL(wrong_copy_size, 32, 1, word_params, p)
{
    const unsigned i = thread_index();
    copy_async(tile_of(words() + 4 * i + 4), p.in + 4 * i, true); /* fault: thread 31 writes beyond */
    copies_complete();
    p.out[i] = words()[4 * i + 4];
}

/* In the first words, behind a barrier. */
DEVICE tile_address opened_gate()
{
    const tile_address gate = tile_of(words());
    if (thread_index() == 0) open_gate(gate);
    block_barrier();
    return gate;
}

/* A gate in front, 16 bytes a lane behind it, twice: the second copies come when the first are used up. */
KERNEL(right_bulk, 32, 1, word_params, p)
{
    const unsigned i = thread_index();
    const tile_address gate = opened_gate(), to = tile_of(words() + 8 + 4 * i);
    uint32_t sum = 0;
    for (unsigned step = 0; step < 2; step++) {
        if (i == 0) expect_bytes(gate, step ? 16 : 256);
        warp_barrier();
        if (step == 0 && i < 16) copy_bulk(to, p.in + 4 * i, 16, gate, hint_once(true));
        if (step == 1 && i == 3) copy_bulk(to, p.in, 16, gate, hint_once(true));
        pass_gate(gate, step);
        sum += words()[8 + 4 * (i % 16)];
        warp_barrier();
    }
    p.out[i] = sum;
}

KERNEL(wrong_bulk_wait, 32, 1, word_params, p)
{
    const unsigned i = thread_index();
    const tile_address gate = opened_gate();
    if (i == 0) expect_bytes(gate, 128);
    if (i == 0) copy_bulk(tile_of(words() + 4), p.in, 128, gate, hint_once(true));
    warp_barrier();
    p.out[i] = words()[4 + i]; /* fault: the gate was not passed */
    pass_gate(gate, 0);
}

KERNEL(wrong_bulk_bytes, 32, 1, word_params, p)
{
    const tile_address gate = opened_gate();
    if (thread_index() == 0) expect_bytes(gate, 144);
    if (thread_index() == 0) copy_bulk(tile_of(words() + 4), p.in, 128, gate, hint_once(true));
    pass_gate(gate, 0); /* fault: more is expected */
    p.out[thread_index()] = words()[4];
}

KERNEL(wrong_bulk_phase, 32, 1, word_params, p)
{
    const tile_address gate = opened_gate();
    if (thread_index() == 0) expect_bytes(gate, 0);
    pass_gate(gate, 1); /* fault: the other phase */
    p.out[thread_index()] = 0;
}

KERNEL(wrong_bulk_gate, 32, 1, word_params, p)
{
    if (thread_index() == 0) expect_bytes(tile_of(words()), 16); /* fault: never opened */
    p.out[thread_index()] = 0;
}

KERNEL(wrong_bulk_reuse, 32, 1, word_params, p)
{
    const unsigned i = thread_index();
    words()[4 + i] = i;
    const tile_address gate = opened_gate();
    p.out[i] = words()[4 + (31 - i)];
    if (i == 0) expect_bytes(gate, 128);
    if (i == 0) copy_bulk(tile_of(words() + 4), p.in, 128, gate, hint_once(true)); /* fault: others still read what it overwrites */
    pass_gate(gate, 0);
}

KERNEL(wrong_bulk_size, 32, 1, word_params, p)
{
    const tile_address gate = opened_gate();
    if (thread_index() == 0) expect_bytes(gate, 20);
    if (thread_index() == 0) copy_bulk(tile_of(words() + 4), p.in, 20, gate, hint_once(true)); /* fault: not a multiple of 16 */
    pass_gate(gate, 0);
}

KERNEL(wrong_bulk_from, 32, 1, word_params, p)
{
    const tile_address gate = opened_gate();
    if (thread_index() == 0) expect_bytes(gate, 32);
    if (thread_index() == 0) copy_bulk(tile_of(words() + 4), p.in + 2, 32, gate, hint_once(true)); /* fault: its source is misaligned */
    pass_gate(gate, 0);
}

KERNEL(wrong_bulk_end, 32, 1, word_params, p)
{
    const tile_address gate = opened_gate();
    if (thread_index() == 0) expect_bytes(gate, 32);
    if (thread_index() == 0) copy_bulk(tile_of(words() + 4), p.in, 32, gate, hint_once(true)); /* fault: nobody passes */
    p.out[thread_index()] = 0;
}
