// SPDX-License-Identifier: Apache-2.0
// The backward that no GPU refuses: float32 multiply-adds, every type, size and feature of docs/semantics.md section 7.
//
//   P = exp(S - LSE), Z: what dropout keeps, times 1 / (1 - p), rest = rowsum(dO o O) - dLSE
//   dS = P o (Z o (dO V') - rest), dT = dS o (1 - tanh^2) with softcap, else dS
//   dQ = scale dT K, dK = scale dT' Q, dV = (P o Z)' dO, dbias = dS summed, dsink = sum of -exp(sink - LSE) rest
//
// Who sums what: a block of 64 rows (query r / g of head r % g of a group) sums its dQ over all keys, a block of 64 keys its dK and
// dV over all rows of the group, an element of dbias over all that it is broadcast to. So every sum has one owner and one order, nothing is
// atomic, and a tile's scores are computed by each of them: seven products, not five. Families on tensor cores do better; this one is for what
// they do not serve.
//
// Tile: 64 rows x 64 keys; 256 threads, a thread's share as simt.cuh has it. dO V' first, then S, whose elements are finished where they lie
// in shared memory if anything but the scale is asked for; then dT (and P o Z) as an operand there, and the sums in registers: 16 floats a thread
// and 64 columns. Above 256 columns dK and dV are summed by launches of their own.
// Shared memory: two tiles of 64 x 68 floats, places, LSE and rest of rows: 38 KiB.
// Bytes a tile from L2: 64 (2 D + 2 Dv) elements for 64 * 64 * (4 D + 2 Dv) multiply-adds of dK and dV.
//
// -inf: a masked score has P = 0, and where P is 0 so is dS, whatever dO has. NaN spreads as it does in the formulas. Rows without keys: P = 0
// everywhere, so their gradients are 0, and the sink's gets dLSE.
#include "simt.cuh"

