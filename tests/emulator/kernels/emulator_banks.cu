/* SPDX-License-Identifier: Apache-2.0
 * Access patterns with known bank conflicts. The words that all lanes read are written without conflicts first. */
#include "device.cuh"
#include "emulator_params.h"

/* Reads word count * lane (mod 1,024): 4 bytes at a stride of count words. */
KERNEL(banks_stride, 32, 1, word_params, p)
{
    const unsigned lane = thread_index();
    uint32_t *words = reinterpret_cast<uint32_t *>(shared_memory());
    for (unsigned i = 0; i < 32; i++) words[32 * i + lane] = 32 * i + lane; /* fill */
    warp_barrier();
    p.out[lane] = words[unsigned(p.count) * lane % 1024]; /* read */
}

/* The same with 8 and 16 bytes, the stride in words. */
KERNEL(banks_stride_8, 32, 1, word_params, p)
{
    const unsigned lane = thread_index();
    uint32_t *words = reinterpret_cast<uint32_t *>(shared_memory());
    for (unsigned i = 0; i < 32; i++) words[32 * i + lane] = 32 * i + lane;
    warp_barrier();
    p.out[lane] = load_vector<uint2>(words + unsigned(p.count) * lane % 1024).x; /* read 8 */
}

KERNEL(banks_stride_16, 32, 1, word_params, p)
{
    const unsigned lane = thread_index();
    uint32_t *words = reinterpret_cast<uint32_t *>(shared_memory());
    for (unsigned i = 0; i < 32; i++) words[32 * i + lane] = 32 * i + lane;
    warp_barrier();
    p.out[lane] = load_vector<uint4>(words + unsigned(p.count) * lane % 1024).x; /* read 16 */
}

/* Rows of matrices, count words apart. */
KERNEL(banks_matrices, 32, 1, word_params, p)
{
    const unsigned lane = thread_index();
    uint32_t *words = reinterpret_cast<uint32_t *>(shared_memory());
    for (unsigned i = 0; i < 32; i++) words[32 * i + lane] = 32 * i + lane;
    warp_barrier();
    uint32_t r[4];
    load_matrices(r, tile_of(words + unsigned(p.count) * lane % 1024));
    p.out[lane] = r[0];
}

/* Asynchronous copies to places count words apart. */
KERNEL(banks_copies, 32, 1, word_params, p)
{
    uint32_t *words = reinterpret_cast<uint32_t *>(shared_memory());
    copy_async(tile_of(words + unsigned(p.count) * thread_index() % 1024), p.out, false);
    copies_complete();
}
