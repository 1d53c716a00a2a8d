/* SPDX-License-Identifier: Apache-2.0
 * attn_kv_append, bit for bit: every cache row and every factor is computed here from docs/semantics.md sections 5
 * and 6, and nothing else may be written. */
#include "suite_append.h"
#include "suite_format.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { B = APPEND_B, HKV = 2, HQ = 4, NEW = APPEND_NEW, ROOM = 37 };

/* ---- setting up ------------------------------------------------------------------------------------------------- */

static void *data_of(struct append_run *r, int buffer) { return buffer < 0 ? NULL : r->t.buffer[buffer].data; }

static int add_array(struct append_run *r, int64_t count, size_t size)
{
    return suite_add_buffer(&r->t, (size_t)count * size, size, 0);
}

static int64_t rotary_of(const struct append_case *a)
{
    int64_t all = a->d / 2 * 2;
    return a->rope == ROPE_PARTIAL || a->rope == ROPE_LAST_COLUMNS ? all / 4 * 2 : all;
}

static int64_t first_of(const struct append_case *a)
{
    return a->rope == ROPE_LAST_COLUMNS ? a->d - rotary_of(a) : a->rope == ROPE_PARTIAL && a->d > rotary_of(a) ? 1 : 0;
}

/* Values with ties when divided by the factors below, a row of zeros, and one that overflows 8 bits and, from a
 * wider type, float16. */
static void new_row(int32_t dtype, float *x, int64_t n, uint64_t stream)
{
    struct suite_random r = suite_random_of(77, stream);
    int64_t kind = suite_below(&r, 8);
    for (int64_t d = 0; d < n; d++) {
        x[d] = 3.0f * suite_normal(&r);
        if (kind >= 5) x[d] = 0.25f * (float)(suite_below(&r, 81) - 40);
        if (kind == 0) x[d] = 0;
    }
    if (kind == 1) x[n - 1] = dtype == ATTN_F16 ? -6.0e4f : -7.0e4f;
}

static int plan_new(struct append_run *r)
{
    const int64_t length[B] = {NEW, 0, 3};
    int packed = r->a.new_lengths == LENGTHS_PACKED, started = r->a.new_lengths == LENGTHS_START;
    int64_t total = packed ? 1 : 0; /* a row that is nobody's */
    for (int b = 0; b < B; b++) {
        r->count[b] = r->a.new_lengths == LENGTHS_FULL ? NEW : length[b];
        r->first[b] = packed ? total : started ? (NEW - r->count[b]) / 2 : 0;
        total += r->count[b];
    }
    r->new_batch = packed ? 1 : B;
    r->new_rows = packed ? total : NEW;
    r->offsets = r->new_used = r->new_start = -1;
    if (packed) r->offsets = add_array(r, B + 1, sizeof(int32_t));
    else if (r->a.new_lengths != LENGTHS_FULL) r->new_used = add_array(r, B, sizeof(int32_t));
    if (started) r->new_start = add_array(r, B, sizeof(int32_t));
    int32_t *offsets = data_of(r, r->offsets), *used = data_of(r, r->new_used), *start = data_of(r, r->new_start);
    for (int b = 0; b < B; b++) {
        if (offsets) offsets[b] = (int32_t)r->first[b], offsets[b + 1] = (int32_t)(r->first[b] + r->count[b]);
        if (used) used[b] = (int32_t)r->count[b];
        if (start) start[b] = (int32_t)r->first[b];
    }
    return 0;
}