namespace {

constexpr int Rows = SIMT_KEYS; // of a tile
typedef float share[4][4];      // of a thread

struct tile {
    float *a, *b;                           // chunks of rows, or an operand
    int64_t *q_place, *dout_place;          // [row]
    int64_t *row_first, *row_end;           // [row]; visible keys
    int64_t *k_place, *v_place;             // [key]
    float *lse, *rest;                      // [row]
    float *k_scale, *v_scale;               // [key]
    block_of_rows *block;
};

DEVICE tile carve_shared()
{
    tile t;
    t.a = reinterpret_cast<float *>(shared_memory());
    t.b = t.a + Rows * SIMT_STRIDE;
    t.q_place = reinterpret_cast<int64_t *>(t.b + SIMT_KEYS * SIMT_STRIDE);
    t.dout_place = t.q_place + Rows;
    t.row_first = t.dout_place + Rows;
    t.row_end = t.row_first + Rows;
    t.k_place = t.row_end + Rows;
    t.v_place = t.k_place + SIMT_KEYS;
    t.lse = reinterpret_cast<float *>(t.v_place + SIMT_KEYS);
    t.rest = t.lse + Rows;
    t.k_scale = t.rest + Rows;
    t.v_scale = t.k_scale + SIMT_KEYS;
    t.block = reinterpret_cast<block_of_rows *>(t.v_scale + SIMT_KEYS);
    return t;
}

// Of a call: out_kind is dO's.
DEVICE void note_kinds(const attn_job &job, block_of_rows &w)
{
    w.q_kind = row_kind_of(job.q, job.head_dim);
    w.k_kind = row_kind_of(job.k, job.head_dim);
    w.v_kind = row_kind_of(job.v, job.head_dim_v);
    w.out_kind = row_kind_of(job.dout, job.head_dim_v);
}

// Rows of a tile are `step` apart: 1, or the group where a head is looked at alone.
DEVICE int64_t row_index(const block_of_rows &w, int64_t step, int r) { return w.row + r * step; }

// The tile's rows from `row` on, before `end`, and what all of them or any of them see.
DEVICE void set_rows(const attn_job &job, int64_t row, int64_t end, int64_t step, block_of_rows &w)
{
    w.row = row;
    w.rows = int(attn_min(Rows, attn_ceil_div(end - row, step)));
    attn_visible(&job, &w.seq, row / job.group, &w.key, &w.first_end);
    attn_visible(&job, &w.seq, row_index(w, step, w.rows - 1) / job.group, &w.last_first, &w.key_end);
}

DEVICE void place_rows(const attn_simt_backward &p, const block_of_rows &w, int64_t step, const tile &t)
{
    const attn_job &job = p.job;
    const int r = int(thread_index());
    if (r >= Rows) return;
    t.q_place[r] = t.dout_place[r] = ROW_NOWHERE;
    t.row_first[r] = t.row_end[r] = 0;
    t.lse[r] = -INFINITY, t.rest[r] = 0;
    if (r >= w.rows) return;
    const int64_t row = row_index(w, step, r), i = row / job.group, h = w.hkv * job.group + row % job.group,
                  at = w.seq.q_row + i;
    t.q_place[r] = attn_row_offset(&job.q, w.seq.q_batch, h, at);
    t.dout_place[r] = attn_row_offset(&job.dout, w.seq.q_batch, h, at);
    attn_visible(&job, &w.seq, i, &t.row_first[r], &t.row_end[r]);
    if (!job.lse.data) return; // values of no columns: no gradient is anything but 0
    t.lse[r] = load_float32(job.lse, attn_row_offset(&job.lse, w.seq.q_batch, h, at));
    t.rest[r] = p.rest[(w.seq.q_batch * job.heads_q + h) * job.q_span.room + at];
}

DEVICE void place_keys(const attn_job &job, const block_of_rows &w, int64_t key, const tile &t)
{
    const int n = int(thread_index());
    if (n >= SIMT_KEYS) return;
    t.k_place[n] = t.v_place[n] = ROW_NOWHERE;
    t.k_scale[n] = t.v_scale[n] = 1;
    if (key + n >= w.seq.k_len) return;
    const int64_t row = w.seq.k_row + key + n;
    t.k_place[n] = attn_row_offset(&job.k, w.seq.k_batch, w.hkv, row);
    t.v_place[n] = attn_row_offset(&job.v, w.seq.k_batch, w.hkv, row);
    t.k_scale[n] = row_scale(job.k, w.seq.k_batch, w.hkv, row);
    t.v_scale[n] = row_scale(job.v, w.seq.k_batch, w.hkv, row);
}

// x y' of 64 rows each, n elements. Places are written, behind a barrier.
DEVICE void multiply(const attn_view &x, int x_kind, const int64_t *x_place, const attn_view &y, int y_kind,
                     const int64_t *y_place, const float *y_scale, int64_t n, const tile &t, share &sum)
{
    chunk<4> next_x, next_y;
#pragma unroll
    for (int i = 0; i < 16; i++) sum[i / 4][i % 4] = 0;
    fetch(x, x_kind, x_place, 0, n, next_x);
    fetch(y, y_kind, y_place, 0, n, next_y);
#pragma unroll 1
    for (int64_t d = 0; d < n; d += SIMT_CHUNK) {
        block_barrier(); // what lay in a and b is used up
        put(x, x_kind, next_x, x_place, nullptr, d, n, t.a);
        put(y, y_kind, next_y, y_place, y_scale, d, n, t.b);
        block_barrier();
        if (d + SIMT_CHUNK < n) {
            fetch(x, x_kind, x_place, d + SIMT_CHUNK, n, next_x);
            fetch(y, y_kind, y_place, d + SIMT_CHUNK, n, next_y);
        }
        multiply_rows<4, 2>(t.a, t.b, int(attn_min(SIMT_CHUNK, attn_round_up(n - d, 4))), sum);
    }
}

// Everything of a score after the scale, in a and, with softcap, its derivative in b: a thread's own elements.
DEVICE void finish_scores(const attn_job &job, const block_of_rows &w, int64_t step, int64_t key, const tile &t)
{
#pragma unroll 1
    for (int n = 0; n < 16; n++) {
        const int r = row_of(n), at = r * SIMT_STRIDE + key_of(n);
        const int64_t j = key + key_of(n);
        if (j < t.row_first[r] || j >= t.row_end[r]) {
            t.a[at] = -INFINITY;
            if (job.softcap > 0) t.b[at] = 0;
            continue;
        }
        if (job.softcap > 0) {
            const float x = tanhf(t.a[at] / job.softcap);
            t.b[at] = fmaf(-x, x, 1.0f);
        }
        t.a[at] = finish_score(job, w, row_index(w, step, r), j, t.a[at]);
    }
}

// A bit an element of a thread's share.
DEVICE uint32_t kept(const attn_job &job, const block_of_rows &w, int64_t step, int64_t key)
{
    const uint64_t seed = attn_job_dropout_key(&job);
    uint32_t bits = 0;
#pragma unroll 1
    for (int n = 0; n < 16; n++)
        if (keeps(job, w, seed, row_index(w, step, row_of(n)), key + key_of(n))) bits |= 1u << n;
    return bits;
}

// P o Z, and dS if it is wanted. Behind a barrier for places; a is free afterwards, b too unless there is a softcap, whose derivative is there.
template <bool WantsDs>
DEVICE void compute_tile(const attn_simt_backward &p, const block_of_rows &w, int64_t step, int64_t key, const tile &t,
                         share &pz, share &ds)
{
    const attn_job &job = p.job;
    if (WantsDs)
        multiply(job.dout, w.out_kind, t.dout_place, job.v, w.v_kind, t.v_place, t.v_scale, job.head_dim_v, t, ds);
    multiply(job.q, w.q_kind, t.q_place, job.k, w.k_kind, t.k_place, t.k_scale, job.head_dim, t, pz);
    scale_scores<4>(job.scale, pz);
    block_barrier(); // a and b are used up
    if (job.softcap > 0 || job.bias.data || job.alibi || w.last_first > key || w.first_end < key + SIMT_KEYS) {
        put_tile<4>(pz, t.a);
        finish_scores(job, w, step, key, t);
        get_tile<4>(t.a, pz);
    }
    const uint32_t keep = job.has_dropout ? kept(job, w, step, key) : 0xffffu;
    const float factor = job.has_dropout ? job.keep_factor : 1.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float lse = t.lse[lane_y() + 16 * i], rest = t.rest[lane_y() + 16 * i];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float z = keep >> (4 * i + j) & 1 ? factor : 0.0f, s = pz[i][j];
            const float x = s == -INFINITY || lse == -INFINITY ? 0.0f : exponential(s - lse);
            pz[i][j] = x * z;
            if (WantsDs) ds[i][j] = x == 0 ? 0.0f : x * fmaf(z, ds[i][j], -rest);
        }
    }
}

