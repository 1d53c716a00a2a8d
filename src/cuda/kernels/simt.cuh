// SPDX-License-Identifier: Apache-2.0
// What the float32 kernels share: 256 threads as 16 x 16 over tiles of 16 R x 64 floats in shared memory, chunks of rows on their way there, and
// the two products. Thread (y, x) owns rows y, y + 16, ... of a tile and, of scores, columns x, x + 16, x + 32, x + 48; of sums
// of columns 4 x .. + 3. Operands are read by 16 bytes; rows begin SIMT_STRIDE floats apart, so that eight of them meet 32 banks.
#ifndef ATTN_CUDA_SIMT_CUH
#define ATTN_CUDA_SIMT_CUH

#include "forward.cuh"

DEVICE int lane_x() { return int(thread_index()) & 15; }
DEVICE int lane_y() { return int(thread_index()) >> 4; }

DEVICE float row_scale(const attn_view &view, int64_t batch, int64_t h, int64_t row)
{
    return view.scale ? *attn_row_scale(&view, batch, h, row) : 1.0f;
}

// A thread's share of elements [d, d + 64) of 16 N rows, on the way to shared memory.
template <int N> struct chunk {
    uint4 word[N]; // of 16-bit types half of each
};

template <int N>
DEVICE void fetch(const attn_view &view, int kind, const int64_t *place, int64_t d, int64_t n, chunk<N> &c)
{
    const int64_t column = d + 4 * lane_x();
    if (kind == ROWS_OTHER) return;
#pragma unroll
    for (int i = 0; i < N; i++) c.word[i] = uint4{0, 0, 0, 0};
    if (column >= n) return;
    if (kind == ROWS_F32) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int64_t row = place[lane_y() + 16 * i];
            if (row != ROW_NOWHERE) c.word[i] = load_vector<uint4>(view.data + 4 * (row + column));
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int64_t row = place[lane_y() + 16 * i];
            if (row == ROW_NOWHERE) continue;
            const uint2 four = load_vector<uint2>(view.data + 2 * (row + column));
            c.word[i].x = four.x, c.word[i].y = four.y;
        }
    }
}

// What vector loads do not reach: types of few bits, odd strides. One copy of the code serves all rows.
DEVICE void stage_others(const attn_view &view, int rows, const int64_t *place, const float *scale, int64_t d, int64_t n,
                         float *to)
{
#pragma unroll 1
    for (int row = lane_y(); row < rows; row += 16) {
        float x[4];
        load_four(view, place[row], d + 4 * lane_x(), n, scale ? scale[row] : 1.0f, x);
        store_vector(to + row * SIMT_STRIDE + 4 * lane_x(), float4{x[0], x[1], x[2], x[3]});
    }
}

// Elements [d, d + 64) as float32, from the chunk that `fetch` has loaded where rows are of a kind.
template <int N>
DEVICE void put(const attn_view &view, int kind, const chunk<N> &c, const int64_t *place, const float *scale, int64_t d,
                int64_t n, float *to)
{
    if (kind == ROWS_OTHER) {
        stage_others(view, 16 * N, place, scale, d, n, to);
        return;
    }
    to += lane_y() * SIMT_STRIDE + 4 * lane_x();
#pragma unroll
    for (int i = 0; i < N; i++) {
        const uint4 w = c.word[i];
        float4 x = {bits_float(w.x), bits_float(w.y), bits_float(w.z), bits_float(w.w)};
        if (kind == ROWS_F16) x = float4{low_half(w.x), high_half(w.x), low_half(w.y), high_half(w.y)};
        if (kind == ROWS_BF16) x = float4{low_bf16(w.x), high_bf16(w.x), low_bf16(w.y), high_bf16(w.y)};
        store_vector(to + 16 * i * SIMT_STRIDE, x);
    }
}

// s += a b', of a's 16 R rows and b's 64.
template <int R, int Unroll> DEVICE void multiply_rows(const float *a, const float *b, int columns, float (&s)[R][4])
{
    const float *q = a + lane_y() * SIMT_STRIDE, *k = b + lane_x() * SIMT_STRIDE;
#pragma unroll Unroll
    for (int d = 0; d < columns; d += 4) {
        float x[R][4], y[4][4];
#pragma unroll
        for (int i = 0; i < R; i++) load_four_floats(q + 16 * i * SIMT_STRIDE + d, x[i]);
#pragma unroll
        for (int j = 0; j < 4; j++) load_four_floats(k + 16 * j * SIMT_STRIDE + d, y[j]);
#pragma unroll
        for (int e = 0; e < 4; e++)
#pragma unroll
            for (int i = 0; i < R; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) s[i][j] = fmaf(x[i][e], y[j][e], s[i][j]);
    }
}

// sum += a b, of a's 16 R rows and 64 columns and b's 64 rows.
template <int R, int Unroll> DEVICE void multiply_columns(const float *a, const float *b, float (&sum)[R][4])
{
    const float *p = a + lane_y() * SIMT_STRIDE, *v = b + 4 * lane_x();
#pragma unroll Unroll
    for (int key = 0; key < SIMT_KEYS; key += 4) {
        float x[R][4], y[4][4];
#pragma unroll
        for (int i = 0; i < R; i++) load_four_floats(p + 16 * i * SIMT_STRIDE + key, x[i]);
#pragma unroll
        for (int k = 0; k < 4; k++) load_four_floats(v + (key + k) * SIMT_STRIDE, y[k]);
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int i = 0; i < R; i++)
#pragma unroll
                for (int e = 0; e < 4; e++) sum[i][e] = fmaf(x[i][k], y[k][e], sum[i][e]);
    }
}

template <int R> DEVICE void scale_scores(float scale, float (&s)[R][4])
{
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) s[i][j] *= scale;
}

// Where element n of a thread's share lies in a tile.
DEVICE int row_of(int n) { return lane_y() + n / 4 * 16; }
DEVICE int key_of(int n) { return lane_x() + n % 4 * 16; }

template <int R> DEVICE void put_tile(const float (&s)[R][4], float *to)
{
#pragma unroll
    for (int n = 0; n < 4 * R; n++) to[row_of(n) * SIMT_STRIDE + key_of(n)] = s[n / 4][n % 4];
}

template <int R> DEVICE void get_tile(const float *from, float (&s)[R][4])
{
#pragma unroll
    for (int n = 0; n < 4 * R; n++) s[n / 4][n % 4] = from[row_of(n) * SIMT_STRIDE + key_of(n)];
}

#endif
