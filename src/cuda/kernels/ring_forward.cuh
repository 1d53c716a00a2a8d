// SPDX-License-Identifier: Apache-2.0
// The forward of few queries over many keys (decoding) on tensor cores, K and V through shared memory as they are stored; formula, tile and sums:
// few_sums.cuh. f16, bf16, or f16 queries over K and V of any of stored_kind, each its own, in; float32 sums.
//
// Memory is the limit, so all is arranged round the bytes on their way. Every warp has a ring of Depth steps, Family::Step keys of K and V each, in shared memory, that it fills
// by asynchronous copies (sm_80 on; else through registers) and empties alone: no barrier of the block in the loop. Rows lie there as they are stored,
// blocks of Q8_0 and scales included, `pitch` apart, so that eight rows meet 32 banks. What lanes read of it is converted in registers.
// With Bulk (sm_90) rows lie one behind the other, and where they do so in memory too, a step of K and of V is one bulk copy each. (A copy a row would be
// ten instructions a row, as its operands are of the warp.)
//
// A block goes from task to task, and its warps' rings go on: the next task is known, and its first steps are on their way, before this one ends; a thread
// looks tasks up meanwhile. Known at a time: that whose rows may still be stored, that which is done, the next, and the one looked up.
//
// Stored values. Halves: the products take them. Codes (int8, nibbles, 8-bit floats) are exact as halves; S of a block of 32 columns is multiplied by its scale in
// float32; V is code times scale, rounded to f16. One scale of all rows of a head (I8, F8) multiplies S and O instead. A scale of V from 512 on may take V beyond the largest
// half: a key with such a one passes 2^8 from all its scales on to its P.
//
// A Family (m16n8_few.cuh, sm70_stored.cu) is the lanes and products of a generation: multiply_scores and multiply_values of rows as they lie.
//
// Bytes: of K and V each once, and once more for every Rows rows, mostly from L2. Shared memory: Depth 2 (Dk + Dv) Step a warp, and O of 4 warps.
#ifndef ATTN_CUDA_RING_FORWARD_CUH
#define ATTN_CUDA_RING_FORWARD_CUH

#include "few_sums.cuh"
#include "stored.cuh"

// Where a warp's rows of a step lie, and how they are stored.
struct stored_rows {
    const char *at;
    int pitch, kind;
};

