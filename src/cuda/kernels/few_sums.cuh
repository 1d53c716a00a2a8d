// SPDX-License-Identifier: Apache-2.0
// What the forwards of few queries share, wherever K and V come from: the sums of a warp, S to P, and the fold of a block's warps.
//
//   S = Q K'  ->  scale, softcap, bias, ALiBi, mask  ->  m' = max(m, rowmax S)
//   P = 2^(S - m'), l = l 2^(m - m') + rowsum P, O = O 2^(m - m') + (keep P as rounded) V
//
// Tile: Family::Rows rows (query r / g of head r % g of a group) of a block of 4 warps; a warp takes Family::Step keys, the next warp the next, and so
// on, with m, l and O of its own. In the end warp 0's to 3's are folded in that order.
//
// Lanes. A lane has Family::Scores elements of S of a step, element e of key key_of(e) and row row_of(half_of(e)), Halves rows in all, and Outputs elements of O,
// element i of row row_of_output(half_of_output(i)), OutputHalves rows in all, and column column_of(i). ColumnsByFour: those of a row, as i grows, are four neighbours each.
//
// -inf, NaN, rows without keys, the two sums of P and the lagging sums of tensor cores: as tensor_forward.cuh has them.
#ifndef ATTN_CUDA_FEW_SUMS_CUH
#define ATTN_CUDA_FEW_SUMS_CUH

#include "tensor_forward.cuh"

