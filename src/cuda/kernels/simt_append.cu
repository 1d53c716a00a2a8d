// SPDX-License-Identifier: Apache-2.0
// attn_kv_append and attn_dropout_mask: to the bit what the CPU writes (docs/semantics.md sections 4, 5 and 6), so products and
// sums that C11 rounds one by one are not fused here either (-fmad=false).
//
// Append: a block of 128 threads a new token and head. The row lies in shared memory as float32: read, rotate by pairs,
// then store, or quantise by blocks of 32 or by the largest magnitude of the row. Bytes: each row once in and once out.
// NaN: ignored by the largest magnitude, stored as the type's own rules say. Slot -1: nothing is written.
//
// Mask: a thread a pair, neighbours in neighbouring columns.
#include "params.h"
#include "rope.h"
#include "rows.cuh"

namespace {

struct row_memory {
    float *x;       // [ATTN_MAX_HEAD_DIM]
    float *largest; // [warps]
};

DEVICE row_memory carve_shared()
{
    float *at = reinterpret_cast<float *>(shared_memory());
    return {at, at + ATTN_MAX_HEAD_DIM};
}

DEVICE void read_row(const attn_view &t, int64_t batch, int64_t h, int64_t row, int64_t n, float *x)
{
    const int64_t place = attn_row_offset(&t, batch, h, row);
    const float scale = t.scale ? *attn_row_scale(&t, batch, h, row) : 1.0f;
    for (int64_t d = 4 * thread_index(); d < n; d += 4 * SIMT_APPEND_THREADS) {
        float four[4];
        load_four(t, place, d, n, scale, four);
        for (int e = 0; e < 4 && d + e < n; e++) x[d + e] = four[e];
    }
    block_barrier();
}

DEVICE void rotate(const attn_rope &rope, int64_t position, float *x)
{
    const int64_t half = rope.rotary_dim / 2, at = position * half;
    for (int64_t n = thread_index(); n < half; n += SIMT_APPEND_THREADS) {
        float pair[2], *a = x + rope.first_dim + (rope.interleaved ? 2 * n : n), *b = rope.interleaved ? a + 1 : a + half;
        pair[0] = *a, pair[1] = *b;
        attn_rope_row(pair, rope.cos + at + n, rope.sin + at + n, 2, 1); // one pair is a row of two columns
        *a = pair[0], *b = pair[1];
    }
    block_barrier();
}

DEVICE float largest_magnitude(const row_memory &memory, int64_t n)
{
    float largest = 0;
    for (int64_t d = thread_index(); d < n; d += SIMT_APPEND_THREADS) largest = fmaxf(largest, fabsf(memory.x[d]));
#pragma unroll
    for (int lane = 1; lane < 32; lane *= 2) largest = fmaxf(largest, shuffle_xor(largest, lane));
    if (thread_index() % 32 == 0) memory.largest[thread_index() / 32] = largest;
    block_barrier();
    largest = memory.largest[0];
    for (int warp = 1; warp < SIMT_APPEND_THREADS / 32; warp++) largest = fmaxf(largest, memory.largest[warp]);
    return largest;
}

DEVICE float largest_code(int32_t dtype)
{
    return dtype == ATTN_I8 ? 127.0f : dtype == ATTN_F8_E4M3 ? ATTN_F8_E4M3_MAX : ATTN_F8_E5M2_MAX;
}

DEVICE void store_scaled(const attn_append_job &job, const attn_view &t, int64_t batch, int64_t h, int64_t row, int64_t n,
                         const row_memory &memory)
{
    float *scale = t.scale ? attn_row_scale(&t, batch, h, row) : nullptr;
    float s = scale ? *scale : 1.0f;
    if (job.set_scale) {
        s = largest_magnitude(memory, n) / largest_code(t.dtype);
        if (thread_index() == 0) *scale = s;
    }
    const float inverse = s != 0 ? 1 / s : 0;
    char *to = t.data + attn_row_offset(&t, batch, h, row);
    for (int64_t d = thread_index(); d < n; d += SIMT_APPEND_THREADS) {
        const float x = memory.x[d];
        uint8_t code = 0;
        if (t.dtype == ATTN_I8) code = uint8_t(attn_f32_to_i8(x * inverse));
        else if (s != 0) code = t.dtype == ATTN_F8_E4M3 ? attn_f32_to_e4m3(x / s) : attn_f32_to_e5m2(x / s);
        to[d] = char(code);
    }
}

DEVICE void store_row(const attn_append_job &job, const attn_view &t, int64_t batch, int64_t h, int64_t row, int64_t n,
                      const row_memory &memory)
{
    const int64_t place = attn_row_offset(&t, batch, h, row);
    switch (t.dtype) {
    case ATTN_F32:
    case ATTN_F16:
    case ATTN_BF16:
        for (int64_t d = thread_index(); d < n; d += SIMT_APPEND_THREADS) attn_store_float(&t, place + d, memory.x[d]);
        break;
    case ATTN_Q8_0:
    case ATTN_Q4_0:
        for (int64_t d = ATTN_BLOCK * thread_index(); d < n; d += ATTN_BLOCK * SIMT_APPEND_THREADS) {
            uint8_t *block = reinterpret_cast<uint8_t *>(attn_element(&t, place + d));
            if (t.dtype == ATTN_Q8_0) attn_q8_0_encode(memory.x + d, block);
            else attn_q4_0_encode(memory.x + d, block);
        }
        break;
    default: store_scaled(job, t, batch, h, row, n, memory);
    }
    block_barrier(); // the row may be overwritten
}

DEVICE void append_token(const attn_append_job &job, int64_t b, int64_t h, int64_t i, const row_memory &memory)
{
    int64_t base, room, row, count, batch, place;
    attn_span_rows(&job.new_span, b, &base, &room, &row, &count);
    if (i >= count) return;
    const int64_t new_batch = job.new_span.offsets ? 0 : b;
    const int64_t position = job.rotate ? attn_append_position(&job, b, row, i) : 0;
    if (h >= job.heads_kv) {
        read_row(job.q, new_batch, h - job.heads_kv, row + i, job.head_dim, memory.x);
        rotate(job.rope, position, memory.x);
        store_row(job, job.q, new_batch, h - job.heads_kv, row + i, job.head_dim, memory);
        return;
    }
    if (!attn_append_place(&job, b, row, i, &batch, &place)) return;
    read_row(job.k_new, new_batch, h, row + i, job.head_dim, memory.x);
    if (job.rotate) rotate(job.rope, position, memory.x);
    store_row(job, job.k_cache, batch, h, place, job.head_dim, memory);
    if (!job.v_cache.data) return;
    read_row(job.v_new, new_batch, h, row + i, job.head_dim_v, memory.x);
    store_row(job, job.v_cache, batch, h, place, job.head_dim_v, memory);
}

DEVICE void append(const attn_simt_append &p)
{
    const attn_append_job &job = p.job;
    const row_memory memory = carve_shared();
    const int64_t heads = job.heads_kv + job.heads_q, tasks = job.batch * heads * job.max_new;
    for (int64_t task = block_index(); task < tasks; task += block_count())
        append_token(job, task / job.max_new / heads, task / job.max_new % heads, task % job.max_new, memory);
}

DEVICE void mask(const attn_simt_mask &p)
{
    const attn_job &job = p.job;
    const uint64_t key = attn_job_dropout_key(&job);
    for (int64_t task = block_index(); task < job.batch * job.heads_q * job.max_q; task += block_count()) {
        const int64_t i = task % job.max_q, h = task / job.max_q % job.heads_q, b = task / job.max_q / job.heads_q;
        char *row = p.keep.data + attn_row_offset(&p.keep, b, h, i);
        for (int64_t j = thread_index(); j < job.max_k; j += SIMT_APPEND_THREADS)
            row[j] = char(attn_dropout_keep(&job, key, b, h, i, j));
    }
}

} // namespace

KERNEL(simt_append, SIMT_APPEND_THREADS, 1, attn_simt_append, p) { append(p); }
KERNEL(simt_dropout_mask, SIMT_APPEND_THREADS, 1, attn_simt_mask, p) { mask(p); }
