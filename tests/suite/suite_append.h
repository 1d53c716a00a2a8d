/* SPDX-License-Identifier: Apache-2.0
 * One attn_kv_append as plain numbers, and what the suite makes of it. */
#ifndef ATTN_SUITE_APPEND_H
#define ATTN_SUITE_APPEND_H

#include "suite_case.h"

enum append_place {
    PLACE_PLAIN,
    PLACE_STARTED,
    PLACE_PACKED,
    PLACE_PAGE1,
    PLACE_PAGE16,
    PLACE_SLOTS,
    PLACE_POOL_SLOTS,
    PLACES
};
enum append_rope { ROPE_NONE, ROPE_HALF, ROPE_INTERLEAVED, ROPE_PARTIAL, ROPE_LAST_COLUMNS, ROPES };
enum { FACTORS_GIVEN, FACTORS_CHOSEN, FACTORS_ABSENT, FACTORS };
enum { APPEND_B = 3, APPEND_NEW = 5, MAX_POSITION = 64 };

struct append_case {
    int32_t new_type, k_type, v_type; /* v_type 0: no v */
    int place, new_lengths, layout, rope, positions, factors, rotate_q;
    int64_t d, dv;
};

struct append_run {
    struct append_case a;
    struct suite_built t; /* only its buffers are used */
    struct suite_view k_new, v_new, k_cache, v_cache, q;
    float *k_rows, *v_rows, *q_rows;          /* the new tokens as float32, [row of the new tensor][head][column] */
    int64_t first[APPEND_B], count[APPEND_B]; /* rows of the new tensors */
    int64_t used[APPEND_B], cache_base[APPEND_B], cache_start[APPEND_B];
    int64_t new_batch, new_rows;
    int offsets, new_used, new_start, cache_used, cache_offsets, cache_starts, table, slots, positions, cosine, sine;
    int64_t page, columns;
    float *cos_table, *sin_table; /* [MAX_POSITION, rotary / 2] */
};

/* Returns 0, or -1 without memory; take it down in either case. */
int suite_append_set_up(struct append_run *r, const struct append_case *a);
void suite_append_tear_down(struct append_run *r);
attn_append suite_append_call(struct append_run *r, attn_rope *rope, const struct suite_target *target);
/* arg: struct append_case. Runs it and compares every byte. */
suite_function suite_append_check;

#endif
