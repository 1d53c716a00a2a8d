// SPDX-License-Identifier: Apache-2.0
// The products of sm_90's kernels for few queries, mma.m16n8k16, as a Family of ring_forward.cuh: rows of K and V one behind the other in shared memory, as bulk copies leave them.
//
//   S = Q K'  (16 rows, of which 8 may be zeros)      O' = V' P'  (16 columns of V)
//
// Lanes, with g = lane / 4 and t = lane % 4: S has rows g and g + 8, keys 2 t and 2 t + 1 of each 8, and so has P as an operand, without a way across lanes. O has rows 2 t and 2 t + 1
// of each 8. Loads are of 16 bytes: of K key g of each 8, columns 8 t .. + 7 of each 32, two operands as they stand; of V keys 2 t, 2 t + 1 and 8 more, columns 8 g .. + 7 of each 64,
// two keys woven into words of both. All rows begin at the same banks, so that two lanes meet in one in K and four in V: 192 cycles a step of 16 keys and 128 columns, of which memory
// gives an SM one in 400.
#ifndef ATTN_CUDA_SM90_FEW_CUH
#define ATTN_CUDA_SM90_FEW_CUH

#include "m16n8_products.cuh"
#include "ring_forward.cuh"

// Keys: of a step.
template <class Products, int RowsOfBlock, int Keys> struct sm90_few {
    static constexpr int Eights = (RowsOfBlock + 7) / 8; // of rows
    static constexpr bool Bulk = true, Asynchronous = true, Mixed = false, HasHalves = true, ColumnsByFour = true;
    static constexpr int Only = -1;
    static constexpr float Room = SCORE_ROOM;
    static constexpr int Step = Keys, Tiles = Keys / 16;
    static constexpr int Rows = RowsOfBlock, Halves = Eights, OutputHalves = 2 * Eights, Scores = 4 * Eights * Tiles, Outputs = 16 * Eights; // the last of 64 columns
    static constexpr int QueryRows = Eights, QueryWords = 2;                                                                             // of a lane; of 16 columns
    struct rounded {
        float of[4 * Eights]; // from the products, as O
    };

    // Element 2 (Eights (2 m + j) + n) + i is of key 8 j + 2 t + i of tile m, and of eight n.
    DEVICE int row_of(int half) { return 8 * half + (lane_index() >> 2); }
    DEVICE int key_of(int e) { return 8 * (e / (2 * Eights)) + 2 * (lane_index() & 3) + (e & 1); }
    DEVICE constexpr int half_of(int e) { return e / 2 % Eights; }
    DEVICE int row_of_output(int half) { return 8 * (half >> 1) + 2 * (lane_index() & 3) + (half & 1); }
    DEVICE constexpr int half_of_output(int i) { return 2 * (i / 4 % Eights) + (i & 1); }
    DEVICE int column_of(int i)
    {
        const int j = i / (4 * Eights); // of 16 columns
        return 64 * (j / 4) + 8 * (lane_index() >> 2) + 2 * (j % 4) + (i >> 1 & 1);
    }
    DEVICE bool is_first_of_row() { return (lane_index() & 3) == 0; }
    DEVICE int query_row(int n) { return row_of(n); }
    DEVICE int query_column(int j) { return 32 * (j / 4) + 8 * (lane_index() & 3) + 2 * (j % 4); }

    DEVICE float row_maximum(float m)
    {
        m = fmaxf(m, shuffle_xor(m, 1));
        return fmaxf(m, shuffle_xor(m, 2));
    }

    DEVICE float row_total(float l)
    {
        l += shuffle_xor(l, 1);
        return l + shuffle_xor(l, 2);
    }

    DEVICE float total_rounded(const rounded &r, int half) { return r.of[4 * (half >> 1) + (half & 1)]; }

    template <int Words> DEVICE void arrange_queries(int, uint32_t (&)[Eights][Words]) {}
    DEVICE float value_unit(int) { return 1; }

    // Where in a step a lane's first load is.
    template <int D> DEVICE int key_place() { return (lane_index() >> 2) * (2 * D) + 16 * (lane_index() & 3); }
    template <int D> DEVICE int value_place() { return 2 * (lane_index() & 3) * (2 * D) + 16 * (lane_index() >> 2); }

    template <int D, int Words> DEVICE void multiply_scores(const stored_rows &k, const uint32_t (&q)[Eights][Words], float (&s)[Scores])
    {
        const char *row = k.at;
        float sum[2 * Tiles][4];
#pragma unroll
        for (int j = 0; j < 2 * Tiles; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) sum[j][i] = 0;
#pragma unroll
        for (int c = 0; c < D / 32; c++)
#pragma unroll
            for (int j = 0; j < 2 * Tiles; j++) {
                const uint4 b = load_vector<uint4>(row + 64 * c + 8 * j * (2 * D));
                const uint32_t first[4] = {q[0][4 * c], Eights > 1 ? q[Eights - 1][4 * c] : 0, q[0][4 * c + 1], Eights > 1 ? q[Eights - 1][4 * c + 1] : 0};
                const uint32_t second[4] = {q[0][4 * c + 2], Eights > 1 ? q[Eights - 1][4 * c + 2] : 0, q[0][4 * c + 3], Eights > 1 ? q[Eights - 1][4 * c + 3] : 0};
                Products::multiply(sum[j], first, b.x, b.y);
                Products::multiply(sum[j], second, b.z, b.w);
            }
        mma_complete();
#pragma unroll
        for (int e = 0; e < Scores; e++) s[e] = sum[e / (2 * Eights)][2 * half_of(e) + (e & 1)];
    }

    // kept: bit e of element e.
    template <int D, int Count>
    DEVICE void multiply_values(const stored_rows &v, const float (&s)[Scores], bool drops, uint32_t kept, bool raised, const float (&shrink)[Halves],
                                rounded &r, float (&o)[Count])
    {
        if (raised) {
            // model: rare
            float of_output[OutputHalves];
#pragma unroll
            for (int half = 0; half < OutputHalves; half++) of_output[half] = shuffle_from(shrink[half >> 1], 8 * (lane_index() & 3) + 4 * (half & 1));
#pragma unroll
            for (int i = 0; i < 4 * Eights; i++) r.of[i] *= of_output[half_of_output(i)];
#pragma unroll
            for (int i = 0; i < Count; i++) o[i] *= of_output[half_of_output(i)];
            // model: end
        }
        const char *row = v.at;
        const uint32_t ones[4] = {Products::Ones, Products::Ones, Products::Ones, Products::Ones};
#pragma unroll
        for (int m = 0; m < Tiles; m++) {
            uint32_t p[Eights][2];
#pragma unroll
            for (int n = 0; n < Eights; n++) {
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const int e = 2 * (Eights * (2 * m + j) + n);
                    p[n][j] = Products::pack(s[e], s[e + 1]);
                }
                Products::multiply(r.of + 4 * n, ones, p[n][0], p[n][1]);
                if (drops) {
                    // model: rare
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        const int e = 2 * (Eights * (2 * m + j) + n);
                        p[n][j] &= (kept >> e & 1 ? 0xffffu : 0u) | (kept >> e & 2 ? 0xffff0000u : 0u);
                    }
                    // model: end
                }
            }
#pragma unroll
            for (int c = 0; c < D / 64; c++) {
                uint32_t h[2][8]; // [keys][column]
#pragma unroll
                for (int i = 0; i < 2; i++) weave(row + (16 * m + 8 * i) * (2 * D) + 128 * c, row + (16 * m + 8 * i + 1) * (2 * D) + 128 * c, h[i]);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const uint32_t a[4] = {h[0][2 * j], h[0][2 * j + 1], h[1][2 * j], h[1][2 * j + 1]};
#pragma unroll
                    for (int n = 0; n < Eights; n++) Products::multiply(o + 4 * (Eights * (4 * c + j) + n), a, p[n][0], p[n][1]);
                }
            }
        }
        mma_complete();
    }

    // Eight columns of two keys, as words of both.
    DEVICE void weave(const char *first, const char *second, uint32_t (&h)[8])
    {
        const uint4 a = load_vector<uint4>(first), b = load_vector<uint4>(second);
        const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 4; i++) h[2 * i] = permute_bytes(x[i], y[i], 0x5410), h[2 * i + 1] = permute_bytes(x[i], y[i], 0x7632);
    }
};

#endif
