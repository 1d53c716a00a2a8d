// SPDX-License-Identifier: Apache-2.0
// What the forward kernels share: which rows and keys a block has, everything of a score but the product, and how a row
// ends. Only sums that round differently may differ between kernels.
#ifndef ATTN_CUDA_FORWARD_CUH
#define ATTN_CUDA_FORWARD_CUH

#include "params.h"
#include "rows.cuh"

struct block_of_rows {
    int64_t task;
    attn_sequence seq;
    int64_t b, hkv, row; // the first row
    int rows;
    int64_t key, key_end; // of the piece, cut to what any row sees
    int64_t last_first, first_end;
    int64_t piece, pieces;
    int q_kind, k_kind, v_kind; // row_kind; of the kernels that take them all
    int out_kind;
    bool found;                           // the task has rows
};

static_assert(sizeof(block_of_rows) <= SIMT_BLOCK_BYTES, "room in params.h");

DEVICE void load_four_floats(const float *p, float (&x)[4])
{
    const float4 four = load_vector<float4>(p);
    x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
}

// A task for all threads of a block, in shared memory: one thread finds it, as the registers are for sums. Count: an integer that
// holds all tasks and rows, as what many threads wait for is better not divided in 64 bits.
template <class Count> DEVICE void find_block(const attn_simt_forward &p, int64_t task, int most_rows, block_of_rows &w)
{
    const attn_job &job = p.job;
    const Count group = Count(job.group);
    w.task = task;
    w.found = false;
    if (task >= p.tasks) return; // no such sequence
    Count rest = Count(task), piece = 0;
    if (p.pieces > 1) piece = rest % Count(p.pieces), rest /= Count(p.pieces);
    const Count block = Count(p.row_blocks) - 1 - rest % Count(p.row_blocks); // causal: longest first
    rest /= Count(p.row_blocks);
    w.piece = piece;
    w.hkv = rest % Count(job.heads_kv);
    w.b = rest / Count(job.heads_kv);
    const attn_sequence s = attn_sequence_of(&job, w.b);
    w.seq.q_batch = s.q_batch, w.seq.k_batch = s.k_batch; // one by one, which also keeps the registers as they are
    w.seq.q_row = s.q_row, w.seq.q_len = s.q_len, w.seq.q_room_row = s.q_room_row, w.seq.q_room = s.q_room;
    w.seq.k_row = s.k_row, w.seq.k_len = s.k_len, w.seq.diagonal = s.diagonal;
    if (p.sequences != ATTN_SIMT_ALL && attn_simt_is_few(&job, w.seq.q_len) != (p.sequences == ATTN_SIMT_FEW)) return;
    const int64_t rows = w.seq.q_len * job.group;
    w.row = int64_t(block) * most_rows;
    w.pieces = p.pieces > 1 ? attn_simt_pieces(&job, w.seq.q_len, w.seq.k_len) : 1;
    if (w.row >= rows || w.piece >= w.pieces) return;
    w.rows = int(attn_min(most_rows, rows - w.row));
    int64_t first, end;
    attn_visible(&job, &w.seq, Count(w.row) / group, &first, &w.first_end);
    attn_visible(&job, &w.seq, Count(w.row + w.rows - 1) / group, &w.last_first, &end);
    w.key = first;
    w.key_end = attn_min(end, w.seq.k_len);
    if (w.pieces > 1) {
        const int64_t keys = attn_simt_piece_keys(&job, w.seq.q_len, w.seq.k_len);
        w.key = attn_max(first, w.piece * keys);
        w.key_end = attn_min(w.key_end, w.piece * keys + keys);
    }
    w.last_first = attn_max(w.last_first, w.key);
    w.first_end = attn_min(w.first_end, w.key_end);
    w.out_kind = row_kind_of(job.out, job.head_dim_v);
    w.found = true;
}

// e^x for x <= 0, -inf and NaN. ex2 is good to 2 in its last place; what x log2(e) loses by rounding is put back.
DEVICE float exponential(float x)
{
    const float log2e = 1.44269504f, rest = 1.92596299e-8f, ln2 = 0.69314718f;
    if (x < -104) return 0; // below the smallest subnormal; -inf
    const float t = x * log2e, low = fmaf(x, log2e, -t) + x * rest, p = exp2_approx(t);
    return fmaf(p, low * ln2, p);
}

DEVICE float add_bias(const attn_job &job, int64_t b, int64_t h, int64_t i, int64_t j, float s)
{
    const int64_t offset = attn_bias_offset(&job.bias, b, h, i, j);
    if (job.bias.dtype == ATTN_BOOL) return job.bias.data[offset] ? s : -INFINITY;
    return s + attn_load_float(&job.bias, offset);
}

// Everything of a score after the scale but the mask, in the order of docs/semantics.md section 1.
DEVICE float finish_score(const attn_job &job, const block_of_rows &w, int64_t row, int64_t key, float x)
{
    const int64_t i = row / job.group, h = w.hkv * job.group + row % job.group;
    if (job.softcap > 0) x = job.softcap * tanhf(x / job.softcap);
    if (job.bias.data) x = add_bias(job, w.b, h, i, key, x);
    if (job.alibi) {
        const int64_t distance = i + w.seq.diagonal - key;
        x -= attn_alibi_slope(&job, w.b, h) * float(distance < 0 ? -distance : distance);
    }
    return x;
}

