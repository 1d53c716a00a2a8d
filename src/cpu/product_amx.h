/* SPDX-License-Identifier: Apache-2.0
 * The product of block_bf16.h by AMX-BF16: a tile is 16 rows of 64 bytes, one instruction adds 32 products of bf16 to each of
 * 16 x 16 sums in float32. Four tiles of sums, 32 x 32, two of a, two of b: every tile that is loaded is used twice.
 * The instruction takes subnormal operands, products and sums as 0 and rounds to nearest (Intel SDM, TDPBF16PS). */
#ifndef ATTN_CPU_PRODUCT_AMX_H
#define ATTN_CPU_PRODUCT_AMX_H

enum {
    TILE = 16,
    STRIP16 = 4 * TILE, /* rows between QK' and PV */
};

/* Tiles are state of a thread; while they are in use, switching threads has 8 KiB more to save. */
static void product_begin(void)
{
    static const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t column_bytes[16];
        uint8_t rows[16];
    } shapes = {.palette = 1,
                .column_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                .rows = {TILE, TILE, TILE, TILE, TILE, TILE, TILE, TILE}};
    _tile_loadconfig(&shapes);
}

static void product_end(void) { _tile_release(); }

/* The intrinsics do not say that they read memory. */
ALWAYS_INLINE void stores_are_done(void) { __asm__ volatile("" ::: "memory"); }

ALWAYS_INLINE void work_on(meanwhile *work)
{
    if (work && work->turn) work->turn(work);
}

/* Tiles 0 to 3 are sums, 4 and 5 of a, 6 and 7 of b. */
ALWAYS_INLINE void product_tiles(int tall, int wide, int64_t slabs, const uint16_t *a, int64_t a_slab,
                                 const uint16_t *b, int64_t b_panel, int add, float *c, int64_t c_stride,
                                 meanwhile *work)
{
    const int64_t bytes = c_stride * (int64_t)sizeof *c;
    if (add) {
        _tile_loadd(0, c, bytes);
        if (wide) _tile_loadd(1, c + TILE, bytes);
        if (tall) _tile_loadd(2, c + TILE * c_stride, bytes);
        if (tall && wide) _tile_loadd(3, c + TILE * c_stride + TILE, bytes);
    } else {
        _tile_zero(0);
        if (wide) _tile_zero(1);
        if (tall) _tile_zero(2);
        if (tall && wide) _tile_zero(3);
    }
    for (int64_t slab = 0; slab < slabs; slab++) {
        _tile_loadd(6, b, 64);
        _tile_loadd(4, a, 64);
        if (wide) _tile_loadd(7, b + b_panel, 64);
        if (tall) _tile_loadd(5, a + TILE * SLAB, 64);
        _tile_dpbf16ps(0, 4, 6);
        work_on(work);
        if (wide) _tile_dpbf16ps(1, 4, 7);
        if (wide) work_on(work);
        if (tall) _tile_dpbf16ps(2, 5, 6);
        if (tall) work_on(work);
        if (tall && wide) _tile_dpbf16ps(3, 5, 7);
        if (tall && wide) work_on(work);
        a += a_slab;
        b += SLAB * TILE;
    }
    _tile_stored(0, c, bytes);
    if (wide) _tile_stored(1, c + TILE, bytes);
    if (tall) _tile_stored(2, c + TILE * c_stride, bytes);
    if (tall && wide) _tile_stored(3, c + TILE * c_stride + TILE, bytes);
}

static void product_square(int rows, int64_t width, int64_t slabs, const uint16_t *a, int64_t a_slab, const uint16_t *b,
                           int64_t b_panel, int add, float *c, int64_t c_stride, meanwhile *work)
{
    stores_are_done();
    if (rows > TILE && width > TILE) product_tiles(1, 1, slabs, a, a_slab, b, b_panel, add, c, c_stride, work);
    else if (rows > TILE) product_tiles(1, 0, slabs, a, a_slab, b, b_panel, add, c, c_stride, work);
    else if (width > TILE) product_tiles(0, 1, slabs, a, a_slab, b, b_panel, add, c, c_stride, work);
    else product_tiles(0, 0, slabs, a, a_slab, b, b_panel, add, c, c_stride, work);
    stores_are_done();
}

static void copy_sums(int rows, int64_t width, const float *from, int64_t from_stride, float *to, int64_t to_stride)
{
    for (int r = 0; r < rows; r++) memcpy(to + r * to_stride, from + r * from_stride, (size_t)width * sizeof *to);
}

static void product(int rows, int64_t width, int64_t slabs, const uint16_t *a, int64_t a_slab, const uint16_t *b,
                    int64_t b_panel, int add, float *c, int64_t c_stride, meanwhile *work)
{
    for (int64_t n = 0; n < width; n += 2 * TILE)
        for (int r = 0; r < rows; r += 2 * TILE) {
            const int count = rows - r < 2 * TILE ? rows - r : 2 * TILE;
            const int64_t across = width - n < 2 * TILE ? width - n : 2 * TILE;
            const uint16_t *left = a + r * SLAB, *right = b + n / TILE * b_panel;
            float *at = c + r * c_stride + n, room[2 * TILE][2 * TILE];
            if (count % TILE == 0) {
                product_square(count, across, slabs, left, a_slab, right, b_panel, add, at, c_stride, work);
                continue;
            }
            if (add) copy_sums(count, across, at, c_stride, room[0], 2 * TILE); /* tiles are of 16 rows */
            product_square(count, across, slabs, left, a_slab, right, b_panel, add, room[0], 2 * TILE, work);
            copy_sums(count, across, room[0], 2 * TILE, at, c_stride);
        }
}

#endif