// A share to a, by rows or by keys; dS through the softcap.
template <bool ByKeys> DEVICE void put_operand(const share &x, bool has_slope, const tile &t)
{
    if (ByKeys) block_barrier(); // what others have in a is used up: by rows it is a thread's own
#pragma unroll
    for (int n = 0; n < 16; n++) {
        const int r = row_of(n), k = key_of(n);
        const float slope = has_slope ? t.b[r * SIMT_STRIDE + k] : 1.0f;
        t.a[ByKeys ? k * SIMT_STRIDE + r : r * SIMT_STRIDE + k] = x[n / 4][n % 4] * slope;
    }
}

// sum += (the operand in a) (64 rows of a view).
template <int Chunks>
DEVICE void accumulate(const attn_view &view, int kind, const int64_t *place, const float *scale, int64_t n, const tile &t,
                       float (&sum)[Chunks][4][4])
{
    chunk<4> next;
    fetch(view, kind, place, 0, n, next);
#pragma unroll
    for (int c = 0; c < Chunks; c++) {
        if (c * SIMT_CHUNK < n) {
            block_barrier(); // b is used up
            put(view, kind, next, place, scale, c * SIMT_CHUNK, n, t.b);
            block_barrier(); // the operand is complete too
            if (c + 1 < Chunks) fetch(view, kind, place, (c + 1) * SIMT_CHUNK, n, next);
            share step = {}; // one sum over all of them would round too often
            multiply_columns<4, (Chunks > 4 ? 1 : 2)>(t.a, t.b, step);
#pragma unroll
            for (int i = 0; i < 16; i++) sum[c][i / 4][i % 4] += step[i / 4][i % 4];
        }
    }
}

