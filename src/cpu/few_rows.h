/* SPDX-License-Identifier: Apache-2.0
 * Rows of keys and values as forward_few.h loads them: where they lie, or made into another type once a step. */
#ifndef ATTN_CPU_FEW_ROWS_H
#define ATTN_CPU_FEW_ROWS_H

#include "forward_step.h"

/* Rows of a step as the loops load them, in the caller's memory or as take_few made them: floats, codes of 8 bits (I8) or
 * blocks of these (Q8_0). Where factors > 0 element d is what is loaded times factor[d / (n / factors) * FEW_STEP + row]:
 * they multiply sums and weights, not each element. */
typedef struct few_rows {
    int32_t type;
    int64_t factors; /* of a row of n elements */
    float *factor;   /* [factors][FEW_STEP] */
    char *panel;     /* packed keys: [n / ATTN_BLOCK][FEW_STEP / W] blocks of W, each element's W codes together */
    const char *const *row;
    const char *made[FEW_STEP]; /* the rows that take_few made */
} few_rows;

/* Where the rows of the columns [c0, c1) lie in the caller's memory. The others of [a0, a1) stand for a neighbour:
 * whole vectors of keys are computed, and no row may read what lies there. */
static void find_few(const attn_cpu_block *w, const attn_view *view, const columns *c, const char **rows)
{
    find_rows(w, view, c->key, c->c0, c->c1, rows);
    for (int j = c->a0; j < c->c0; j++) rows[j] = rows[c->c0];
    for (int j = c->c1; j < c->a1; j++) rows[j] = rows[c->c1 - 1];
}

/* Blocks: their factors, which they begin with in 16 bits, and, if they are keys, their codes packed meanwhile. */
ALWAYS_INLINE void take_blocks(int32_t type, int are_keys, const columns *c, few_rows *rows)
{
    const int64_t step = type == ATTN_Q8_0 ? ATTN_Q8_0_BYTES : ATTN_Q4_0_BYTES;
    uint16_t bits[FEW_STEP * ATTN_MAX_HEAD_DIM / ATTN_BLOCK];
    for (int j = c->a0; j < c->a1; j += W) {
        const char *const *row = rows->row + j;
        for (int64_t b = 0; b < rows->factors; b++) {
            const int64_t at = b * step;
            char *to = rows->panel + (b * FEW_STEP + j) * ATTN_BLOCK;
#pragma GCC unroll 16
            for (int k = 0; k < W; k++) bits[b * FEW_STEP + j + k] = attn_load_u16(row[k] + at);
            if (are_keys) store_codes_across(to, type == ATTN_Q4_0, row, at + 2);
        }
    }
    for (int64_t b = 0; b < rows->factors; b++)
        for (int64_t n = b * FEW_STEP + c->a0; n < b * FEW_STEP + c->a1; n += W)
            vf_store(rows->factor + n, vf_load_f16(bits + n));
}

static void find_row_factors(const attn_cpu_block *w, const attn_view *view, const columns *c, few_rows *rows)
{
    const float whole = view->dtype == ATTN_F8_E4M3 ? E4M3_UNIT : 1.0f;
    for (int j = c->a0; j < c->a1; j++) {
        int64_t batch, row;
        attn_key_place(w->job, &w->seq, w->b, c->key + (j < c->c0 ? c->c0 : j < c->c1 ? j : c->c1 - 1), &batch, &row);
        rows->factor[j] = view->scale ? *attn_row_scale(view, batch, w->hkv, row) * whole : whole;
    }
}

/* An infinite factor of a sum is not that of its terms, and E4M3's, or scale times a factor, may be infinite where no element is. */
static int is_finite(const attn_cpu_block *w, const columns *c, const few_rows *rows)
{
    const float scale = fabsf(w->job->scale);
    vf most = vf_zero();
    for (int64_t b = 0; b < rows->factors; b++)
        for (int j = c->a0; j < c->a1; j += W) most = vf_max(vf_abs(vf_load(rows->factor + b * FEW_STEP + j)), most);
    return vf_largest(most) * (scale > 1.0f ? scale : 1.0f) < INFINITY;
}

/* Rows whose codes no loop takes become others in `room`, once a step: values of Q4_0 become Q8_0, 8 bits of floating
 * point f16. 0: there are NaN codes of E4M3, see vf_load_as. */
static int change_codes(int32_t type, int64_t n, const columns *c, char *room, few_rows *rows)
{
    const int64_t bytes = type == ATTN_Q4_0 ? n / ATTN_BLOCK * ATTN_Q8_0_BYTES : 2 * n;
    int odd = 0;
    for (int j = c->a0; j < c->a1; j++, room += bytes) {
        const char *p = rows->row[j];
        if (type == ATTN_Q4_0) store_q4_as_q8(room, p, n);
        else if (type == ATTN_F8_E4M3) odd |= store_e4m3_as_f16(room, p, n);
        else store_e5m2_as_f16(room, p, n);
        rows->made[j] = room;
    }
    rows->row = rows->made;
    return !odd;
}

/* Codes and their factors; room: few_floats. 0: their sums or weights cannot take the factor afterwards. */
static int take_codes(const attn_cpu_block *w, const attn_view *view, int64_t n, int are_keys, const columns *c,
                      float *room, few_rows *rows)
{
    const int32_t type = view->dtype;
    const int is_block = is_block_type(type), is_f8 = type == ATTN_F8_E4M3 || type == ATTN_F8_E5M2;
    rows->type = is_block ? ATTN_Q8_0 : is_f8 ? ATTN_F16 : ATTN_I8;
    rows->factors = is_block ? n / ATTN_BLOCK : 1;
    rows->factor = room;
    rows->panel = (char *)(room + rows->factors * FEW_STEP);
    if (!is_block) find_row_factors(w, view, c, rows);
    else if (type == ATTN_Q8_0 && are_keys) take_blocks(ATTN_Q8_0, 1, c, rows);
    else if (type == ATTN_Q8_0) take_blocks(ATTN_Q8_0, 0, c, rows);
    else if (are_keys) take_blocks(ATTN_Q4_0, 1, c, rows);
    else take_blocks(ATTN_Q4_0, 0, c, rows);
    if (!is_finite(w, c, rows) || (is_f8 && n % 16 != 0)) return 0;
    if (is_f8 || (type == ATTN_Q4_0 && !are_keys)) return change_codes(type, n, c, rows->panel, rows);
    return 1;
}

/* The rows of a step as floats. */
static void widen_few(const attn_cpu_block *w, const attn_view *view, int64_t n, int64_t padded, const columns *c,
                      float *room, few_rows *rows)
{
    rows->type = ATTN_F32;
    rows->factors = 0;
    for (int j = c->c0; j < c->c1; j++) widen_key(w, view, c->key + j, n, room + j * padded);
    for (int j = c->a0; j < c->a1; j++)
        rows->made[j] = (const char *)(room + (j < c->c0 ? c->c0 : j < c->c1 ? j : c->c1 - 1) * padded);
    rows->row = rows->made;
}

/* The rows of a step, from where find_few found them. */
static void take_few(const attn_cpu_block *w, const attn_view *view, int64_t n, int64_t padded, int are_keys,
                     const columns *c, const char *const *found, float *room, few_rows *rows)
{
    rows->type = view->dtype;
    rows->factors = 0;
    rows->row = found;
    if (n % W == 0 && (is_float_type(view->dtype) || take_codes(w, view, n, are_keys, c, room, rows))) return;
    widen_few(w, view, n, padded, c, room, rows);
}

#endif
