// SPDX-License-Identifier: Apache-2.0
// The products of sm_70, mma.sync.m8n8k4, as a Family of tensor_forward.cuh.
//
// Lanes. One instruction multiplies four 8 x 4 by 4 x 8, one for each quad-pair of lanes. Bit 2 of a lane says which four
// rows of each 8, bit 3 which 8 keys of 16 (S) or which 16 columns of 32 (O). With q = lane & 3 and h = lane >> 4: A has row
// (lane & 7) + 8 h, k = 0 .. 3 (16 bytes are two steps of k), so that 8 lanes read 8 neighbours; B of S has key q + 4 h of
// its 8 likewise; B of O, row major, has key q and four columns from 4 h; element i of a sum is row (lane & 5) + 8 h + (i & 2),
// column (q & 2) + (i & 1) + (i & 4).
// So P becomes an operand by one exchange between lanes l and l ^ 2, and one with l ^ 8 for the keys of the other half.
#ifndef ATTN_CUDA_SM70_PRODUCTS_CUH
#define ATTN_CUDA_SM70_PRODUCTS_CUH

#include "tensor_forward.cuh"

struct sm70_products {
    static constexpr bool Asynchronous = false, SumsOfWholeRows = false, Scaled = false;
    static constexpr int RowLanes = 10, RowLane = 2; // all bits, and one of them
    struct places {};

    DEVICE constexpr bool sums_in_registers(int dv) { return TENSOR_SUMS_sm70(dv) == 0; } // where O leaves room
    DEVICE int operand_row() { return (lane_index() & 7) + 8 * (lane_index() >> 4); }
    DEVICE int operand_key() { return 8 * (lane_index() >> 3 & 1) + (lane_index() & 3) + 4 * (lane_index() >> 4); }
    DEVICE int sum_row(int i) { return ((lane_index() & 5) | (lane_index() >> 1 & 8)) + (i & 2); } // written otherwise, it spills
    DEVICE int sum_key(int i) { return 8 * (lane_index() >> 3 & 1) + (lane_index() & 2) + (i & 1) + (i & 4); }
    DEVICE int output_column(int i) // element i of 16 of 32 columns
    {
        return 16 * (lane_index() >> 3 & 1) + 2 * (i & 4) + 4 * (i / 8) + (lane_index() & 2) + (i & 1);
    }

    template <class T> DEVICE places places_of(const typename T::shared &) { return {}; }

    // Rows are padded, so that eight lanes that read 16 bytes of eight rows meet 32 banks.
    DEVICE constexpr int pitch(int d) { return TENSOR_PITCH_sm70(d); }
    DEVICE constexpr int head(bool scaled, int dv, int keys, int blocks, int warps, bool all)
    {
        return TENSOR_HEAD(sm70, scaled, dv, keys, blocks, warps, all);
    }
    template <int D> DEVICE int place(int row, int byte) { return row * pitch(D) + byte; }

    template <class T>
    DEVICE void multiply_scores(const typename T::shared &t, const typename T::state &x,
                                float (&s)[T::Blocks][T::Keys / 16][8])
    {
        [[maybe_unused]] constexpr int Unroll = T::QInRegisters ? T::DkOfWarp / 8 : T::Split > 1 ? T::DkOfWarp / 16 : 16;
        const int part = 2 * T::DkOfWarp * T::part(); // bytes
        const char *q = t.q + (16 * T::Blocks * T::team() + operand_row()) * T::KPitch + part,
                   *k = t.k + operand_key() * T::KPitch + part;
#pragma unroll
        for (int m = 0; m < T::Blocks; m++)
#pragma unroll
            for (int n = 0; n < T::Keys / 16; n++)
#pragma unroll
                for (int i = 0; i < 8; i++) s[m][n][i] = 0;
#pragma unroll Unroll
        for (int d = 0; d < T::DkOfWarp / 8; d++) {
            uint4 a[T::Blocks], b[T::Keys / 16];
#pragma unroll
            for (int m = 0; m < T::Blocks; m++)
                a[m] = T::QInRegisters ? x.q[T::QInRegisters ? m : 0][T::QInRegisters ? d : 0]
                                       : load_vector<uint4>(q + 16 * m * T::KPitch + 16 * d);
#pragma unroll
            for (int n = 0; n < T::Keys / 16; n++) b[n] = load_vector<uint4>(k + 16 * n * T::KPitch + 16 * d);
#pragma unroll
            for (int m = 0; m < T::Blocks; m++)
#pragma unroll
                for (int n = 0; n < T::Keys / 16; n++) mma_m8n8k4_row_col(s[m][n], {a[m].x, a[m].y}, {b[n].x, b[n].y});
#pragma unroll
            for (int n = 0; n < T::Keys / 16; n++)
#pragma unroll
                for (int m = 0; m < T::Blocks; m++) mma_m8n8k4_row_col(s[m][n], {a[m].z, a[m].w}, {b[n].z, b[n].w});
        }
        mma_complete();
    }

