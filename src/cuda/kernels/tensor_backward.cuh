// SPDX-License-Identifier: Apache-2.0
// The backward on tensor cores: f16 (or bf16) in, float32 sums, five products of a tile. One algorithm; what a generation of GPUs has of its own is its
// Tiles (sm70_tiles.cuh, sm80_tiles.cuh), shapes stand in backward_params.h.
//
//   S = Q K' -> P = exp(S - LSE), dP = dO V' -> dS = P o (Z o dP - rest), dT = dS o (1 - tanh^2) with softcap
//   dV += (P o Z)' dO, dK += dT' Q, dQ += dT K; rest = rowsum(dO o O) - dLSE of simt_backward.cu, or of the kernel below
//
// A block of 8 warps owns Keys keys of a kv head: K and V stay in shared memory, dK and dV in registers, over all Rows-row blocks that see any
// of its keys, of one query head of the group after the other. Q and dO of the next rows are on their way meanwhile, by asynchronous copies to a
// second pair of tiles, or in registers, which go to the one pair between dK and dQ. P and dT go through shared memory as 16-bit words, because
// who computes them is not who multiplies them: each of the three pairs of products has its own share of rows and columns to a warp. With two Teams one
// half of the warps computes S, the other dP, and they exchange: blocks of 32 x 32 have no more warps' worth of S.
//
// dQ is the sum of what all blocks of keys give, in float32, in the workspace, by atomic additions, where a tile lies as the lanes hold it, so that
// each of them is 128 bytes side by side. By default they come in the order of keys: a counter of each row block says how many have added theirs,
// and a block waits for its turn. Blocks take their tasks by tickets, lower keys first, so who is waited for has started before. With
// ATTN_GRAD_UNORDERED nobody waits. A last kernel scales dQ and stores it.
//
// Bytes a step from L2: 2 Rows (Dk + Dv), and 4 Rows Dk of additions, for 2 * Rows * Keys * (3 Dk + 2 Dv) flops.
// -inf: rows without keys have LSE -inf, taken as +inf, so P = 0; a masked element has P = dS = 0 by selection, whatever dO has. NaN spreads as
// in the formulas. dS of f16 may overflow where dO is large, as everywhere else.
#ifndef ATTN_CUDA_TENSOR_BACKWARD_CUH
#define ATTN_CUDA_TENSOR_BACKWARD_CUH

#include "backward_params.h"
#include "tensor_forward.cuh"

// Sixteen bytes of global memory to a tile, or zeros.
template <class Tiles> DEVICE void copy_sixteen(char *to, const char *from, bool wanted)
{
    if constexpr (Tiles::Asynchronous) copy_async(tile_of(to), from, wanted);
    else store_vector(to, load_if(wanted, from));
}

template <class Tiles> DEVICE void finish_copies()
{
    if constexpr (Tiles::Asynchronous) copies_complete();
}

// Rows [0, count) of n elements, `stride` apart, to a tile of Rows x D; the rest is zeros. Sixteen bytes at a time, or half by half.
template <class Tiles, int Rows, int D>
DEVICE void copy_tile(const char *from, int64_t stride, int count, int n, bool eightfold, char *to)
{
    constexpr int Columns = D / 8;
    if (eightfold) {
#pragma unroll
        for (int c = 0; c < Rows * Columns; c += BACKWARD_THREADS) {
            const int at = c + int(thread_index()), row = at / Columns, column = at % Columns;
            if (Rows * Columns % BACKWARD_THREADS != 0 && at >= Rows * Columns) break;
            copy_sixteen<Tiles>(to + Tiles::place(D, row, 16 * column), from + 2 * (row * stride + 8 * column),
                                row < count && 8 * column < n);
        }
        return;
    }
#pragma unroll 1
    for (int at = int(thread_index()); at < Rows * D; at += BACKWARD_THREADS) {
        const int row = at / D, column = at % D;
        attn_store_u16(to + Tiles::place(D, row, 2 * column),
                       row < count && column < n ? attn_load_u16(from + 2 * (row * stride + column)) : uint16_t(0));
    }
}