template <int Chunks> DEVICE void clear(float (&sum)[Chunks][4][4])
{
#pragma unroll
    for (int i = 0; i < 16 * Chunks; i++) sum[i / 16][i / 4 % 4][i % 4] = 0;
}

DEVICE void store_gradient(const attn_job &job, const attn_view &view, int64_t offset, float x)
{
    if (job.accumulate) x += attn_load_float(&view, offset);
    attn_store_float(&view, offset, x + 0.0f); // no -0
}

// The rows of a sum below `rows`; place_of(r): the first element of one. Over a, from where a thread takes only what it has put there.
template <int Chunks, class Place>
DEVICE void store_sums(const attn_job &job, const attn_view &view, int64_t n, int rows, float factor,
                       const float (&sum)[Chunks][4][4], const tile &t, Place place_of)
{
    float *mine = t.a + lane_y() * SIMT_STRIDE + 4 * lane_x();
    block_barrier(); // a is used up
#pragma unroll 1
    for (int c = 0; c * SIMT_CHUNK < n; c++) {
#pragma unroll
        for (int m = 0; m < Chunks; m++)
            if (m == c)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    store_vector(mine + 16 * i * SIMT_STRIDE, float4{sum[m][i][0], sum[m][i][1], sum[m][i][2], sum[m][i][3]});
        const int64_t d = c * SIMT_CHUNK + 4 * lane_x();
#pragma unroll 1
        for (int i = 0; i < 4; i++) {
            const int r = lane_y() + 16 * i;
            if (r >= rows || d >= n) break;
            const int64_t offset = place_of(r) + d;
#pragma unroll 1
            for (int e = 0; e < 4 && d + e < n; e++)
                store_gradient(job, view, offset + e, mine[16 * i * SIMT_STRIDE + e] * factor);
        }
    }
}

// ---- dQ -------------------------------------------------------------------------------------------------------------

// task = (b Hkv + hkv) blocks + block. One thread, for all.
DEVICE void find_task(const attn_simt_backward &p, int64_t task, int64_t blocks, block_of_rows &w, int64_t *block)
{
    *block = task % blocks;
    w.hkv = task / blocks % p.job.heads_kv;
    w.b = task / blocks / p.job.heads_kv;
    w.seq = attn_sequence_of(&p.job, w.b);
    note_kinds(p.job, w);
}

template <int Chunks> DEVICE void sum_dq(const attn_simt_backward &p)
{
    const attn_job &job = p.job;
    const tile t = carve_shared();
    block_of_rows &w = *t.block;
    for (int64_t task = block_index(); task < p.tasks; task += block_count()) {
        block_barrier(); // the task before is done with shared memory
        if (thread_index() == 0) {
            int64_t block;
            find_task(p, task, p.row_blocks, w, &block);
            const int64_t rows = w.seq.q_len * job.group, row = (p.row_blocks - 1 - block) * Rows; // causal: longest first
            w.found = row < rows;
            if (w.found) set_rows(job, row, rows, 1, w);
        }
        block_barrier(); // it is found
        if (!w.found) continue;
        float sum[Chunks][4][4];
        clear(sum);
        place_rows(p, w, 1, t);
#pragma unroll 1
        for (int64_t key = w.key / SIMT_KEYS * SIMT_KEYS; key < w.key_end; key += SIMT_KEYS) {
            share pz, ds;
            block_barrier(); // places of keys are used up
            place_keys(job, w, key, t);
            block_barrier();
            compute_tile<true>(p, w, 1, key, t, pz, ds);
            put_operand<false>(ds, job.softcap > 0, t);
            accumulate(job.k, w.k_kind, t.k_place, t.k_scale, job.head_dim, t, sum);
        }
        store_sums(job, job.dq, job.head_dim, w.rows, job.scale, sum, t, [&](int r) {
            const int64_t row = w.row + r;
            return attn_row_offset(&job.dq, w.seq.q_batch, w.hkv * job.group + row % job.group, w.seq.q_row + row / job.group);
        });
    }
}

// ---- dK and dV ------------------------------------------------------------------------------------------------------

