// SPDX-License-Identifier: Apache-2.0
// The products of sm_80 and later, mma.sync.m16n8k16, and of sm_75, m16n8k8, as Families of tensor_forward.cuh. Two of the latter are one of
// the former, lane for lane; but sm_75 has no bf16, its copies go through registers, and a block has 64 KB there.
//
// Lanes. With g = lane / 4 and q = lane % 4: A has rows g and g + 8, k = 2 q, 2 q + 1 and 8 more; B of S has key g (ldmatrix on K
// as it lies), B of O column g (ldmatrix.trans on V); element i of a sum is row g + 4 (i & 2), column 2 q + (i & 1) + 2 (i & 4). So
// P is an operand as it stands.
//
// O is a sum over all steps in the tensor cores, which truncate when they add; sums of P as rounded come from them too, so that what divides
// O has lost what O has, and a constant V comes back exactly. They are products with ones: one more column block of O, 1 / (Dv / 8) of its
// work, where unpacking and adding would take two instructions an element beside an exponential.
#ifndef ATTN_CUDA_M16N8_PRODUCTS_CUH
#define ATTN_CUDA_M16N8_PRODUCTS_CUH

#include "tensor_forward.cuh"

// IsPadded: rows in shared memory are, and copies go through registers.
template <bool IsBf16, bool IsOfTuring, bool IsPadded = IsOfTuring> struct m16n8_products {
    static constexpr bool Asynchronous = !IsPadded, SumsOfWholeRows = true, Scaled = false;
    static constexpr int OutKind = IsBf16 ? ROWS_BF16 : ROWS_F16;
    static constexpr int RowLanes = 3, RowLane = 1; // all bits, and one of them
    static constexpr uint32_t Ones = IsBf16 ? 0x3f803f80 : 0x3c003c00;

    DEVICE constexpr bool sums_in_registers(int) { return true; }
    DEVICE int sum_row(int i) { return (lane_index() >> 2) + 4 * (i & 2); }
    DEVICE int sum_key(int i) { return 2 * (lane_index() & 3) + (i & 1) + 2 * (i & 4); }
    DEVICE int output_column(int i) { return 16 * (i / 8) + sum_key(i & 7); } // element i of 16 of 32 columns

    DEVICE uint32_t pack(float low, float high) { return IsBf16 ? pack_bf16x2(low, high) : pack_half2(low, high); }

    DEVICE void multiply(float *d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
    {
        if constexpr (IsOfTuring) mma_m16n8k8_f16(d, a[0], a[1], b0), mma_m16n8k8_f16(d, a[2], a[3], b1);
        else if constexpr (IsBf16) mma_m16n8k16_bf16(d, a, b0, b1);
        else mma_m16n8k16_f16(d, a, b0, b1);
    }

    // The row that a lane gives to its loads of matrices.
    struct places {
        tile_address q, k, v;
    };

    DEVICE constexpr int pitch(int d) { return IsPadded ? TENSOR_PITCH_sm75(d) : TENSOR_PITCH_sm80(d); }
    DEVICE constexpr int head(bool scaled, int dv, int keys, int blocks, int warps, bool all)
    {
        return IsPadded ? TENSOR_HEAD(sm75, scaled, dv, keys, blocks, warps, all)
                        : TENSOR_HEAD(sm80, scaled, dv, keys, blocks, warps, all);
    }
    // Padded, as rows of sm_70 are, or swizzled: 16-byte word w of a row lies at w ^ (row & 7), so that eight rows meet 32 banks and copies write whole lines of 128 bytes.
    template <int D> DEVICE int place(int row, int byte)
    {
        return row * pitch(D) + (IsPadded ? byte : byte ^ 16 * (row & 7));
    }

    template <class T> DEVICE places places_of(const typename T::shared &t)
    {
        const int l = lane_index();
        const int part = 2 * T::part(); // where warps share rows; those are padded
        return {tile_of(t.q + place<T::Dk>(16 * T::Blocks * T::team() + (l & 15), 16 * (l >> 4)) + part * T::DkOfWarp),
                tile_of(t.k + place<T::Dk>((l & 7) + 8 * (l >> 4), 16 * (l >> 3 & 1)) + part * T::DkOfWarp),
                tile_of(t.v + place<T::template PlacedAs<T::Dv>>(l & 15, 16 * (l >> 4)) + part * T::DvOfWarp)};
    }

    // The place n rows below one of the first eight rows; n has no bit that the row has.
    template <int D> DEVICE tile_address below(tile_address row, int n)
    {
        return (IsPadded ? row : row ^ uint32_t(16 * (n & 7))) + n * pitch(D);
    }
    // The same of columns 16 d and on.
    DEVICE tile_address beside(tile_address row, int d)
    {
        return IsPadded ? row + 32 * d : (row ^ uint32_t(32 * (d & 3))) + 128 * (d / 4);
    }

    // behind_first(): done behind the first products.
    template <class T, class Work>
    DEVICE void multiply_scores(const typename T::shared &, const typename T::state &x,
                                float (&s)[T::Blocks][T::Keys / 16][8], Work behind_first)
    {
#pragma unroll
        for (int m = 0; m < T::Blocks; m++)
#pragma unroll
            for (int n = 0; n < T::Keys / 16; n++)
#pragma unroll
                for (int i = 0; i < 8; i++) s[m][n][i] = 0;
#pragma unroll
        for (int d = 0; d < T::DkOfWarp / 16; d++) {
            uint32_t a[T::Blocks][4];
#pragma unroll
            for (int m = 0; m < T::Blocks; m++) load_matrices(a[m], beside(x.at.q, d) + 16 * m * T::KPitch);
#pragma unroll
            for (int n = 0; n < T::Keys / 16; n++) {
                uint32_t b[4];
                load_matrices(b, beside(x.at.k, d) + 16 * n * T::KPitch);
#pragma unroll
                for (int m = 0; m < T::Blocks; m++) {
                    multiply(s[m][n], a[m], b[0], b[1]);
                    multiply(s[m][n] + 4, a[m], b[2], b[3]);
                }
            }
            if (d == 0) behind_first();
        }
        mma_complete();
    }

    // Most steps find no larger score.
    template <class T> DEVICE void shrink_sums(const float (&shrink)[T::Blocks][2], typename T::state &x)
    {
        bool changes = false;
#pragma unroll
        for (int r = 0; r < 2 * T::Blocks; r++) changes |= shrink[r / 2][r % 2] != 1;
        if (!any_of_warp(changes)) return;
#pragma unroll
        for (int m = 0; m < T::Blocks; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) x.l[m][half] *= shrink[m][half];
#pragma unroll
            for (int i = 0; i < 4; i++) x.rounded[m][i] *= shrink[m][i >> 1];
#pragma unroll
            for (int d = 0; d < T::DvOfWarp / 16; d++)
#pragma unroll
                for (int i = 0; i < 8; i++) x.o[m][d][i] *= shrink[m][i >> 1 & 1];
        }
    }

    template <int Blocks, int Keys = 16> struct operand {
        uint32_t word[Blocks][4];
    };

    // P of 16 keys as an operand, once it has been added to the sums.
    template <class T>
    DEVICE operand<T::Blocks> make_operand(const float (&s)[T::Blocks][T::Keys / 16][8], int n, bool has_dropout,
                                           const typename T::shared &t, typename T::state &x)
    {
        operand<T::Blocks> p;
#pragma unroll
        for (int m = 0; m < T::Blocks; m++) {
#pragma unroll
            for (int j = 0; j < 4; j++) p.word[m][j] = pack(s[m][n][2 * j], s[m][n][2 * j + 1]);
            multiply(x.rounded[m], p.word[m], Ones, Ones);
#pragma unroll
            for (int j = 0; j < 4; j++) T::drop(t, m, 8 * n + 2 * j, has_dropout, p.word[m][j]);
        }
        return p;
    }

    // S to P, and P V: 16 keys at a time, so that the next exponentials and the products of these go together.
    template <class T, class Work>
    DEVICE void add_values(const typename T::shared &t, typename T::scaling scale, float (&s)[T::Blocks][T::Keys / 16][8],
                           bool has_dropout, typename T::state &x, Work behind_first)
    {
#pragma unroll
        for (int n = 0; n < T::Keys / 16; n++) {
            T::exponentiate(scale, s, x, n, n + 1, x.l);
            const operand<T::Blocks> p = make_operand<T>(s, n, has_dropout, t, x);
#pragma unroll
            for (int d = 0; d < T::DvOfWarp / 16; d++) {
                uint32_t b[4];
                load_matrices_transposed(b, beside(x.at.v, d) + 16 * n * T::VPitch);
#pragma unroll
                for (int m = 0; m < T::Blocks; m++) {
                    multiply(x.o[m][d], p.word[m], b[0], b[1]);
                    multiply(x.o[m][d] + 4, p.word[m], b[2], b[3]);
                }
            }
            if (n == 0) behind_first();
            mma_complete();
        }
    }
};