/* Where the tokens in use end. Sequence 2 has no room left behind its three new tokens. */
static void plan_cache(struct append_run *r)
{
    const int64_t used[B] = {11, 0, ROOM - (r->a.new_lengths == LENGTHS_FULL ? NEW : 3)};
    int place = r->a.place;
    r->cache_used = add_array(r, B, sizeof(int32_t));
    r->cache_offsets = place == PLACE_PACKED ? add_array(r, B + 1, sizeof(int32_t)) : -1;
    r->cache_starts = place == PLACE_STARTED ? add_array(r, B, sizeof(int32_t)) : -1;
    r->page = place == PLACE_PAGE1 ? 1 : place == PLACE_PAGE16 || place == PLACE_POOL_SLOTS ? 16 : 0;
    r->columns = r->page ? (ROOM + r->page - 1) / r->page : 0;
    for (int b = 0; b < B; b++) {
        r->used[b] = used[b];
        r->cache_start[b] = place == PLACE_STARTED && b < 2 ? 4 : 0;
        r->cache_base[b] = place == PLACE_PACKED ? 2 + b * ROOM : 0;
        ((int32_t *)data_of(r, r->cache_used))[b] = (int32_t)used[b];
        if (r->cache_starts >= 0) ((int32_t *)data_of(r, r->cache_starts))[b] = (int32_t)r->cache_start[b];
    }
    for (int b = 0; r->cache_offsets >= 0 && b <= B; b++) ((int32_t *)data_of(r, r->cache_offsets))[b] = 2 + b * ROOM;
}

/* Batch entry or page, and row, of new token i. 0: it is skipped. */
static int token_place(const struct append_run *r, int b, int64_t i, int64_t *batch, int64_t *row)
{
    int64_t token = r->cache_start[b] + r->used[b] + i;
    int slots = r->a.place == PLACE_SLOTS || r->a.place == PLACE_POOL_SLOTS;
    *batch = r->cache_offsets >= 0 ? 0 : b;
    *row = r->cache_base[b] + token;
    if (r->page) { /* pages in reverse order, so that neighbours never are */
        *batch = (B * r->columns - 1) - (b * r->columns + token / r->page);
        *row = token % r->page;
    }
    return !slots || (b + i) % 3 != 1;
}

/* Page tables and slots from token_place(). */
static int plan_pages(struct append_run *r)
{
    r->table = r->slots = -1;
    int64_t batch, row, pool_rows = r->page ? r->page : ROOM;
    if (r->a.place == PLACE_PAGE1 || r->a.place == PLACE_PAGE16) {
        r->table = add_array(r, B * (r->columns + 2), sizeof(int32_t));
        if (r->table < 0) return -1;
        int32_t *table = data_of(r, r->table);
        for (int64_t n = 0; n < B * (r->columns + 2); n++) table[n] = -1;
        for (int b = 0; b < B; b++)
            for (int64_t i = 0; i < r->count[b]; i++)
                if (token_place(r, b, i, &batch, &row))
                    table[b * (r->columns + 2) + (r->used[b] + i) / r->page] = (int32_t)batch;
    } else if (r->a.place == PLACE_SLOTS || r->a.place == PLACE_POOL_SLOTS) {
        r->slots = add_array(r, r->new_batch * r->new_rows, sizeof(int64_t));
        if (r->slots < 0) return -1;
        int64_t *slots = data_of(r, r->slots);
        for (int b = 0; b < B; b++)
            for (int64_t i = 0; i < r->count[b]; i++) {
                int there = token_place(r, b, i, &batch, &row);
                slots[(r->new_batch == 1 ? 0 : b * NEW) + r->first[b] + i] = there ? batch * pool_rows + row : -1;
            }
    }
    return 0;
}