// Rows that see a key from `key` on and before `key` + 64: from *first on, before *end.
DEVICE void rows_of_keys(const attn_job &job, const attn_sequence &s, int64_t key, int64_t *first, int64_t *end)
{
    *first = 0, *end = s.q_len;
    if (job.window_right != ATTN_OPEN) *first = attn_max(0, key - job.window_right - s.diagonal);
    if (job.window_left != ATTN_OPEN) *end = attn_min(*end, key + SIMT_KEYS + job.window_left - s.diagonal);
}

// KChunks, VChunks: 0 where that gradient is not summed here.
template <int KChunks, int VChunks> DEVICE void sum_dkv(const attn_simt_backward &p)
{
    const attn_job &job = p.job;
    const tile t = carve_shared();
    block_of_rows &w = *t.block;
    for (int64_t task = block_index(); task < p.tasks; task += block_count()) {
        int64_t block, first, end;
        block_barrier(); // the task before is done with shared memory
        if (thread_index() == 0) find_task(p, task, p.key_blocks, w, &block);
        block_barrier(); // it is found
        const int64_t key = task % p.key_blocks * SIMT_KEYS;
        if (key >= w.seq.k_len) continue;
        float dk[KChunks ? KChunks : 1][4][4], dv[VChunks ? VChunks : 1][4][4];
        clear(dk), clear(dv);
        rows_of_keys(job, w.seq, key, &first, &end);
        place_keys(job, w, key, t);
        const int64_t rows = end * job.group;
#pragma unroll 1
        for (int64_t row = first * job.group; row < rows; row += Rows) {
            share pz, ds;
            block_barrier(); // places of rows are used up
            if (thread_index() == 0) set_rows(job, row, rows, 1, w);
            block_barrier();
            place_rows(p, w, 1, t);
            block_barrier();
            compute_tile<(KChunks > 0)>(p, w, 1, key, t, pz, ds);
            if (KChunks && job.dk.data) {
                put_operand<true>(ds, job.softcap > 0, t);
                accumulate(job.q, w.q_kind, t.q_place, nullptr, job.head_dim, t, dk);
            }
            if (VChunks && job.dv.data) {
                put_operand<true>(pz, false, t);
                accumulate(job.dout, w.out_kind, t.dout_place, nullptr, job.head_dim_v, t, dv);
            }
        }
        const int keys = int(attn_min(SIMT_KEYS, w.seq.k_len - key));
        if (KChunks && job.dk.data)
            store_sums(job, job.dk, job.head_dim, keys, job.scale, dk, t,
                       [&](int r) { return attn_row_offset(&job.dk, w.seq.k_batch, w.hkv, w.seq.k_row + key + r); });
        if (VChunks && job.dv.data)
            store_sums(job, job.dv, job.head_dim_v, keys, 1.0f, dv, t,
                       [&](int r) { return attn_row_offset(&job.dv, w.seq.k_batch, w.hkv, w.seq.k_row + key + r); });
    }
}

// ---- dbias ----------------------------------------------------------------------------------------------------------

// Adds what a head of a sequence gives to the tile of dbias at (i, j); all rows, or all keys, where bias has one.
DEVICE void add_head(const attn_simt_backward &p, int64_t b, int64_t h, int64_t i, int64_t j, const tile &t, share &sum)
{
    const attn_job &job = p.job;
    block_of_rows &w = *t.block;
    const int64_t group = job.group;
    block_barrier(); // the head before is done with shared memory
    if (thread_index() == 0) {
        w.b = b, w.hkv = h / group;
        w.seq = attn_sequence_of(&job, b);
        note_kinds(job, w);
    }
    block_barrier();
    const int64_t q_len = w.seq.q_len, k_len = w.seq.k_len;
    const int64_t i_end = job.bias_shape[2] == 1 ? q_len : attn_min(i + Rows, q_len);
    const int64_t j_end = job.bias_shape[3] == 1 ? k_len : attn_min(j + SIMT_KEYS, k_len);
#pragma unroll 1
    for (int64_t at = i; at < i_end; at += Rows) {
        block_barrier(); // places are used up
        if (thread_index() == 0) set_rows(job, at * group + h % group, i_end * group, group, w);
        block_barrier();
        place_rows(p, w, group, t);
        const int64_t first = attn_max(j, w.key / SIMT_KEYS * SIMT_KEYS), end = attn_min(j_end, w.key_end);
#pragma unroll 1
        for (int64_t key = first; key < end; key += SIMT_KEYS) {
            share pz, ds;
            block_barrier();
            place_keys(job, w, key, t);
            block_barrier();
            compute_tile<true>(p, w, group, key, t, pz, ds);
#pragma unroll
            for (int n = 0; n < 16; n++) sum[n / 4][n % 4] += ds[n / 4][n % 4];
        }
    }
}

