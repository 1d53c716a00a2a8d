// SPDX-License-Identifier: Apache-2.0
// Products of tiles in shared memory on sm_70, as a Tiles of tensor_backward.cuh. Lanes and padded rows are the forward's (sm70_products.cuh).
//
// m8n8k4 takes either operand by rows or by columns. A lane always reads 16 bytes:
//   A [m][K], B [n][K]  row (l & 7) + 8 h of A, key 8 (bit 3) + q + 4 h of B, and two steps of k
//   A [K][m], B [K][n]  row k, and eight m, or n, of 32: segment (bit 2) + 2 h of A, 2 (bit 3) + h of B. The first four belong to the first of two blocks of
//                       16, the others to the second; so rows and columns of these sums are not side by side (row_of, column_of)
// Which k a step takes is free, as long as A and B agree: where A is [K][m], two steps take k = 2 q and 2 q + 1 of 8, because rows that follow one another are
// 16 bytes apart in banks and so are segments. So no eight lanes meet in a bank anywhere.
#ifndef ATTN_CUDA_SM70_TILES_CUH
#define ATTN_CUDA_SM70_TILES_CUH

#include "sm70_products.cuh"
#include "tensor_backward.cuh"

struct sm70_tiles : sm70_products {
    typedef const char *position; // where a lane begins to read an operand

    DEVICE int lane() { return lane_index(); }
    DEVICE int place(int columns, int row, int byte) { return row * pitch(columns) + byte; }

    // Row r of 16, or column c, of the sums of block m or n.
    DEVICE constexpr int paired(int block, int x) { return 32 * (block / 2) + 8 * (x / 4) + 4 * (block % 2) + x % 4; }
    DEVICE constexpr int row_of(bool transposed, int m, int r) { return transposed ? paired(m, r) : 16 * m + r; }
    DEVICE constexpr int column_of(bool by_rows, int n, int c) { return by_rows ? paired(n, c) : 16 * n + c; }

    template <bool Transposed> DEVICE position left(const char *tile, int columns, int row, int column)
    {
        if (!Transposed) return tile + place(columns, row + operand_row(), 2 * column);
        return tile + place(columns, row + 2 * (lane() & 3), 2 * column + 16 * (lane() >> 2 & 1) + 32 * (lane() >> 4));
    }
    template <bool Transposed, bool ByRows> DEVICE position right(const char *tile, int columns, int row, int column)
    {
        if (!ByRows) return tile + place(columns, row + operand_key(), 2 * column);
        return tile + place(columns, row + (Transposed ? 2 : 1) * (lane() & 3), 2 * column + 32 * (lane() >> 3 & 1) + 16 * (lane() >> 4));
    }

    // Operand of block n: half of what a lane has read of two blocks, or of two steps.
    template <bool OfTwoBlocks, int N> DEVICE uint2 half_of(const uint4 (&x)[2][N], int step, int n)
    {
        const uint4 &both = OfTwoBlocks ? x[step][n / 2] : x[0][n];
        return (OfTwoBlocks ? n % 2 : step) ? uint2{both.z, both.w} : uint2{both.x, both.y};
    }

    // d += a b, over K. a: tile [m][K], or with Transposed [K][m]; b: [n][K], or with ByRows [K][n]. APitch, BPitch: bytes from row to row.
    template <int MB, int NB, int K, bool Transposed, bool ByRows, int APitch, int BPitch>
    DEVICE void multiply_tiles(position a_at, position b_at, float (&d)[MB][NB][8])
    {
        static_assert((!Transposed || MB % 2 == 0) && (!ByRows || NB % 2 == 0), "two blocks are read at once");
        static_assert(!Transposed || ByRows, "who takes which k");
#pragma unroll
        for (int k = 0; k < K; k += 8) {
            uint4 a[2][MB], b[2][NB];
#pragma unroll
            for (int m = 0; m < MB; m++) {
                if (!Transposed) a[0][m] = load_vector<uint4>(a_at + 16 * m * APitch + 2 * k);
                else a[m % 2][m / 2] = load_vector<uint4>(a_at + (k + m % 2) * APitch + 64 * (m / 2));
            }
#pragma unroll
            for (int n = 0; n < NB; n++) {
                if (!ByRows) b[0][n] = load_vector<uint4>(b_at + 16 * n * BPitch + 2 * k);
                else b[n % 2][n / 2] = load_vector<uint4>(b_at + (k + (Transposed ? 1 : 4) * (n % 2)) * BPitch + 64 * (n / 2));
            }
#pragma unroll
            for (int step = 0; step < 2; step++)
#pragma unroll
                for (int m = 0; m < MB; m++)
#pragma unroll
                    for (int n = 0; n < NB; n++) {
                        const uint2 x = half_of<Transposed>(a, step, m), y = half_of<ByRows>(b, step, n);
                        if (Transposed) mma_m8n8k4_col_row(d[m][n], {x.x, x.y}, y);
                        else if (ByRows) mma_m8n8k4_row_row(d[m][n], {x.x, x.y}, y);
                        else mma_m8n8k4_row_col(d[m][n], {x.x, x.y}, y);
                    }
        }
        mma_complete();
    }

    // 16 x 16 sums to 16-bit words of a tile. Lanes l and l ^ 2 exchange what makes eight keys of one row of each.
    DEVICE void put(const float (&x)[8], char *tile, int columns, int row, int column)
    {
        const bool upper = (lane() & 2) != 0;
        uint32_t word[2][2];
#pragma unroll
        for (int g = 0; g < 2; g++) {
            const uint32_t first = pack_half2(x[4 * g], x[4 * g + 1]), second = pack_half2(x[4 * g + 2], x[4 * g + 3]),
                           got = shuffle_xor(upper ? first : second, 2);
            word[g][0] = upper ? got : first;
            word[g][1] = upper ? second : got;
        }
        store_vector(tile + place(columns, row + operand_row(), 2 * (column + 8 * (lane() >> 3 & 1))),
                     uint4{word[0][0], word[0][1], word[1][0], word[1][1]});
    }
};

#endif
