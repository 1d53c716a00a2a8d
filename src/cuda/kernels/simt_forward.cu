// SPDX-License-Identifier: Apache-2.0
// The forward that no GPU refuses: float32 multiply-adds, every type, size and feature of docs/semantics.md.
//
//   S = scale Q K'  ->  softcap, bias, ALiBi, mask  ->  m' = max(m, rowmax S)
//   P = exp(S - m'), l = l exp(m - m') + rowsum P, O = O exp(m - m') + (keep P) V
//
// Tile: 16 R rows (query r / g of head r % g of a group) by 64 keys; 256 threads as 16 x 16. Thread (y, x) owns rows y,
// y + 16, ... and, of S, keys x, x + 16, x + 32, x + 48; of O, columns 64 n + 4 x .. + 3 of each chunk n. R is 8 where O
// fits in registers beside it (Dv to 128), else 4; 1 for few rows.
// Both products take their operands from shared memory by 16 bytes: S from chunks of 64 elements of Q and K rows, O from
// P, which takes Q's place, and chunks of 64 columns of V, which take K's. Whatever the storage type, float32 lies there.
// The next chunk of K or V is loaded into registers while a product runs.
// Shared memory: tiles of 16 R x 68 and 64 x 68 floats, and where the rows lie; 38 KiB with R = 4, 57 with 8.
// 16 R multiply-adds of a thread take R + 4 loads of 16 bytes, 4 cycles each of an SM, whoever shares them: with R = 8, 48
// cycles beside the 32 that an SM of 128 lanes multiplies (R = 4: 32 beside 16), or the 64 of a V100's 64 lanes.
// Bytes a step, from L2: 64 (D + Dv) elements, and 16 R D of Q that mostly come from L1.
//
// -inf: rows whose scores are all -inf keep m = -inf; exponents are taken against 0, so they add zeros. NaN: passed over by
// the maximum, not by the sum, so the row becomes NaN. Rows without keys: O = 0, LSE = -inf, unless there is a sink.
#include "simt.cuh"

namespace {

// Shared memory. What all threads know of their task lies there too: registers are for sums.
struct tile {
    float *a, *b;                           // Q, later P [row][key]; K, later V [key][column]
    int64_t *q_place, *row_first, *row_end; // [row]; visible keys
    int64_t *k_place, *v_place;             // [key]
    float *k_scale, *v_scale;
    block_of_rows *block;
};

template <int R> struct thread_state {
    float m[R], l[R]; // l: of this thread's keys only
};

DEVICE tile carve_shared(int rows)
{
    tile t;
    char *at = shared_memory();
    t.a = reinterpret_cast<float *>(at);
    t.b = t.a + rows * SIMT_STRIDE;
    t.q_place = reinterpret_cast<int64_t *>(t.b + SIMT_KEYS * SIMT_STRIDE);
    t.row_first = t.q_place + rows;
    t.row_end = t.row_first + rows;
    t.k_place = t.row_end + rows;
    t.v_place = t.k_place + SIMT_KEYS;
    t.k_scale = reinterpret_cast<float *>(t.v_place + SIMT_KEYS);
    t.v_scale = t.k_scale + SIMT_KEYS;
    t.block = reinterpret_cast<block_of_rows *>(t.v_scale + SIMT_KEYS);
    return t;
}

DEVICE float row_maximum(float x)
{
#pragma unroll
    for (int lane = 1; lane < 16; lane *= 2) x = fmaxf(x, shuffle_xor(x, lane));
    return x;
}

DEVICE float row_total(float x)
{
#pragma unroll
    for (int lane = 1; lane < 16; lane *= 2) x += shuffle_xor(x, lane);
    return x;
}

DEVICE void place_rows(const attn_job &job, const block_of_rows &w, int most_rows, const tile &t)
{
    const int r = int(thread_index());
    if (r >= most_rows) return;
    t.q_place[r] = ROW_NOWHERE;
    t.row_first[r] = t.row_end[r] = 0;
    if (r >= w.rows) return;
    const int64_t row = w.row + r, i = row / job.group;
    t.q_place[r] = attn_row_offset(&job.q, w.seq.q_batch, w.hkv * job.group + row % job.group, w.seq.q_row + i);
    int64_t first, end;
    attn_visible(&job, &w.seq, i, &first, &end);
    t.row_first[r] = attn_max(first, w.key);
    t.row_end[r] = attn_min(end, w.key_end);
}

DEVICE void place_keys(const attn_job &job, const block_of_rows &w, int64_t key, const tile &t)
{
    const int n = int(thread_index());
    if (n >= SIMT_KEYS) return;
    t.k_place[n] = t.v_place[n] = ROW_NOWHERE;
    t.k_scale[n] = t.v_scale[n] = 1;
    if (key + n < w.key || key + n >= w.key_end) return;
    int64_t batch, row;
    attn_key_place(&job, &w.seq, w.b, key + n, &batch, &row);
    t.k_place[n] = attn_row_offset(&job.k, batch, w.hkv, row);
    t.v_place[n] = attn_row_offset(&job.v, batch, w.hkv, row);
    t.k_scale[n] = row_scale(job.k, batch, w.hkv, row);
    t.v_scale[n] = row_scale(job.v, batch, w.hkv, row);
}

// How far products are unrolled: with many columns O leaves no registers for more.
template <int Chunks> constexpr int unrolled = Chunks > 4 ? 1 : 2;

// Brings V's first chunk on its way too.
template <int R, int Unroll>
DEVICE void scores(const attn_job &job, const block_of_rows &w, const tile &t, float (&s)[R][4], chunk<4> &next)
{
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) s[i][j] = 0;
    block_barrier(); // places are written
    fetch(job.k, w.k_kind, t.k_place, 0, job.head_dim, next);
#pragma unroll 1
    for (int64_t d = 0; d < job.head_dim; d += SIMT_CHUNK) {
        chunk<R> q; // from L1 but for the first time
        fetch(job.q, w.q_kind, t.q_place, d, job.head_dim, q);
        if (d) block_barrier(); // what lay in a and b is used up
        put(job.q, w.q_kind, q, t.q_place, nullptr, d, job.head_dim, t.a);
        put(job.k, w.k_kind, next, t.k_place, t.k_scale, d, job.head_dim, t.b);
        block_barrier();
        if (d + SIMT_CHUNK < job.head_dim) fetch(job.k, w.k_kind, t.k_place, d + SIMT_CHUNK, job.head_dim, next);
        else fetch(job.v, w.v_kind, t.v_place, 0, job.head_dim_v, next);
        multiply_rows<R, Unroll>(t.a, t.b, int(attn_min(SIMT_CHUNK, attn_round_up(job.head_dim - d, 4))), s);
    }
}

