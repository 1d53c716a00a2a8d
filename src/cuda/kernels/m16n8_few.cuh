// SPDX-License-Identifier: Apache-2.0
// The products of sm_80 and later, mma.m16n8k16, and of sm_75, two m16n8k8, as Families of ring_forward.cuh. They are turned round, S' = K Q' and O' = V' P', so that 16 keys or
// columns meet 8 rows: half the sums and products of 16 rows.
//
// Lanes, with g = lane / 4 and t = lane % 4: S' has keys g and g + 8 of each 16, rows 2 t and 2 t + 1 of each 8. P', turned once more by movmatrix, is an operand; so O' has rows 2 t and
// 2 t + 1 too. Halves come by ldmatrix, V transposed: columns g and g + 8 of each 16. Others by words: of K columns 4 t .. + 3 of each 16, of V columns 4 g .. + 3 of each 32,
// keys 2 t, 2 t + 1 and 8 more, whose bytes are woven before they become halves.
#ifndef ATTN_CUDA_M16N8_FEW_CUH
#define ATTN_CUDA_M16N8_FEW_CUH

#include "m16n8_products.cuh"
#include "ring_forward.cuh"

// Eights: of rows. Keys: of a step, 16 or 32. Stored: attn_stored, K and V of other kinds beside f16 queries.
template <class Products, int Eights, int Keys, int Stored> struct m16n8_few {
    static constexpr bool Bulk = false, Asynchronous = Products::Asynchronous, Mixed = Stored != ATTN_STORED_NONE, HasHalves = STORED_HAS_HALVES(Stored);
    static constexpr int Only = stored_only(Stored);
    static constexpr bool ColumnsByFour = Mixed;
    static constexpr float Room = Mixed ? 0.9f : SCORE_ROOM; // of P below 2 (add_stored)
    static constexpr int Step = Keys, Tiles = Keys / 16; // of 16 keys
    static constexpr int Rows = 8 * Eights, Halves = 2 * Eights, OutputHalves = Halves, Scores = 4 * Eights * Tiles, Outputs = 16 * Eights; // the last of 64 columns
    static constexpr int QueryRows = Eights, QueryWords = 2;                                                 // of a lane; of 16 columns
    struct rounded {
        float of[4 * Eights]; // from the products, as O
    };

    DEVICE int row_of_output(int half) { return row_of(half); }
    DEVICE int row_of(int half) { return 8 * (half >> 1) + 2 * (lane_index() & 3) + (half & 1); }
    DEVICE int key_of(int e) { return 16 * (e / (4 * Eights)) + (lane_index() >> 2) + 4 * (e & 2); }
    DEVICE constexpr int half_of(int e) { return 2 * (e / 4 % Eights) + (e & 1); }
    DEVICE constexpr int half_of_output(int i) { return 2 * (i / 4 % Eights) + (i & 1); }
    DEVICE int column_of(int i)
    {
        const int j = i / (4 * Eights), second = i >> 1 & 1, g = lane_index() >> 2;
        return Mixed ? 32 * (j / 2) + 4 * g + 2 * (j & 1) + second : 16 * j + 8 * second + g;
    }
    DEVICE bool is_first_of_row() { return lane_index() < 4; }
    DEVICE int query_row(int n) { return 8 * n + (lane_index() >> 2); }
    DEVICE int query_column(int j) { return 16 * (j / 2) + (Mixed ? 4 * (lane_index() & 3) + 2 * (j & 1) : 2 * (lane_index() & 3) + 8 * (j & 1)); }

    DEVICE float row_maximum(float m)
    {
#pragma unroll
        for (int mask = 4; mask < 32; mask *= 2) m = fmaxf(m, shuffle_xor(m, mask));
        return m;
    }

    DEVICE float row_total(float l)
    {
#pragma unroll
        for (int mask = 4; mask < 32; mask *= 2) l += shuffle_xor(l, mask);
        return l;
    }

    DEVICE float total_rounded(const rounded &r, int half) { return r.of[4 * (half >> 1) + (half & 1)]; }

    template <int D, int Words> DEVICE void multiply_scores(const stored_rows &k, const uint32_t (&q)[Eights][Words], float (&s)[Scores])
    {
        if constexpr (Only >= 0) multiply_stored<Only, D>(k, q, s);
        else if constexpr (Mixed) {
            switch (k.kind) {
            case STORED_Q8_0: return multiply_stored<STORED_Q8_0, D>(k, q, s);
            case STORED_Q4_0: return multiply_stored<STORED_Q4_0, D>(k, q, s);
            case STORED_I8: return multiply_stored<STORED_I8, D>(k, q, s);
            case STORED_E4M3: return multiply_stored<STORED_E4M3, D>(k, q, s);
            case STORED_E5M2: return multiply_stored<STORED_E5M2, D>(k, q, s);
            default:
                if constexpr (HasHalves) multiply_stored<STORED_HALVES, D>(k, q, s);
            }
        } else {
            constexpr int Pitch = STORED_PITCH(2 * D);
            const tile_address at = tile_of(k.at + (lane_index() & 15) * Pitch + 16 * (lane_index() >> 4));
            float other[Scores]; // two sums wait half as long for each other
#pragma unroll
            for (int e = 0; e < Scores; e++) s[e] = other[e] = 0;
#pragma unroll
            for (int j = 0; j < D / 16; j++)
#pragma unroll
                for (int m = 0; m < Tiles; m++) {
                    uint32_t a[4];
                    load_matrices(a, at + 16 * m * Pitch + 32 * j);
#pragma unroll
                    for (int n = 0; n < Eights; n++)
                        Products::multiply((j % 2 ? other : s) + 4 * (Eights * m + n), a, q[n][2 * j], q[n][2 * j + 1]);
                }
            mma_complete();
#pragma unroll
            for (int e = 0; e < Scores; e++) s[e] += other[e];
        }
    }

    // Columns of Q in the order of stored_pairs.
    template <int Words> DEVICE void arrange_queries(int kind, uint32_t (&q)[Eights][Words])
    {
        if constexpr (Mixed)
            if (kind != STORED_HALVES)
#pragma unroll
                for (int n = 0; n < Eights; n++)
#pragma unroll
                    for (int j = 0; j < Words; j += 2) {
                        const uint32_t first = q[n][j], second = q[n][j + 1];
                        q[n][j] = permute_bytes(first, second, 0x5410), q[n][j + 1] = permute_bytes(first, second, 0x7632);
                    }
    }

    // Columns 32 block + 4 t .. + 3 and 16 more of a key: eight halves.
    template <int Kind> DEVICE void key_pairs(const char *row, int block, uint32_t (&h)[2][2])
    {
        const int t = lane_index() & 3;
        if constexpr (Kind == STORED_HALVES) stored_key<Kind>(row, block, t, h);
        else if constexpr (Kind == STORED_Q4_0) {
            const uint32_t codes = stored_bytes_of<Kind>(row, block, t);
            stored_pairs<Kind>(codes, h[0]), stored_pairs<Kind>(codes >> 4, h[1]);
        } else {
#pragma unroll
            for (int i = 0; i < 2; i++) stored_pairs<Kind>(stored_codes<Kind>(row, block, t + 4 * i), h[i]);
        }
    }

    template <int Kind, int D, int Words>
    DEVICE void multiply_stored(const stored_rows &k, const uint32_t (&q)[Eights][Words], float (&s)[Scores])
    {
        constexpr uint32_t Bias = stored_bias(Kind);
        const uint32_t bias[4] = {Bias, Bias, Bias, Bias};
        const char *row = k.at + (lane_index() >> 2) * k.pitch;
#pragma unroll
        for (int e = 0; e < Scores; e++) s[e] = 0;
#pragma unroll
        for (int c = 0; c < D / 32; c++) {
            float part[Scores];
#pragma unroll
            for (int e = 0; e < Scores; e++) part[e] = 0;
#pragma unroll
            for (int m = 0; m < Tiles; m++) {
                uint32_t h[2][2][2]; // [key][of 16 columns][word]
#pragma unroll
                for (int n = 0; n < 2; n++) key_pairs<Kind>(row + (16 * m + 8 * n) * k.pitch, c, h[n]);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const uint32_t a[4] = {h[0][i][0], h[1][i][0], h[0][i][1], h[1][i][1]};
#pragma unroll
                    for (int n = 0; n < Eights; n++) {
                        float *sum = part + 4 * (Eights * m + n);
                        if constexpr (stored_is_integer(Kind)) Products::multiply(sum, bias, q[n][4 * c + 2 * i], q[n][4 * c + 2 * i + 1]);
                        Products::multiply(sum, a, q[n][4 * c + 2 * i], q[n][4 * c + 2 * i + 1]);
                    }
                }
            }
            mma_complete();
#pragma unroll
            for (int m = 0; m < Tiles; m++) {
                float scale[2] = {1, 1};
                if constexpr (stored_has_block_scale(Kind))
#pragma unroll
                    for (int n = 0; n < 2; n++) scale[n] = stored_scale<Kind>(row + (16 * m + 8 * n) * k.pitch, c);
#pragma unroll
                for (int i = 0; i < 4 * Eights; i++)
                    s[4 * Eights * m + i] = fmaf(part[4 * Eights * m + i], scale[i >> 1 & 1], s[4 * Eights * m + i]);
            }
        }
        if constexpr (stored_is_integer(Kind))
#pragma unroll
            for (int e = 0; e < Scores; e++) s[e] *= -0x1p24f;
    }

    // kept: bit e of element e.
    template <int D, int Count>
    DEVICE void multiply_values(const stored_rows &v, const float (&s)[Scores], bool drops, uint32_t kept, bool raised, const float (&shrink)[Halves],
                                rounded &r, float (&o)[Count])
    {
        if (raised) {
            // model: rare
#pragma unroll
            for (int n = 0; n < Eights; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) r.of[4 * n + i] *= shrink[2 * n + (i & 1)];
#pragma unroll
            for (int i = 0; i < Count; i++) o[i] *= shrink[half_of_output(i)];
            // model: end
        }
        uint32_t p[Tiles][Eights][2];
        const uint32_t ones[4] = {Products::Ones, Products::Ones, Products::Ones, Products::Ones};
#pragma unroll
        for (int m = 0; m < Tiles; m++)
#pragma unroll
            for (int n = 0; n < Eights; n++) {
                uint32_t all[2];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int e = 4 * (Eights * m + n) + 2 * i;
                    const uint32_t pair = Products::pack(s[e], s[e + 1]);
                    all[i] = transpose_pairs(pair);
                    p[m][n][i] = all[i];
                    if (drops) {
                        // model: rare
                        p[m][n][i] = transpose_pairs(pair & ((kept >> e & 1 ? 0xffffu : 0u) | (kept >> e & 2 ? 0xffff0000u : 0u)));
                        // model: end
                    }
                }
                Products::multiply(r.of + 4 * n, ones, all[0], all[1]);
            }
