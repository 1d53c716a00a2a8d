// SPDX-License-Identifier: Apache-2.0
// The forward of few queries over many keys (decoding) on tensor cores: f16 or bf16 in, float32 sums.
//
//   S = Q K'  ->  scale, softcap, bias, ALiBi, mask  ->  m' = max(m, rowmax S)
//   P = 2^(S - m'), l = l 2^(m - m') + rowsum P, O = O 2^(m - m') + (keep P as rounded) V
//
// Each key is read once for all rows of its group and multiplied a few times, so memory is the limit: what counts is how many bytes are on
// their way. K and V go from global memory into the registers that the products take, 16 bytes a lane, nothing through shared memory, no
// barrier in the loop: in which order a product sums its columns is free, and so is which column of O a lane has.
//
// Tile: Family::Rows rows (query r / g of head r % g of a group) of a block of 4 warps; a warp takes 16 keys, the next warp the next 16, and so on, with
// m, l and O of its own. In the end warp 0's to 3's are folded in that order. While S of a step is computed its V is on its way, and the next K while
// V is multiplied: 16 keys of both, Dk + Dv bytes a lane.
//
// A Family is the lanes and products of a generation: m16n8_few here, sm70_few in sm70_few.cu. Of K a lane has two keys, columns 32 c + k_column() .. + 7 of
// each chunk c; of V four keys, columns 64 c + v_column() .. + 7: whole lines of 64 and 128 bytes a warp and load.
//
// Bytes: of K and V each once, and once more for every Rows rows, mostly from L2. Shared memory: Q as lanes have it; O of 4 warps, whose room rows that
// 16-byte loads do not reach take on their way.
// -inf, NaN, rows without keys, the two sums of P and the lagging sums of tensor cores: as tensor_forward.cuh has them.
#ifndef ATTN_CUDA_FEW_FORWARD_CUH
#define ATTN_CUDA_FEW_FORWARD_CUH

#include "tensor_forward.cuh"