// Everything of a score after the scale. In a loop over shared memory,
// because a copy of it for each would cost registers that the products need.
DEVICE void finish_scores(const attn_job &job, const block_of_rows &w, int64_t key, int count, const tile &t)
{
#pragma unroll 1
    for (int n = 0; n < count; n++) {
        const int r = row_of(n);
        const int64_t at = key + key_of(n), row = w.row + r;
        float *score = t.a + r * SIMT_STRIDE + key_of(n);
        if (at < t.row_first[r] || at >= t.row_end[r]) {
            *score = -INFINITY;
            continue;
        }
        *score = finish_score(job, w, row, at, *score);
    }
}

DEVICE void drop(const attn_job &job, const block_of_rows &w, int64_t key, int count, const tile &t)
{
    const uint64_t seed = attn_job_dropout_key(&job);
#pragma unroll 1
    for (int n = 0; n < count; n++) {
        const int64_t row = w.row + row_of(n);
        float *p = t.a + row_of(n) * SIMT_STRIDE + key_of(n);
        const bool keep = keeps(job, w, seed, row, key + key_of(n));
        *p = keep ? *p * job.keep_factor : 0.0f;
    }
}

// S to P, in shared memory; m and l; the factors by which O shrinks.
template <int R>
DEVICE void softmax(const attn_job &job, const block_of_rows &w, int64_t key, const tile &t, float (&s)[R][4],
                    thread_state<R> &state, float (&shrink)[R])
{
#pragma unroll
    for (int i = 0; i < R; i++) {
        float m = fmaxf(fmaxf(s[i][0], s[i][1]), fmaxf(s[i][2], s[i][3]));
        m = fmaxf(state.m[i], row_maximum(m));
        const float base = m == -INFINITY ? 0 : m;
        shrink[i] = exponential(state.m[i] - base);
        state.m[i] = m;
        float sum = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            s[i][j] = exponential(s[i][j] - base);
            sum += s[i][j];
        }
        state.l[i] = state.l[i] * shrink[i] + sum;
    }
    put_tile(s, t.a);
    if (job.has_dropout) drop(job, w, key, 4 * R, t);
}