static int add_tokens(struct append_run *r, struct suite_view *view, int64_t heads, int64_t d, int output, int stream,
                      float **rows)
{
    const int64_t shape[4] = {r->new_batch, heads, r->new_rows, d};
    double *decoded = malloc(sizeof *decoded * (size_t)d);
    *rows = calloc((size_t)(r->new_batch * r->new_rows * heads * d), sizeof **rows);
    if (!decoded || !*rows || suite_add_view(&r->t, view, r->a.new_type, shape, r->a.layout, output)) {
        free(decoded);
        return -1;
    }
    for (int b = 0; b < B; b++)
        for (int64_t i = 0; i < r->count[b]; i++)
            for (int64_t h = 0; h < heads; h++) {
                int64_t batch = r->new_batch == 1 ? 0 : b, row = r->first[b] + i;
                float *x = *rows + ((batch * r->new_rows + row) * heads + h) * d;
                new_row(r->a.new_type, x, d, (uint64_t)(((stream * B + b) * NEW + i) * 8 + h));
                suite_write_row(&r->t, view, batch, h, row, x);
                suite_read_row(&r->t, view, batch, h, row, decoded);
                for (int64_t n = 0; n < d; n++) x[n] = (float)decoded[n];
            }
    free(decoded);
    return 0;
}

static int add_cache(struct append_run *r, struct suite_view *view, int32_t dtype, int64_t d)
{
    int64_t batches = r->page ? B * r->columns : r->a.place == PLACE_PACKED ? 1 : B;
    int64_t rows = r->page ? r->page : r->a.place == PLACE_PACKED ? B * ROOM + 3 : ROOM;
    const int64_t shape[4] = {batches, HKV, rows, d};
    if (suite_add_view(&r->t, view, dtype, shape, r->a.layout, 1)) return -1;
    if (!suite_is_scaled(dtype) || r->a.factors == FACTORS_ABSENT) return 0;
    int64_t factors = batches * HKV * rows;
    view->scale_buffer =
        suite_add_buffer(&r->t, sizeof(float) * (size_t)factors, sizeof(float), r->a.factors == FACTORS_CHOSEN);
    if (view->scale_buffer < 0) return -1;
    view->t.scale_stride[0] = HKV * rows, view->t.scale_stride[1] = rows, view->t.scale_stride[2] = 1;
    for (int64_t n = 0; n < factors && r->a.factors == FACTORS_GIVEN; n++) /* one in nine is 0 */
        ((float *)data_of(r, view->scale_buffer))[n] = n % 9 == 8 ? 0.0f : 0.5f / (float)(1 + n % 3);
    return 0;
}

static int add_rope(struct append_run *r)
{
    int64_t half = rotary_of(&r->a) / 2, tokens = r->new_batch * r->new_rows;
    r->cosine = r->sine = r->positions = -1;
    if (r->a.rope == ROPE_NONE) return 0;
    r->cosine = add_array(r, MAX_POSITION * half, sizeof(float));
    r->sine = add_array(r, MAX_POSITION * half, sizeof(float));
    if (r->a.positions) r->positions = add_array(r, tokens, sizeof(int32_t));
    if (r->cosine < 0 || r->sine < 0 || (r->a.positions && r->positions < 0)) return -1;
    r->cos_table = data_of(r, r->cosine);
    r->sin_table = data_of(r, r->sine);
    for (int64_t n = 0; n < MAX_POSITION * half; n++) {
        double angle = (double)(n / half) * pow(10000.0, -(double)(n % half) / (double)half);
        r->cos_table[n] = (float)cos(angle);
        r->sin_table[n] = (float)sin(angle);
    }
    for (int64_t n = 0; r->positions >= 0 && n < tokens; n++)
        ((int32_t *)data_of(r, r->positions))[n] = (int32_t)(n * 13 % MAX_POSITION);
    return 0;
}

int suite_append_set_up(struct append_run *r, const struct append_case *a)
{
    memset(r, 0, sizeof *r);
    r->a = *a;
    plan_new(r);
    plan_cache(r);
    r->v_cache.buffer = r->v_new.buffer = r->q.buffer = r->v_cache.scale_buffer = -1;
    if (plan_pages(r) || add_rope(r) || add_tokens(r, &r->k_new, HKV, a->d, 0, 1, &r->k_rows) ||
        add_cache(r, &r->k_cache, a->k_type, a->d))
        return -1;
    if (a->v_type &&
        (add_tokens(r, &r->v_new, HKV, a->dv, 0, 2, &r->v_rows) || add_cache(r, &r->v_cache, a->v_type, a->dv)))
        return -1;
    if (a->rotate_q && add_tokens(r, &r->q, HQ, a->d, 1, 3, &r->q_rows)) return -1;
    r->t.input_hash = suite_inputs_hash(&r->t);
    return 0;
}

