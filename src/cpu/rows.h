/* SPDX-License-Identifier: Apache-2.0
 * Rows of any storage type to and from floats, in plain C. A scaled row is code * factor in float32. */
#ifndef ATTN_CPU_ROWS_H
#define ATTN_CPU_ROWS_H

#include "job.h"

static inline void attn_read_blocks(const attn_view *t, const uint8_t *block, int64_t n, float *x)
{
    int64_t bytes = t->dtype == ATTN_Q8_0 ? ATTN_Q8_0_BYTES : ATTN_Q4_0_BYTES;
    for (int64_t d = 0; d < n; d += ATTN_BLOCK, block += bytes) {
        float scale = attn_f16_to_f32(attn_load_u16(block));
        for (int e = 0; e < ATTN_BLOCK; e++) {
            int code = t->dtype == ATTN_Q8_0 ? (int8_t)block[2 + e] : attn_q4_0_code(block, e);
            x[d + e] = scale * (float)code;
        }
    }
}

/* n floats of row `row` of head h; batch is the index on the batch (or page) axis. */
static inline void attn_read_row(const attn_view *t, int64_t batch, int64_t h, int64_t row, int64_t n, float *x)
{
    if (n == 0) return; /* perhaps without memory */
    const char *p = attn_element(t, attn_row_offset(t, batch, h, row));
    float scale = t->scale ? *attn_row_scale(t, batch, h, row) : 1.0f;
    switch (t->dtype) {
    case ATTN_F32: memcpy(x, p, (size_t)n * sizeof *x); return;
    case ATTN_F16:
        for (int64_t d = 0; d < n; d++) x[d] = attn_f16_to_f32(attn_load_u16(p + 2 * d));
        return;
    case ATTN_BF16:
        for (int64_t d = 0; d < n; d++) x[d] = attn_bf16_to_f32(attn_load_u16(p + 2 * d));
        return;
    case ATTN_I8:
        for (int64_t d = 0; d < n; d++) x[d] = scale * (float)(int8_t)p[d];
        return;
    case ATTN_F8_E4M3:
        for (int64_t d = 0; d < n; d++) x[d] = scale * attn_e4m3_to_f32((uint8_t)p[d]);
        return;
    case ATTN_F8_E5M2:
        for (int64_t d = 0; d < n; d++) x[d] = scale * attn_e5m2_to_f32((uint8_t)p[d]);
        return;
    default: attn_read_blocks(t, (const uint8_t *)p, n, x);
    }
}

/* The way back for float types. */
static inline void attn_write_row(const attn_view *t, int64_t batch, int64_t h, int64_t row, int64_t n, const float *x)
{
    int64_t offset = attn_row_offset(t, batch, h, row);
    if (n == 0) return; /* perhaps without memory */
    if (t->dtype == ATTN_F32) memcpy(attn_element(t, offset), x, (size_t)n * sizeof *x);
    else
        for (int64_t d = 0; d < n; d++) attn_store_float(t, offset + d, x[d]);
}

#endif