DEVICE void sum_dbias(const attn_simt_backward &p)
{
    const attn_job &job = p.job;
    const tile t = carve_shared();
    const int64_t *shape = job.bias_shape;
    const int64_t j_blocks = attn_ceil_div(shape[3], SIMT_KEYS), i_blocks = attn_ceil_div(shape[2], Rows);
    for (int64_t task = block_index(); task < p.tasks; task += block_count()) {
        const int64_t j = task % j_blocks * SIMT_KEYS, i = task / j_blocks % i_blocks * Rows;
        const int64_t h = task / j_blocks / i_blocks % shape[1], b = task / j_blocks / i_blocks / shape[1];
        share sum = {};
#pragma unroll 1
        for (int64_t b0 = shape[0] > 1 ? b : 0; b0 < (shape[0] > 1 ? b + 1 : job.batch); b0++)
#pragma unroll 1
            for (int64_t h0 = shape[1] > 1 ? h : 0; h0 < (shape[1] > 1 ? h + 1 : job.heads_q); h0++)
                add_head(p, b0, h0, i, j, t, sum);
        block_barrier(); // a is used up
        put_tile<4>(sum, t.a);
        block_barrier();
        const int rows = int(attn_min(Rows, shape[2] - i)), keys = int(attn_min(SIMT_KEYS, shape[3] - j));
#pragma unroll 1
        for (int n = int(thread_index()); n < rows * keys; n += SIMT_THREADS) {
            const int r = n / keys, k = n % keys;
            float total = 0;
#pragma unroll 1
            for (int y = r; y < (shape[2] == 1 ? Rows : r + 1); y++)
#pragma unroll 1
                for (int x = k; x < (shape[3] == 1 ? SIMT_KEYS : k + 1); x++) total += t.a[y * SIMT_STRIDE + x];
            store_gradient(job, job.dbias, attn_bias_offset(&job.dbias, b, h, i + r, j + k), total);
        }
    }
}

// ---- rows and sinks -------------------------------------------------------------------------------------------------

// A thread a row: rowsum(dO o O) - dLSE. Summed as dO V' is, so that a row of one key, where O is V, has dS = 0 exactly.
DEVICE void find_rest(const attn_simt_backward &p)
{
    const attn_job &job = p.job;
    for (int64_t n = block_index() * SIMT_FOLD_THREADS + thread_index(); n < p.tasks; n += block_count() * SIMT_FOLD_THREADS) {
        const int64_t i = n % job.max_q, h = n / job.max_q % job.heads_q, b = n / job.max_q / job.heads_q;
        const attn_sequence s = attn_sequence_of(&job, b);
        if (i >= s.q_len) continue;
        const int64_t row = s.q_row + i, out = attn_row_offset(&job.out, s.q_batch, h, row),
                      dout = attn_row_offset(&job.dout, s.q_batch, h, row);
        float sum = 0;
#pragma unroll 1
        for (int64_t d = 0; d < job.head_dim_v; d += 4) {
            float x[4], y[4];
            load_four(job.dout, dout, d, job.head_dim_v, 1.0f, x);
            load_four(job.out, out, d, job.head_dim_v, 1.0f, y);
#pragma unroll
            for (int e = 0; e < 4; e++) sum = fmaf(x[e], y[e], sum);
        }
        if (job.dlse.data) sum -= load_float32(job.dlse, attn_row_offset(&job.dlse, s.q_batch, h, row));
        p.rest[(s.q_batch * job.heads_q + h) * job.q_span.room + row] = sum;
    }
}