DEVICE void store_four_gradients(const attn_job &job, const attn_view &view, int64_t offset, int count, const float *x, float factor)
{
    if (count == 4 && !job.accumulate && view.dtype != ATTN_F32 && is_aligned(view.data + 2 * offset, 8)) {
        float y[4];
#pragma unroll
        for (int e = 0; e < 4; e++) y[e] = x[e] * factor + 0.0f; // no -0
        if (view.dtype == ATTN_F16) store_vector(view.data + 2 * offset, uint2{pack_half2(y[0], y[1]), pack_half2(y[2], y[3])});
        else store_vector(view.data + 2 * offset, uint2{pack_bf16x2(y[0], y[1]), pack_bf16x2(y[2], y[3])});
        return;
    }
#pragma unroll 1
    for (int e = 0; e < count; e++) {
        float y = x[e] * factor;
        if (job.accumulate) y += attn_load_float(&view, offset + e);
        attn_store_float(&view, offset + e, y + 0.0f);
    }
}

// Sums of a warp, from (row, column) of its block on, rows `stride` apart from `offset`; those below `rows` and n. Over 16 x 20 floats of the
// warp's own. Transposed, ByRows: of the product.
template <class Tiles, bool Transposed, bool ByRows, int MB, int NB>
DEVICE void store_tiles(const attn_job &job, const attn_view &view, int64_t offset, int64_t stride, int row, int column, int rows,
                        int n, float factor, float *scratch, const float (&x)[MB][NB][8])
{
    constexpr int Pitch = 20;
#pragma unroll 1
    for (int c = 0; c < MB * NB; c++) {
        warp_barrier(); // the block before is used up
#pragma unroll
        for (int b = 0; b < MB * NB; b++)
            if (b == c)
#pragma unroll
                for (int i = 0; i < 8; i++) scratch[Tiles::sum_row(i) * Pitch + Tiles::sum_key(i)] = x[b / NB][b % NB][i];
        warp_barrier();
#pragma unroll 1
        for (int half = 0; half < 2; half++) {
            const int r = row + Tiles::row_of(Transposed, c / NB, 8 * half + (Tiles::lane() >> 2)),
                      d = column + Tiles::column_of(ByRows, c % NB, 4 * (Tiles::lane() & 3));
            if (r >= rows || d >= n) continue;
            store_four_gradients(job, view, offset + r * stride + d, min(4, n - d),
                                 scratch + (8 * half + (Tiles::lane() >> 2)) * Pitch + 4 * (Tiles::lane() & 3), factor);
        }
    }
}