using sm75_products = m16n8_products<false, true>;
template <bool IsBf16> using sm80_products = m16n8_products<IsBf16, false>;
// Four warps share rows, and K and V a buffer: parts of rows begin anywhere, and copies have nowhere to go while a product reads.
template <bool IsBf16> using sm80_padded = m16n8_products<IsBf16, false, true>;

#define SM75_KERNELS(module, dk, dv, ...) TENSOR_BODIES(sm75_forward_##dk##_##dv, sm75_products, dk, dv, __VA_ARGS__)
#define SM80_KERNELS(module, ...) SM80_KERNELS_BY(sm80_products, __VA_ARGS__)
#define SM80_PADDED_KERNELS(module, ...) SM80_KERNELS_BY(sm80_padded, __VA_ARGS__)
#define SM80_KERNELS_BY(products, dk, dv, ...)                                                                       \
    TENSOR_BODIES(sm80_forward_##dk##_##dv##_f16, products<false>, dk, dv, __VA_ARGS__)                              \
    TENSOR_BODIES(sm80_forward_##dk##_##dv##_bf16, products<true>, dk, dv, __VA_ARGS__)
#define SM80_SMALL_KERNELS(module, dk, dv, keys, ...)                                                                \
    TENSOR_BODIES(sm80_forward_##dk##_##dv##_k##keys##_f16, sm80_products<false>, dk, dv, keys, __VA_ARGS__)         \
    TENSOR_BODIES(sm80_forward_##dk##_##dv##_k##keys##_bf16, sm80_products<true>, dk, dv, keys, __VA_ARGS__)

#endif