void suite_append_tear_down(struct append_run *r)
{
    free(r->k_rows);
    free(r->v_rows);
    free(r->q_rows);
    suite_unbuild(&r->t);
}

/* ---- what must come out ----------------------------------------------------------------------------------------- */

/* a' = fma(a, c, -(b s)), b' = fma(b, c, a s) */
static void rotate(const struct append_run *r, int b, int64_t i, float *x)
{
    int64_t rotary = rotary_of(&r->a), half = rotary / 2, position = r->used[b] + i;
    if (r->a.rope == ROPE_NONE) return;
    if (r->positions >= 0)
        position = ((const int32_t *)(const void *)r->t.buffer[r->positions]
                        .data)[(r->new_batch == 1 ? 0 : b * NEW) + r->first[b] + i];
    x += first_of(&r->a);
    for (int64_t n = 0; n < half; n++) {
        float *first = r->a.rope == ROPE_INTERLEAVED ? &x[2 * n] : &x[n];
        float *second = r->a.rope == ROPE_INTERLEAVED ? &x[2 * n + 1] : &x[n + half];
        float c = r->cos_table[position * half + n], s = r->sin_table[position * half + n], one = *first, two = *second;
        volatile float two_s = two * s, one_s = one * s; /* rounded, not fused */
        *first = fmaf(one, c, -two_s);
        *second = fmaf(two, c, one_s);
    }
}

static void expect_row(struct suite_check *check, struct append_run *r, const struct suite_view *view, int64_t batch,
                       int64_t h, int64_t row, const float *x, const char *what)
{
    unsigned char expected[4 * 640];
    int64_t n = view->t.shape[3];
    size_t bytes = attn_dtype_bytes((attn_dtype)view->t.dtype, n);
    float factor = 1.0f, *scale = NULL;
    if (view->scale_buffer >= 0)
        scale = (float *)data_of(r, view->scale_buffer) + batch * view->t.scale_stride[0] +
                h * view->t.scale_stride[1] + row;
    if (scale) factor = *scale;
    if (scale && r->a.factors == FACTORS_CHOSEN) {
        factor = suite_row_scale(view->t.dtype, x, n);
        suite_expect(check, !memcmp(scale, &factor, sizeof factor),
                     "%s, head %lld, row %lld: factor %.9g, expected %.9g", what, (long long)h, (long long)row,
                     (double)*scale, (double)factor);
        memset(scale, SUITE_POISON, sizeof *scale);
    }
    suite_encode(view->t.dtype, expected, x, n, factor);
    const unsigned char *got = suite_row(&r->t, view, batch, h, row);
    size_t at = 0;
    while (at < bytes && got[at] == expected[at]) at++;
    if (at < bytes)
        suite_expect(check, 0, "%s, batch entry %lld, head %lld, row %lld: byte %zu is 0x%02x, expected 0x%02x", what,
                     (long long)batch, (long long)h, (long long)row, at, got[at], expected[at]);
    suite_poison_row(&r->t, view, batch, h, row);
}