template <class Family, int D> struct few_forward {
    static constexpr int Rows = Family::Rows, Warps = FEW_THREADS / 32, Step = 16, Chunks = D / 32, Wide = D / 64;
    static constexpr int Scores = Family::Scores, Outputs = Family::Outputs * Wide; // of a lane
    static constexpr int OPitch = FEW_PITCH(D);                                     // floats

    struct shared {
        block_of_rows *block;
        uint4 *q;               // [chunk][Family::Slots][lane]
        float *m, *l, *rounded; // [warp][row]
        int64_t *offset;        // [row] where O goes
        float *factor;          // [row]
        float *o;               // [warp][row][OPitch]
    };

    struct state {
        float o[Outputs], m[2], l[2]; // m and l of two rows; l of this lane's keys
        typename Family::rounded rounded;
        int first[2], end[2]; // visible keys of the lane's rows
    };

    // Rows of K or V of a head.
    struct cursor {
        const char *head; // row 0, where there are no pages
        int64_t step;     // bytes from row to row
    };

    DEVICE int lane() { return lane_index(); }
    DEVICE int warp() { return int(thread_index()) >> 5; }
    DEVICE int row_of(int half) { return Family::row_of(half); }
    DEVICE int key_of(int e) { return Family::key_of(e); }

    DEVICE shared carve()
    {
        shared t;
        char *at = shared_memory();
        t.block = reinterpret_cast<block_of_rows *>(at);
        t.q = reinterpret_cast<uint4 *>(at + FEW_HEAD);
        t.offset = reinterpret_cast<int64_t *>(at + FEW_HEAD + 2 * Rows * D);
        t.factor = reinterpret_cast<float *>(t.offset + Rows);
        t.m = t.factor + Rows;
        t.l = t.m + Warps * Rows;
        t.rounded = t.l + Warps * Rows;
        t.o = t.rounded + Warps * Rows;
        return t;
    }

    // Eight elements of a row from `column` on, zeros from n on; whatever the alignment.
    DEVICE uint4 load_slowly(const char *row, int column, int n)
    {
        uint32_t word[4] = {0, 0, 0, 0};
#pragma unroll
        for (int e = 0; e < 8; e++)
            if (column + e < n) word[e / 2] |= uint32_t(attn_load_u16(row + 2 * (column + e))) << 16 * (e % 2);
        return {word[0], word[1], word[2], word[3]};
    }

    DEVICE void load_queries(const attn_job &job, const block_of_rows &w, const shared &t)
    {
        const int dk = int(job.head_dim);
        const bool eightfold = is_eightfold(job.q, dk);
#pragma unroll 1
        for (int n = int(thread_index()); n < 32 * Family::Slots * Chunks; n += FEW_THREADS) {
            const int r = Family::q_row(n & 31, n / 32 % Family::Slots), column = 32 * (n / 32 / Family::Slots) + Family::k_column(n & 31);
            uint4 eight = {0, 0, 0, 0};
            if (r < w.rows) {
                const uint32_t row = uint32_t(w.row) + uint32_t(r), i = row / uint32_t(job.group);
                const int64_t h = w.hkv * job.group + (row - i * uint32_t(job.group));
                const char *from = job.q.data + 2 * attn_row_offset(&job.q, w.seq.q_batch, h, w.seq.q_row + i);
                eight = eightfold ? load_if(column < dk, from + 2 * column) : load_slowly(from, column, dk);
            }
            t.q[n] = eight;
        }
    }

    DEVICE void see(const attn_job &job, const block_of_rows &w, state &x)
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            x.first[half] = x.end[half] = 0;
            if (row_of(half) >= w.rows) continue;
            int64_t first, end;
            attn_visible(&job, &w.seq, (uint32_t(w.row) + uint32_t(row_of(half))) / uint32_t(job.group), &first, &end);
            x.first[half] = int(attn_max(first, w.key)), x.end[half] = int(attn_min(end, w.key_end));
        }
    }

    // How rows are loaded: as their addresses allow it, and without a question where they are as long as the tile and lie one behind the other.
    enum loading { LOAD_SLOWLY, LOAD_EIGHT, LOAD_WHOLE };

    // Where in pages the lane's key of a step lies, lanes 0 to 15; found a step before it is needed, as it waits for the table.
    struct pages {
        int64_t k, v; // elements
    };

    DEVICE pages find_pages(const attn_job &job, const block_of_rows &w, int key)
    {
        const int at = key + (lane() & 15);
        if (at < int(w.key) || at >= int(w.key_end)) return {0, 0};
        const uint32_t token = uint32_t(w.seq.k_row + at), size = uint32_t(job.page_size);
        const int64_t page = job.page_table[w.b * job.page_table_stride + token / size];
        return {attn_row_offset(&job.k, page, w.hkv, token % size), attn_row_offset(&job.v, page, w.hkv, token % size)};
    }

    DEVICE int64_t of_lane(int64_t x, int from)
    {
        const uint32_t low = shuffle_from(uint32_t(x), from), high = shuffle_from(uint32_t(x >> 32), from);
        return int64_t(uint64_t(high) << 32 | low);
    }

    // This lane's share of a step's K or V: Count rows, Parts loads of each. paged: where the lane's key lies (find_pages).
    template <bool IsKey, int Count, int Parts>
    DEVICE void load_rows(const attn_job &job, const block_of_rows &w, const cursor &from, int64_t paged, int key, loading way,
                          char *scratch, uint4 (&to)[Count][Parts])
    {
        constexpr int Apart = IsKey ? 32 : 64;
        if (way == LOAD_WHOLE && key >= int(w.key) && key + Step <= int(w.key_end)) {
            const char *first = from.head + (key + (IsKey ? Family::key_of_k(0) : Family::key_of_v(0))) * from.step +
                                2 * (IsKey ? Family::k_column(lane()) : Family::v_column());
#pragma unroll
            for (int i = 0; i < Count; i++)
#pragma unroll
                for (int c = 0; c < Parts; c++)
                    to[i][c] = load_once(first + (IsKey ? 8 * i : Family::v_apart(i)) * from.step + 2 * Apart * c);
            return;
        }
        // model: rare
        const int column = IsKey ? Family::k_column(lane()) : Family::v_column(), n = int(IsKey ? job.head_dim : job.head_dim_v);
        const char *data = IsKey ? job.k.data : job.v.data;
        const char *row[Count];
        bool needed[Count];
#pragma unroll
        for (int i = 0; i < Count; i++) {
            const int own = IsKey ? Family::key_of_k(i) : Family::key_of_v(i), at = key + own;
            needed[i] = at >= int(w.key) && at < int(w.key_end);
            row[i] = from.head + at * from.step;
            if (job.page_size) row[i] = data + 2 * of_lane(paged, own);
        }
        if (way != LOAD_SLOWLY) {
#pragma unroll
            for (int i = 0; i < Count; i++)
#pragma unroll
                for (int c = 0; c < Parts; c++)
                    to[i][c] = load_once_if(needed[i] && column + Apart * c < n, row[i] + 2 * (column + Apart * c));
            return;
        }
        // Through shared memory, one copy of the code for all.
        uint4 *mine = reinterpret_cast<uint4 *>(scratch) + lane();
#pragma unroll
        for (int i = 0; i < Count; i++) {
#pragma unroll 1
            for (int c = 0; c < Parts; c++)
                store_vector(mine + 32 * c, needed[i] ? load_slowly(row[i], column + Apart * c, n) : uint4{0, 0, 0, 0});
#pragma unroll
            for (int c = 0; c < Parts; c++) to[i][c] = load_vector<uint4>(mine + 32 * c);
        }
        // model: end
    }

    // S, scaled, through everything but the mask: by way of shared memory, one copy of the code for all elements.
    DEVICE void finish_scores(const attn_job &job, const block_of_rows &w, int key, float *scratch, float (&s)[Scores])
    {
        float *mine = scratch + 4 * lane(); // as load_rows has it, so that a lane touches its own alone
        const auto place = [](int e) { return 128 * (e / 4) + e % 4; };
#pragma unroll
        for (int e = 0; e < Scores; e++) mine[place(e)] = s[e] * job.scale;
#pragma unroll 1
        for (int e = 0; e < Scores; e++) {
            const int r = row_of(e >> 1 & 1), at = key + key_of(e);
            if (r < w.rows && at >= int(w.key) && at < int(w.key_end)) mine[place(e)] = finish_score(job, w, w.row + r, at, mine[place(e)]);
        }
#pragma unroll
        for (int e = 0; e < Scores; e++) s[e] = mine[place(e)];
    }

    // Bit e: the pair is kept.
    DEVICE uint32_t find_kept(const attn_job &job, const block_of_rows &w, int key)
    {
        const uint64_t seed = attn_job_dropout_key(&job);
        uint32_t kept = 0;
#pragma unroll 1
        for (int e = 0; e < Scores; e++)
            if (keeps(job, w, seed, w.row + row_of(e >> 1 & 1), key + key_of(e))) kept |= 1u << e;
        return kept;
    }

    // S to P. A maximum is raised where a score exceeds it by SCORE_ROOM; each row decides for itself, one vote of the warp passes over all of it.
    // True: shrink holds what O and what is summed shrink by; else it is 1.
    DEVICE bool exponentiate(float factor, float (&s)[Scores], state &x, float (&shrink)[2])
    {
        float m[2] = {-INFINITY, -INFINITY};
        shrink[0] = shrink[1] = 1;
#pragma unroll
        for (int e = 0; e < Scores; e++) {
            s[e] *= factor;
            m[e >> 1 & 1] = fmaxf(m[e >> 1 & 1], s[e]);
        }
        const bool raised = any_of_warp(m[0] > x.m[0] + SCORE_ROOM || m[1] > x.m[1] + SCORE_ROOM);
        if (raised) {
            // model: rare
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float larger = Family::row_maximum(m[half]);
                if (!(larger > x.m[half] + SCORE_ROOM)) continue;
                shrink[half] = exp2_approx(x.m[half] - larger);
                x.m[half] = larger;
                x.l[half] *= shrink[half];
            }
            // model: end
        }