// A block a head; in float64, as rows may be millions.
DEVICE void sum_dsink(const attn_simt_backward &p)
{
    const attn_job &job = p.job;
    double *part = reinterpret_cast<double *>(shared_memory());
    for (int64_t h = block_index(); h < job.heads_q; h += block_count()) {
        const float sink = job.sink[h];
        double sum = 0;
        for (int64_t b = 0; b < job.batch && job.lse.data; b++) {
            const attn_sequence s = attn_sequence_of(&job, b);
            for (int64_t i = thread_index(); i < s.q_len; i += SIMT_FOLD_THREADS) {
                const int64_t row = s.q_row + i;
                const float lse = load_float32(job.lse, attn_row_offset(&job.lse, s.q_batch, h, row));
                const float x = sink == -INFINITY ? 0.0f : exponential(sink - lse);
                if (x != 0) sum -= double(x) * double(p.rest[(s.q_batch * job.heads_q + h) * job.q_span.room + row]);
            }
        }
        part[thread_index()] = sum;
        block_barrier();
        if (thread_index() == 0) {
            sum = job.accumulate ? double(job.dsink[h]) : 0.0;
            for (int n = 0; n < SIMT_FOLD_THREADS; n++) sum += part[n];
            job.dsink[h] = float(sum);
        }
        block_barrier(); // its parts are used up
    }
}

// Rows that sequences own and do not use: zeros.
DEVICE void pad_rows(const attn_view &view, const attn_span &span, int64_t heads, int64_t n, int64_t b, int64_t h)
{
    int64_t base, room, first, used;
    if (!view.data || h >= heads) return;
    attn_span_rows(&span, b, &base, &room, &first, &used);
    for (int64_t row = base; row < base + room; row++) {
        if (row >= first && row < first + used) continue;
        const int64_t offset = attn_row_offset(&view, span.offsets ? 0 : b, h, row);
        for (int64_t d = thread_index(); d < n; d += SIMT_FOLD_THREADS) attn_store_float(&view, offset + d, 0);
    }
}

DEVICE void pad(const attn_simt_backward &p)
{
    const attn_job &job = p.job;
    const int64_t heads = attn_max(job.heads_q, job.heads_kv);
    for (int64_t task = block_index(); task < job.batch * heads; task += block_count()) {
        const int64_t b = task / heads, h = task % heads;
        pad_rows(job.dq, job.q_span, job.heads_q, job.head_dim, b, h);
        pad_rows(job.dk, job.kv_span, job.heads_kv, job.head_dim, b, h);
        pad_rows(job.dv, job.kv_span, job.heads_kv, job.head_dim_v, b, h);
    }
}

} // namespace

KERNEL(simt_backward_rest, SIMT_FOLD_THREADS, 1, attn_simt_backward, p) { find_rest(p); }
KERNEL(simt_backward_dq_128, SIMT_THREADS, 1, attn_simt_backward, p) { sum_dq<2>(p); }
KERNEL(simt_backward_dq_576, SIMT_THREADS, 1, attn_simt_backward, p) { sum_dq<9>(p); }
KERNEL(simt_backward_dkv_128, SIMT_THREADS, 1, attn_simt_backward, p) { sum_dkv<2, 2>(p); }
KERNEL(simt_backward_dkv_256, SIMT_THREADS, 1, attn_simt_backward, p) { sum_dkv<4, 4>(p); }
KERNEL(simt_backward_dk_576, SIMT_THREADS, 1, attn_simt_backward, p) { sum_dkv<9, 0>(p); }
KERNEL(simt_backward_dv_576, SIMT_THREADS, 1, attn_simt_backward, p) { sum_dkv<0, 9>(p); }
KERNEL(simt_backward_dbias, SIMT_THREADS, 1, attn_simt_backward, p) { sum_dbias(p); }
KERNEL(simt_backward_dsink, SIMT_FOLD_THREADS, 1, attn_simt_backward, p) { sum_dsink(p); }
KERNEL(simt_backward_pad, SIMT_FOLD_THREADS, 1, attn_simt_backward, p) { pad(p); }
