// SPDX-License-Identifier: Apache-2.0
// The products of sm_80 and later, mma.m16n8k16, and of sm_75, two m16n8k8, as Families of few_forward.cuh.
//
// Lanes, with g = lane / 4 and t = lane % 4: of Q a lane has rows g and g + 8, of K keys g and g + 8, columns 8 t .. + 7 of a chunk of 32; S has rows g,
// g + 8 and keys 2 t, 2 t + 1, + 8, and is P's operand as it stands; of V a lane has keys 2 t, 2 t + 1, 2 t + 8, 2 t + 9 and columns 8 g .. + 7 of a chunk of
// 64, of which it makes operands of two keys each; so column n of O's block j is column 8 n + j of the chunk.
#ifndef ATTN_CUDA_M16N8_FEW_CUH
#define ATTN_CUDA_M16N8_FEW_CUH

#include "few_forward.cuh"
#include "m16n8_products.cuh"

template <class Products> struct m16n8_few {
    static constexpr int Rows = 16, Slots = 2, Scores = 8, Outputs = 32; // the last of 64 columns
    struct rounded {
        float of[4]; // from the products, as O: [2 half] of a row
    };

    DEVICE int row_of(int half) { return (lane_index() >> 2) + 8 * half; }
    DEVICE int key_of(int e) { return 2 * (lane_index() & 3) + (e & 1) + 2 * (e & 4); }
    DEVICE int key_of_k(int n) { return (lane_index() >> 2) + 8 * n; }
    DEVICE int key_of_v(int n) { return 2 * (lane_index() & 3) + (n & 1) + 4 * (n & 2); }
    DEVICE constexpr int v_apart(int n) { return (n & 1) + 4 * (n & 2); }
    DEVICE int q_row(int lane, int slot) { return (lane >> 2) + 8 * slot; }
    DEVICE int k_column(int lane) { return 8 * (lane & 3); }
    DEVICE int v_column() { return 8 * (lane_index() >> 2); }
    DEVICE int column_of(int i) { return 64 * (i / 32) + 8 * (2 * (lane_index() & 3) + (i & 1)) + i / 4 % 8; }
    DEVICE bool is_first_of_row() { return (lane_index() & 3) == 0; }

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

    DEVICE float total_rounded(const rounded &r, int half) { return r.of[2 * half]; }

    template <int Chunks> DEVICE void multiply_scores(const uint4 *q, const uint4 (&k)[2][Chunks], float (&s)[Scores])
    {
#pragma unroll
        for (int e = 0; e < Scores; e++) s[e] = 0;
#pragma unroll
        for (int c = 0; c < Chunks; c++) {
            const uint4 low = load_vector<uint4>(q + 64 * c), high = load_vector<uint4>(q + 64 * c + 32);
            const uint32_t a0[4] = {low.x, high.x, low.y, high.y}, a1[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
            for (int n = 0; n < 2; n++) {
                Products::multiply(s + 4 * n, a0, k[n][c].x, k[n][c].y);
                Products::multiply(s + 4 * n, a1, k[n][c].z, k[n][c].w);
            }
        }
        mma_complete();
    }

    DEVICE uint32_t pair_low(uint32_t a, uint32_t b) { return (a & 0xffffu) | b << 16; }
    DEVICE uint32_t pair_high(uint32_t a, uint32_t b) { return a >> 16 | (b & 0xffff0000u); }

    // kept: bit e of element e.
    template <int Wide, int Count>
    DEVICE void multiply_values(const float (&s)[Scores], uint32_t kept, const uint4 (&v)[4][Wide], bool raised,
                                const float (&shrink)[2], rounded &r, float (&o)[Count])
    {
        if (raised) {
#pragma unroll
            for (int i = 0; i < 4; i++) r.of[i] *= shrink[i >> 1];
#pragma unroll
            for (int i = 0; i < Count; i++) o[i] *= shrink[i >> 1 & 1];
        }
        uint32_t p[4];
#pragma unroll
        for (int j = 0; j < 4; j++) p[j] = Products::pack(s[2 * j], s[2 * j + 1]);
        Products::multiply(r.of, p, Products::Ones, Products::Ones);
#pragma unroll
        for (int j = 0; j < 4; j++) p[j] &= (kept >> 2 * j & 1 ? 0xffffu : 0u) | (kept >> 2 * j & 2 ? 0xffff0000u : 0u);
#pragma unroll
        for (int c = 0; c < Wide; c++) {
            const uint32_t word[4][4] = {{v[0][c].x, v[0][c].y, v[0][c].z, v[0][c].w}, {v[1][c].x, v[1][c].y, v[1][c].z, v[1][c].w},
                                         {v[2][c].x, v[2][c].y, v[2][c].z, v[2][c].w}, {v[3][c].x, v[3][c].y, v[3][c].z, v[3][c].w}};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                Products::multiply(o + 32 * c + 8 * i, p, pair_low(word[0][i], word[1][i]), pair_low(word[2][i], word[3][i]));
                Products::multiply(o + 32 * c + 8 * i + 4, p, pair_high(word[0][i], word[1][i]), pair_high(word[2][i], word[3][i]));
            }
        }
        mma_complete();
    }
};

#endif