static void expect_tokens(struct suite_check *check, struct append_run *r)
{
    float x[640];
    for (int b = 0; b < B; b++)
        for (int64_t i = 0; i < r->count[b]; i++) {
            int64_t batch, row, from = (r->new_batch == 1 ? 0 : b * r->new_rows) + r->first[b] + i;
            int there = token_place(r, b, i, &batch, &row);
            for (int64_t h = 0; there && h < HKV; h++) {
                memcpy(x, r->k_rows + (from * HKV + h) * r->a.d, sizeof *x * (size_t)r->a.d);
                rotate(r, b, i, x);
                expect_row(check, r, &r->k_cache, batch, h, row, x, "k_cache");
                if (r->a.v_type)
                    expect_row(check, r, &r->v_cache, batch, h, row, r->v_rows + (from * HKV + h) * r->a.dv, "v_cache");
            }
            for (int64_t h = 0; r->a.rotate_q && h < HQ; h++) {
                memcpy(x, r->q_rows + (from * HQ + h) * r->a.d, sizeof *x * (size_t)r->a.d);
                rotate(r, b, i, x);
                expect_row(check, r, &r->q, r->new_batch == 1 ? 0 : b, h, r->first[b] + i, x, "q");
            }
        }
}

/* ---- the call --------------------------------------------------------------------------------------------------- */

static void *placed(struct append_run *r, int buffer, const struct suite_target *target)
{
    return buffer < 0 ? NULL : suite_buffer_place(&r->t.buffer[buffer], target);
}

attn_append suite_append_call(struct append_run *r, attn_rope *rope, const struct suite_target *target)
{
    attn_append p = {.struct_size = sizeof p, .flags = r->a.factors == FACTORS_CHOSEN ? ATTN_APPEND_SET_SCALE : 0};
    p.k_new = suite_view_tensor(&r->t, &r->k_new, target);
    p.v_new = suite_view_tensor(&r->t, &r->v_new, target);
    p.k_cache = suite_view_tensor(&r->t, &r->k_cache, target);
    p.v_cache = suite_view_tensor(&r->t, &r->v_cache, target);
    p.q = suite_view_tensor(&r->t, &r->q, target);
    p.new_len = (attn_lengths){.used = placed(r, r->new_used, target),
                               .offsets = placed(r, r->offsets, target),
                               .start = placed(r, r->new_start, target),
                               .count = r->offsets >= 0 ? B : 0};
    p.cache_len = (attn_lengths){.used = placed(r, r->cache_used, target),
                                 .offsets = placed(r, r->cache_offsets, target),
                                 .start = placed(r, r->cache_starts, target),
                                 .count = r->cache_offsets >= 0 ? B : 0};
    p.page_table = placed(r, r->table, target);
    p.page_table_pages = r->table >= 0 ? r->columns : 0;
    p.page_table_stride = r->table >= 0 ? r->columns + 2 : 0;
    p.slots = placed(r, r->slots, target);
    *rope = (attn_rope){.struct_size = sizeof *rope,
                        .interleaved = r->a.rope == ROPE_INTERLEAVED,
                        .cos = placed(r, r->cosine, target),
                        .sin = placed(r, r->sine, target),
                        .rotary_dim = rotary_of(&r->a),
                        .max_pos = MAX_POSITION,
                        .first_dim = first_of(&r->a),
                        .positions = placed(r, r->positions, target)};
    if (r->a.rope != ROPE_NONE) p.rope = rope;
    return p;
}

void suite_append_check(struct suite_check *check, const void *arg)
{
    struct append_run r;
    attn_rope rope;
    attn_plan plan = {.struct_size = sizeof plan};
    attn_exec exec = {.struct_size = sizeof exec, .flags = ATTN_EXEC_WAIT};
    if (suite_expect(check, !suite_append_set_up(&r, arg), "no memory")) {
        attn_append p = suite_append_call(&r, &rope, check->target);
        int ok = suite_expect_status(check, attn_query_append(check->target->ctx, &p, NULL, &plan), ATTN_OK,
                                     "attn_query_append");
        if (ok && suite_expect_plan(check, "append", NULL, &plan) && suite_expect_staged(check, &plan) &&
            suite_expect_status(check, attn_kv_append(check->target->ctx, &p, &exec), ATTN_OK, "attn_kv_append")) {
            suite_fetch_outputs(check, &r.t);
            expect_tokens(check, &r);
            suite_expect_clean(check, &r.t);
        }
    }
    suite_append_tear_down(&r);
}
