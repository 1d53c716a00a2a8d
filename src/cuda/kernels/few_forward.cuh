// SPDX-License-Identifier: Apache-2.0
// The forward of few queries over many keys (decoding) on tensor cores, K and V from global memory into the registers that the products take; formula, tile
// and sums: few_sums.cuh. f16 in, float32 sums.
//
// Each key is read once for all rows of its group and multiplied a few times, so memory is the limit: what counts is how many bytes are on
// their way. 16 bytes a lane, nothing through shared memory, no barrier in the loop: in which order a product sums its columns is free, and so is which
// column of O a lane has. While S of a step is computed its V is on its way, and the next K while V is multiplied: 16 keys of both, Dk + Dv bytes a lane.
//
// A Family (sm70_few.cu) is the lanes and products of a generation. Of K a lane has two keys, columns 32 c + k_column() .. + 7 of
// each chunk c; of V four keys, columns 64 c + v_column() .. + 7: whole lines of 64 and 128 bytes a warp and load.
//
// Bytes: of K and V each once, and once more for every Rows rows, mostly from L2. Shared memory: Q as lanes have it; O of 4 warps, whose room rows that
// 16-byte loads do not reach take on their way.
#ifndef ATTN_CUDA_FEW_FORWARD_CUH
#define ATTN_CUDA_FEW_FORWARD_CUH

#include "few_sums.cuh"

