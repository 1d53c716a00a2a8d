// SPDX-License-Identifier: Apache-2.0
// The products of sm_70, mma.m8n8k4, as a Family of ring_forward.cuh: f16 queries over K and V of codes. Of Q and K a lane has columns 4 u .. + 3 of each 16, of V
// columns 8 u + 4 h .. + 3 of each 32, four keys: a word of codes each (lanes: sm70_few.cuh).
#include "ring_forward.cuh"
#include "sm70_few.cuh"

// Stored: attn_stored.
template <int Stored> struct sm70_stored : sm70_few_lanes {
    static constexpr bool Bulk = false, Asynchronous = false, Mixed = true, HasHalves = false;
    static constexpr int Only = stored_only(Stored);
    static constexpr int QueryRows = 1, QueryWords = 2; // of a lane; of 16 columns

    DEVICE int column_of(int i) { return 32 * (i / 8) + 8 * pair() + (lane_index() & 2) + (i & 1) + (i & 4); }
    DEVICE int query_row(int) { return (lane_index() & 3) + 4 * (lane_index() >> 4); }
    DEVICE int query_column(int j) { return 16 * (j / 2) + 4 * pair() + 2 * (j & 1); }

    template <int Words> DEVICE void arrange_queries(int, uint32_t (&)[1][Words]) {}
    DEVICE float value_unit(int) { return 1; }

    template <int D, int Words> DEVICE void multiply_scores(const stored_rows &k, const uint32_t (&q)[1][Words], float (&s)[Scores])
    {
        if constexpr (Only >= 0) return multiply_stored<Only, D>(k, q[0], s);
        switch (k.kind) {
        case STORED_Q8_0: return multiply_stored<STORED_Q8_0, D>(k, q[0], s);
        case STORED_Q4_0: return multiply_stored<STORED_Q4_0, D>(k, q[0], s);
        case STORED_I8: return multiply_stored<STORED_I8, D>(k, q[0], s);
        case STORED_E4M3: return multiply_stored<STORED_E4M3, D>(k, q[0], s);
        default: return multiply_stored<STORED_E5M2, D>(k, q[0], s);
        }
    }

    template <int Kind, int D, int Words> DEVICE void multiply_stored(const stored_rows &k, const uint32_t (&q)[Words], float (&s)[Scores])
    {
        const char *row = k.at + query_row(0) * k.pitch; // a key for each row of Q, and 8 more
        float part[2][8];
#pragma unroll
        for (int e = 0; e < Scores; e++) part[e / 8][e % 8] = 0;
#pragma unroll
        for (int c = 0; c < D / 32; c++) {
            float of_block[2][8];
            uint32_t h[2][2][2]; // [key][of 16 columns][word]
#pragma unroll
            for (int e = 0; e < Scores; e++) of_block[e / 8][e % 8] = stored_has_block_scale(Kind) ? 0 : part[e / 8][e % 8];
#pragma unroll
            for (int n = 0; n < 2; n++) stored_key<Kind>(row + 8 * n * k.pitch, c, pair(), h[n]);
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int n = 0; n < 2; n++)
                    mma_m8n8k4_row_col(of_block[n], {q[4 * c + 2 * i], q[4 * c + 2 * i + 1]}, {h[n][i][0], h[n][i][1]});
            mma_complete();
#pragma unroll
            for (int e = 0; e < Scores; e++)
                if constexpr (stored_has_block_scale(Kind))
                    part[e / 8][e % 8] = fmaf(of_block[e / 8][e % 8], stored_scale<Kind>(k.at + key_of(e) * k.pitch, c), part[e / 8][e % 8]);
                else part[e / 8][e % 8] = of_block[e / 8][e % 8];
        }
        add_parts(part, s);
    }

    // kept: bit e of element e.
    template <int D, int Count>
    DEVICE void multiply_values(const stored_rows &v, const float (&s)[Scores], bool drops, uint32_t kept, bool, const float (&shrink)[2],
                                rounded &r, float (&o)[Count])
    {
        uint32_t p[4][2];
        make_operands(s, drops ? kept : ~0u, shrink, r, p);
        if constexpr (Only >= 0) return add_stored<Only, D>(v, p, shrink, o);
        switch (v.kind) {
        case STORED_Q8_0: return add_stored<STORED_Q8_0, D>(v, p, shrink, o);
        case STORED_Q4_0: return add_stored<STORED_Q4_0, D>(v, p, shrink, o);
        case STORED_I8: return add_stored<STORED_I8, D>(v, p, shrink, o);
        case STORED_E4M3: return add_stored<STORED_E4M3, D>(v, p, shrink, o);
        default: return add_stored<STORED_E5M2, D>(v, p, shrink, o);
        }
    }

    template <int Kind, int D, int Count>
    DEVICE void add_stored(const stored_rows &v, uint32_t (&p)[4][2], const float (&shrink)[2], float (&o)[Count])
    {
        constexpr int Blocks = D / 32;
        const int q = lane_index() & 3, column = 2 * pair() + (lane_index() >> 4); // in fours
        const char *row = v.at + q * v.pitch;                                      // of keys q, q + 4, q + 8, q + 12
        uint32_t scale[4][Blocks];
        if constexpr (stored_has_block_scale(Kind)) {
            uint32_t large[4];
#pragma unroll
            for (int n = 0; n < 4; n++) {
                large[n] = 0;
#pragma unroll
                for (int b = 0; b < Blocks; b++) {
                    scale[n][b] = stored_scales<Kind>(row + 4 * n * v.pitch, row + 4 * n * v.pitch, b);
                    large[n] |= stored_large(scale[n][b]);
                }
            }
            if (any_of_warp((large[0] | large[1] | large[2] | large[3]) != 0)) {
                // model: rare
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    const uint32_t factor = stored_factor(large[n], 0x5c00u), less = stored_factor(large[n], 0x1c00u);
                    uint32_t of[4]; // of the keys of P
#pragma unroll
                    for (int i = 0; i < 4; i++) of[i] = shuffle_from(factor, (lane_index() & ~3) + i);
                    p[n][0] = multiply_half2(p[n][0], permute_bytes(of[0], of[1], 0x5410));
                    p[n][1] = multiply_half2(p[n][1], permute_bytes(of[2], of[3], 0x5410));
#pragma unroll
                    for (int b = 0; b < Blocks; b++) scale[n][b] = multiply_half2(scale[n][b], less);
                }
                // model: end
            }
        }
