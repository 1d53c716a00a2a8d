// SPDX-License-Identifier: Apache-2.0
// The products of sm_70, mma.m8n8k4, as a Family of few_forward.cuh.
//
// Lanes, with q = lane & 3, u = lane / 4 % 4 (the quad-pair) and h = lane / 16. One instruction multiplies four 8 x 4 by 4 x 8, one for each quad-pair, so
// rows are 8, and the quad-pairs share the columns: of Q a lane has row q + 4 h, of K keys q + 4 h and 8 more, columns 8 u .. + 7 of a chunk of 32; their
// parts of S are added by two exchanges, after which all four have it: element i of each 8 keys is row (q & 1) + (i & 2) + 4 h, key (q & 2) + (i & 1) + (i & 4).
// P becomes an operand, row q + 4 h and four keys, by an exchange between lanes l and l ^ 2. Of V a lane has keys q, q + 4, q + 8, q + 12 and columns
// 16 u + 8 h .. + 7 of a chunk of 64, two operands by rows of four columns each.
// The instruction truncates when it adds: a step's products are summed alone and added to O by the multiply-add that scales O.
#include "few_forward.cuh"

struct sm70_few {
    static constexpr int Rows = 8, Slots = 1, Scores = 16, Outputs = 16;
    struct rounded {
        float of[2]; // of this lane's keys
    };

    DEVICE int pair() { return lane_index() >> 2 & 3; }
    DEVICE int row_of(int half) { return (lane_index() & 1) + 2 * half + 4 * (lane_index() >> 4); }
    DEVICE int key_of(int e) { return (lane_index() & 2) + (e & 1) + (e & 4) + (e & 8); }
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
    DEVICE bool is_first_of_row() { return (lane_index() & 14) == 0; }
    DEVICE float row_maximum(float m) { return fmaxf(m, shuffle_xor(m, 2)); }
    DEVICE float row_total(float l) { return l + shuffle_xor(l, 2); }
    DEVICE float total_rounded(const rounded &r, int half) { return row_total(r.of[half]); }

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
#pragma unroll
        for (int e = 0; e < Scores; e++) {
            s[e] = part[e / 8][e % 8];
            s[e] += shuffle_xor(s[e], 4);
            s[e] += shuffle_xor(s[e], 8);
        }
    }

    // kept: bit e of element e.
    template <int Wide, int Count>
    DEVICE void multiply_values(const float (&s)[Scores], uint32_t kept, const uint4 (&v)[4][Wide], bool,
                                const float (&shrink)[2], rounded &r, float (&o)[Count])
    {
        const bool upper = (lane_index() & 2) != 0;
        uint32_t p[4][2]; // [four keys]
#pragma unroll
        for (int half = 0; half < 2; half++) r.of[half] *= shrink[half];
#pragma unroll
        for (int n = 0; n < 4; n++) {
            uint32_t h[2]; // of two rows, two keys each
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int e = 4 * n + 2 * j;
                h[j] = pack_half2(s[e], s[e + 1]);
                r.of[j] += low_half(h[j]) + high_half(h[j]);
                h[j] &= (kept >> e & 1 ? 0xffffu : 0u) | (kept >> e & 2 ? 0xffff0000u : 0u);
            }
            const uint32_t got = shuffle_xor(upper ? h[0] : h[1], 2);
            p[n][0] = upper ? got : h[0];
            p[n][1] = upper ? h[1] : got;
        }
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