#pragma unroll
        for (int m = 0; m < Tiles; m++) {
            const stored_rows of_tile = {v.at + 16 * m * v.pitch, v.pitch, v.kind};
            if constexpr (Only >= 0) add_stored<Only, D>(of_tile, p[m], o);
            else if constexpr (Mixed) {
                switch (v.kind) {
                case STORED_Q8_0: add_stored<STORED_Q8_0, D>(of_tile, p[m], o); break;
                case STORED_Q4_0: add_stored<STORED_Q4_0, D>(of_tile, p[m], o); break;
                case STORED_I8: add_stored<STORED_I8, D>(of_tile, p[m], o); break;
                case STORED_E4M3: add_stored<STORED_E4M3, D>(of_tile, p[m], o); break;
                case STORED_E5M2: add_stored<STORED_E5M2, D>(of_tile, p[m], o); break;
                default:
                    if constexpr (HasHalves) add_stored<STORED_HALVES, D>(of_tile, p[m], o);
                }
            } else {
                constexpr int Pitch = STORED_PITCH(2 * D);
                const int l = lane_index();
                const tile_address at = tile_of(v.at + ((l & 7) + 8 * (l >> 4)) * Pitch + 16 * (l >> 3 & 1)) + 16 * m * Pitch;
#pragma unroll
                for (int j = 0; j < D / 16; j++) {
                    uint32_t a[4];
                    load_matrices_transposed(a, at + 32 * j);
#pragma unroll
                    for (int n = 0; n < Eights; n++) Products::multiply(o + 4 * (Eights * j + n), a, p[m][n][0], p[m][n][1]);
                }
            }
        }
        mma_complete();
    }

    // What O is to be multiplied by (add_stored).
    DEVICE float value_unit(int kind)
    {
        return !Mixed || !stored_is_integer(kind) ? 1.0f : stored_has_block_scale(kind) ? -0x1p11f : -0x1p24f;
    }

    // Columns 32 block + 4 g .. + 3 of two keys, as halves of both: [column].
    template <int Kind> DEVICE void weave(const char *first, const char *second, int block, uint32_t (&h)[4])
    {
        const int g = lane_index() >> 2;
        if constexpr (Kind == STORED_HALVES) {
            const uint2 a = load_vector<uint2>(first + 64 * block + 8 * g), b = load_vector<uint2>(second + 64 * block + 8 * g);
            h[0] = permute_bytes(a.x, b.x, 0x5410), h[1] = permute_bytes(a.x, b.x, 0x7632);
            h[2] = permute_bytes(a.y, b.y, 0x5410), h[3] = permute_bytes(a.y, b.y, 0x7632);
        } else {
            const uint32_t a = stored_bytes_of<Kind>(first, block, g), b = stored_bytes_of<Kind>(second, block, g);
            uint32_t two[2];
            stored_pairs<Kind>(permute_bytes(a, b, 0x5410), two), h[0] = two[0], h[1] = two[1];
            stored_pairs<Kind>(permute_bytes(a, b, 0x7632), two), h[2] = two[0], h[3] = two[1];
        }
    }

    // The same of integers as normal halves.
    template <int Kind> DEVICE void weave_integers(const char *first, const char *second, int block, uint32_t (&h)[4])
    {
        const int g = lane_index() >> 2;
        const uint32_t a = stored_codes<Kind>(first, block, g), b = stored_codes<Kind>(second, block, g);
        uint32_t two[2];
        stored_halves<Kind>(permute_bytes(a, b, 0x5140), two), h[0] = two[0], h[1] = two[1];
        stored_halves<Kind>(permute_bytes(a, b, 0x7362), two), h[2] = two[0], h[3] = two[1];
    }

    // Codes with block scales: P 2^13 times the scale, rounded to f16, times -2^-24 of the code. P and scales are below 2, or all of it is done by add_large. Other integers: P times
    // -2^-24 of the code.
    template <int Kind, int D, int Count> DEVICE void add_stored(const stored_rows &v, const uint32_t (&p)[Eights][2], float (&o)[Count])
    {
        constexpr int Blocks = D / 32;
        constexpr uint32_t Bias = stored_bias(Kind);
        const uint32_t bias[4] = {Bias, Bias, Bias, Bias};
        const char *row[4]; // keys 2 t, 2 t + 1 and 8 more
        uint32_t scale[Blocks][2], lifted[Eights][2];
#pragma unroll
        for (int n = 0; n < 4; n++) row[n] = v.at + (2 * (lane_index() & 3) + (n & 1) + 4 * (n & 2)) * v.pitch;
        if constexpr (stored_has_block_scale(Kind)) {
            uint32_t bits = 0;
#pragma unroll
            for (int b = 0; b < Blocks; b++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    scale[b][i] = stored_scales<Kind>(row[2 * i], row[2 * i + 1], b);
                    bits |= scale[b][i];
                }
#pragma unroll
            for (int n = 0; n < Eights; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    bits |= p[n][i];
                    lifted[n][i] = multiply_half2(p[n][i], 0x70007000u);
                }
            if (any_of_warp((bits & 0x40004000u) != 0)) {
                // model: rare
                add_large<Kind, D>(row, scale, p, o);
                return;
                // model: end
            }
        }
#pragma unroll
        for (int b = 0; b < Blocks; b++) {
            uint32_t h[2][4], of_block[Eights][2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                weave<Kind>(row[2 * i], row[2 * i + 1], b, h[i]);
#pragma unroll
                for (int n = 0; n < Eights; n++) of_block[n][i] = stored_has_block_scale(Kind) ? multiply_half2(lifted[n][i], scale[b][i]) : p[n][i];
            }
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const uint32_t a[4] = {h[0][2 * j], h[0][2 * j + 1], h[1][2 * j], h[1][2 * j + 1]};
#pragma unroll
                for (int n = 0; n < Eights; n++) {
                    float *sum = o + 4 * (Eights * (2 * b + j) + n);
                    if constexpr (stored_is_integer(Kind)) Products::multiply(sum, bias, of_block[n][0], of_block[n][1]);
                    Products::multiply(sum, a, of_block[n][0], of_block[n][1]);
                }
            }
        }
    }

    // Code times scale, rounded to f16. A scale from 512 on may take that beyond the largest half: a key with such a one passes 2^8 from all its scales on to its P.
    template <int Kind, int D, int Count>
    DEVICE void add_large(const char *const (&row)[4], const uint32_t (&scale)[D / 32][2], const uint32_t (&p)[Eights][2], float (&o)[Count])
    {
        uint32_t large[2] = {0, 0}, own[Eights][2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int b = 0; b < D / 32; b++) large[i] |= stored_large(scale[b][i]);
#pragma unroll
            for (int n = 0; n < Eights; n++) own[n][i] = multiply_half2(p[n][i], stored_factor(large[i], 0x5c00u));
        }
#pragma unroll
        for (int b = 0; b < D / 32; b++) {
            uint32_t h[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                weave_integers<Kind>(row[2 * i], row[2 * i + 1], b, h[i]);
#pragma unroll
                for (int j = 0; j < 4; j++) h[i][j] = multiply_half2(h[i][j], multiply_half2(scale[b][i], stored_factor(large[i], 0x1c00u)));
            }
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const uint32_t a[4] = {h[0][2 * j], h[0][2 * j + 1], h[1][2 * j], h[1][2 * j + 1]};
                float sum[4 * Eights];
#pragma unroll
                for (int i = 0; i < 4 * Eights; i++) sum[i] = 0;
#pragma unroll
                for (int n = 0; n < Eights; n++) Products::multiply(sum + 4 * n, a, own[n][0], own[n][1]);
                mma_complete();
#pragma unroll
                for (int i = 0; i < 4 * Eights; i++) o[4 * Eights * (2 * b + j) + i] = fmaf(sum[i], -0x1p-11f, o[4 * Eights * (2 * b + j) + i]);
            }
        }
    }
};

#endif
