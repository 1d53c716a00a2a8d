// SPDX-License-Identifier: Apache-2.0
// Lanes of sm_70's mma.m8n8k4, as forwards of few queries have them (few_sums.cuh).
//
// With q = lane & 3, u = lane / 4 % 4 (the quad-pair) and h = lane / 16: one instruction multiplies four 8 x 4 by 4 x 8, one for each quad-pair, so
// rows are 8, and the quad-pairs share the columns: of Q a lane has row q + 4 h, of K keys q + 4 h and 8 more, an eighth of 32 columns twice; their
// parts of S are added by two exchanges, after which all four have it: element i of each 8 keys is row (q & 1) + (i & 2) + 4 h, key (q & 2) + (i & 1) + (i & 4).
// P becomes an operand, row q + 4 h and four keys, by an exchange between lanes l and l ^ 2. Of V a lane has keys q, q + 4, q + 8, q + 12 and four columns of an operand.
// The instruction truncates when it adds: a step's products are summed alone and added to O by the multiply-add that scales O.
#ifndef ATTN_CUDA_SM70_FEW_CUH
#define ATTN_CUDA_SM70_FEW_CUH

#include "few_sums.cuh"

struct sm70_few_lanes {
    static constexpr int Rows = 8, Step = 16, Halves = 2, OutputHalves = Halves, Scores = 16, Outputs = 16; // Outputs of 64 columns
    static constexpr bool ColumnsByFour = false;
    static constexpr float Room = SCORE_ROOM;
    struct rounded {
        float of[2]; // of this lane's keys
    };

    DEVICE int pair() { return lane_index() >> 2 & 3; }
    DEVICE int row_of_output(int half) { return row_of(half); }
    DEVICE int row_of(int half) { return (lane_index() & 1) + 2 * half + 4 * (lane_index() >> 4); }
    DEVICE constexpr int half_of(int e) { return e >> 1 & 1; }
    DEVICE constexpr int half_of_output(int i) { return i >> 1 & 1; }
    DEVICE int key_of(int e) { return (lane_index() & 2) + (e & 1) + (e & 4) + (e & 8); }
    DEVICE bool is_first_of_row() { return (lane_index() & 14) == 0; }
    DEVICE float row_maximum(float m) { return fmaxf(m, shuffle_xor(m, 2)); }
    DEVICE float row_total(float l) { return l + shuffle_xor(l, 2); }
    DEVICE float total_rounded(const rounded &r, int half) { return row_total(r.of[half]); }

    // S of the quad-pairs' columns to that of all.
    DEVICE void add_parts(const float (&part)[2][8], float (&s)[Scores])
    {
#pragma unroll
        for (int e = 0; e < Scores; e++) {
            s[e] = part[e / 8][e % 8];
            s[e] += shuffle_xor(s[e], 4);
            s[e] += shuffle_xor(s[e], 8);
        }
    }

    // P as operands of four keys each. kept: bit e of element e.
    DEVICE void make_operands(const float (&s)[Scores], uint32_t kept, const float (&shrink)[Halves], rounded &r, uint32_t (&p)[4][2])
    {
        const bool upper = (lane_index() & 2) != 0;
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
    }
};

#endif