template <class Family, int D, int Depth> struct ring_forward {
    typedef few_sums<Family, D> Sums;
    typedef typename Sums::shared shared;
    typedef typename Sums::state state;
    static constexpr int Rows = Sums::Rows, Warps = Sums::Warps, Step = Sums::Step, Known = 4;
    static constexpr int Rounds = Step / 4;                        // four rows at a time are copied
    static constexpr int Words = D / 16 * Family::QueryWords; // of a row of Q
    static constexpr int RowBytes = Family::HasHalves ? 2 * D : 34 * D / 32;
    static constexpr int Stage = Step * (Family::Bulk ? RowBytes : STORED_PITCH(RowBytes)); // bytes of K or V of a step

    // What all tasks of a launch have in common of K or V. With asynchronous copies steps on the usual way do not need its form, which is found anew then.
    struct form {
        int unit;       // bytes of a copy; 0: rows that no copy reaches
        int bytes, all; // of a row, and of one of D columns
    };
    struct source {
        int kind, pitch;
        int whole;    // rows are as long as the tile and there are no pages: bytes of a copy, 8 or 16, or Flat; else 0
        int64_t step; // bytes from row to row
        form known;
    };
    // Rows with block scales that lie one behind the other do so in the ring too, and a step is copied as if it were one row: they are no multiples of 16 bytes, steps are.
    static constexpr int Flat = 1;

    DEVICE form form_of(const attn_view &t, int kind, int64_t n)
    {
        const int64_t bits = stored_bytes(kind, t.stride[0]) | stored_bytes(kind, t.stride[1]) | stored_bytes(kind, t.stride[2]) | stored_bytes(kind, n) |
                             int64_t(reinterpret_cast<uintptr_t>(t.data));
        const int unit = (bits & 15) == 0 ? 16 : !Family::Mixed ? 0 : (bits & 7) == 0 ? 8 : (bits & 3) == 0 ? 4 : 0;
        return {unit, int(stored_bytes(kind, n)), int(stored_bytes(kind, D))};
    }

    DEVICE source source_of(const attn_job &job, const attn_view &t, int64_t n)
    {
        const int kind = !Family::Mixed ? int(STORED_HALVES) : Family::Only >= 0 ? Family::Only : stored_kind_of(t.dtype);
        const form f = form_of(t, kind, n);
        const int64_t step = stored_bytes(kind, t.stride[2]);
        int whole = n != D || job.page_size ? 0 : f.unit >= 8 ? f.unit : 0, pitch = Family::Bulk ? RowBytes : STORED_PITCH(f.all);
        if (Family::Mixed && Family::Asynchronous && stored_has_block_scale(kind) && n == D && !job.page_size && step == f.all) whole = Flat, pitch = f.all;
        keep_sum(whole);
        return {kind, pitch, whole, step, f};
    }

    // The copies of a warp: where its next step lies.
    struct producer {
        const char *k, *v; // row key + lane / 8 of each, or Flat row key and 16 lane bytes, unless in pages
        typename Sums::pages paged;
        int key, first, end; // of the task
        int task;            // how many before it
        unsigned issued;     // steps
        cache_hint hint;     // one block of rows reads K and V once
        int bulk;            // whether rows of K and of V lie one behind the other as they do in the ring: then a step is one copy of each
    };

    DEVICE const char *row_address(const attn_view &t, int kind, int64_t element) { return t.data + stored_bytes(kind, element); }

    DEVICE void enter(const attn_job &job, const block_of_rows &w, const source &k, const source &v, producer &from)
    {
        from.first = from.end = from.key = 0;
        if (!w.found) return;
        from.first = int(w.key), from.end = int(w.key_end);
        // Steps of a warp stand at multiples of theirs in the sequence, whatever its rows see.
        from.key = from.first / (Step * Warps) * (Step * Warps) + Step * Sums::warp();
        if (from.key >= from.end) return;
        if (job.page_size) {
            from.paged = Sums::find_pages(job, w, from.key);
            return;
        }
        from.k = first_address(job.k, w, k, from.key), from.v = first_address(job.v, w, v, from.key);
    }

    DEVICE const char *first_address(const attn_view &t, const block_of_rows &w, const source &s, int key)
    {
        const int64_t row = w.seq.k_row + key + (s.whole == Flat ? 0 : lane_index() / 8);
        return row_address(t, s.kind, attn_row_offset(&t, w.seq.k_batch, w.hkv, row)) + (s.whole == Flat ? 16 * lane_index() : 0);
    }

    // Rows of a step, eight lanes a row, Unit bytes a lane and copy. What a row has less than the tile is zeros.
    template <int Unit> struct parts {
        static constexpr int Count = ((Unit == 16 ? 2 * D : 34 * D / 32) + 8 * Unit - 1) / (8 * Unit);
    };

    template <int Unit>
    DEVICE void copy_rows(const source &s, const form &f, const char *const (&row)[Rounds], const bool (&needed)[Rounds], char *to)
    {
        const int column = lane_index() % 8 * Unit;
        to += lane_index() / 8 * s.pitch + column;
        stored_unit<Unit> held[Family::Asynchronous ? 1 : parts<Unit>::Count][Rounds];
#pragma unroll
        for (int j = 0; j < parts<Unit>::Count; j++)
#pragma unroll
            for (int i = 0; i < Rounds; i++) {
                const int at = column + 8 * Unit * j;
                if constexpr (!Family::Asynchronous) held[j][i] = load_unit_if<Unit>(needed[i] && at < f.bytes, row[i] + at);
                else if (at < f.all) copy_async<Unit>(tile_of(to) + 4 * i * s.pitch + 8 * Unit * j, row[i] + at, needed[i] && at < f.bytes);
            }
        if constexpr (!Family::Asynchronous)
#pragma unroll
            for (int j = 0; j < parts<Unit>::Count; j++)
#pragma unroll
                for (int i = 0; i < Rounds; i++)
                    if (column + 8 * Unit * j < f.all) store_unit(to + 4 * i * s.pitch + 8 * Unit * j, held[j][i]);
    }

    // The same of rows that are all needed, as long as the tile and one behind the other: no question, and as few sums as may be.
    template <int Unit> DEVICE void copy_whole(const source &s, const char *row, char *to)
    {
        const int column = lane_index() % 8 * Unit, all = int(stored_bytes(s.kind, D));
        tile_address tile = tile_of(to + lane_index() / 8 * s.pitch + column);
        row += column;
#pragma unroll
        for (int i = 0; i < Rounds; i++) {
            keep_sum(row);
#pragma unroll
            for (int j = 0; j < parts<Unit>::Count; j++)
                if (column + 8 * Unit * j < all) copy_async<Unit>(tile + 8 * Unit * j, row + 8 * Unit * j);
            row += 4 * s.step;
            tile += 4 * s.pitch;
        }
    }

    // The same as if they were one row.
    template <int Kind> DEVICE void copy_flat(const char *from, char *to)
    {
        constexpr int Units = Step * int(stored_bytes(Kind, D)) / 16;
        const tile_address tile = tile_of(to + 16 * lane_index());
#pragma unroll
        for (int n = 0; n < Units; n += 32)
            if (n + 32 <= Units || lane_index() < Units - n) copy_async(tile + 16 * n, from + 16 * n);
    }

    // The same by bytes.
    DEVICE void copy_slowly(const source &s, const form &f, const char *const (&row)[Rounds], const bool (&needed)[Rounds], char *to)
    {
        to += lane_index() / 8 * s.pitch;
#pragma unroll
        for (int i = 0; i < Rounds; i++)
#pragma unroll 1
            for (int n = lane_index() % 8; n < f.all; n += 8) to[4 * i * s.pitch + n] = needed[i] && n < f.bytes ? row[i][n] : char(0);
    }

    template <bool IsKey> DEVICE void copy_step(const attn_job &job, const source &s, const producer &from, char *to)
    {
        if constexpr (Family::Asynchronous)
            if (s.whole && from.key >= from.first && from.key + Step <= from.end) {
                if (Family::Mixed && s.whole == Flat) {
                    const char *first = IsKey ? from.k : from.v;
                    if (is_aligned(first, 16)) return s.kind == STORED_Q8_0 ? copy_flat<STORED_Q8_0>(first, to) : copy_flat<STORED_Q4_0>(first, to);
                } else if (!Family::Mixed || s.whole == 16) return copy_whole<16>(s, IsKey ? from.k : from.v, to);
                else return copy_whole<8>(s, IsKey ? from.k : from.v, to);
            }
        // model: rare
        const attn_view &view = IsKey ? job.k : job.v;
        const form f = Family::Asynchronous ? form_of(view, s.kind, IsKey ? job.head_dim : job.head_dim_v) : s.known;
        const char *first = IsKey ? from.k : from.v, *row[Rounds];
        if (s.whole == Flat) first += lane_index() / 8 * s.step - 16 * lane_index();
        bool needed[Rounds];
#pragma unroll
        for (int i = 0; i < Rounds; i++) {
            const int own = lane_index() / 8 + 4 * i, key = from.key + own;
            if (job.page_size) row[i] = row_address(view, s.kind, Sums::of_lane(IsKey ? from.paged.k : from.paged.v, own));
            else row[i] = first + 4 * i * s.step;
            needed[i] = key >= from.first && key < from.end;
        }
        if (f.unit == 16) copy_rows<16>(s, f, row, needed, to);
        else if (Family::Mixed && f.unit == 8) copy_rows<8>(s, f, row, needed, to);
        else if (Family::Mixed && f.unit == 4) copy_rows<4>(s, f, row, needed, to);
        else copy_slowly(s, f, row, needed, to);
        // model: end
    }

    DEVICE void copy_in_bulk(const producer &from, char *to, tile_address gate)
    {
        const int first = max(from.key, from.first), rows = max(0, min(from.end, from.key + Step) - first), skip = (first - from.key) * RowBytes;
        if (lane_index() == 0) {
            expect_bytes(gate, uint32_t(2 * rows * RowBytes));
            if (rows) {
                copy_bulk(tile_of(to + skip), from.k + skip, uint32_t(rows * RowBytes), gate, from.hint);
                copy_bulk(tile_of(to + Stage + skip), from.v + skip, uint32_t(rows * RowBytes), gate, from.hint);
            }
        }
        if (rows == Step) return;
        // model: rare
        // What is not needed is zeros, as P = 0 does not undo NaN.
#pragma unroll 1
        for (int n = lane_index() * 16; n < Stage; n += 32 * 16)
            if (n < skip || n >= skip + rows * RowBytes || !rows) {
                store_vector(to + n, uint4{0, 0, 0, 0});
                store_vector(to + Stage + n, uint4{0, 0, 0, 0});
            }
        stores_before_bulk();
        // model: end
    }

    // The next step, if one is known: of the task that is being done, number `now`, or of the one behind it. In any case a group of copies.
    DEVICE void issue(const attn_job &job, const block_of_rows *known, int now, const source &k, const source &v, char *ring, tile_address gates, producer &from)
    {
        while (from.key >= from.end && from.task <= now) { // first -1: none
            from.task++;
            enter(job, known[from.task % Known], k, v, from);
        }
        if (from.key < from.end) {
            const unsigned stage = from.issued++ % Depth;
            char *to = ring + stage * (2 * Stage);
            if (Family::Bulk && from.bulk) copy_in_bulk(from, to, gates + stage * 8);
            else {
                copy_step<true>(job, k, from, to);
                copy_step<false>(job, v, from, to + Stage);
            }
            from.key += Step * Warps;
            if (job.page_size) from.paged = Sums::find_pages(job, known[from.task % Known], from.key);
            else from.k += Step * Warps * k.step, from.v += Step * Warps * v.step;
        }
        if constexpr (Family::Asynchronous)
            if (!Family::Bulk || !from.bulk) close_copies();
    }

    // Rows that the task lacks are its last once more: nobody stores them. On the usual way without a question.
    template <class Queries> DEVICE void load_queries(const attn_job &job, const block_of_rows &w, Queries &q)
    {
        const int dk = int(job.head_dim);
        const bool whole = ((job.q.stride[0] | job.q.stride[1] | job.q.stride[2]) & 1) == 0 && dk == D && is_aligned(job.q.data, 4);
#pragma unroll
        for (int n = 0; n < Family::QueryRows; n++) {
            const uint32_t row = uint32_t(w.row) + uint32_t(min(Family::query_row(n), w.rows - 1)), i = row / uint32_t(job.group);
            const int64_t h = w.hkv * job.group + (row - i * uint32_t(job.group));
            const char *from = job.q.data + 2 * attn_row_offset(&job.q, w.seq.q_batch, h, w.seq.q_row + i);
            if (whole) {
#pragma unroll
                for (int j = 0; j < Words; j++) q[n][j] = load_vector<uint32_t>(from + 2 * Family::query_column(j));
                continue;
            }
#pragma unroll
            for (int j = 0; j < Words; j++) {
                const int column = Family::query_column(j);
                q[n][j] = column < dk ? attn_load_u16(from + 2 * column) : 0u;
                if (column + 1 < dk) q[n][j] |= uint32_t(attn_load_u16(from + 2 * column + 2)) << 16;
            }
        }
    }

    // The same for all rows of a head (cuda/forward_kernels.c).
    DEVICE float scale_of(const attn_view &t, const block_of_rows &w)
    {
        if (!Family::Mixed || !t.scale || !stored_has_row_scale(t.dtype)) return 1;
        return *attn_row_scale(&t, w.seq.k_batch, w.hkv, 0);
    }

    // The first task with rows from `task` on that is this block's. Blocks take turns of one task each, every time one place on, so that none is left with the
    // last pieces of all sequences, which short ones lack.
    DEVICE int64_t find(const attn_simt_forward &p, int64_t task, block_of_rows &w)
    {
        do {
            find_block<uint32_t>(p, task, Rows, w);
            const uint32_t blocks = block_count(), place = uint32_t(task) % blocks;
            task += place + 1 == blocks ? 1 : blocks + 1;
        } while (!w.found && task < p.tasks);
        return task;
    }

    // Task number `now`, and what its ring has room for of the next; -1: that alone.
    DEVICE void multiply(const attn_job &job, const block_of_rows *known, int now, const source &k, const source &v, bool has_more, const shared &t, char *ring,
                         tile_address gates, producer &from, unsigned &done, state &x)
    {
        const block_of_rows &w = known[now & (Known - 1)];
        uint32_t q[Family::QueryRows][Words];
        float scale = 1, factor = 1;
        int key = 0, end = 0, whole_from = 0, whole_to = 0, lacks = Depth - int(from.issued - done);
        if (now >= 0) {
            load_queries(job, w, q);
            Family::arrange_queries(k.kind, q);
            Sums::start(x);
            Sums::see(job, w, x);
            scale = job.scale * scale_of(job.k, w), factor = has_more ? LOG2_E : scale * LOG2_E;
            key = int(w.key) / (Step * Warps) * (Step * Warps) + Step * Sums::warp(), end = int(w.key_end);
            whole_from = int(w.last_first), whole_to = int(w.first_end);
        }
        float *scratch = t.o + Sums::warp() * Rows * Sums::OPitch;
        int own_k = 0, own_v = Stage;
        if constexpr (Family::Bulk) { // found once
            own_k = Family::template key_place<D>(), own_v = Stage + Family::template value_place<D>();
            keep_sum(own_k), keep_sum(own_v);
        }
#pragma unroll 1
        while (lacks > 0 || key < end) {
            if (lacks > 0) lacks--; // the ring is filled first
            else {
                if (Family::Bulk && from.bulk) pass_gate(gates + done % Depth * 8, done / Depth & 1);
                else if constexpr (Family::Asynchronous) copies_complete_but<Depth - 1>();
                warp_barrier(); // all lanes' copies are there
                const char *stage = ring + done % Depth * (2 * Stage);
                float s[Sums::Scores], shrink[Sums::Halves];
                uint32_t kept = 0;
                Family::template multiply_scores<D>({stage + own_k, k.pitch, k.kind}, q, s);
                if (has_more) {
                    // model: rare
                    Sums::finish_scores(job, w, scale, key, scratch, s);
                    // model: end
                }
                Sums::mask_scores(whole_from, whole_to, key, x, s);
                const bool raised = Sums::exponentiate(factor, s, x, shrink);
                if (job.has_dropout) {
                    // model: rare
                    kept = Sums::find_kept(job, w, key);
                    // model: end
                }
                Family::template multiply_values<D>({stage + own_v, v.pitch, v.kind}, s, job.has_dropout, kept, raised, shrink, x.rounded, x.o);
                done++;
                key += Step * Warps;
                warp_barrier(); // the stage is used up
            }
            issue(job, known, now, k, v, ring, gates, from);
        }
    }

    DEVICE void forward(const attn_simt_forward &p)
    {
        const attn_job &job = p.job;
        const bool has_more = !(job.scale > 0) || job.softcap > 0 || job.bias.data || job.alibi;
        block_of_rows *known = reinterpret_cast<block_of_rows *>(shared_memory());
        char *ring = shared_memory() + RING_HEAD(Depth, Family::Bulk) + Sums::warp() * (Depth * 2 * Stage);
        const tile_address gates = tile_of(shared_memory() + Known * FEW_HEAD + Sums::warp() * (Depth * 8)); // Bulk
        const shared t = Sums::carve(nullptr, shared_memory() + RING_HEAD(Depth, Family::Bulk) + Warps * (Depth * 2 * Stage));
        const source k = source_of(job, job.k, job.head_dim), v = source_of(job, job.v, job.head_dim_v);
        int64_t task = block_index(); // of the thread that looks up
        producer from = {};
        from.task = -1;
        from.hint = hint_once(p.row_blocks == 1);
        from.bulk = Family::Bulk && k.whole && v.whole && k.step == RowBytes && v.step == RowBytes;
        if (Family::Bulk) keep_sum(from.bulk);
        unsigned done = 0;
        state x;
        if constexpr (Family::Bulk) {
            if (lane_index() == 0)
#pragma unroll
                for (int n = 0; n < Depth; n++) open_gate(gates + n * 8);
            block_barrier();
        }
        // One round to know a task, one to know the next while the first copies are on their way, then one a task.
#pragma unroll 1
        for (int now = -2; now < 0 || known[now % Known].found; now++) {
            const block_of_rows &w = known[now & (Known - 1)];
            // While copies are on their way: at first those of task 0, which are asked for in round -1; later those that the task before has asked for.
            if (now >= 0 && thread_index() == FEW_THREADS - 32) task = find(p, task, known[(now + 2) % Known]);
            if (now >= -1) multiply(job, known, now, k, v, has_more, t, ring, gates, from, done, x);
            if (now < 0 && thread_index() == FEW_THREADS - 32) task = find(p, task, known[(now + 2) % Known]);
            block_barrier(); // the rows of the task before are stored; the task behind the next is known
            if (now < 0) continue;
            Sums::put_sums(w, t, x);
            block_barrier(); // all sums are there
            Sums::store_rows(p, w, t, scale_of(job.v, w) * Family::value_unit(v.kind));
            if (has_more) block_barrier(); // O has left its place, which scores take on their way
        }
        if constexpr (Family::Asynchronous) copies_complete();
    }
};

#define RING_FAMILY(...) __VA_ARGS__ // that has commas
#define RING_KERNEL(name, family, d, depth, blocks_per_sm)                                                             \
    KERNEL(name, FEW_THREADS, blocks_per_sm, attn_simt_forward, p) { ring_forward<family, d, depth>::forward(p); }

#endif