#pragma unroll
        for (int e = 0; e < Scores; e++) {
            s[e] = exp2_approx(s[e] - x.m[e >> 1 & 1]);
            x.l[e >> 1 & 1] += s[e];
        }
        return raised;
    }

    DEVICE void add_steps(const attn_job &job, const block_of_rows &w, const shared &t, bool has_more, state &x)
    {
        const bool eightfold = is_eightfold(job.k, job.head_dim) && is_eightfold(job.v, job.head_dim_v);
        const bool whole = !job.page_size && job.head_dim == D && job.head_dim_v == D;
        const loading way = !eightfold ? LOAD_SLOWLY : whole ? LOAD_WHOLE : LOAD_EIGHT;
        const cursor k_from = {job.k.data + 2 * attn_row_offset(&job.k, w.seq.k_batch, w.hkv, w.seq.k_row), 2 * job.k.stride[2]},
                     v_from = {job.v.data + 2 * attn_row_offset(&job.v, w.seq.k_batch, w.hkv, w.seq.k_row), 2 * job.v.stride[2]};
        char *scratch = reinterpret_cast<char *>(t.o + warp() * Rows * OPitch);
        const float factor = has_more ? LOG2_E : job.scale * LOG2_E;
        const int end = int(w.key_end);
        // Steps of a warp stand at multiples of theirs in the sequence, whatever its rows see.
        int key = int(w.key) / (Step * Warps) * (Step * Warps) + Step * warp();
        pages paged = {0, 0}, next_paged = {0, 0};
        if (job.page_size) paged = find_pages(job, w, key), next_paged = find_pages(job, w, key + Step * Warps);
        uint4 k[2][Chunks], v[4][Wide];
        load_rows<true>(job, w, k_from, paged.k, key, way, scratch, k);
        load_rows<false>(job, w, v_from, paged.v, key, way, scratch, v);
        load_queries(job, w, t); // behind the first rows, which take longer
        see(job, w, x);
        block_barrier(); // Q is there
#pragma unroll 1
        for (; key < end; key += Step * Warps) {
            float s[Scores], shrink[2];
            uint32_t kept = ~0u;
            Family::multiply_scores(t.q + lane(), k, s);
            const int64_t paged_v = next_paged.v;
            load_rows<true>(job, w, k_from, next_paged.k, key + Step * Warps, way, scratch, k);
            if (job.page_size) {
                // model: rare
                next_paged = find_pages(job, w, key + 2 * Step * Warps);
                // model: end
            }
            if (has_more) {
                // model: rare
                finish_scores(job, w, key, reinterpret_cast<float *>(scratch), s);
                // model: end
            }
            if (key < int(w.last_first) || key + Step > int(w.first_end)) {
                // model: rare
#pragma unroll
                for (int e = 0; e < Scores; e++)
                    if (key + key_of(e) < x.first[e >> 1 & 1] || key + key_of(e) >= x.end[e >> 1 & 1]) s[e] = -INFINITY;
                // model: end
            }
            const bool raised = exponentiate(factor, s, x, shrink);
            if (job.has_dropout) {
                // model: rare
                kept = find_kept(job, w, key);
                // model: end
            }
            Family::multiply_values(s, kept, v, raised, shrink, x.rounded, x.o);
            load_rows<false>(job, w, v_from, paged_v, key + Step * Warps, way, scratch, v);
        }
    }

    // The warps' sums to shared memory; then a thread a row folds m, l and rounded, and all of them O.
    DEVICE void fold_warps(const attn_simt_forward &p, const block_of_rows &w, const shared &t, state &x)
    {
        warp_barrier(); // scratch is used up
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = warp() * Rows + row_of(half);
            const float l = Family::row_total(x.l[half]), rounded = Family::total_rounded(x.rounded, half);
            if (Family::is_first_of_row()) t.m[r] = x.m[half], t.l[r] = l, t.rounded[r] = rounded;
            if (row_of(half) >= w.rows) continue;
#pragma unroll
            for (int i = 0; i < Outputs; i++)
                if ((i >> 1 & 1) == half) t.o[r * OPitch + Family::column_of(i)] = x.o[i];
        }
        block_barrier(); // all sums are there
        const int r = int(thread_index());
        if (r < w.rows) {
            float m = t.m[r], l = 0, rounded = 0;
#pragma unroll
            for (int n = 1; n < Warps; n++) m = fmaxf(m, t.m[n * Rows + r]);
#pragma unroll
            for (int n = 0; n < Warps; n++) {
                const float shrink = exp2_approx(t.m[n * Rows + r] - m);
                l = fmaf(t.l[n * Rows + r], shrink, l);
                rounded = fmaf(t.rounded[n * Rows + r], shrink, rounded);
                t.m[n * Rows + r] = shrink;
            }
            const row_places to = place_row<uint32_t>(p, w, r);
            const float factor = close_row<uint32_t>(p, w, r, l == 0 ? -INFINITY : m * LN_2, l, to);
            t.offset[r] = to.out;
            t.factor[r] = rounded == 0 ? 0 : factor * (l / rounded) * (p.job.has_dropout ? p.job.keep_factor : 1.0f);
        }
        block_barrier(); // shares, places and factors are there
        const int dv = int(p.job.head_dim_v);