// SWarps, KWarps, QWarps: how many warps share the rows of S, the keys of dK, the rows of dQ; the others share keys or columns.
template <class Tiles, int D, int Rows, int Keys, int SWarps, int KWarps, int QWarps, int Teams, bool All> struct tensor_backward {
    static constexpr int Warps = BACKWARD_THREADS / 32, TeamWarps = Warps / Teams;
    static constexpr int Pitch = Tiles::pitch(D), PPitch = Tiles::pitch(Keys); // bytes
    static constexpr int Slots = BACKWARD_SLOTS(Tiles::Asynchronous);
    // Blocks of 16 x 16 of a warp: of S, of dK and dV, of dQ.
    static constexpr int SMB = Rows / 16 / SWarps, SNB = Keys / 16 * SWarps / TeamWarps, KMB = Keys / 16 / KWarps, KNB = D / 16 * KWarps / Warps,
                         QMB = Rows / 16 / QWarps, QNB = D / 16 * QWarps / Warps;
    static constexpr int Elements = 8 * SMB * SNB; // of S, of a lane
    // The next rows are loaded once S and dP have left their registers: earlier there is no room for both beside everything.
    static constexpr bool StartsLate = All && !Tiles::Asynchronous && Elements > 16;
    static_assert(16 * SMB * SWarps == Rows && 16 * SNB * (TeamWarps / SWarps) == Keys && 16 * KMB * KWarps == Keys &&
                      16 * KNB * (Warps / KWarps) == D && 16 * QMB * QWarps == Rows && 16 * QNB * (Warps / QWarps) == D,
                  "who computes what");

    template <int MB, int NB> DEVICE void clear(float (&x)[MB][NB][8])
    {
#pragma unroll
        for (int c = 0; c < MB * NB * 8; c++) x[c / 8 / NB][c / 8 % NB][c % 8] = 0;
    }

    struct shared {
        block_of_rows *block;
        uint32_t *ticket;
        float *lse, *rest; // [2][Rows]
        char *k, *v, *q, *dout; // the last two [Slots]
        char *p, *ds;
        float *own; // Elements / 2 pairs of a thread, or, with two teams, Elements floats
    };

    typedef float scores[SMB][SNB][8];

    DEVICE int lane() { return Tiles::lane(); }
    DEVICE int warp() { return int(thread_index()) >> 5; }
    DEVICE bool is_signaller() { return thread_index() == BACKWARD_THREADS - 1; } // not in the warp that waits for turns
    DEVICE int score_row() { return 16 * SMB * (warp() % SWarps); }
    DEVICE int score_key() { return 16 * SNB * (warp() % TeamWarps / SWarps); }

    DEVICE shared carve()
    {
        shared t;
        char *at = shared_memory();
        t.block = reinterpret_cast<block_of_rows *>(at);
        t.ticket = reinterpret_cast<uint32_t *>(at + SIMT_BLOCK_BYTES);
        t.lse = reinterpret_cast<float *>(at + SIMT_BLOCK_BYTES + 16);
        t.rest = t.lse + 2 * Rows;
        t.k = at + BACKWARD_HEAD(Rows);
        t.v = t.k + Keys * Pitch;
        t.q = t.v + Keys * Pitch;
        t.dout = t.q + Slots * Rows * Pitch;
        t.p = t.dout + Slots * Rows * Pitch;
        t.ds = t.p + Rows * PPitch;
        t.own = reinterpret_cast<float *>(Teams > 1 ? t.ds + Rows * PPitch : t.p) + thread_index();
        return t;
    }

    // A thread's share of the blocks of rows of Q or dO: the same column of every Step'th row.
    static constexpr int Columns = D / 8, Step = BACKWARD_THREADS / Columns;
    static_assert(Rows % Step == 0 && Step % 8 == 0, "rows that a thread copies are placed alike");
    DEVICE int copy_row() { return int(thread_index()) / Columns; }
    DEVICE int copy_column() { return int(thread_index()) % Columns * 8; }

    DEVICE const char *first_copy(const attn_view &view, const block_of_rows &w, int64_t h, int i)
    {
        return view.data + 2 * (attn_row_offset(&view, w.seq.q_batch, h, w.seq.q_row + i + copy_row()) + copy_column());
    }

    // Rows on their way to a tile, where copies go through registers.
    static constexpr int Copies = Tiles::Asynchronous ? 1 : Rows / Step;
    struct strip {
        uint4 word[Copies];
    };

    // Rows from i on to a tile, or on their way there. from: this thread's first.
    DEVICE void start_rows(const attn_view &view, const char *from, int count, int n, bool eightfold, char *tile, strip &way)
    {
        if (!eightfold) {
            if (Tiles::Asynchronous) put_halves(view, from, count, n, tile);
            return;
        }
        const int64_t stride = 2 * Step * view.stride[2];
        const bool in_row = copy_column() < n;
        if constexpr (Tiles::Asynchronous) {
            const tile_address to = tile_of(tile + Tiles::place(D, copy_row(), 2 * copy_column()));
#pragma unroll
            for (int r = 0; r < Rows; r += Step, from += stride) copy_async(to + r * Pitch, from, in_row && copy_row() + r < count);
        } else {
#pragma unroll
            for (int r = 0; r < Copies; r++, from += stride) way.word[r] = load_if(in_row && copy_row() + r * Step < count, from);
        }
    }

    // What start_rows has left to do, once the tile is used up.
    DEVICE void put_rows(const attn_view &view, const char *from, int count, int n, bool eightfold, char *tile, const strip &way)
    {
        if (Tiles::Asynchronous) return;
        if (!eightfold) {
            put_halves(view, from, count, n, tile);
            return;
        }
        char *to = tile + Tiles::place(D, copy_row(), 2 * copy_column());
#pragma unroll
        for (int r = 0; r < Copies; r++) store_vector(to + r * Step * Pitch, way.word[r]);
    }

    DEVICE void put_halves(const attn_view &view, const char *from, int count, int n, char *tile)
    {
        // model: rare
        copy_tile<Tiles, Rows, D>(from - 2 * (copy_row() * view.stride[2] + copy_column()), view.stride[2], count, n, false, tile);
        // model: end
    }

    struct row_values {
        float lse, rest;
    };

    // A thread's row of a block, if it has one: LSE and rest.
    DEVICE row_values load_row(const attn_backward_tensor &p, const block_of_rows &w, int64_t h, int i)
    {
        const attn_job &job = p.simt.job;
        const int64_t row = int64_t(i) + thread_index(), at = w.seq.q_row + row;
        if (int(thread_index()) >= Rows || row >= w.seq.q_len) return {INFINITY, 0};
        const float lse = load_float32(job.lse, attn_row_offset(&job.lse, w.seq.q_batch, h, at));
        return {lse, p.simt.rest[(w.seq.q_batch * job.heads_q + h) * job.q_span.room + at]};
    }

    DEVICE void put_row(row_values x, int slot, const shared &t)
    {
        if (int(thread_index()) >= Rows) return;
        // -inf here and not where it was loaded, which would wait for it.
        t.lse[slot * Rows + thread_index()] = x.lse == -INFINITY ? INFINITY : x.lse;
        t.rest[slot * Rows + thread_index()] = x.rest;
    }

    // Keys that row i sees: from i + first on, before i + end and `keys`. Sums fit, as rows and keys are at most 2^30 (cuda/backward.c).
    struct band {
        int first, end, keys;
    };
    DEVICE band band_of(const attn_job &job, const block_of_rows &w)
    {
        const int64_t most = (int64_t)1 << 30, first = w.seq.diagonal - job.window_left, end = w.seq.diagonal + job.window_right + 1;
        return {int(attn_max(attn_min(first, most), -most)), int(attn_max(attn_min(end, most), -most)), int(w.seq.k_len)};
    }
    DEVICE bool sees(const band &b, int i, int key) { return key >= i + b.first && key < min(i + b.end, b.keys); }

    // S and dP to P and dT. i: the first row of the block.
    DEVICE void differentiate(const attn_job &job, const band &b, int i, int key, int slot, const shared &t, scores &s, scores &dp)
    {
        const float log2e = 1.44269504f, scale = job.scale * log2e;
#pragma unroll
        for (int m = 0; m < SMB; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int r = slot * Rows + score_row() + 16 * m + Tiles::sum_row(2 * half);
                const float lse = t.lse[r] * log2e, rest = t.rest[r];
#pragma unroll
                for (int n = 0; n < SNB; n++)
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        const int e = (j & 1) + 2 * half + 2 * (j & 2);
                        s[m][n][e] = exp2_approx(fmaf(s[m][n][e], scale, -lse));
                        dp[m][n][e] = s[m][n][e] * (dp[m][n][e] - rest);
                    }
            }
        if (i + Rows - 1 + b.first <= key && min(i + b.end, b.keys) >= key + Keys) return; // all of them see all
        // model: rare
#pragma unroll
        for (int m = 0; m < SMB; m++)
#pragma unroll
            for (int n = 0; n < SNB; n++)
#pragma unroll
                for (int e = 0; e < 8; e++)
                    if (!sees(b, i + score_row() + 16 * m + Tiles::sum_row(e), key + score_key() + 16 * n + Tiles::sum_key(e)))
                        s[m][n][e] = dp[m][n][e] = 0;
        // model: end
    }

    DEVICE float &element(scores &x, int c) { return x[c / (8 * SNB)][c / 8 % SNB][c % 8]; }

    // The same with everything, an element at a time over shared memory, where P and dS will be: one copy of the code serves all. The first half goes
    // there and comes back as the second, twice, so that its registers are free meanwhile.
    DEVICE void differentiate_all(const attn_job &job, const block_of_rows &w, const band &b, int64_t g, int i, int key, int slot,
                                  const shared &t, scores &s, scores &dp)
    {
        constexpr int Half = Elements / 2;
        const float log2e = 1.44269504f;
        const uint64_t seed = job.has_dropout ? attn_job_dropout_key(&job) : 0;
        float *mine = t.own;
        if (Teams > 1) block_barrier(); // the other team has read what is there
#pragma unroll 1
        for (int part = 0; part < 2; part++) {
#pragma unroll
            for (int c = 0; c < Half; c++) mine[c * BACKWARD_THREADS] = element(s, c), mine[(Half + c) * BACKWARD_THREADS] = element(dp, c);
#pragma unroll 1
            for (int n = 0; n < Half; n++) {
                const int c = part * Half + n, r = score_row() + 16 * (c / (8 * SNB)) + Tiles::sum_row(c % 8),
                          at = key + score_key() + 16 * (c / 8 % SNB) + Tiles::sum_key(c % 8);
                float *score = mine + n * BACKWARD_THREADS, *gradient = mine + (Half + n) * BACKWARD_THREADS;
                const int64_t row = (int64_t(i) + r) * job.group + g;
                float x = 0, y = 0;
                if (i + r < w.seq.q_len && sees(b, i + r, at)) {
                    const float raw = *score * job.scale;
                    const float z = !job.has_dropout ? 1.0f : keeps(job, w, seed, row, at) ? job.keep_factor : 0.0f;
                    float slope = 1;
                    if (job.softcap > 0) {
                        const float cap = tanhf(raw / job.softcap);
                        slope = fmaf(-cap, cap, 1.0f);
                    }
                    x = exp2_approx((finish_score(job, w, row, at, raw) - t.lse[slot * Rows + r]) * log2e);
                    y = x == 0 ? 0 : x * fmaf(z, *gradient, -t.rest[slot * Rows + r]) * slope;
                    x *= z;
                }
                *score = x, *gradient = y;
            }
#pragma unroll
            for (int c = 0; c < Half; c++) {
                element(s, c) = element(s, Half + c), element(s, Half + c) = mine[c * BACKWARD_THREADS];
                element(dp, c) = element(dp, Half + c), element(dp, Half + c) = mine[(Half + c) * BACKWARD_THREADS];
            }
        }
        block_barrier(); // everybody has his own back
    }

    DEVICE void put_scores(const scores &x, char *tile)
    {
#pragma unroll
        for (int m = 0; m < SMB; m++)
#pragma unroll
            for (int n = 0; n < SNB; n++) Tiles::put(x[m][n], tile, Keys, score_row() + 16 * m, score_key() + 16 * n);
    }

    // S = Q K' and dP = dO V'.
    DEVICE void multiply_scores(const shared &t, const char *q, const char *dout, scores &s, scores &dp)
    {
        const int row = score_row(), k = score_key();
        clear(s), clear(dp);
        if (Teams == 1) {
            multiply_rows(q, t.k, row, k, s);
            multiply_rows(dout, t.v, row, k, dp);
            return;
        }
        const bool of_values = warp() >= TeamWarps;
        multiply_rows(of_values ? dout : q, of_values ? t.v : t.k, row, k, s);
#pragma unroll
        for (int c = 0; c < Elements; c++) t.own[c * BACKWARD_THREADS] = element(s, c);
        block_barrier(); // the teams have written their products
        const float *other = t.own + (of_values ? -32 : 32) * TeamWarps;
#pragma unroll
        for (int c = 0; c < Elements; c++) {
            float &mine = element(s, c);
            const float theirs = other[c * BACKWARD_THREADS];
            element(dp, c) = of_values ? mine : theirs;
            mine = of_values ? theirs : mine;
        }
    }

    DEVICE void multiply_rows(const char *a, const char *b, int row, int key, scores &x)
    {
        Tiles::template multiply_tiles<SMB, SNB, D, false, false, Pitch, Pitch>(Tiles::template left<false>(a, D, row, 0),
                                                                                Tiles::template right<false, false>(b, D, key, 0), x);
    }

    // The first block of keys that rows from i on see any of, as rows_of_keys has it.
    DEVICE int64_t first_block(const attn_job &job, const block_of_rows &w, int64_t i)
    {
        if (job.window_left == ATTN_OPEN) return 0;
        return attn_max(0, (i + w.seq.diagonal - job.window_left) / Keys);
    }

    // Adds dQ of a tile where it is summed.
    DEVICE void add_dq(float *to, const float (&dq)[QMB][QNB][8])
    {
        to += warp() * (QMB * QNB * 8 * 32) + lane();
#pragma unroll
        for (int c = 0; c < QMB * QNB * 8; c++) add_float(to + 32 * c, dq[c / 8 / QNB][c / 8 % QNB][c % 8]);
    }

    DEVICE void run_task(const attn_backward_tensor &p, const shared &t, int64_t key_block)
    {
        const attn_job &job = p.simt.job;
        const block_of_rows &w = *t.block;
        const int key = int(key_block * Keys);
        const bool eightfold = p.eightfold != 0, ordered = p.counters != nullptr && p.dq != nullptr;
        float dk[KMB][KNB][8], dv[KMB][KNB][8];
        clear(dk), clear(dv);
        {
            const int count = int(attn_min(Keys, w.seq.k_len - key));
            const int64_t at = w.seq.k_row + key;
            copy_tile<Tiles, Keys, D>(job.k.data + 2 * attn_row_offset(&job.k, w.seq.k_batch, w.hkv, at), job.k.stride[2], count,
                                      int(job.head_dim), eightfold, t.k);
            copy_tile<Tiles, Keys, D>(job.v.data + 2 * attn_row_offset(&job.v, w.seq.k_batch, w.hkv, at), job.v.stride[2], count,
                                      int(job.head_dim_v), eightfold, t.v);
        }
        const int first = int(w.row), end = int(w.rows); // of queries; the first is that of a block
        const int64_t steps = end > first ? attn_ceil_div(end - first, Rows) * job.group : 0;
        // Rows go from the last to the first: a causal mask leaves the later blocks of keys fewer of them, all these end with, so that nobody waits
        // for who has begun with others.
        const int last = steps > 0 ? first + (end - 1 - first) / Rows * Rows : first;
        int64_t h = w.hkv * job.group;
        int i = last, slot = 0;
        uint32_t *signal = nullptr;
        const band sees = band_of(job, w);
        const int64_t first_tile = attn_backward_tile(&job, w.b, 0, Rows);
        const int dk_columns = int(job.head_dim), dv_columns = int(job.head_dim_v), q_len = int(w.seq.q_len);
        const char *q_from = first_copy(job.q, w, h, i), *dout_from = first_copy(job.dout, w, h, i);
        strip q_way, dout_way;
        if (steps > 0) {
            start_rows(job.q, q_from, q_len - i, dk_columns, eightfold, t.q, q_way);
            start_rows(job.dout, dout_from, q_len - i, dv_columns, eightfold, t.dout, dout_way);
            put_rows(job.q, q_from, q_len - i, dk_columns, eightfold, t.q, q_way);
            put_rows(job.dout, dout_from, q_len - i, dv_columns, eightfold, t.dout, dout_way);
            put_row(load_row(p, w, h, i), 0, t);
        }
        const int keys = 16 * KMB * (warp() % KWarps), columns = 16 * KNB * (warp() / KWarps);
        const int dq_row = 16 * QMB * (warp() % QWarps), dq_column = 16 * QNB * (warp() / QWarps);
#pragma unroll 1
        for (int64_t step = 0; step < steps; step++, slot ^= 1) {
            const int at = Slots > 1 ? slot * Rows * Pitch : 0, next_at = Slots > 1 ? (slot ^ 1) * Rows * Pitch : 0;
            const char *q = t.q + at, *dout = t.dout + at;
            const bool same_head = i > first;
            const int next_i = same_head ? i - Rows : last;
            const int64_t next_h = same_head ? h : h + 1;
            const int64_t tile = h * p.tiles_of_head + first_tile + i / Rows;
            row_values next = {0, 0};
            scores s, dp;
            finish_copies<Tiles>();
            block_barrier(); // Q, dO and their rows are complete; P, dS and the other buffers are used up; dQ has been added
            if (Tiles::Asynchronous && signal && is_signaller()) signal_turn(signal);
            const auto start_next = [&] {
                q_from = same_head ? q_from - 2 * Rows * job.q.stride[2] : first_copy(job.q, w, next_h, next_i);
                dout_from = same_head ? dout_from - 2 * Rows * job.dout.stride[2] : first_copy(job.dout, w, next_h, next_i);
                start_rows(job.q, q_from, q_len - next_i, dk_columns, eightfold, t.q + next_at, q_way);
                start_rows(job.dout, dout_from, q_len - next_i, dv_columns, eightfold, t.dout + next_at, dout_way);
                next = load_row(p, w, next_h, next_i);
            };
            const bool more = step + 1 < steps;
            if (!StartsLate && more) start_next();
            const uint32_t turn = ordered && thread_index() == 0 ? current_turn(p.counters + tile) : 0; // mostly it has come by now
            multiply_scores(t, q, dout, s, dp);
            if (All) differentiate_all(job, w, sees, h - w.hkv * job.group, i, key, slot, t, s, dp);
            else differentiate(job, sees, i, key, slot, t, s, dp);
            if (Teams == 1 || warp() < TeamWarps) put_scores(s, t.p);
            if (Teams == 1 || warp() >= TeamWarps) put_scores(dp, t.ds);
            if (StartsLate && more) start_next();
            else if (more) put_row(next, slot ^ 1, t);
            if (ordered && thread_index() == 0)
                wait_for_turn(p.counters + tile, uint32_t(key_block - first_block(job, w, i)), turn);
            block_barrier(); // P and dS are complete, and it is this block's turn
            const auto add_to_dq = [&] {
                if (!p.dq) return;
                float dq[QMB][QNB][8];
                clear(dq);
                Tiles::template multiply_tiles<QMB, QNB, Keys, false, true, PPitch, Pitch>(
                    Tiles::template left<false>(t.ds, Keys, dq_row, 0), Tiles::template right<false, true>(t.k, D, 0, dq_column), dq);
                add_dq(p.dq + tile * (Rows * D), dq);
            };
            // Additions arrive behind other products before the turn is passed on: here those of dV and dK, or, where dQ comes last to hide the
            // way of the next rows, the next scores.
            if (Tiles::Asynchronous) add_to_dq();
            else if (signal && is_signaller()) signal_turn(signal);
            Tiles::template multiply_tiles<KMB, KNB, Rows, true, true, PPitch, Pitch>(
                Tiles::template left<true>(t.p, Keys, 0, keys), Tiles::template right<true, true>(dout, D, 0, columns), dv);
            Tiles::template multiply_tiles<KMB, KNB, Rows, true, true, PPitch, Pitch>(
                Tiles::template left<true>(t.ds, Keys, 0, keys), Tiles::template right<true, true>(q, D, 0, columns), dk);
            if (!Tiles::Asynchronous && more) {
                block_barrier(); // Q and dO are used up
                if (StartsLate) put_row(next, slot ^ 1, t);
                put_rows(job.q, q_from, q_len - next_i, dk_columns, eightfold, t.q, q_way);
                put_rows(job.dout, dout_from, q_len - next_i, dv_columns, eightfold, t.dout, dout_way);
            }
            if (!Tiles::Asynchronous) add_to_dq();
            if (ordered) signal = p.counters + tile;
            i = next_i, h = next_h;
        }
        finish_copies<Tiles>(); // of K and V, where there was no step
        block_barrier(); // everything is used up, and all has been added
        if (signal && is_signaller()) signal_turn(signal);
        const int count = int(attn_min(Keys, w.seq.k_len - key));
        float *scratch = reinterpret_cast<float *>(t.q) + warp() * (16 * 20);
        const int64_t at = w.seq.k_row + key;
        if (job.dk.data)
            store_tiles<Tiles, true, true>(job, job.dk, attn_row_offset(&job.dk, w.seq.k_batch, w.hkv, at), job.dk.stride[2], keys, columns, count,
                               int(job.head_dim), job.scale, scratch, dk);
        if (job.dv.data)
            store_tiles<Tiles, true, true>(job, job.dv, attn_row_offset(&job.dv, w.seq.k_batch, w.hkv, at), job.dv.stride[2], keys, columns, count,
                               int(job.head_dim_v), 1.0f, scratch, dv);
    }

    // Tasks go by sets of heads, in a set by blocks of keys, and for these by heads: so some blocks at work read the same Q and dO, and those of
    // one head are steps apart.
    DEVICE void find_task(const attn_backward_tensor &p, int64_t task, int64_t heads, int64_t &head, int64_t &key_block)
    {
        const int64_t size = p.heads_of_set * p.key_blocks, set = task / size, rest = task % size,
                      count = attn_min(p.heads_of_set, heads - set * p.heads_of_set);
        key_block = rest / count;
        head = set * p.heads_of_set + rest % count;
    }

    DEVICE void backward(const attn_backward_tensor &p)
    {
        const shared t = carve();
        const attn_job &job = p.simt.job;
        const int64_t heads = job.batch * job.heads_kv, tasks = heads * p.key_blocks;
        block_of_rows &w = *t.block;
        for (;;) {
            block_barrier(); // the task before is done with shared memory
            if (thread_index() == 0) *t.ticket = take_ticket(p.ticket);
            block_barrier();
            const int64_t task = *t.ticket;
            int64_t head, key_block;
            if (task >= tasks) return;
            find_task(p, task, heads, head, key_block);
            if (thread_index() == 0) {
                w.b = head / job.heads_kv, w.hkv = head % job.heads_kv;
                w.seq = attn_sequence_of(&job, w.b);
                int64_t first = 0, end = w.seq.q_len;
                if (job.window_right != ATTN_OPEN) first = attn_max(0, key_block * Keys - job.window_right - w.seq.diagonal);
                if (job.window_left != ATTN_OPEN)
                    end = attn_min(end, (key_block + 1) * Keys + job.window_left - w.seq.diagonal);
                w.row = attn_min(first, w.seq.q_len) / Rows * Rows;
                w.rows = int(attn_max(attn_min(end, w.seq.q_len), 0));
                w.found = key_block * Keys < w.seq.k_len;
            }
            block_barrier(); // it is found
            if (w.found) run_task(p, t, key_block);
        }
    }

    // ---- before and after ------------------------------------------------------------------------------------------------

    // rest of a block of rows, by the products that dP is made of, so that a row of one key, where O is V, has dS = 0 exactly; dQ and counters are cleared.
    DEVICE void prepare(const attn_backward_tensor &p)
    {
        const attn_job &job = p.simt.job;
        char *dout = shared_memory(), *out = dout + Rows * Pitch;
        const int64_t tasks = job.batch * job.heads_q * p.row_blocks;
        if (block_index() == 0 && thread_index() == 0) *p.ticket = 0;
        for (int64_t task = block_index(); task < tasks; task += block_count()) {
            const int i = int(task % p.row_blocks) * Rows;
            const int64_t h = task / p.row_blocks % job.heads_q, b = task / p.row_blocks / job.heads_q;
            const attn_sequence s = attn_sequence_of(&job, b);
            if (i >= s.q_len) continue;
            const int count = int(attn_min(Rows, s.q_len - i));
            const int64_t at = s.q_row + i, tile = h * p.tiles_of_head + attn_backward_tile(&job, b, i, Rows);
            block_barrier(); // tiles are used up
            copy_tile<Tiles, Rows, D>(job.dout.data + 2 * attn_row_offset(&job.dout, s.q_batch, h, at), job.dout.stride[2], count,
                                      int(job.head_dim_v), p.eightfold != 0, dout);
            copy_tile<Tiles, Rows, D>(job.out.data + 2 * attn_row_offset(&job.out, s.q_batch, h, at), job.out.stride[2], count,
                                      int(job.head_dim_v), p.eightfold != 0, out);
            if (p.dq) {
#pragma unroll 1
                for (int c = 4 * int(thread_index()); c < Rows * D; c += 4 * BACKWARD_THREADS)
                    store_vector(p.dq + tile * (Rows * D) + c, float4{0, 0, 0, 0});
                if (p.counters && thread_index() == 0) p.counters[tile] = 0;
            }
            finish_copies<Tiles>();
            block_barrier(); // dO and O are complete
            if (warp() >= Rows / 16) continue;
            float x[1][1][8];
            clear(x);
            Tiles::template multiply_tiles<1, 1, D, false, false, Pitch, Pitch>(
                Tiles::template left<false>(dout, D, 16 * warp(), 0), Tiles::template right<false, false>(out, D, 16 * warp(), 0), x);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                const int r = 16 * warp() + Tiles::sum_row(e);
                if (Tiles::sum_row(e) != Tiles::sum_key(e) || r >= count) continue;
                float rest = x[0][0][e];
                if (job.dlse.data) rest -= load_float32(job.dlse, attn_row_offset(&job.dlse, s.q_batch, h, at + r));
                p.simt.rest[(s.q_batch * job.heads_q + h) * job.q_span.room + at + r] = rest;
            }
        }
    }

    // dQ from where it is summed to its place.
    DEVICE void finish(const attn_backward_tensor &p)
    {
        const attn_job &job = p.simt.job;
        const int64_t tasks = job.batch * job.heads_q * p.row_blocks;
        float *scratch = reinterpret_cast<float *>(shared_memory()) + warp() * (16 * 20);
        const int row = 16 * QMB * (warp() % QWarps), column = 16 * QNB * (warp() / QWarps);
        for (int64_t task = block_index(); task < tasks; task += block_count()) {
            const int i = int(task % p.row_blocks) * Rows;
            const int64_t h = task / p.row_blocks % job.heads_q, b = task / p.row_blocks / job.heads_q;
            const attn_sequence s = attn_sequence_of(&job, b);
            if (i >= s.q_len) continue;
            const int64_t tile = h * p.tiles_of_head + attn_backward_tile(&job, b, i, Rows);
            const float *from = p.dq + tile * (Rows * D) + warp() * (QMB * QNB * 8 * 32) + lane();
            float dq[QMB][QNB][8];
#pragma unroll
            for (int c = 0; c < QMB * QNB * 8; c++) dq[c / 8 / QNB][c / 8 % QNB][c % 8] = from[32 * c];
            store_tiles<Tiles, false, true>(job, job.dq, attn_row_offset(&job.dq, s.q_batch, h, s.q_row + i), job.dq.stride[2], row, column,
                               int(attn_min(Rows, s.q_len - i)), int(job.head_dim), job.scale, scratch, dq);
        }
    }
};

// The kernels of a type and shape.
#define TENSOR_BACKWARD(name, ...)                                                                                              \
    KERNEL(name, BACKWARD_THREADS, 1, attn_backward_tensor, p) { tensor_backward<__VA_ARGS__, false>::backward(p); }             \
    KERNEL(name##_all, BACKWARD_THREADS, 1, attn_backward_tensor, p) { tensor_backward<__VA_ARGS__, true>::backward(p); }        \
    KERNEL(name##_prepare, BACKWARD_THREADS, 1, attn_backward_tensor, p) { tensor_backward<__VA_ARGS__, false>::prepare(p); }    \
    KERNEL(name##_finish, BACKWARD_THREADS, 1, attn_backward_tensor, p) { tensor_backward<__VA_ARGS__, false>::finish(p); }

#endif