    // P as an operand. Of each 16 keys a quad-pair takes its own 8 first, four at a time: in which order keys are summed
    // is free, and so no lane has to choose.
    template <int Blocks, int Keys> struct operand {
        uint32_t word[Blocks][Keys / 16][4][2];
    };

    template <class T>
    DEVICE void make_operand(const float (&s)[T::Blocks][T::Keys / 16][8], bool has_dropout,
                             const float (&shrink)[T::Blocks][2], const typename T::shared &t, typename T::state &x,
                             operand<T::Blocks, T::Keys> &p)
    {
        const bool upper = (lane_index() & 2) != 0;
#pragma unroll
        for (int m = 0; m < T::Blocks; m++) {
            float sum[2] = {0, 0};
#pragma unroll
            for (int n = 0; n < T::Keys / 16; n++) {
                uint32_t h[4]; // rows 0, 2, 0, 2; keys 0 and 1, then 4 and 5
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    h[j] = pack_half2(s[m][n][2 * j], s[m][n][2 * j + 1]);
                    sum[j & 1] += low_half(h[j]) + high_half(h[j]);
                    T::drop(t, m, 8 * n + 2 * j, has_dropout, h[j]);
                }
#pragma unroll
                for (int g = 0; g < 2; g++) {
                    const uint32_t got = shuffle_xor(upper ? h[2 * g] : h[2 * g + 1], 2);
                    p.word[m][n][g][0] = upper ? got : h[2 * g];
                    p.word[m][n][g][1] = upper ? h[2 * g + 1] : got;
                }
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float &rounded = T::rounded_sum(t, x, m, half);
                rounded = fmaf(rounded, shrink[m][half], sum[half]);
            }
        }
#pragma unroll
        for (int m = 0; m < T::Blocks; m++)
#pragma unroll
            for (int n = 0; n < T::Keys / 16; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) p.word[m][n][2 + e / 2][e % 2] = shuffle_xor(p.word[m][n][e / 2][e % 2], 8);
    }

    template <class T>
    DEVICE void multiply_values(const typename T::shared &t, const operand<T::Blocks, T::Keys> &p,
                                const float (&shrink)[T::Blocks][2], typename T::state &x)
    {
        const int right = lane_index() >> 3 & 1;
        const char *v = t.v + (lane_index() & 3) * T::VPitch + 32 * right + 16 * (lane_index() >> 4) +
                        2 * T::DvOfWarp * T::part();
        const char *keys[2] = {v + 8 * right * T::VPitch, v + 8 * (1 - right) * T::VPitch}; // own, the other's
#pragma unroll
        for (int d = 0; d < T::DvOfWarp / 32; d++) {
            float sum[T::Blocks][2][8];
#pragma unroll
            for (int m = 0; m < T::Blocks; m++)
#pragma unroll
                for (int i = 0; i < 16; i++) sum[m][i / 8][i % 8] = 0;
#pragma unroll
            for (int n = 0; n < T::Keys / 16; n++)
#pragma unroll
                for (int step = 0; step < 4; step++) {
                    const uint4 b = load_vector<uint4>(keys[step / 2] + (16 * n + 4 * (step & 1)) * T::VPitch + 64 * d);
#pragma unroll
                    for (int m = 0; m < T::Blocks; m++) {
                        mma_m8n8k4_row_row(sum[m][0], p.word[m][n][step], {b.x, b.y});
                        mma_m8n8k4_row_row(sum[m][1], p.word[m][n][step], {b.z, b.w});
                    }
                }
            mma_complete();
#pragma unroll
            for (int m = 0; m < T::Blocks; m++)
#pragma unroll
                for (int i = 0; i < 16; i++) {
                    float &o = x.o[m][2 * d + i / 8][i % 8];
                    o = fmaf(o, shrink[m][i >> 1 & 1], sum[m][i / 8][i % 8]);
                }
        }
    }
};

// q, k and v in bf16, which these products do not know: as halves (bf16_halves.cuh).
struct sm70_bf16_products : sm70_products {
    static constexpr bool Scaled = true;
};

#define SM70_KERNELS(module, dk, dv, ...) TENSOR_BODIES(sm70_forward_##dk##_##dv, sm70_products, dk, dv, __VA_ARGS__)
#define SM70_BF16_KERNELS(module, dk, dv, ...)                                                                        \
    TENSOR_BODIES(sm70_forward_##dk##_##dv##_bf16, sm70_bf16_products, dk, dv, __VA_ARGS__)

#endif
