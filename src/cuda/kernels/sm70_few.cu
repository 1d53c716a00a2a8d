// SPDX-License-Identifier: Apache-2.0
// The products of sm_70, mma.m8n8k4, as a Family of few_forward.cuh. Of Q and K a lane has columns 8 u .. + 7 of a chunk of 32, of V columns
// 16 u + 8 h .. + 7 of a chunk of 64, two operands by rows of four columns each (lanes: sm70_few.cuh).
#include "few_forward.cuh"
#include "sm70_few.cuh"

struct sm70_few : sm70_few_lanes {
    static constexpr int Slots = 1;

    DEVICE int key_of_k(int n) { return (lane_index() & 3) + 4 * (lane_index() >> 4) + 8 * n; }
    DEVICE int key_of_v(int n) { return (lane_index() & 3) + 4 * n; }
    DEVICE constexpr int v_apart(int n) { return 4 * n; }
    DEVICE int q_row(int lane, int) { return (lane & 3) + 4 * (lane >> 4); }
    DEVICE int k_column(int lane) { return 8 * (lane >> 2 & 3); }
    DEVICE int v_column() { return 16 * pair() + 8 * (lane_index() >> 4); }
    DEVICE int column_of(int i)
    {
        return 64 * (i / 16) + 16 * pair() + 2 * (i & 4) + 4 * (i / 8 % 2) + (lane_index() & 2) + (i & 1);
    }

    template <int Chunks> DEVICE void multiply_scores(const uint4 *q, const uint4 (&k)[2][Chunks], float (&s)[Scores])
    {
        float part[2][8];
#pragma unroll
        for (int e = 0; e < Scores; e++) part[e / 8][e % 8] = 0;
#pragma unroll
        for (int c = 0; c < Chunks; c++) {
            const uint4 a = load_vector<uint4>(q + 32 * c);
#pragma unroll
            for (int n = 0; n < 2; n++) mma_m8n8k4_row_col(part[n], {a.x, a.y}, {k[n][c].x, k[n][c].y});
#pragma unroll
            for (int n = 0; n < 2; n++) mma_m8n8k4_row_col(part[n], {a.z, a.w}, {k[n][c].z, k[n][c].w});
        }
        mma_complete();
        add_parts(part, s);
    }

    template <int Wide, int Count>
    DEVICE void multiply_values(const float (&s)[Scores], uint32_t kept, const uint4 (&v)[4][Wide], const float (&shrink)[2], rounded &r,
                                float (&o)[Count])
    {
        uint32_t p[4][2];
        make_operands(s, kept, shrink, r, p);
#pragma unroll
        for (int c = 0; c < Wide; c++) {
            float sum[2][8];
#pragma unroll
            for (int i = 0; i < 16; i++) sum[i / 8][i % 8] = 0;
#pragma unroll
            for (int n = 0; n < 4; n++) {
                mma_m8n8k4_row_row(sum[0], p[n], {v[n][c].x, v[n][c].y});
                mma_m8n8k4_row_row(sum[1], p[n], {v[n][c].z, v[n][c].w});
            }
            mma_complete();
#pragma unroll
            for (int i = 0; i < 16; i++) o[16 * c + i] = fmaf(o[16 * c + i], shrink[i >> 1 & 1], sum[i / 8][i % 8]);
        }
    }
};

#define SM70_FEW_KERNELS(module, d, rows, blocks_per_sm) FEW_KERNEL(sm70_few_##d, sm70_few, d, blocks_per_sm)
SM70_FEW_SHAPES(SM70_FEW_KERNELS)
