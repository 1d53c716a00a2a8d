// SPDX-License-Identifier: Apache-2.0
// The forward on tensor cores: one algorithm for all generations of them. f16 (or bf16) in, float32 sums.
//
//   S = Q K'  ->  scale, softcap, bias, ALiBi, mask  ->  m' = max(m, rowmax S)
//   P = 2^(S - m'), l = l 2^(m - m') + rowsum P, O = O 2^(m - m') + (keep f16(P)) V
//
// What a generation is, is its Family (sm70_products.cuh, m16n8_products.cuh): which lane has which element, the products, and whether
// copies are asynchronous. All else is here, so that features cannot drift apart.
//
// Tile: 16 Blocks rows a warp (query r / g of head r % g of a group), Warps warps, by steps of Keys keys. K and V lie in shared
// memory as they are, where the Family places them so that eight lanes that read 16 bytes of eight rows meet 32 banks; Q lies
// there too or in registers; S, P, O, m and l stay in registers. While a step is computed the next K, then V, is on its
// way: through registers, or by asynchronous copies.
//
// Lanes. A lane has eight elements of each 16 x 16 of S and of O, of two rows: element i is row sum_row(i), which i & 2
// decides, and key sum_key(i), or column output_column(i); the lanes that differ in RowLanes alone share their rows.
//
// Sums. The hardware truncates when it adds to a float32 sum, which shows after thousands of steps: what a Family does about it
// stands there (sm70 sums a step's products alone, sm80 lets the divisor lose as much). O is divided by the sum
// of P as rounded to 16 bits, LSE has the sum of P: so a constant V comes back exactly, and LSE has no rounding of P.
//
// Bytes a step from L2: 2 Keys (Dk + Dv) for 2 * 16 Blocks * Warps * Keys (Dk + Dv) flops.
// Above 256 columns O leaves no registers, so Split warps share rows: each multiplies its part of the head size of Q and K,
// they exchange these parts of S, add them in one order, each does the softmax, and multiplies its columns of V. Where V is the first columns of K there,
// K's rows are not loaded again: 2 Keys Dk bytes a step.
// -inf: m starts at the most negative finite number, against which -inf is a zero and any score is right. NaN: passed over by
// the maximum, not by the sums, so the row becomes NaN. Rows without keys: O = 0, LSE = -inf, unless there is a sink.
//
// A kernel has two bodies: with masks only, and with everything else as well, whose registers and code the first is spared.
//
// Statements between `model: rare` and `model: end` are what tools/v100_report.py leaves out of a plain step; conditions stay outside.
#ifndef ATTN_CUDA_TENSOR_FORWARD_CUH
#define ATTN_CUDA_TENSOR_FORWARD_CUH

#include "forward.cuh"
#include "bf16_halves.cuh"

#define TENSOR_LARGEST 3.40282347e38f
#define SCORE_ROOM 4.0f // by which a score may exceed its maximum; with the rounding of one of 2^27 P stays below 2^14, which f16 holds
#define LOG2_E 1.44269504f
#define LN_2 0.69314718f

DEVICE int lane_index() { return int(thread_index()) & 31; }

DEVICE bool is_eightfold(const attn_view &t, int64_t n)
{
    return ((t.stride[0] | t.stride[1] | t.stride[2] | n) & 7) == 0 && is_aligned(t.data, 16);
}

DEVICE bool is_view_of(const attn_view &v, const attn_view &k)
{
    return v.data == k.data && v.stride[0] == k.stride[0] && v.stride[1] == k.stride[1] && v.stride[2] == k.stride[2];
}

template <class Family, int Head, int ValueHead, int KeysOfStep, int BlocksOfWarp, int Warps, bool HoldsQ, bool OneBuffer, bool Everything>
struct tensor_forward {
    static constexpr int Dk = Head, Dv = ValueHead, Keys = KeysOfStep, Blocks = BlocksOfWarp;
    static constexpr bool QInRegisters = HoldsQ, All = Everything, Scaled = Family::Scaled;
    static constexpr int Threads = 32 * Warps, Split = TENSOR_SPLIT(Dv), Rows = 16 * Blocks * Warps / Split;
    static constexpr int DkOfWarp = Dk / Split, DvOfWarp = Dv / Split;
    static constexpr bool SumsInRegisters = Family::sums_in_registers(Dv); // those of P as rounded
    static constexpr int SumStep = Family::SumsOfWholeRows ? 2 : 1;                  // as elements of a sum of products
    // Registers are left beside S and O. Where shared memory is the limit, copies start behind the first products, which hide what a full
    // queue keeps waiting.
    static constexpr bool SparesRegisters = Blocks * (DvOfWarp + Keys) < 320 || Blocks == 1, StartsBehind = Blocks == 1;
    static constexpr bool MayShare = OneBuffer && Split > 1; // V may be the first columns of K, as it lies there
    static constexpr int KPitch = Family::pitch(Dk), VPitch = MayShare ? KPitch : Family::pitch(Dv); // bytes
    static_assert(!MayShare || (Dv <= Dk && !Scaled), "a row of the buffer, with V's bits and scale");
    template <int D> static constexpr int PlacedAs = MayShare ? Dk : D;
    static_assert(Dk % 16 == 0 && DkOfWarp % 8 == 0 && DvOfWarp % 32 == 0 && Warps % Split == 0 && (Keys == 32 || Keys == 64 || Keys == 128),
                  "what the loops below assume");
    static_assert(!Family::Asynchronous || !OneBuffer, "V is on its way while K is read");
    static_assert(!Family::Asynchronous || (16 * Blocks * KPitch >= 64 * TENSOR_OUTPUT_PITCH && Dv <= Dk), "a warp's O is put where its Q was");

    struct shared {
        block_of_rows *block;
        const char **k_place, **v_place; // [2][key] rows in pages of this step and the next
        const char **k_head, **v_head;   // row 0 of the sequence where there are no pages
        int *first, *end;           // [row] visible keys
        float *rounded;             // [2 Blocks][thread] sums of P as rounded, unless in registers
        float *scratch;             // [Blocks][KeepWords][32] of this warp, at least [2][32]; only for All
        bf16_scales *scales;        // only for Scaled
        char *q, *k, *v;
        float *parts;           // [team][part][of eight keys][lane][4] S of parts of the head size, where warps share rows
        // At the end in place of q, k and v; of an asynchronous Family the first three have places of their own, and the last is that of this
        // warp's q.
        int64_t *offset, *lse;  // [row] where O and LSE go; LSE only of an asynchronous Family
        float *factor, *output; // [row]; [16][TENSOR_OUTPUT_PITCH] of this warp
    };

    struct state {
        float o[Blocks][DvOfWarp / 16][8];
        // Of rows sum_row(0) and sum_row(2): the maximum, as an exponent of two; sums of this lane's keys.
        float m[Blocks][2], l[Blocks][2], rounded[SumsInRegisters ? Blocks : 1][2 * SumStep];
        uint4 q[QInRegisters ? Blocks : 1][QInRegisters ? DkOfWarp / 8 : 1];
        typename Family::places at;
        uint32_t k_overflow, v_bits; // of Scaled: whether a half of k did; all of v
    };