template <int R, int Chunks>
DEVICE void values(const attn_job &job, const block_of_rows &w, const tile &t, const float (&shrink)[R], chunk<4> &next,
                   float (&o)[Chunks][R][4])
{
#pragma unroll
    for (int n = 0; n < Chunks; n++) {
        if (n * SIMT_CHUNK < job.head_dim_v) {
            if (n) block_barrier(); // the chunk before is used up
            put(job.v, w.v_kind, next, t.v_place, t.v_scale, n * SIMT_CHUNK, job.head_dim_v, t.b);
            block_barrier(); // and P is complete
            if (n + 1 < Chunks) fetch(job.v, w.v_kind, t.v_place, (n + 1) * SIMT_CHUNK, job.head_dim_v, next);
            float sum[R][4] = {}; // of this step: one sum over all keys would round too often
            multiply_columns<R, unrolled<Chunks>>(t.a, t.b, sum);
#pragma unroll
            for (int i = 0; i < R; i++)
#pragma unroll
                for (int e = 0; e < 4; e++) o[n][i][e] = fmaf(o[n][i][e], shrink[i], sum[i][e]);
        }
    }
}

// Over shared memory, from where a thread takes only what it has put there: one copy of the code serves all chunks.
template <int R, int Chunks>
DEVICE void store_rows(const attn_simt_forward &p, const block_of_rows &w, const tile &t, thread_state<R> &state,
                       float (&o)[Chunks][R][4])
{
    const int64_t dv = p.job.head_dim_v;
    int64_t *offset = t.q_place;
    float *factor = t.b, *mine = t.a + lane_y() * SIMT_STRIDE + 4 * lane_x();
    block_barrier(); // all of it is used up
#pragma unroll
    for (int i = 0; i < R; i++) {
        const int r = lane_y() + 16 * i;
        const float l = row_total(state.l[i]);
        if (lane_x() != 0 || r >= w.rows) continue;
        const row_places to = place_row<int64_t>(p, w, r);
        offset[r] = to.out;
        factor[r] = close_row<int64_t>(p, w, r, state.m[i], l, to);
    }
    warp_barrier(); // a row's threads are of one warp
#pragma unroll 1
    for (int n = 0; n * SIMT_CHUNK < dv; n++) {
#pragma unroll
        for (int m = 0; m < Chunks; m++)
            if (m == n)
#pragma unroll
                for (int i = 0; i < R; i++)
                    store_vector(mine + 16 * i * SIMT_STRIDE, float4{o[m][i][0], o[m][i][1], o[m][i][2], o[m][i][3]});
        const int64_t d = n * SIMT_CHUNK + 4 * lane_x();
#pragma unroll 1
        for (int i = 0; i < R; i++) {
            const int r = lane_y() + 16 * i;
            if (r >= w.rows || d >= dv) break;
            store_four(p, w, offset[r] + d, factor[r], int(attn_min(4, dv - d)), mine + 16 * i * SIMT_STRIDE);
        }
    }
}

template <int R, int Chunks> DEVICE void run_task(const attn_simt_forward &p, const tile &t)
{
    const attn_job &job = p.job;
    const block_of_rows &w = *t.block;
    thread_state<R> state;
    float o[Chunks][R][4];
#pragma unroll
    for (int i = 0; i < R; i++) {
        state.m[i] = -INFINITY, state.l[i] = 0;
#pragma unroll
        for (int n = 0; n < Chunks; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) o[n][i][e] = 0;
    }
    place_rows(job, w, 16 * R, t);
    for (int64_t key = w.key / SIMT_KEYS * SIMT_KEYS; key < w.key_end; key += SIMT_KEYS) {
        float s[R][4], shrink[R];
        chunk<4> next; // of K or V, loaded while a product runs
        block_barrier(); // V is used up
        place_keys(job, w, key, t);
        scores<R, unrolled<Chunks>>(job, w, t, s, next);
        scale_scores(job.scale, s);
        block_barrier(); // Q is used up
        if (job.softcap > 0 || job.bias.data || job.alibi || w.last_first > key || w.first_end < key + SIMT_KEYS) {
            put_tile(s, t.a);
            finish_scores(job, w, key, 4 * R, t);
            get_tile(t.a, s);
        }
        softmax(job, w, key, t, s, state, shrink);
        values(job, w, t, shrink, next, o);
    }
    store_rows(p, w, t, state, o);
}