template <class Family, int D> struct few_forward {
    typedef few_sums<Family, D> Sums;
    typedef typename Sums::pages pages;
    static constexpr int Rows = Sums::Rows, Warps = Sums::Warps, Step = Sums::Step, Chunks = D / 32, Wide = D / 64;

    // Rows of K or V of a head.
    struct cursor {
        const char *head; // row 0, where there are no pages
        int64_t step;     // bytes from row to row
    };

    // Eight elements of a row from `column` on, zeros from n on; whatever the alignment.
    DEVICE uint4 load_slowly(const char *row, int column, int n)
    {
        uint32_t word[4] = {0, 0, 0, 0};
#pragma unroll
        for (int e = 0; e < 8; e++)
            if (column + e < n) word[e / 2] |= uint32_t(attn_load_u16(row + 2 * (column + e))) << 16 * (e % 2);
        return {word[0], word[1], word[2], word[3]};
    }

    // q: [chunk][Family::Slots][lane]
    DEVICE void load_queries(const attn_job &job, const block_of_rows &w, uint4 *q)
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
            q[n] = eight;
        }
    }

    // How rows are loaded: as their addresses allow it, and without a question where they are as long as the tile and lie one behind the other.
    enum loading { LOAD_SLOWLY, LOAD_EIGHT, LOAD_WHOLE };

    // This lane's share of a step's K or V: Count rows, Parts loads of each. paged: where the lane's key lies (find_pages).
    template <bool IsKey, int Count, int Parts>
    DEVICE void load_rows(const attn_job &job, const block_of_rows &w, const cursor &from, int64_t paged, int key, loading way,
                          char *scratch, uint4 (&to)[Count][Parts])
    {
        constexpr int Apart = IsKey ? 32 : 64;
        if (way == LOAD_WHOLE && key >= int(w.key) && key + Step <= int(w.key_end)) {
            const char *first = from.head + (key + (IsKey ? Family::key_of_k(0) : Family::key_of_v(0))) * from.step +
                                2 * (IsKey ? Family::k_column(lane_index()) : Family::v_column());
#pragma unroll
            for (int i = 0; i < Count; i++)
#pragma unroll
                for (int c = 0; c < Parts; c++)
                    to[i][c] = load_once(first + (IsKey ? 8 * i : Family::v_apart(i)) * from.step + 2 * Apart * c);
            return;
        }
        // model: rare
        const int column = IsKey ? Family::k_column(lane_index()) : Family::v_column(), n = int(IsKey ? job.head_dim : job.head_dim_v);
        const char *data = IsKey ? job.k.data : job.v.data;
        const char *row[Count];
        bool needed[Count];
#pragma unroll
        for (int i = 0; i < Count; i++) {
            const int own = IsKey ? Family::key_of_k(i) : Family::key_of_v(i), at = key + own;
            needed[i] = at >= int(w.key) && at < int(w.key_end);
            row[i] = from.head + at * from.step;
            if (job.page_size) row[i] = data + 2 * Sums::of_lane(paged, own);
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
        uint4 *mine = reinterpret_cast<uint4 *>(scratch) + lane_index();
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

    DEVICE void add_steps(const attn_job &job, const block_of_rows &w, const typename Sums::shared &t, uint4 *q, bool has_more, typename Sums::state &x)
    {
        const bool eightfold = is_eightfold(job.k, job.head_dim) && is_eightfold(job.v, job.head_dim_v);
        const bool whole = !job.page_size && job.head_dim == D && job.head_dim_v == D;
        const loading way = !eightfold ? LOAD_SLOWLY : whole ? LOAD_WHOLE : LOAD_EIGHT;
        const cursor k_from = {job.k.data + 2 * attn_row_offset(&job.k, w.seq.k_batch, w.hkv, w.seq.k_row), 2 * job.k.stride[2]},
                     v_from = {job.v.data + 2 * attn_row_offset(&job.v, w.seq.k_batch, w.hkv, w.seq.k_row), 2 * job.v.stride[2]};
        char *scratch = reinterpret_cast<char *>(t.o + Sums::warp() * Rows * Sums::OPitch);
        const float factor = has_more ? LOG2_E : job.scale * LOG2_E;
        const int end = int(w.key_end);
        // Steps of a warp stand at multiples of theirs in the sequence, whatever its rows see.
        int key = int(w.key) / (Step * Warps) * (Step * Warps) + Step * Sums::warp();
        pages paged = {0, 0}, next_paged = {0, 0};
        if (job.page_size) paged = Sums::find_pages(job, w, key), next_paged = Sums::find_pages(job, w, key + Step * Warps);
        uint4 k[2][Chunks], v[4][Wide];
        load_rows<true>(job, w, k_from, paged.k, key, way, scratch, k);
        load_rows<false>(job, w, v_from, paged.v, key, way, scratch, v);
        load_queries(job, w, q); // behind the first rows, which take longer
        Sums::see(job, w, x);
        block_barrier(); // Q is there
#pragma unroll 1
        for (; key < end; key += Step * Warps) {
            float s[Sums::Scores], shrink[Sums::Halves];
            uint32_t kept = ~0u;
            Family::multiply_scores(q + lane_index(), k, s);
            const int64_t paged_v = next_paged.v;
            load_rows<true>(job, w, k_from, next_paged.k, key + Step * Warps, way, scratch, k);
            if (job.page_size) {
                // model: rare
                next_paged = Sums::find_pages(job, w, key + 2 * Step * Warps);
                // model: end
            }
            if (has_more) {
                // model: rare
                Sums::finish_scores(job, w, job.scale, key, reinterpret_cast<float *>(scratch), s);
                // model: end
            }
            Sums::mask_scores(int(w.last_first), int(w.first_end), key, x, s);
            Sums::exponentiate(factor, s, x, shrink);
            if (job.has_dropout) {
                // model: rare
                kept = Sums::find_kept(job, w, key);
                // model: end
            }
            Family::multiply_values(s, kept, v, shrink, x.rounded, x.o);
            load_rows<false>(job, w, v_from, paged_v, key + Step * Warps, way, scratch, v);
        }
    }

    DEVICE void forward(const attn_simt_forward &p)
    {
        const attn_job &job = p.job;
        const bool has_more = !(job.scale > 0) || job.softcap > 0 || job.bias.data || job.alibi;
        char *at = shared_memory();
        uint4 *q = reinterpret_cast<uint4 *>(at + FEW_HEAD);
        const typename Sums::shared t = Sums::carve(reinterpret_cast<block_of_rows *>(at), at + FEW_HEAD + 2 * Rows * D);
        for (int64_t task = block_index(); task < p.tasks; task += block_count()) {
            block_barrier(); // the task before is done with shared memory
            if (thread_index() == 0) find_block<uint32_t>(p, task, Rows, *t.block);
            block_barrier(); // it is found
            if (!t.block->found) continue;
            typename Sums::state x;
            Sums::start(x);
            add_steps(job, *t.block, t, q, has_more, x);
            Sums::put_sums(*t.block, t, x);
            block_barrier(); // all sums are there
            Sums::store_rows(p, *t.block, t, 1);
        }
    }
};

#define FEW_KERNEL(name, family, d, blocks_per_sm)                                                                     \
    KERNEL(name, FEW_THREADS, blocks_per_sm, attn_simt_forward, p) { few_forward<family, d>::forward(p); }

#endif