    static constexpr int KeepWords = (Keys + 63) / 64; // of a row's elements of a lane
    static constexpr int RowThreads = Threads / Keys; // that share a row of K or V, where these go through registers
    template <int D> struct strip {
        static constexpr int Count = (D + 8 * RowThreads - 1) / (8 * RowThreads);
        uint4 word[Count];
    };

    DEVICE int lane() { return lane_index(); }
    DEVICE int warp() { return int(thread_index()) >> 5; }
    DEVICE int team() { return warp() / Split; } // of warps that share rows
    DEVICE int part() { return warp() % Split; }
    DEVICE int sum_row(int i) { return Family::sum_row(i); }
    DEVICE int sum_key(int i) { return Family::sum_key(i); }
    // Element j of the four of a row of a sum.
    DEVICE constexpr int element(int half, int j) { return (j & 1) + 2 * half + 2 * (j & 2); }

    DEVICE float &rounded_sum(const shared &t, state &x, int m, int half)
    {
        return SumsInRegisters ? x.rounded[SumsInRegisters ? m : 0][half * SumStep] : t.rounded[(2 * m + half) * Threads];
    }

    DEVICE shared carve()
    {
        shared t;
        char *at = shared_memory();
        t.block = reinterpret_cast<block_of_rows *>(at);
        t.k_place = reinterpret_cast<const char **>(at + SIMT_BLOCK_BYTES);
        t.v_place = t.k_place + 2 * Keys;
        t.k_head = t.v_place + 2 * Keys;
        t.v_head = t.k_head + 1;
        t.first = reinterpret_cast<int *>(t.k_head + 2);
        t.end = t.first + Rows;
        t.rounded = reinterpret_cast<float *>(t.end + Rows) + thread_index();
        float *free = reinterpret_cast<float *>(t.end + Rows) + (SumsInRegisters ? 0 : 2 * Blocks * Threads);
        t.scratch = free + TENSOR_SCRATCH(Keys, Blocks) / 4 * warp();
        t.scales = reinterpret_cast<bf16_scales *>(reinterpret_cast<char *>(free) + (All ? TENSOR_SCRATCH(Keys, Blocks) * Warps : 0));
        t.q = at + Family::head(Scaled, Dv, Keys, Blocks, Warps, All);
        t.k = t.q + (QInRegisters ? 0 : Rows * KPitch);
        t.v = OneBuffer ? t.k : t.k + Keys * KPitch;
        t.parts = reinterpret_cast<float *>(t.v + Keys * (OneBuffer ? TENSOR_LARGER(KPitch, VPitch) : VPitch)) + 4 * lane();
        if (Family::Asynchronous) {
            t.lse = reinterpret_cast<int64_t *>(t.q) - Rows;
            t.offset = t.lse - Rows;
            t.factor = reinterpret_cast<float *>(t.offset) - Rows;
            t.output = reinterpret_cast<float *>(t.q + 16 * Blocks * warp() * KPitch);
        } else {
            t.offset = reinterpret_cast<int64_t *>(t.q);
            t.factor = reinterpret_cast<float *>(t.offset + Rows);
            t.output = t.factor + Rows + 16 * TENSOR_OUTPUT_PITCH * warp();
        }
        return t;
    }

    // ---- global memory --------------------------------------------------------------------------------------------

    // Sizes that need more than 32 bits are not for these kernels (cuda/forward_kernels.c).
    DEVICE void place_head(const attn_job &job, const block_of_rows &w, const shared &t)
    {
        *t.k_head = job.k.data + 2 * attn_row_offset(&job.k, w.seq.k_batch, w.hkv, w.seq.k_row);
        *t.v_head = job.v.data + 2 * attn_row_offset(&job.v, w.seq.k_batch, w.hkv, w.seq.k_row);
    }

    // A step's rows in pages: one look at the table for all who load them.
    DEVICE void place_keys(const attn_job &job, const block_of_rows &w, const shared &t, int key)
    {
        const int slot = key & Keys;
        if (!job.page_size) return;
        // model: rare
#pragma unroll 1
        for (int n = int(thread_index()); n < Keys; n += Threads) {
            t.k_place[slot + n] = t.v_place[slot + n] = nullptr; // looked at, not followed
            if (!is_needed(w, key + n)) continue;
            const uint32_t token = uint32_t(w.seq.k_row + key + n), size = uint32_t(job.page_size);
            const int64_t page = job.page_table[w.b * job.page_table_stride + token / size];
            t.k_place[slot + n] = job.k.data + 2 * attn_row_offset(&job.k, page, w.hkv, token % size);
            t.v_place[slot + n] = job.v.data + 2 * attn_row_offset(&job.v, page, w.hkv, token % size);
        }
        // model: end
    }

    DEVICE bool is_needed(const block_of_rows &w, int key)
    {
        const int first = int(w.key), end = int(w.key_end);
        return key >= first && key < end;
    }

    // place: of the step.
    DEVICE const char *row_address(const attn_job &job, const attn_view &view, const char *head, const char *const *place,
                                   int key, int row)
    {
        return job.page_size ? place[row] : head + 2 * (key + row) * view.stride[2];
    }

    // A thread's share of a step's K or V: of one row, eight halves at a time, through registers. Rows of eight neighbouring lanes are
    // so far apart that their words meet 32 banks.
    struct fetching {
        const char *next; // the words of the coming step, where there are no pages

        DEVICE int row()
        {
            constexpr int Neighbors = RowThreads < 8 ? 8 / RowThreads : 1;
            const int r = int(thread_index()) / RowThreads;
            return Neighbors == 1 ? r : (r & ~7) | r % Neighbors * RowThreads | (r & 7) / Neighbors;
        }
        DEVICE int column() { return int(thread_index()) % RowThreads * 8; }
    };

    DEVICE fetching prepare_fetching(const attn_view &view, const char *head, int key)
    {
        return {head + 2 * ((key + fetching::row()) * view.stride[2] + fetching::column())};
    }

    template <int D>
    DEVICE void fetch(const attn_job &job, const attn_view &view, const char *const *place, int n, const block_of_rows &w,
                      int key, fetching &from, strip<D> &to)
    {
        const int row = fetching::row(), column = fetching::column(), count = is_needed(w, key + row) ? n - column : 0;
        const char *at = from.next;
        if (job.page_size) {
            // model: rare
            at = place[row] + 2 * column;
            // model: end
        }
#pragma unroll
        for (int i = 0; i < strip<D>::Count; i++) to.word[i] = load_if(8 * RowThreads * i < count, at + 16 * RowThreads * i);
        from.next += 2 * Keys * view.stride[2];
    }

    // bf16 as halves, in place.
    DEVICE void convert_keys(float scale, strip<Dk> &keys, state &x)
    {
#pragma unroll
        for (int i = 0; i < strip<Dk>::Count; i++) {
            keys.word[i] = bf16_halves(keys.word[i], scale);
            x.k_overflow |= halves_overflow(keys.word[i]);
        }
    }