// Whether a task is to be done: each, or behind a kernel that has doubts what overlaps its doubtful ones.
DEVICE bool is_to_do(const attn_simt_forward &p, const block_of_rows &w)
{
    if (!p.doubt_rows) return true;
    const int64_t first = (w.b * p.job.heads_kv + w.hkv) * p.doubt_blocks;
    for (int64_t block = w.row / p.doubt_rows; block <= (w.row + w.rows - 1) / p.doubt_rows; block++) {
        const uint32_t *doubts = p.doubts + 2 * ((first + p.doubt_blocks - 1 - block) * p.pieces + w.piece);
        if (doubts[0] && doubts[1]) return true;
    }
    return false;
}

template <int R, int Chunks> DEVICE void forward(const attn_simt_forward &p)
{
    const tile t = carve_shared(16 * R);
    for (int64_t task = block_index(); task < p.tasks; task += block_count()) {
        block_barrier(); // the task before is done with shared memory
        if (thread_index() == 0) {
            find_block<int64_t>(p, task, 16 * R, *t.block);
            t.block->q_kind = row_kind_of(p.job.q, p.job.head_dim);
            t.block->k_kind = row_kind_of(p.job.k, p.job.head_dim);
            t.block->v_kind = row_kind_of(p.job.v, p.job.head_dim_v);
        }
        block_barrier(); // it is found
        if (t.block->found && is_to_do(p, *t.block)) run_task<R, Chunks>(p, t);
    }
}

DEVICE float fold_of_warp(float x, bool is_sum)
{
#pragma unroll
    for (int lane = 1; lane < 32; lane *= 2) {
        const float other = shuffle_xor(x, lane);
        x = is_sum ? x + other : fmaxf(x, other);
    }
    return x;
}

// O of a row from its pieces: the first, third and so on in that order, the others, and both. A warp has SIMT_FOLD_COLUMNS columns of a row, four a lane, pieces 2 n and on in its
// first half, 2 n + 1 in its second; each lane finds the weight of a piece of 32. No barrier, no shared memory. What takes time is the way to memory and back, so that all of
// SIMT_PIECES pieces is asked for at once, and the way of instructions from memory, as each is done once: few. Count: as of find_block.
template <class Count> DEVICE void fold(const attn_simt_forward &p, Count items)
{
    constexpr int Warps = SIMT_FOLD_THREADS / 32, Ahead = SIMT_PIECES / 2;
    const attn_job &job = p.job;
    const int dv = int(job.head_dim_v), lane = int(thread_index()) % 32, odd = lane / 16;
    const int pitch = int(attn_simt_partial_floats(dv)), chunks = (dv + SIMT_FOLD_COLUMNS - 1) / SIMT_FOLD_COLUMNS;
    for (Count item = Count(block_index()) * Warps + Count(thread_index() / 32); item < items; item += Count(block_count()) * Warps) {
        const Count task = item / Count(chunks), head = task / Count(p.row_room), row = task - head * Count(p.row_room), b = head / Count(job.heads_kv),
                    hkv = head - b * Count(job.heads_kv);
        const int d = int(item - task * Count(chunks)) * SIMT_FOLD_COLUMNS + lane % 16 * 4;
        const attn_sequence s = attn_sequence_of(&job, b);
        const int pieces = int(attn_simt_pieces(&job, s.q_len, s.k_len));
        if (int64_t(row) >= s.q_len * job.group || pieces == 1) continue;
        const float *first = p.partials + int64_t(task) * p.pieces * pitch, *column = first + odd * pitch + SIMT_PARTIAL_HEAD + (d < dv ? d : 0);
        const auto sums_of = [&](int n) { return n < pieces ? load_vector<float2>(first + int64_t(n) * pitch) : float2{-INFINITY, 0}; };
        float4 ahead[Ahead];
        const auto load_ahead = [&](int n) {
#pragma unroll
            for (int i = 0; i < Ahead; i++) {
                ahead[i] = {0, 0, 0, 0};
                if (n + 2 * i + odd < pieces) ahead[i] = load_kept(column);
                column += 2 * pitch;
            }
        };
        float2 sums = sums_of(lane); // of piece `lane` of 32
        load_ahead(0);
        float m = sums.x, l = 0, lse, o[4] = {0, 0, 0, 0};
#pragma unroll 1
        for (int n = lane + 32; n < pieces; n += 32) m = fmaxf(m, sums_of(n).x);
        m = fold_of_warp(m, false);
        const float base = m == -INFINITY ? 0 : m;
#pragma unroll 1
        for (int n = 0; n < pieces; n += 2 * Ahead) {
            if (n > 0 && n % 32 == 0) sums = sums_of(n + lane);
            if (n > 0) load_ahead(n);
            const float weight = exponential(sums.x - base);
            if (n % 32 == 0) l = fmaf(sums.y, weight, l);
#pragma unroll
            for (int i = 0; i < Ahead; i++) {
                const float own = shuffle_from(weight, (n % 32 + 2 * i + odd) % 32);
                if (n + 2 * i + odd >= pieces) continue;
                o[0] = fmaf(ahead[i].x, own, o[0]), o[1] = fmaf(ahead[i].y, own, o[1]);
                o[2] = fmaf(ahead[i].z, own, o[2]), o[3] = fmaf(ahead[i].w, own, o[3]);
            }
        }
        l = fold_of_warp(l, true);
#pragma unroll
        for (int e = 0; e < 4; e++) o[e] += shuffle_xor(o[e], 16);
        const Count query = row / Count(job.group);
        const int64_t h = int64_t(hkv) * job.group + int64_t(row - query * Count(job.group));
        const float factor = finish_row(job, h, m, l, &lse);
        if (lane == 0 && d == 0) store_lse(job, s, h, int64_t(query), lse);
        if (odd || d >= dv) continue;
        const int64_t offset = attn_row_offset(&job.out, s.q_batch, h, s.q_row + int64_t(query)) + d;
        const int kind = row_kind_of(job.out, dv);
        if (kind == ROWS_OTHER) {
#pragma unroll 1
            for (int e = 0; e < 4 && d + e < dv; e++) attn_store_float(&job.out, offset + e, final_value(e == 0 ? o[0] : e == 1 ? o[1] : e == 2 ? o[2] : o[3], factor));
        } else store_results(job.out, kind, offset, factor, o);
    }
}