#pragma unroll 1
        for (int n = int(thread_index()); n < w.rows * (D / 4); n += FEW_THREADS) {
            const int row = n / (D / 4), column = n % (D / 4) * 4;
            if (column >= dv) continue;
            float *o = t.o + row * OPitch + column, sum[4] = {0, 0, 0, 0};
#pragma unroll
            for (int i = 0; i < Warps; i++) {
                float four[4];
                load_four_floats(o + i * Rows * OPitch, four);
#pragma unroll
                for (int e = 0; e < 4; e++) sum[e] = fmaf(four[e], t.m[i * Rows + row], sum[e]);
            }
            store_vector(o, float4{sum[0], sum[1], sum[2], sum[3]});
            store_four(p, w, t.offset[row] + column, t.factor[row], min(4, dv - column), o);
        }
    }

    DEVICE void run_task(const attn_simt_forward &p, const shared &t)
    {
        const attn_job &job = p.job;
        const block_of_rows &w = *t.block;
        const bool has_more = !(job.scale > 0) || job.softcap > 0 || job.bias.data || job.alibi;
        state x;
        x.rounded = {};
#pragma unroll
        for (int i = 0; i < Outputs; i++) x.o[i] = 0;
#pragma unroll
        for (int half = 0; half < 2; half++) x.m[half] = -TENSOR_LARGEST, x.l[half] = 0;
        add_steps(job, w, t, has_more, x);
        fold_warps(p, w, t, x);
    }

    DEVICE void forward(const attn_simt_forward &p)
    {
        const shared t = carve();
        for (int64_t task = block_index(); task < p.tasks; task += block_count()) {
            block_barrier(); // the task before is done with shared memory
            if (thread_index() == 0) find_block<uint32_t>(p, task, Rows, *t.block);
            block_barrier(); // it is found
            if (t.block->found) run_task(p, t);
        }
    }
};

#define FEW_KERNEL(name, family, d, blocks_per_sm)                                                                     \
    KERNEL(name, FEW_THREADS, blocks_per_sm, attn_simt_forward, p) { few_forward<family, d>::forward(p); }

#endif