    DEVICE void convert_values(float scale, strip<Dv> &values, state &x)
    {
#pragma unroll
        for (int i = 0; i < strip<Dv>::Count; i++) {
            const uint4 word = values.word[i];
            x.v_bits |= word.x | word.y | word.z | word.w;
            values.word[i] = bf16_halves(word, scale);
        }
    }

    DEVICE uint16_t convert_half(bool is_key, float scale, uint16_t word, state &x)
    {
        const uint32_t half = bf16_halves(uint32_t(word), scale);
        if (is_key) x.k_overflow |= halves_overflow(half);
        else x.v_bits |= word;
        return uint16_t(half);
    }

    template <int D> DEVICE void put(const strip<D> &from, char *to)
    {
        to += Family::template place<PlacedAs<D>>(fetching::row(), 2 * fetching::column());
#pragma unroll
        for (int i = 0; i < strip<D>::Count; i++)
            if (8 * RowThreads * (i + 1) <= D || fetching::column() + 8 * RowThreads * i < D)
                store_vector(to + 16 * RowThreads * i, from.word[i]);
    }

    // The same by asynchronous copies. A thread keeps to one column of each line of 128 bytes, so that its rows are steps of one address.
    template <int D> struct copying {
        static constexpr int Lines = (D + 63) / 64, Columns = D < 64 ? D / 8 : 8, Step = Threads / Columns;
        static_assert(!Family::Asynchronous || (Step % 8 == 0 && Keys % Step == 0), "rows that a thread copies are placed alike");
        // Copies read their addresses late, and what is written to those registers waits for it: so all rows' are held where there are
        // registers, and set forward after the products behind the copies; else the first row's.
        static constexpr int Held = SparesRegisters ? Keys / Step : 1;
        const char *next[Held]; // of the coming step, where there are no pages
        tile_address to;

        DEVICE int column() { return int(thread_index()) % Columns * 8; }
        DEVICE int row() { return int(thread_index()) / Columns; }
    };

    // A row's elements column, column + 64, ...; those from n on are zeros.
    template <int D> DEVICE void copy_row(tile_address to, const char *from, int column, int n, bool is_needed)
    {
#pragma unroll
        for (int j = 0; j < copying<D>::Lines; j++)
            if (64 * (j + 1) <= D || column + 64 * j < D)
                copy_async(to + 128 * j, from + 128 * j, column + 64 * j < n && is_needed);
    }

    template <int D> DEVICE copying<D> prepare(const attn_view &view, const char *head, int key, const char *tile)
    {
        copying<D> c;
#pragma unroll
        for (int i = 0; i < copying<D>::Held; i++) {
            c.next[i] = head + 2 * ((key + copying<D>::row() + i * copying<D>::Step) * view.stride[2] + copying<D>::column());
            keep_sum(c.next[i]);
        }
        c.to = tile_of(tile + Family::template place<D>(copying<D>::row(), 2 * copying<D>::column()));
        return c;
    }

    // A step whose rows are all needed and lie one after the other.
    template <int D> DEVICE void start_whole(const attn_view &view, int n, copying<D> &c)
    {
        constexpr int Step = copying<D>::Step, Pitch = Step * Family::pitch(D);
#pragma unroll
        for (int i = 0; i < Keys / Step; i++) {
            copy_row<D>(c.to + i * Pitch, c.next[i % c.Held], copying<D>::column(), n, true);
            if (c.Held > 1) continue;
            c.next[0] += 2 * Step * view.stride[2];
            keep_sum(c.next[0]);
        }
    }

    // Behind start_whole or start_any.
    template <int D> DEVICE void set_forward(const attn_view &view, copying<D> &c)
    {
        if constexpr (copying<D>::Held > 1)
#pragma unroll
            for (int i = 0; i < c.Held; i++) {
                c.next[i] += 2 * Keys * view.stride[2];
                keep_sum(c.next[i]);
            }
    }

    // Any other.
    template <int D, bool IsKey>
    DEVICE void start_any(const attn_job &job, const attn_view &view, const char *head, const char *const *place, int n,
                          bool eightfold, const block_of_rows &w, int key, state &x, char *tile, copying<D> &c)
    {
        // model: rare
        constexpr int Step = copying<D>::Step, Pitch = Step * Family::pitch(D);
        const int column = copying<D>::column();
        if (!eightfold) return copy_halves<D, IsKey>(job, view, head, place, n, w, key, 1, x, tile);
        const char *at = c.next[0];
        keep_sum(at);
#pragma unroll 1
        for (int i = 0; i < Keys / Step; i++, at += 2 * Step * view.stride[2]) {
            const int row = copying<D>::row() + i * Step;
            copy_row<D>(c.to + i * Pitch, job.page_size ? place[row] + 2 * column : at, column, n, is_needed(w, key + row));
        }
        if (c.Held == 1) c.next[0] = at;
        // model: end
    }

    // The same where no vector load reaches: half by half, when they are needed.
    template <int D, bool IsKey>
    DEVICE void copy_halves(const attn_job &job, const attn_view &view, const char *head, const char *const *place, int n,
                            const block_of_rows &w, int key, float scale, state &x, char *to)
    {
        // model: rare
#pragma unroll 1
        for (int c = int(thread_index()); c < Keys * D; c += Threads) {
            const int row = c / D, column = c % D;
            uint16_t word = 0;
            if (column < n && is_needed(w, key + row))
                word = attn_load_u16(row_address(job, view, head, place, key, row) + 2 * column);
            if (Scaled) word = convert_half(IsKey, scale, word, x);
            attn_store_u16(to + Family::template place<PlacedAs<D>>(row, 2 * column), word);
        }
        // model: end
    }

    DEVICE const char *query_address(const attn_job &job, const block_of_rows &w, uint32_t row, uint32_t group, int column)
    {
        return job.q.data + 2 * (attn_row_offset(&job.q, w.seq.q_batch, w.hkv * job.group + row % group,
                                                 w.seq.q_row + row / group) +
                                 column);
    }

    DEVICE uint4 load_query(const attn_job &job, const block_of_rows &w, bool eightfold, int r, int column)
    {
        const uint32_t row = uint32_t(w.row) + uint32_t(r), group = uint32_t(job.group);
        const int count = int(job.head_dim) - column;
        uint4 x = {0, 0, 0, 0};
        if (r >= w.rows || count <= 0) return x;
        const char *p = query_address(job, w, row, group, column);
        if (eightfold) return load_vector<uint4>(p);
#pragma unroll 1
        for (int e = 7; e >= 0; e--) {
            x.w = x.w << 16 | x.z >> 16;
            x.z = x.z << 16 | x.y >> 16;
            x.y = x.y << 16 | x.x >> 16;
            x.x = x.x << 16 | (e < count ? uint32_t(attn_load_u16(p + 2 * e)) : 0u);
        }
        return x;
    }

    DEVICE uint4 load_query_halves(const attn_job &job, const block_of_rows &w, const shared &t, bool eightfold, int r, int column)
    {
        const uint4 x = load_query(job, w, eightfold, r, column);
        return Scaled ? bf16_halves(x, t.scales->q) : x;
    }