DEVICE bool keeps(const attn_job &job, const block_of_rows &w, uint64_t seed, int64_t row, int64_t key)
{
    return attn_dropout_keep(&job, seed, w.b, w.hkv * job.group + row % job.group, row / job.group, key);
}

// Adds the sink; the factor of O, and LSE.
DEVICE float finish_row(const attn_job &job, int64_t h, float m, float l, float *lse)
{
    float largest = m, shrink = 1;
    if (job.sink) {
        const float sink = job.sink[h];
        largest = fmaxf(sink, m);
        const float base = largest == -INFINITY ? 0 : largest;
        shrink = exponential(m - base);
        l = l * shrink + exponential(sink - base);
    }
    *lse = l == 0 ? -INFINITY : largest + logf(l);
    return l == 0 ? 0 : shrink / l;
}

DEVICE void store_lse(const attn_job &job, const attn_sequence &s, int64_t h, int64_t i, float lse)
{
    if (job.lse.data) attn_store_float(&job.lse, attn_row_offset(&job.lse, s.q_batch, h, s.q_row + i), lse);
}

// Where results of a row go, in elements: O, or the partial result with m and l before it, and LSE.
struct row_places {
    int64_t out, lse;
};

template <class Count> DEVICE row_places place_row(const attn_simt_forward &p, const block_of_rows &w, int r)
{
    const attn_job &job = p.job;
    const Count row = Count(w.row) + Count(r), query = row / Count(job.group);
    const int64_t h = w.hkv * job.group + int64_t(row - query * Count(job.group)), at = w.seq.q_row + int64_t(query);
    if (w.pieces > 1) {
        const int64_t task = ((w.b * job.heads_kv + w.hkv) * p.row_room + int64_t(row)) * p.pieces + w.piece;
        return {task * attn_simt_partial_floats(job.head_dim_v) + SIMT_PARTIAL_HEAD, 0};
    }
    return {attn_row_offset(&job.out, w.seq.q_batch, h, at),
            job.lse.data ? attn_row_offset(&job.lse, w.seq.q_batch, h, at) : 0};
}

// m and l of a row to its partial result, or LSE to its place, if `stores`; the factor of O.
template <class Count>
DEVICE float close_row(const attn_simt_forward &p, const block_of_rows &w, int r, float m, float l, row_places to, bool stores = true)
{
    const attn_job &job = p.job;
    if (w.pieces > 1) {
        if (stores) store_vector(p.partials + to.out - SIMT_PARTIAL_HEAD, float2{m, l});
        return 1;
    }
    float lse;
    const int64_t h = job.sink ? w.hkv * job.group + int64_t((Count(w.row) + Count(r)) % Count(job.group)) : 0;
    const float factor = finish_row(job, h, m, l, &lse);
    if (job.lse.data && stores) attn_store_float(&job.lse, to.lse, lse);
    return factor;
}

DEVICE float final_value(float o, float factor) { return factor == 0 ? 0 : o * factor + 0.0f; } // no -0

// Four neighbours, by the kind of rows that they belong to.
DEVICE void store_results(const attn_view &out, int kind, int64_t offset, float factor, float (&x)[4])
{
#pragma unroll
    for (int e = 0; e < 4; e++) x[e] = final_value(x[e], factor);
    if (kind == ROWS_F32) store_vector(out.data + 4 * offset, float4{x[0], x[1], x[2], x[3]});
    else if (kind == ROWS_F16) store_vector(out.data + 2 * offset, uint2{pack_half2(x[0], x[1]), pack_half2(x[2], x[3])});
    else store_vector(out.data + 2 * offset, uint2{pack_bf16x2(x[0], x[1]), pack_bf16x2(x[2], x[3])});
}

// Whether results go one by one.
DEVICE bool is_stored_singly(const block_of_rows &w) { return w.pieces == 1 && w.out_kind == ROWS_OTHER; }

// Four neighbours where it does not. Of partial results some may be behind the row, where there is room.
DEVICE void store_four(const attn_simt_forward &p, const block_of_rows &w, int64_t offset, float factor, float (&x)[4])
{
    if (w.pieces > 1) store_kept(p.partials + offset, float4{x[0] * factor, x[1] * factor, x[2] * factor, x[3] * factor});
    else store_results(p.job.out, w.out_kind, offset, factor, x);
}

// Up to four, from shared memory.
DEVICE void store_four(const attn_simt_forward &p, const block_of_rows &w, int64_t offset, float factor, int count,
                       const float *o)
{
    if (w.pieces > 1 || w.out_kind == ROWS_OTHER) {
#pragma unroll 1
        for (int e = 0; e < count; e++) {
            if (w.pieces > 1) p.partials[offset + e] = o[e] * factor;
            else attn_store_float(&p.job.out, offset + e, final_value(o[e], factor));
        }
        return;
    }
    float x[4];
    load_four_floats(o, x);
    store_results(p.job.out, w.out_kind, offset, factor, x);
}

#endif
