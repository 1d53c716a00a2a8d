// SPDX-License-Identifier: Apache-2.0
// Products of tiles in shared memory from sm_80 on, as a Tiles of tensor_backward.cuh: lanes, places and instructions are the forward's
// (m16n8_products.cuh). P' and dT' are read transposed (ldmatrix.trans), so all four ways of A and B come from tiles as they lie.
#ifndef ATTN_CUDA_SM80_TILES_CUH
#define ATTN_CUDA_SM80_TILES_CUH

#include "m16n8_products.cuh"
#include "tensor_backward.cuh"

template <bool IsBf16> struct sm80_tiles : sm80_products<IsBf16> {
    typedef sm80_products<IsBf16> products;
    typedef tile_address position; // where a lane begins to read an operand
    using products::beside;
    using products::multiply;
    using products::pack;
    using products::sum_key;
    using products::sum_row;

    DEVICE int lane() { return lane_index(); }
    // columns: of a tile, whose pitch they decide.
    DEVICE int place(int columns, int row, int byte) { return row * products::pitch(columns) + (byte ^ 16 * (row & 7)); }

    // Row r of 16, or column c, of the sums of block m or n.
    DEVICE constexpr int row_of(bool, int m, int r) { return 16 * m + r; }
    DEVICE constexpr int column_of(bool, int n, int c) { return 16 * n + c; }

    // Where a lane reads 16 x 16 from (row, column) on: rows of the operand in order, or those of its transpose.
    DEVICE position first(const char *tile, int columns, int row, int column)
    {
        return tile_of(tile + place(columns, row + (lane() & 15), 2 * column + 16 * (lane() >> 4)));
    }
    DEVICE position second(const char *tile, int columns, int row, int column)
    {
        return tile_of(tile + place(columns, row + (lane() & 7) + 8 * (lane() >> 4), 2 * column + 16 * (lane() >> 3 & 1)));
    }
    template <bool Transposed> DEVICE position left(const char *tile, int columns, int row, int column)
    {
        return Transposed ? second(tile, columns, row, column) : first(tile, columns, row, column);
    }
    template <bool, bool ByRows> DEVICE position right(const char *tile, int columns, int row, int column)
    {
        return ByRows ? first(tile, columns, row, column) : second(tile, columns, row, column);
    }

    // d += a b, over K. a: tile [m][K], or with Transposed [K][m]; b: [n][K], or with ByRows [K][n]. APitch, BPitch: bytes from row to row.
    template <int MB, int NB, int K, bool Transposed, bool ByRows, int APitch, int BPitch>
    DEVICE void multiply_tiles(position a_at, position b_at, float (&d)[MB][NB][8])
    {
#pragma unroll
        for (int k = 0; k < K / 16; k++) {
            uint32_t a[MB][4];
#pragma unroll
            for (int m = 0; m < MB; m++) {
                if (Transposed) load_matrices_transposed(a[m], beside(a_at, m) + 16 * k * APitch);
                else load_matrices(a[m], beside(a_at, k) + 16 * m * APitch);
            }
#pragma unroll
            for (int n = 0; n < NB; n++) {
                uint32_t b[4];
                if (ByRows) load_matrices_transposed(b, beside(b_at, n) + 16 * k * BPitch);
                else load_matrices(b, beside(b_at, k) + 16 * n * BPitch);
#pragma unroll
                for (int m = 0; m < MB; m++) {
                    multiply(d[m][n], a[m], b[0], b[1]);
                    multiply(d[m][n] + 4, a[m], b[2], b[3]);
                }
            }
        }
        mma_complete();
    }

    // 16 x 16 sums to 16-bit words of a tile.
    DEVICE void put(const float (&x)[8], char *tile, int columns, int row, int column)
    {
#pragma unroll
        for (int i = 0; i < 8; i += 2)
            store_vector(tile + place(columns, row + sum_row(i), 2 * (column + sum_key(i))), pack(x[i], x[i + 1]));
    }
};

#endif