    DEVICE void load_queries(const attn_job &job, const block_of_rows &w, const shared &t, state &x)
    {
        const bool eightfold = is_eightfold(job.q, job.head_dim);
        if constexpr (QInRegisters) {
#pragma unroll
            for (int m = 0; m < Blocks; m++)
#pragma unroll
                for (int k = 0; k < DkOfWarp / 8; k++)
                    x.q[QInRegisters ? m : 0][QInRegisters ? k : 0] =
                        load_query_halves(job, w, t, eightfold, 16 * (Blocks * team() + m) + Family::operand_row(),
                                   DkOfWarp * part() + 8 * k);
        } else {
#pragma unroll 1
            for (int c = int(thread_index()); c < Rows * (Dk / 8); c += Threads) {
                const int r = c / (Dk / 8), k = c % (Dk / 8);
                store_vector(t.q + Family::template place<Dk>(r, 16 * k), load_query_halves(job, w, t, eightfold, r, 8 * k));
            }
        }
    }

    DEVICE void place_rows(const attn_job &job, const block_of_rows &w, const shared &t)
    {
        for (int r = int(thread_index()); r < Rows; r += Threads) {
            t.first[r] = t.end[r] = 0;
            if (r >= w.rows) continue;
            int64_t first, end;
            attn_visible(&job, &w.seq, (uint32_t(w.row) + uint32_t(r)) / uint32_t(job.group), &first, &end);
            t.first[r] = int(attn_min(attn_max(first, w.key), INT32_MAX)); // a row without keys has first >= end
            t.end[r] = int(attn_max(attn_min(end, w.key_end), 0));
        }
    }

    // The same where copies are asynchronous, a lane a row of its warp: what it sees, where its results go, and its query.
    DEVICE void place_own_rows(const attn_simt_forward &p, const block_of_rows &w, const shared &t, state &x)
    {
        const attn_job &job = p.job;
        constexpr int Own = 16 * Blocks, Columns = copying<Dk>::Columns, Together = 32 / Columns;
        const int first_row = Own * warp(), r = first_row + lane();
        const uint32_t row = uint32_t(w.row) + uint32_t(r), i = row / uint32_t(job.group), h = row - i * uint32_t(job.group);
        const char *query = job.q.data + 2 * attn_row_offset(&job.q, w.seq.q_batch, w.hkv * job.group + h, w.seq.q_row + i);
        if (!is_eightfold(job.q, job.head_dim)) load_queries(job, w, t, x);
        else {
            const uint32_t low = uint32_t(reinterpret_cast<uintptr_t>(query)), high = uint32_t(reinterpret_cast<uintptr_t>(query) >> 32);
            const int column = lane() % Columns * 8, behind = lane() / Columns;
            const tile_address to = tile_of(t.q + Family::template place<Dk>(first_row + behind, 2 * column));
#pragma unroll
            for (int n = 0; n < Own; n += Together) {
                const uintptr_t from = shuffle_from(low, n + behind) | uintptr_t(shuffle_from(high, n + behind)) << 32;
                copy_row<Dk>(Family::template below<Dk>(to, n), reinterpret_cast<const char *>(from) + 2 * column, column,
                             int(job.head_dim), first_row + n + behind < w.rows);
            }
        }
        if (lane() >= Own) return;
        int64_t first = 0, end = 0;
        if (r < w.rows) {
            const row_places to = place_row<uint32_t>(p, w, r);
            t.offset[r] = to.out, t.lse[r] = to.lse;
            attn_visible(&job, &w.seq, i, &first, &end);
        }
        t.first[r] = int(attn_min(attn_max(first, w.key), INT32_MAX)); // a row without keys has first >= end
        t.end[r] = int(attn_max(attn_min(end, w.key_end), 0));
    }

    // ---- the powers of two of bf16 ----------------------------------------------------------------------------------

    // Of a step's rows.
    template <int D>
    DEVICE int largest_of_rows(const attn_job &job, const attn_view &view, const char *head, const char *const *place, int n,
                               const block_of_rows &w, int key, bool eightfold)
    {
        int largest = 0;
        if (eightfold) {
            strip<D> rows;
            fetching from = prepare_fetching(view, head, key);
            fetch(job, view, place, n, w, key, from, rows);
#pragma unroll
            for (int i = 0; i < strip<D>::Count; i++) largest = bf16_largest(largest, rows.word[i]);
            return largest;
        }
#pragma unroll 1
        for (int c = int(thread_index()); c < Keys * D; c += Threads) {
            const int row = c / D, column = c % D;
            if (column < n && is_needed(w, key + row))
                largest = bf16_larger(largest, attn_load_u16(row_address(job, view, head, place, key, row) + 2 * column));
        }
        return largest;
    }

    DEVICE int largest_of_queries(const attn_job &job, const block_of_rows &w)
    {
        const bool eightfold = is_eightfold(job.q, job.head_dim);
        int largest = 0;
#pragma unroll 1
        for (int c = int(thread_index()); c < Rows * (Dk / 8); c += Threads)
            largest = bf16_largest(largest, load_query(job, w, eightfold, c / (Dk / 8), c % (Dk / 8) * 8));
        return largest;
    }

    DEVICE void put_scales(const attn_job &job, const int (&largest)[3], bf16_scales &to)
    {
        const int infinite = 0x7f80;
        to.q = bf16_scale(largest[0], BF16_Q_LOG2), to.k = bf16_scale(largest[1], BF16_KV_LOG2);
        to.v = bf16_scale(largest[2], BF16_KV_LOG2);
        to.score = job.scale * inverse_power(to.q) * inverse_power(to.k);
        to.value = inverse_power(to.v);
        to.trusted = largest[0] < infinite && largest[1] < infinite && largest[2] < infinite &&
                     fabsf(to.score) * float(job.head_dim) <= 0x1p-8f && // which NaN is not
                     fabsf(to.score) >= 0x1p-120f;                       // a mask's -inf times 0 would be NaN
    }

    // Places of rows and of the step at `key` are written. Ends with a barrier. False: halves are not good enough, whatever comes.
    DEVICE bool find_scales(const attn_simt_forward &p, const block_of_rows &w, const shared &t, int key)
    {
        const attn_job &job = p.job;
        const int dk = int(job.head_dim), dv = int(job.head_dim_v);
        const bool eightfold = is_eightfold(job.k, dk) && is_eightfold(job.v, dv);
        int largest[3] = {
            largest_of_queries(job, w),
            largest_of_rows<Dk>(job, job.k, *t.k_head, t.k_place + (key & Keys), dk, w, key, eightfold),
            largest_of_rows<Dv>(job, job.v, *t.v_head, t.v_place + (key & Keys), dv, w, key, eightfold)};
#pragma unroll
        for (int mask = 1; mask < 32; mask *= 2)
#pragma unroll
            for (int n = 0; n < 3; n++) largest[n] = max(largest[n], shuffle_xor(int32_t(largest[n]), mask));
        if (lane() == 0)
#pragma unroll
            for (int n = 0; n < 3; n++) t.scales->largest[n][warp()] = largest[n];
        block_barrier(); // maxima of the warps are written
        if (thread_index() == 0) {
#pragma unroll 1
            for (int i = 0; i < Warps; i++)
#pragma unroll
                for (int n = 0; n < 3; n++) largest[n] = max(largest[n], t.scales->largest[n][i]);
            put_scales(job, largest, *t.scales);
            p.doubts[2 * w.task] = p.doubts[2 * w.task + 1] = t.scales->trusted ? 0 : 1;
        }
        block_barrier(); // scales are written
        return t.scales->trusted != 0;
    }