DEVICE void fold(const attn_simt_forward &p)
{
    const int64_t items = p.job.batch * p.job.heads_kv * p.row_room * attn_ceil_div(p.job.head_dim_v, SIMT_FOLD_COLUMNS);
    if (items <= INT32_MAX) fold<uint32_t>(p, uint32_t(items));
    else fold<int64_t>(p, items);
}

// Rows that a sequence owns and does not use: zeros, LSE -inf.
DEVICE void pad(const attn_simt_forward &p)
{
    const attn_job &job = p.job;
    for (int64_t task = block_index(); task < job.batch * job.heads_q; task += block_count()) {
        const int64_t b = task / job.heads_q, h = task % job.heads_q;
        const attn_sequence s = attn_sequence_of(&job, b);
        for (int64_t row = s.q_room_row; row < s.q_room_row + s.q_room; row++) {
            if (row >= s.q_row && row < s.q_row + s.q_len) continue;
            const int64_t offset = attn_row_offset(&job.out, s.q_batch, h, row);
            for (int64_t d = thread_index(); d < job.head_dim_v; d += SIMT_FOLD_THREADS)
                attn_store_float(&job.out, offset + d, 0);
            if (thread_index() == 0) store_lse(job, s, h, row - s.q_row, -INFINITY);
        }
    }
}

} // namespace

// 16 rows, whatever Dv.
KERNEL(simt_forward_few, SIMT_THREADS, 2, attn_simt_forward, p) { forward<1, 9>(p); }
// 128 rows.
KERNEL(simt_forward_64, SIMT_THREADS, 1, attn_simt_forward, p) { forward<8, 1>(p); }
KERNEL(simt_forward_128, SIMT_THREADS, 1, attn_simt_forward, p) { forward<8, 2>(p); }
// 64 rows.
KERNEL(simt_forward_256, SIMT_THREADS, 1, attn_simt_forward, p) { forward<4, 4>(p); }
KERNEL(simt_forward_576, SIMT_THREADS, 1, attn_simt_forward, p) { forward<4, 9>(p); }
KERNEL(simt_forward_fold, SIMT_FOLD_THREADS, 4, attn_simt_forward, p) { fold(p); }
KERNEL(simt_forward_pad, SIMT_FOLD_THREADS, 1, attn_simt_forward, p) { pad(p); }
