/* SPDX-License-Identifier: Apache-2.0
 * Single primitives of device.cuh. */
#include "device.cuh"
#include "emulator_params.h"

#include "common/philox.h"

#define PROBE_MMA(rows_a, rows_b)                                                                                      \
    KERNEL(probe_mma_##rows_a##_##rows_b, 32, 1, mma_params, p)                                                        \
    {                                                                                                                  \
        const unsigned lane = thread_index();                                                                          \
        const uint32_t a[2] = {p.a[2 * lane], p.a[2 * lane + 1]};                                                      \
        const uint2 b = load_vector<uint2>(p.b + 2 * lane);                                                            \
        float d[8];                                                                                                    \
        for (int i = 0; i < 8; i++) d[i] = p.c[8 * lane + i];                                                          \
        mma_m8n8k4_##rows_a##_##rows_b(d, a, b);                                                                       \
        mma_complete();                                                                                                \
        for (int i = 0; i < 8; i++) p.c[8 * lane + i] = d[i];                                                          \
    }
PROBE_MMA(row, row)
PROBE_MMA(row, col)
PROBE_MMA(col, row)
PROBE_MMA(col, col)

/* d is read before its products are there, and again after. */
KERNEL(probe_mma_deferred, 32, 1, mma_params, p)
{
    const uint32_t a[2] = {pack_half2(1, 1), pack_half2(1, 1)};
    const uint2 b = {a[0], a[1]};
    float d[8] = {};
    for (int i = 0; i < 3; i++) mma_m8n8k4_row_col(d, a, b);
    p.c[thread_index()] = d[0];
    mma_complete();
    p.c[32 + thread_index()] = d[0];
}

KERNEL(probe_shuffle_xor, 128, 1, word_params, p)
{
    const unsigned i = thread_index();
    uint32_t sum = 0;
    for (int mask = 1; mask < 32; mask++) sum = 3 * sum + shuffle_xor(p.in[i], mask);
    p.out[i] = sum;
}

KERNEL(probe_shuffle_from, 128, 1, word_params, p)
{
    const unsigned i = thread_index();
    const float x = float(p.in[i]);
    p.out[i] = uint32_t(shuffle_from(x, int(5 * i + 3) & 31)) + uint32_t(shuffle_from(-int32_t(p.in[i]), p.count));
}

/* The value of thread i comes to thread i + 1 (mod 256), count times. */
KERNEL(probe_barrier, 256, 1, word_params, p)
{
    const unsigned i = thread_index();
    uint32_t *cell = reinterpret_cast<uint32_t *>(shared_memory());
    uint32_t value = p.in[256 * block_index() + i];
    for (int step = 0; step < p.count; step++) {
        cell[i] = value;
        block_barrier();
        value = cell[(i + 255) % 256];
        block_barrier();
    }
    p.out[256 * block_index() + i] = value + block_count();
}

KERNEL(probe_warp_barrier, 64, 1, word_params, p)
{
    const unsigned i = thread_index();
    uint32_t *cell = reinterpret_cast<uint32_t *>(shared_memory());
    cell[i] = p.in[i];
    warp_barrier();
    p.out[i] = cell[i ^ 31];
}

/* 8 words a thread: half pairs, bf16 pairs, multiply_high, and what the approximations say. */
KERNEL(probe_numbers, 32, 1, word_params, p)
{
    const unsigned i = thread_index();
    const uint32_t u = p.in[i];
    const float x = bits_float(u);
    uint32_t *out = p.out + 8 * i;
    out[0] = pack_half2(x, -x);
    out[1] = pack_bf16x2(x, -x);
    out[2] = float_bits(low_half(u)) ^ float_bits(high_half(u << 16));
    out[3] = float_bits(high_bf16(u)) | float_bits(low_bf16(u)) >> 16;
    out[4] = multiply_high(u, 0xD2511F53u);
    out[5] = float_bits(exp2_approx(x));
    out[6] = float_bits(log2_approx(x));
    out[7] = float_bits(reciprocal_approx(x));
}

KERNEL(probe_philox, 32, 1, word_params, p)
{
    const attn_philox r = attn_philox_4x32_10(thread_index(), 1, 2, 3, 0x123456789abcdefu);
    store_vector(p.out + 4 * thread_index(), uint4{r.word[0], r.word[1], r.word[2], r.word[3]});
}

/* in[0] + 1, and one more for each thread: what orders two launches can be seen in it. */
KERNEL(probe_increment, 32, 1, word_params, p) { p.out[thread_index()] = p.in[thread_index()] + 1; }

KERNEL(probe_fill, 128, 1, word_params, p) { p.out[128 * block_index() + thread_index()] = uint32_t(p.count); }

/* Two launches that can only end together: each says that it runs and waits for the other. */
KERNEL(probe_meet, 1, 1, word_params, p)
{
    volatile uint32_t *flag = p.out;
    flag[p.count] = 1;
    while (flag[1 - p.count] != 1) {
    }
}

/* One instruction of 16 x 8 sums: four words of a lane for a, two for b, four sums. */
#define PROBE_MMA_16(name, call)                                                                                       \
    KERNEL(probe_mma_##name, 32, 1, mma_params, p)                                                                     \
    {                                                                                                                  \
        const unsigned lane = thread_index();                                                                          \
        const uint4 words = load_vector<uint4>(p.a + 4 * lane);                                                        \
        const uint32_t a[4] = {words.x, words.y, words.z, words.w};                                                    \
        const uint2 b = load_vector<uint2>(p.b + 2 * lane);                                                            \
        float d[4];                                                                                                    \
        for (int i = 0; i < 4; i++) d[i] = p.c[4 * lane + i];                                                          \
        call;                                                                                                          \
        mma_complete();                                                                                                \
        for (int i = 0; i < 4; i++) p.c[4 * lane + i] = d[i];                                                          \
    }
PROBE_MMA_16(k16_f16, mma_m16n8k16_f16(d, a, b.x, b.y))
PROBE_MMA_16(k16_bf16, mma_m16n8k16_bf16(d, a, b.x, b.y))
PROBE_MMA_16(k8_f16, mma_m16n8k8_f16(d, a[0], a[1], b.x))

/* Four matrices whose 32 rows lie count words apart, from in; each form twice, in turns, so that a fast lane is in the
 * next one while a slow one takes its words. 8 words a thread come out. */
KERNEL(probe_load_matrices, 64, 1, word_params, p)
{
    const unsigned i = thread_index(), lane = i % 32, rows = 32 * unsigned(p.count);
    uint32_t *matrices = reinterpret_cast<uint32_t *>(shared_memory()) + i / 32 * rows;
    for (unsigned j = lane; j < rows; j += 32) matrices[j] = p.in[i / 32 * rows + j];
    warp_barrier();
    const uint32_t *row = matrices + unsigned(p.count) * lane;
    uint32_t x[4], y[4], again[4];
    load_matrices(x, tile_of(row));
    load_matrices_transposed(y, tile_of(row));
    load_matrices(again, tile_of(row));
    bool same = true;
    for (int j = 0; j < 4; j++) same = same && x[j] == again[j];
    load_matrices_transposed(again, tile_of(row));
    for (int j = 0; j < 4; j++) same = same && y[j] == again[j];
    for (int j = 0; j < 4; j++) {
        p.out[8 * i + unsigned(j)] = same ? x[j] : 0;
        p.out[8 * i + 4 + unsigned(j)] = same ? y[j] : 0;
    }
}

/* Thread i copies 16 bytes for thread i ^ 33, which takes them behind a barrier; the last count threads copy nothing and
 * have no address. */
KERNEL(probe_copy_async, 128, 1, word_params, p)
{
    const unsigned i = thread_index();
    uint32_t *cell = reinterpret_cast<uint32_t *>(shared_memory());
    const bool wanted = int(i) < 128 - p.count;
    copy_async(tile_of(cell + 4 * i), wanted ? p.in + 4 * i : nullptr, wanted);
    block_barrier(); /* while it is pending */
    copies_complete();
    block_barrier();
    store_vector(p.out + 4 * i, load_vector<uint4>(cell + 4 * (i ^ 33)));
}

/* One after the other, many pending at a time. */
KERNEL(probe_many_copies, 32, 1, word_params, p)
{
    const unsigned i = thread_index();
    uint32_t *cell = reinterpret_cast<uint32_t *>(shared_memory());
    for (unsigned j = 0; j < 40; j++) copy_async(tile_of(cell + 4 * (32 * j + i)), p.in + 4 * (j + i), true);
    copies_complete();
    uint32_t sum = 0;
    for (unsigned j = 0; j < 40; j++) sum += cell[4 * (32 * j + i)];
    p.out[i] = sum;
    copies_complete(); /* of nothing */
}

/* Groups of 4, 8 and 16 bytes a thread, the second empty; each is waited for in turn while later ones are pending. */
KERNEL(probe_copy_groups, 32, 1, word_params, p)
{
    const unsigned i = thread_index();
    uint32_t *cell = reinterpret_cast<uint32_t *>(shared_memory());
    uint32_t sum = 0;
    copy_async<4>(tile_of(cell + i), p.in + i, true);
    close_copies();
    close_copies();
    copy_async<8>(tile_of(cell + 32 + 2 * i), p.in + 32 + 2 * i, i % 2 == 0);
    close_copies();
    copy_async<16>(tile_of(cell + 96 + 4 * i), p.in + 96 + 4 * i);
    close_copies();
    copies_complete_but<3>();
    sum += cell[i];
    copies_complete_but<1>();
    sum += 3 * cell[32 + 2 * i] + 5 * cell[33 + 2 * i];
    copies_complete_but<0>();
    for (unsigned j = 0; j < 4; j++) sum += (7 + j) * cell[96 + 4 * i + j];
    for (unsigned j = 0; j < 20; j++) close_copies(); /* more than are kept */
    copies_complete();
    p.out[i] = sum;
}

/* Twice in turns, so that a fast lane is in the next one while a slow one takes its word. */
KERNEL(probe_transpose, 64, 1, word_params, p)
{
    const unsigned i = thread_index();
    const uint32_t turned = transpose_pairs(p.in[i]), back = transpose_pairs(turned);
    p.out[i] = back == p.in[i] ? turned : 0;
}

/* Two halves of in[i] and of in[32 + i]: products, sums, and bytes of both by the selector count. */
KERNEL(probe_halves, 32, 1, word_params, p)
{
    const unsigned i = thread_index();
    const uint32_t a = p.in[i], b = p.in[32 + i];
    p.out[3 * i] = multiply_half2(a, b);
    p.out[3 * i + 1] = add_half2(a, b);
    p.out[3 * i + 2] = permute_bytes(a, b, unsigned(p.count));
}