    // ---- a step ---------------------------------------------------------------------------------------------------

    DEVICE float *parts_of(const shared &t, int part, int eight)
    {
        return t.parts + ((team() * Split + part) * (Blocks * Keys / 8) + eight) * 128;
    }

    DEVICE void put_part(const shared &t, const float (&s)[Blocks][Keys / 16][8])
    {
#pragma unroll
        for (int c = 0; c < Blocks * Keys / 8; c++) {
            const float(&x)[8] = s[c / (Keys / 8)][c % (Keys / 8) / 2];
            store_vector(parts_of(t, part(), c), float4{x[c % 2 * 4], x[c % 2 * 4 + 1], x[c % 2 * 4 + 2], x[c % 2 * 4 + 3]});
        }
    }

    // In the same order for all who share a row, so that they have the same S, m and P.
    DEVICE void add_parts(const shared &t, float (&s)[Blocks][Keys / 16][8])
    {
#pragma unroll
        for (int c = 0; c < Blocks * Keys / 8; c++) {
            float part[Split][4];
#pragma unroll
            for (int n = 0; n < Split; n++) load_four_floats(parts_of(t, n, c), part[n]);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float &sum = s[c / (Keys / 8)][c % (Keys / 8) / 2][c % 2 * 4 + e];
                sum = part[0][e];
#pragma unroll
                for (int n = 1; n < Split; n++) sum += part[n][e];
            }
        }
    }

    DEVICE void mask_scores(const shared &t, int key, float (&s)[Blocks][Keys / 16][8])
    {
        // model: rare
#pragma unroll
        for (int m = 0; m < Blocks; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int r = 16 * (Blocks * team() + m) + sum_row(2 * half), first = t.first[r], end = t.end[r];
#pragma unroll
                for (int n = 0; n < Keys / 16; n++)
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        const int i = element(half, j), at = key + 16 * n + sum_key(i);
                        if (at < first || at >= end) s[m][n][i] = -INFINITY;
                    }
            }
        // model: end
    }

    // Scale and all else but the mask; which elements dropout keeps, a bit each, stays in the scratch. Over shared memory, from where a lane
    // takes only what it has put there, so that one copy of the code serves all.
    DEVICE void finish_scores(const attn_job &job, const block_of_rows &w, const shared &t, int key,
                              float (&s)[Blocks][Keys / 16][8])
    {
        // model: rare
        const uint64_t seed = job.has_dropout ? attn_job_dropout_key(&job) : 0;
        constexpr int PartsOfRow = 4 * (Keys / 16), PartsOfWord = PartsOfRow / KeepWords, Parts = Blocks * PartsOfRow; // of two elements
        float *mine = t.scratch + lane();
        uint32_t keep[Blocks * KeepWords];
#pragma unroll
        for (int m = 0; m < Blocks * KeepWords; m++) keep[m] = 0;
#pragma unroll 1
        for (int b = 0; b < Parts; b++) {
#pragma unroll
            for (int c = 0; c < Parts; c++)
                if (c == b)
#pragma unroll
                    for (int i = 0; i < 2; i++) mine[32 * i] = s[c / PartsOfRow][c % PartsOfRow / 4][c % 4 * 2 + i];
#pragma unroll 1
            for (int i = 0; i < 2; i++) {
                const int e = b % 4 * 2 + i, r = 16 * (Blocks * team() + b / PartsOfRow) + sum_row(e),
                          at = key + 16 * (b % PartsOfRow / 4) + sum_key(e);
                if (at < t.first[r] || at >= t.end[r]) continue; // bias may have no such element
                mine[32 * i] = finish_score(job, w, w.row + r, at, mine[32 * i] * score_scale(job, t));
                if (!job.has_dropout || !keeps(job, w, seed, w.row + r, at)) continue;
#pragma unroll
                for (int m = 0; m < Blocks * KeepWords; m++)
                    if (m == b / PartsOfWord) keep[m] |= 1u << (2 * (b % PartsOfWord) + i);
            }
#pragma unroll
            for (int c = 0; c < Parts; c++)
                if (c == b)
#pragma unroll
                    for (int i = 0; i < 2; i++) s[c / PartsOfRow][c % PartsOfRow / 4][c % 4 * 2 + i] = mine[32 * i];
        }
#pragma unroll
        for (int m = 0; m < Blocks * KeepWords; m++) mine[32 * m] = bits_float(keep[m]);
        // model: end
    }

    // Lanes that share a row, of all rows of a lane at once: exchanges wait for each other's results otherwise.
    DEVICE void maximum_of_lanes(float (&x)[Blocks][2])
    {
#pragma unroll
        for (int step = 0; step < 2; step++)
#pragma unroll
            for (int r = 0; r < 2 * Blocks; r++) x[r / 2][r % 2] = fmaxf(x[r / 2][r % 2], shuffle_xor(x[r / 2][r % 2], step ? Family::RowLanes & ~Family::RowLane : Family::RowLane));
    }

    DEVICE float total_of_lanes(float x)
    {
        x += shuffle_xor(x, Family::RowLane);
        return x + shuffle_xor(x, Family::RowLanes & ~Family::RowLane);
    }

    DEVICE float total_rounded(float x) { return Family::SumsOfWholeRows ? x : total_of_lanes(x); }

    // Scores are exponents of two after one factor. With more than masks they are finished in natural units, which hold
    // a bias of the largest float, and become exponents of two as differences.
    struct scaling {
        float before, after;
    };
    DEVICE float power(float x, scaling scale) { return exp2_approx(All ? x * scale.after : x); }

    // A score less its maximum is one multiply-add, where the product is not rounded, but the maximum is: beside 2^27 the difference
    // between the two would be an exponent that changes P.
    DEVICE void round_scores(float (&top)[Blocks][2], scaling &scale, float (&s)[Blocks][Keys / 16][8])
    {
        bool huge = false;
#pragma unroll
        for (int r = 0; r < 2 * Blocks; r++) huge |= fabsf(top[r / 2][r % 2] * scale.before) > 0x1p27f;
        if (!any_of_warp(huge)) return;
        // model: rare
#pragma unroll
        for (int m = 0; m < Blocks; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) top[m][half] *= scale.before;
#pragma unroll
            for (int n = 0; n < Keys / 16; n++)
#pragma unroll
                for (int i = 0; i < 8; i++) s[m][n][i] *= scale.before;
        }
        scale.before = 1;
        // model: end
    }

    DEVICE void largest_of_scores(const float (&s)[Blocks][Keys / 16][8], float (&top)[Blocks][2])
    {
#pragma unroll
        for (int m = 0; m < Blocks; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                top[m][half] = s[m][0][element(half, 0)];
#pragma unroll
                for (int j = 1; j < Keys / 4; j++) top[m][half] = fmaxf(top[m][half], s[m][j / 4][element(half, j % 4)]);
            }
        maximum_of_lanes(top);
    }

    // m, and the factors by which O and l shrink.
    DEVICE void raise_maxima(scaling &scale, float (&s)[Blocks][Keys / 16][8], state &x, float (&shrink)[Blocks][2])
    {
        float top[Blocks][2];
        largest_of_scores(s, top);
        round_scores(top, scale, s);
#pragma unroll
        for (int m = 0; m < Blocks; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float larger = fmaxf(x.m[m][half], top[m][half] * scale.before);
                shrink[m][half] = power(x.m[m][half] - larger, scale); // 1 where m stays, or sums would drift
                x.m[m][half] = larger;
            }
    }

    // The same with the factors at work. Most steps find no score that is larger by more than SCORE_ROOM, which one vote tells: the maximum
    // may lag behind, as it divides out.
    DEVICE void raise_maxima_at_times(scaling &scale, float (&s)[Blocks][Keys / 16][8], state &x)
    {
        float top[Blocks][2], shrink[Blocks][2];
        bool changes = false;
        largest_of_scores(s, top);
#pragma unroll
        for (int r = 0; r < 2 * Blocks; r++) {
            const float old = x.m[r / 2][r % 2];
            const float larger = top[r / 2][r % 2] * scale.before;
            changes |= larger > old + SCORE_ROOM || fabsf(old) > 0x1p27f; // then round_scores may be due
        }
        if (!any_of_warp(changes)) return;
        // model: rare
        round_scores(top, scale, s);
#pragma unroll
        for (int r = 0; r < 2 * Blocks; r++) {
            float &m = x.m[r / 2][r % 2];
            float larger = top[r / 2][r % 2] * scale.before;
            if (!(larger > m + SCORE_ROOM)) larger = m; // each row for itself: its bits are not its neighbours' affair
            shrink[r / 2][r % 2] = power(m - larger, scale);
            m = larger;
        }
        Family::template shrink_sums<tensor_forward>(shrink, x);
        // model: end
    }

    // S to P, of 16 keys each from `first` on, and sums of P.
    DEVICE void exponentiate(scaling scale, float (&s)[Blocks][Keys / 16][8], const state &x, int first, int end,
                             float (&sum)[Blocks][2])
    {
#pragma unroll
        for (int j = 4 * first; j < 4 * end; j++)
#pragma unroll
            for (int r = 0; r < 2 * Blocks; r++) {
                const int m = r / 2, half = r % 2;
                float &score = s[m][j / 4][element(half, j % 4)];
                score = power(fmaf(score, scale.before, -x.m[m][half]), scale);
                sum[m][half] += score;
                if (Scaled) score *= BF16_P_SCALE; // not in the exponent, which would round more: LSE has this sum
            }
    }

    DEVICE void softmax(scaling scale, float (&s)[Blocks][Keys / 16][8], state &x, float (&shrink)[Blocks][2])
    {
        float sum[Blocks][2];
        raise_maxima(scale, s, x, shrink);
#pragma unroll
        for (int r = 0; r < 2 * Blocks; r++) sum[r / 2][r % 2] = 0;
        exponentiate(scale, s, x, 0, Keys / 16, sum);
#pragma unroll
        for (int r = 0; r < 2 * Blocks; r++) x.l[r / 2][r % 2] = fmaf(x.l[r / 2][r % 2], shrink[r / 2][r % 2], sum[r / 2][r % 2]);
    }

    // Of a pair of weights, elements `bit` and `bit` + 1 of what finish_scores has kept of this lane's.
    DEVICE void drop(const shared &t, int m, int bit, bool has_dropout, uint32_t &pair)
    {
        if (!All || !has_dropout) return;
        // model: rare
        const uint32_t bits = float_bits(t.scratch[lane() + 32 * (m * KeepWords + bit / 32)]) >> bit % 32;
        pair &= ((bits & 1) ? 0xffffu : 0) | ((bits & 2) ? 0xffff0000u : 0);
        // model: end
    }

    // ---- a task ---------------------------------------------------------------------------------------------------

    DEVICE float score_scale(const attn_job &job, const shared &t) { return Scaled ? t.scales->score : job.scale; }

    DEVICE void clear(const shared &t, state &x)
    {
        x.k_overflow = x.v_bits = 0;
#pragma unroll
        for (int m = 0; m < Blocks; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) x.m[m][half] = -TENSOR_LARGEST, x.l[m][half] = rounded_sum(t, x, m, half) = 0;
#pragma unroll
            for (int d = 0; d < DvOfWarp / 16; d++)
#pragma unroll
                for (int i = 0; i < 8; i++) x.o[m][d][i] = 0;
        }
    }

    // Whether O of a row, as it is summed, is far from what its errors may be (bf16_halves.cuh). Not if it is infinite or NaN.
    DEVICE bool is_certain(const attn_job &job, const block_of_rows &w, const float (&o)[DvOfWarp / 16][8], int half)
    {
        float squares = 0;
#pragma unroll
        for (int d = 0; d < DvOfWarp / 16; d++)
#pragma unroll
            for (int j = 0; j < 4; j++) squares = fmaf(o[d][element(half, j)], o[d][element(half, j)], squares);
        squares = total_of_lanes(squares);
        const float keys = float(w.key_end - w.key);
        return squares >= float(job.head_dim_v) * keys * keys && squares <= TENSOR_LARGEST;
    }

    // Where halves are not good enough.
    DEVICE void check_rows(const attn_simt_forward &p, const block_of_rows &w, state &x)
    {
        uint32_t *doubts = p.doubts + 2 * w.task;
        if ((x.k_overflow & 0x80008000u) != 0) doubts[0] = doubts[1] = 1;
        if ((x.v_bits & 0x7fff7fffu) != 0) doubts[1] = 1;
#pragma unroll
        for (int m = 0; m < Blocks; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const bool certain = is_certain(p.job, w, x.o[m], half), has_keys = total_of_lanes(x.l[m][half]) != 0;
                if (!certain && has_keys && 16 * (Blocks * warp() + m) + sum_row(2 * half) < w.rows) doubts[0] = 1;
            }
    }

    // A lane a row: LSE, and the place and the factor of O. unit: of m, as a natural logarithm.
    DEVICE void close_rows(const attn_simt_forward &p, const block_of_rows &w, const shared &t, state &x, float unit)
    {
        constexpr int Own = 16 * Blocks; // rows of a warp
        float *sums = t.output;
#pragma unroll
        for (int m = 0; m < Blocks; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int r = 16 * m + sum_row(2 * half);
                const float l = total_of_lanes(x.l[m][half]), rounded = total_rounded(rounded_sum(t, x, m, half));
                if ((lane() & Family::RowLanes) != 0) continue;
                sums[r] = x.m[m][half], sums[Own + r] = l, sums[2 * Own + r] = rounded;
            }
        warp_barrier(); // sums are written
        const int r = Own * team() + lane();
        if (lane() >= Own || (Split > 1 && part() != 0)) return;
        if (Family::Asynchronous) t.factor[r] = 0;
        if (r >= w.rows) return;
        const float l = sums[Own + lane()], rounded = sums[2 * Own + lane()];
        const row_places to = Family::Asynchronous ? row_places{t.offset[r], t.lse[r]} : place_row<uint32_t>(p, w, r);
        const float factor = close_row<uint32_t>(p, w, r, l == 0 ? -INFINITY : sums[lane()] * unit, l, to);
        if (!Family::Asynchronous) t.offset[r] = to.out;
        const float drop = All && p.job.has_dropout ? p.job.keep_factor : 1.0f;
        t.factor[r] = rounded == 0 ? 0 : factor * (l / rounded) * drop;
        if (Scaled) t.factor[r] *= t.scales->value;
    }

    // Through shared memory, 16 bytes a lane: its neighbours have the rest of a line.
    DEVICE void store_lines(const attn_job &job, const block_of_rows &w, const shared &t, state &x)
    {
        constexpr int Own = 16 * Blocks, Columns = copying<Dv>::Columns, Together = 32 / Columns;
        const int first_row = Own * warp(), column = lane() % Columns * 8, dv = int(job.head_dim_v);
        bool empty = false;
#pragma unroll
        for (int m = 0; m < Blocks; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int r = first_row + 16 * m + sum_row(2 * half);
                const float factor = t.factor[r];
                empty |= factor == 0;
#pragma unroll
                for (int i = 0; i < Dv / 8; i++) {
                    const float(&o)[8] = x.o[m][i / 2];
                    const int e = 2 * half + 4 * (i & 1);
                    store_vector(t.q + Family::template place<Dk>(r, 16 * i + 2 * Family::output_column(0)),
                                 Family::pack(fmaf(o[e], factor, 0.0f), fmaf(o[e + 1], factor, 0.0f))); // no -0
                }
            }
        const bool any_empty = any_of_warp(empty);
        warp_barrier(); // O is complete
#pragma unroll 4
        for (int i = lane() / Columns; i < Own; i += Together) {
            const int r = first_row + i;
            if (r >= w.rows) continue;
            char *row = job.out.data + 2 * (t.offset[r] + column);
#pragma unroll
            for (int j = 0; j < copying<Dv>::Lines; j++) {
                if (column + 64 * j >= dv) continue;
                uint4 eight = load_vector<uint4>(t.q + Family::template place<Dk>(r, 2 * column + 128 * j));
                if (any_empty && t.factor[r] == 0) eight = {0, 0, 0, 0}; // whatever V has
                store_vector(row + 128 * j, eight);
            }
        }
    }

    DEVICE void store_rows(const attn_simt_forward &p, const block_of_rows &w, const shared &t, state &x, float unit)
    {
        const int dv = int(p.job.head_dim_v), warp_row = 16 * Blocks * team();
        if (!Family::Asynchronous) block_barrier(); // Q, K and V are used up
        close_rows(p, w, t, x, unit);
        if (Split > 1) block_barrier(); // offsets and factors are complete
        else warp_barrier();
        if constexpr (Family::Asynchronous)
            if (w.pieces == 1 && w.out_kind == Family::OutKind && is_eightfold(p.job.out, dv)) return store_lines(p.job, w, t, x);
#pragma unroll 1
        for (int c = 0; c < Blocks * (DvOfWarp / 32); c++) {
            const int m = c / (DvOfWarp / 32), d = DvOfWarp / 32 * part() + c % (DvOfWarp / 32);
            warp_barrier(); // the chunk before is used up
#pragma unroll
            for (int b = 0; b < Blocks * (DvOfWarp / 32); b++)
                if (b == c)
#pragma unroll
                    for (int i = 0; i < 16; i++)
                        t.output[sum_row(i & 7) * TENSOR_OUTPUT_PITCH + Family::output_column(i)] = x.o[b / (DvOfWarp / 32)][b % (DvOfWarp / 32) * 2 + i / 8][i & 7];
            warp_barrier();
#pragma unroll 1
            for (int i = 0; i < 4; i++) {
                const int row = 4 * i + (lane() >> 3), r = warp_row + 16 * m + row, column = 4 * (lane() & 7);
                if (r >= w.rows || 32 * d + column >= dv) continue;
                store_four(p, w, t.offset[r] + 32 * d + column, t.factor[r], min(4, dv - 32 * d - column),
                           t.output + row * TENSOR_OUTPUT_PITCH + column);
            }
        }
    }

    // All steps of a task, where K and V come by asynchronous copies. Branches of a step cost more than what they leave out.
    DEVICE void add_copied_steps(const attn_simt_forward &p, const shared &t, bool eightfold, bool has_more, int key, state &x)
    {
        const attn_job &job = p.job;
        const block_of_rows &w = *t.block;
        const int dk = int(job.head_dim), dv = int(job.head_dim_v), end = int(w.key_end);
        // Steps that all rows see whole; those whose rows are all needed and lie one after the other.
        const int whole_from = int(w.last_first), whole_to = int(w.first_end) - Keys;
        const int simple_from = !eightfold || job.page_size ? INT32_MAX : SparesRegisters ? int(w.key) : whole_from;
        const int simple_to = SparesRegisters ? end - Keys : whole_to;
        const bool none = key >= end;
        x.at = Family::template places_of<tensor_forward>(t);
        copying<Dk> k = prepare<Dk>(job.k, *t.k_head, key, t.k);
        copying<Dv> v = prepare<Dv>(job.v, *t.v_head, key, t.v);
        if (job.page_size) {
            place_keys(job, w, t, key);
            block_barrier(); // those of the first step are written
        }
        if (key < end) start_any<Dk, true>(job, job.k, *t.k_head, t.k_place + (key & Keys), dk, eightfold, w, key, x, t.k, k);
        place_own_rows(p, w, t, x);
#pragma unroll 1
        for (; key < end; key += Keys) {
            const int slot = key & Keys;
            float s[Blocks][Keys / 16][8];
            scaling scale = {has_more ? 1 : job.scale * LOG2_E, has_more ? LOG2_E : 1};
            copies_complete();
            block_barrier(); // K, Q and places of rows are complete; V is used up
            const auto start_values = [&] {
                if (key >= simple_from && key <= simple_to) start_whole<Dv>(job.v, dv, v);
                else {
                    start_any<Dv, false>(job, job.v, *t.v_head, t.v_place + slot, dv, eightfold, w, key, x, t.v, v);
                    place_keys(job, w, t, key + Keys);
                }
                set_forward<Dk>(job.k, k);
            };
            if (!StartsBehind) start_values();
            Family::template multiply_scores<tensor_forward>(t, x, s, [&] {
                if (StartsBehind) start_values();
            });
            if (has_more) finish_scores(job, w, t, key, s);
            if (key < whole_from || key > whole_to) mask_scores(t, key, s);
            raise_maxima_at_times(scale, s, x);
            copies_complete();
            block_barrier(); // V and the next places are complete; K is used up
            const auto start_keys = [&] {
                const int next = key + Keys;
                if (next >= simple_from && next <= simple_to) start_whole<Dk>(job.k, dk, k);
                else if (next < end)
                    start_any<Dk, true>(job, job.k, *t.k_head, t.k_place + (Keys - slot), dk, eightfold, w, next, x, t.k, k);
                set_forward<Dv>(job.v, v);
            };
            if (!StartsBehind) start_keys();
            Family::template add_values<tensor_forward>(t, scale, s, job.has_dropout, x, [&] {
                if (StartsBehind) start_keys();
            });
        }
        copies_complete(); // of Q, where there was no step
        if (none) block_barrier(); // and all of Q is there, in whose place results go
    }

    DEVICE void run_task(const attn_simt_forward &p, const shared &t)
    {
        const attn_job &job = p.job;
        const block_of_rows &w = *t.block;
        const int dk = int(job.head_dim), dv = int(job.head_dim_v);
        const bool eightfold = is_eightfold(job.k, dk) && is_eightfold(job.v, dv);
        const bool has_more = All && (job.scale < 0 || job.softcap > 0 || job.bias.data || job.alibi || job.has_dropout);
        state x;
        clear(t, x);
        if constexpr (Family::Asynchronous) add_copied_steps(p, t, eightfold, has_more, int(w.key) / Keys * Keys, x);
        else {
            x.at = Family::template places_of<tensor_forward>(t);
            place_rows(job, w, t);
            if (!Scaled) load_queries(job, w, t, x);
            int key = int(w.key) / Keys * Keys;
            place_keys(job, w, t, key);
            block_barrier(); // places are written
            if (Scaled) {
                if (!find_scales(p, w, t, key)) key = int(w.key_end); // nothing is to be done here
                load_queries(job, w, t, x);
            }
            // The steps, where K and V go through registers; as a function of its own ptxas spills them.
            fetching k_fetch = prepare_fetching(job.k, *t.k_head, key);
            fetching v_fetch = prepare_fetching(job.v, *t.v_head, key);
            const bool v_in_k = MayShare && is_view_of(job.v, job.k) && dv <= dk; // a row is read once
            strip<Dk> first;
            const float first_scale = Scaled ? t.scales->k : 1;
            if (eightfold) {
                fetch(job, job.k, t.k_place + (key & Keys), dk, w, key, k_fetch, first);
                if (Scaled) convert_keys(first_scale, first, x);
                put(first, t.k);
            } else copy_halves<Dk, true>(job, job.k, *t.k_head, t.k_place + (key & Keys), dk, w, key, first_scale, x, t.k);
#pragma unroll 1
            for (; key < int(w.key_end); key += Keys) {
                const int slot = key & Keys;
                float s[Blocks][Keys / 16][8], shrink[Blocks][2];
                strip<Dk> next;
                strip<Dv> values;
                [[maybe_unused]] typename Family::template operand<Blocks, Keys> weights;
                block_barrier(); // K, Q and places are complete; V is used up
                if (eightfold && !v_in_k) fetch(job, job.v, t.v_place + slot, dv, w, key, v_fetch, values);
                if (Split > 1) place_keys(job, w, t, key + Keys);
                if constexpr (Family::SumsOfWholeRows) Family::template multiply_scores<tensor_forward>(t, x, s, [] {});
                else Family::template multiply_scores<tensor_forward>(t, x, s);
                if (Split > 1) put_part(t, s);
                if (OneBuffer || Split > 1) block_barrier(); // K is used up; parts of S are complete
                if (Split > 1) add_parts(t, s);
                if (has_more) finish_scores(job, w, t, key, s);
                if (int(w.last_first) > key || int(w.first_end) < key + Keys) mask_scores(t, key, s);
                if (Split == 1) place_keys(job, w, t, key + Keys);
                scaling scale = {has_more ? 1 : score_scale(job, t) * LOG2_E, has_more ? LOG2_E : 1};
                if constexpr (Family::SumsOfWholeRows) raise_maxima_at_times(scale, s, x);
                else softmax(scale, s, x, shrink);
                const float v_scale = Scaled ? t.scales->v : 1;
                if (eightfold) {
                    if (Scaled) convert_values(v_scale, values, x);
                    if (!v_in_k) put(values, t.v);
                    if (Split > 1) fetch(job, job.k, t.k_place + (Keys - slot), dk, w, key + Keys, k_fetch, next);
                } else if (!v_in_k) {
                    // model: rare
                    copy_halves<Dv, false>(job, job.v, *t.v_head, t.v_place + slot, dv, w, key, v_scale, x, t.v);
                    // model: end
                }
                if constexpr (!Family::SumsOfWholeRows)
                    Family::template make_operand<tensor_forward>(s, job.has_dropout, shrink, t, x, weights);
                block_barrier(); // V and the coming places are complete; K is used up
                if (eightfold && Split == 1) fetch(job, job.k, t.k_place + (Keys - slot), dk, w, key + Keys, k_fetch, next);
                if constexpr (Family::SumsOfWholeRows)
                    Family::template add_values<tensor_forward>(t, scale, s, job.has_dropout, x, [] {});
                else Family::template multiply_values<tensor_forward>(t, weights, shrink, x);
                if (OneBuffer) block_barrier(); // V is used up
                const float k_scale = Scaled ? t.scales->k : 1;
                if (eightfold) {
                    if (Scaled) convert_keys(k_scale, next, x);
                    put(next, t.k);
                } else {
                    // model: rare
                    copy_halves<Dk, true>(job, job.k, *t.k_head, t.k_place + (Keys - slot), dk, w, key + Keys, k_scale, x, t.k);
                    // model: end
                }
            }
        }
        if (Scaled) check_rows(p, w, x);
        store_rows(p, w, t, x, has_more ? 1 : LN_2);
    }

    // A task for all threads, in shared memory: one thread finds it, as the registers are for sums.
    // False: there is no such task.
    DEVICE bool find_task(const attn_simt_forward &p, int64_t task, const shared &t)
    {
        block_of_rows &w = *t.block;
        block_barrier(); // the task before is done with shared memory
        if (thread_index() == 0) {
            find_block<uint32_t>(p, task, Rows, w);
            if (w.found) place_head(p.job, w, t);
        }
        block_barrier(); // it is found
        return w.task < p.tasks;
    }

    DEVICE void forward(const attn_simt_forward &p)
    {
        const shared t = carve();
        // Counted in registers or in shared memory: where ptxas spills less.
        if constexpr (Family::Asynchronous) {
            for (int64_t task = block_index(); task < p.tasks; task += block_count())
                if (find_task(p, task, t) && t.block->found) run_task(p, t);
        } else {
            for (bool first = true; find_task(p, first ? block_index() : t.block->task + block_count(), t); first = false)
                if (t.block->found) run_task(p, t);
        }
    }
};

// Each shape with both bodies.
#define TENSOR_BODIES(name, family, ...)                                                                              \
    TENSOR_BODY(name, family, __VA_ARGS__, false)                                                                    \
    TENSOR_BODY(name##_all, family, __VA_ARGS__, true)
#define TENSOR_BODY(name, family, dk, dv, keys, blocks, warps, q_in_registers, one_buffer, blocks_per_sm, all)        \
    KERNEL(name, 32 * warps, blocks_per_sm, attn_simt_forward, p)                                                    \
    {                                                                                                                \
        tensor_forward<family, dk, dv, keys, blocks, warps, q_in_registers, one_buffer, all>::forward(p);            \
    }

#endif