template <class Family, int D> struct few_sums {
    static constexpr int Rows = Family::Rows, Warps = FEW_WARPS, Step = Family::Step, Halves = Family::Halves;
    static constexpr int Scores = Family::Scores, Outputs = Family::Outputs * (D / 64); // of a lane
    static constexpr int OPitch = FEW_PITCH(D);                                         // floats

    struct shared {
        block_of_rows *block;
        float *m, *l, *rounded; // [warp][row]
        float *o;               // [warp][row][OPitch]
    };

    struct state {
        float o[Outputs], m[Halves], l[Halves]; // m and l of the lane's rows; l of its keys
        typename Family::rounded rounded;
        int first[Halves], end[Halves]; // visible keys of the lane's rows
    };

    DEVICE int lane() { return lane_index(); }
    DEVICE int warp() { return int(thread_index()) >> 5; }
    DEVICE int row_of(int half) { return Family::row_of(half); }
    DEVICE int key_of(int e) { return Family::key_of(e); }

    // `at`: FEW_SUMS(D, Rows) bytes.
    DEVICE shared carve(block_of_rows *block, char *at)
    {
        shared t;
        t.block = block;
        t.m = reinterpret_cast<float *>(at);
        t.l = t.m + Warps * Rows;
        t.rounded = t.l + Warps * Rows;
        t.o = t.rounded + Warps * Rows;
        return t;
    }

    DEVICE void start(state &x)
    {
        x.rounded = {};
#pragma unroll
        for (int i = 0; i < Outputs; i++) x.o[i] = 0;
#pragma unroll
        for (int half = 0; half < Halves; half++) x.m[half] = -TENSOR_LARGEST, x.l[half] = 0;
    }

    DEVICE void see(const attn_job &job, const block_of_rows &w, state &x)
    {
#pragma unroll
        for (int half = 0; half < Halves; half++) {
            x.first[half] = int(w.key), x.end[half] = int(w.key_end);
            if ((w.last_first <= w.key && w.first_end >= w.key_end) || row_of(half) >= w.rows) continue;
            int64_t first, end;
            attn_visible(&job, &w.seq, (uint32_t(w.row) + uint32_t(row_of(half))) / uint32_t(job.group), &first, &end);
            x.first[half] = int(attn_max(first, w.key)), x.end[half] = int(attn_min(end, w.key_end));
        }
    }

    // Where in pages the lane's key of a step lies, as many lanes as keys; found a step before it is needed, as it waits for the table.
    struct pages {
        int64_t k, v; // elements
    };

    DEVICE pages find_pages(const attn_job &job, const block_of_rows &w, int key)
    {
        const int at = key + (lane() & (Step - 1));
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

    // S, scaled, through everything but the mask: by way of shared memory, one copy of the code for all elements.
    DEVICE void finish_scores(const attn_job &job, const block_of_rows &w, float scale, int key, float *scratch, float (&s)[Scores])
    {
        float *mine = scratch + 4 * lane(); // as load_rows has it, so that a lane touches its own alone
        const auto place = [](int e) { return 128 * (e / 4) + e % 4; };
#pragma unroll
        for (int e = 0; e < Scores; e++) mine[place(e)] = s[e] * scale;
#pragma unroll 1
        for (int e = 0; e < Scores; e++) {
            const int r = row_of(Family::half_of(e)), at = key + key_of(e);
            if (r < w.rows && at >= int(w.key) && at < int(w.key_end)) mine[place(e)] = finish_score(job, w, w.row + r, at, mine[place(e)]);
        }
#pragma unroll
        for (int e = 0; e < Scores; e++) s[e] = mine[place(e)];
    }

    // Keys that a row does not see. Most steps are whole: all rows see the keys from whole_from to whole_to.
    DEVICE void mask_scores(int whole_from, int whole_to, int key, const state &x, float (&s)[Scores])
    {
        if (key >= whole_from && key + Step <= whole_to) return;
        // model: rare
#pragma unroll
        for (int e = 0; e < Scores; e++)
            if (key + key_of(e) < x.first[Family::half_of(e)] || key + key_of(e) >= x.end[Family::half_of(e)]) s[e] = -INFINITY;
        // model: end
    }

    // Bit e: the pair is kept.
    DEVICE uint32_t find_kept(const attn_job &job, const block_of_rows &w, int key)
    {
        const uint64_t seed = attn_job_dropout_key(&job);
        uint32_t kept = 0;
#pragma unroll 1
        for (int e = 0; e < Scores; e++)
            if (keeps(job, w, seed, w.row + row_of(Family::half_of(e)), key + key_of(e))) kept |= 1u << e;
        return kept;
    }

    // S to P. A maximum is raised where a score exceeds it by Room; each row decides for itself, one vote of the warp passes over all of it.
    // True: shrink holds what O and what is summed shrink by; else it is 1.
    DEVICE bool exponentiate(float factor, float (&s)[Scores], state &x, float (&shrink)[Halves])
    {
        float m[Halves];
        bool larger = false;
#pragma unroll
        for (int half = 0; half < Halves; half++) m[half] = -INFINITY, shrink[half] = 1;
#pragma unroll
        for (int e = 0; e < Scores; e++) {
            s[e] *= factor;
            m[Family::half_of(e)] = fmaxf(m[Family::half_of(e)], s[e]);
        }
#pragma unroll
        for (int half = 0; half < Halves; half++) larger |= m[half] > x.m[half] + Family::Room;
        const bool raised = any_of_warp(larger);
        if (raised) {
            // model: rare
#pragma unroll
            for (int half = 0; half < Halves; half++) {
                const float highest = Family::row_maximum(m[half]);
                if (!(highest > x.m[half] + Family::Room)) continue;
                shrink[half] = exp2_approx(x.m[half] - highest);
                x.m[half] = highest;
                x.l[half] *= shrink[half];
            }
            // model: end
        }
#pragma unroll
        for (int e = 0; e < Scores; e++) {
            s[e] = exp2_approx(s[e] - x.m[Family::half_of(e)]);
            x.l[Family::half_of(e)] += s[e];
        }
        return raised;
    }

    // The end of a task: the warps' sums to shared memory; behind a barrier all fold and store them.
    DEVICE void put_sums(const block_of_rows &w, const shared &t, state &x)
    {
        warp_barrier(); // scratch is used up
#pragma unroll
        for (int half = 0; half < Halves; half++) {
            const int r = warp() * Rows + row_of(half);
            const float l = Family::row_total(x.l[half]);
            if (Family::is_first_of_row() && row_of(half) < Rows) t.m[r] = x.m[half], t.l[r] = l;
        }
#pragma unroll
        for (int half = 0; half < Family::OutputHalves; half++) {
            const int row = Family::row_of_output(half), r = warp() * Rows + row;
            const float rounded = Family::total_rounded(x.rounded, half);
            if (Family::column_of(0) == 0 && row < Rows) t.rounded[r] = rounded;
            if (row >= w.rows) continue;
            float four[4];
            int n = 0; // of the row
#pragma unroll
            for (int i = 0; i < Outputs; i++) {
                if (Family::half_of_output(i) != half) continue;
                if constexpr (Family::ColumnsByFour) {
                    four[n % 4] = x.o[i];
                    if (n % 4 == 3) store_vector(t.o + r * OPitch + Family::column_of(i) - 3, float4{four[0], four[1], four[2], four[3]});
                    n++;
                } else t.o[r * OPitch + Family::column_of(i)] = x.o[i];
            }
        }
    }

    // value_scale: of all of V. What its row has in common each thread finds anew, which is sooner than another's result behind a barrier.
    DEVICE void store_rows(const attn_simt_forward &p, const block_of_rows &w, const shared &t, float value_scale)
    {
        const int dv = int(p.job.head_dim_v);
#pragma unroll 1
        for (int n = int(thread_index()); n < w.rows * (D / 4); n += 32 * Warps) {
            const int row = n / (D / 4), column = n % (D / 4) * 4;
            if (column >= dv) continue;
            float *o = t.o + row * OPitch + column, sum[4] = {0, 0, 0, 0}, m = t.m[row], l = 0, rounded = 0;
#pragma unroll
            for (int i = 1; i < Warps; i++) m = fmaxf(m, t.m[i * Rows + row]);
#pragma unroll
            for (int i = 0; i < Warps; i++) {
                const float shrink = exp2_approx(t.m[i * Rows + row] - m);
                float four[4];
                load_four_floats(o + i * Rows * OPitch, four);
                l = fmaf(t.l[i * Rows + row], shrink, l);
                rounded = fmaf(t.rounded[i * Rows + row], shrink, rounded);
#pragma unroll
                for (int e = 0; e < 4; e++) sum[e] = fmaf(four[e], shrink, sum[e]);
            }
            const row_places to = place_row<uint32_t>(p, w, row);
            float factor = close_row<uint32_t>(p, w, row, l == 0 ? -INFINITY : m * LN_2, l, to, column == 0);
            factor = rounded == 0 ? 0 : factor * (l / rounded) * (p.job.has_dropout ? p.job.keep_factor : 1.0f) * value_scale;
            if (is_stored_singly(w)) {
                store_vector(o, float4{sum[0], sum[1], sum[2], sum[3]});
                store_four(p, w, to.out + column, factor, min(4, dv - column), o);
            } else store_four(p, w, to.out + column, factor, sum);
        }
    }
};

#endif