#pragma unroll
        for (int b = 0; b < Blocks; b++) {
            float sum[8];
#pragma unroll
            for (int i = 0; i < 8; i++) sum[i] = 0;
#pragma unroll
            for (int n = 0; n < 4; n++) {
                uint32_t h[2];
                stored_halves<Kind>(stored_codes<Kind>(row + 4 * n * v.pitch, b, column), h);
                if constexpr (stored_has_block_scale(Kind))
#pragma unroll
                    for (int i = 0; i < 2; i++) h[i] = multiply_half2(h[i], scale[n][b]);
                mma_m8n8k4_row_row(sum, p[n], {h[0], h[1]});
            }
            mma_complete();
#pragma unroll
            for (int i = 0; i < 8; i++) o[8 * b + i] = fmaf(o[8 * b + i], shrink[i >> 1 & 1], sum[i]);
        }
    }
};

#define SM70_STORED_KERNELS(module, d, rows, most_rows, keys, depth, blocks_per_sm)                          \
    RING_KERNEL(sm70_stored_##d##_##rows##_q8_0, sm70_stored<ATTN_STORED_Q8_0>, d, depth, blocks_per_sm) \
    RING_KERNEL(sm70_stored_##d##_##rows##_q4_0, sm70_stored<ATTN_STORED_Q4_0>, d, depth, blocks_per_sm) \
    RING_KERNEL(sm70_stored_##d##_##rows, sm70_stored<ATTN_STORED_CODES>, d, depth, blocks_per_sm)
SM70_STORED_SHAPES(SM70_STORED_KERNELS)
