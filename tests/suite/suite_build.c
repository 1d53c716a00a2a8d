/* SPDX-License-Identifier: Apache-2.0
 * From a case to tensors: lengths, pages, keys and values in every layout, and the same numbers once more as dense
 * float64 arrays. Whatever the library must not read stays poison. */
#include "suite_case.h"
#include "suite_format.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STREAM_Q_LENGTHS = 11, STREAM_K_LENGTHS, STREAM_PAGES };
enum { TENSOR_Q = 1, TENSOR_K, TENSOR_V };

static int32_t *integers(struct suite_built *t, int buffer)
{
    return buffer < 0 ? NULL : (int32_t *)(void *)t->buffer[buffer].data;
}

static int add_integers(struct suite_built *t, int64_t count, int *buffer)
{
    *buffer = suite_add_buffer(t, sizeof(int32_t) * (size_t)count, sizeof(int32_t), 0);
    return *buffer < 0 ? -1 : 0;
}

/* ---- lengths ---------------------------------------------------------------------------------------------------- */

struct span {
    int64_t base, room, start, used;
};

struct side { /* the queries, or the keys */
    int kind, omit_used;
    int64_t room;         /* of unpacked sequences */
    const int32_t *given; /* lengths of a hand-written case */
    struct suite_random r;
    int64_t total, axis, max;
    int used, offsets, start; /* buffers */
};

/* The lengths that come up: full, none at all, anything. */
static int64_t used_length(struct side *side, const struct suite_case *c, int64_t b, int64_t size)
{
    if (side->given) return side->given[b];
    if (side->kind == LENGTHS_FULL) return side->room;
    int64_t any = suite_below(&side->r, size + 1);
    return b == 0 ? size : b == 1 && c->b >= 3 ? 0 : any;
}

static void plan_spans(struct side *side, const struct suite_case *c, int64_t size, struct span *spans)
{
    int packed = side->kind >= LENGTHS_PACKED;
    side->total = packed ? 2 : side->room; /* two rows before the first sequence, one after the last: nobody's */
    for (int64_t b = 0; b < c->b; b++) {
        struct span *s = &spans[b];
        s->used = used_length(side, c, b, size);
        s->room = side->kind == LENGTHS_PACKED ? s->used : packed ? s->used + suite_below(&side->r, 4) : side->room;
        s->start = side->kind == LENGTHS_START || side->kind == LENGTHS_PACKED_USED
                       ? suite_below(&side->r, s->room - s->used + 1)
                       : 0;
        if (side->omit_used) s->used = s->room - s->start;
        s->base = packed ? side->total : 0;
        if (packed) side->total += s->room;
        if (s->room > side->axis) side->axis = s->room;
        if (s->used > side->max) side->max = s->used;
    }
    if (packed) side->total++;
    if (!c->with_max || side->kind == LENGTHS_FULL) side->max = 0;
    if (side->max) side->axis = side->max;
}

static int store_spans(struct suite_built *t, struct side *side, const struct span *spans)
{
    int64_t b = t->c.b;
    int failed = 0, has_start = side->kind == LENGTHS_START || side->kind == LENGTHS_PACKED_USED;
    int has_used = side->kind != LENGTHS_FULL && side->kind != LENGTHS_PACKED && !side->omit_used;
    side->used = side->offsets = side->start = -1;
    if (has_used) failed |= add_integers(t, b, &side->used);
    if (has_start) failed |= add_integers(t, b, &side->start);
    if (side->kind >= LENGTHS_PACKED) failed |= add_integers(t, b + 1, &side->offsets);
    if (failed) return -1;
    for (int64_t n = 0; n < b; n++) {
        if (side->used >= 0) integers(t, side->used)[n] = (int32_t)spans[n].used;
        if (side->start >= 0) integers(t, side->start)[n] = (int32_t)spans[n].start;
        if (side->offsets >= 0) {
            integers(t, side->offsets)[n] = (int32_t)spans[n].base;
            integers(t, side->offsets)[n + 1] = (int32_t)(spans[n].base + spans[n].room);
        }
    }
    if (side->offsets >= 0 && b == 0) integers(t, side->offsets)[0] = 0;
    return 0;
}

static int build_lengths(struct suite_built *t, int64_t *q_total, int64_t *k_total)
{
    const struct suite_case *c = &t->c;
    struct span *spans = calloc((size_t)(2 * c->b + 1), sizeof *spans), *q = spans, *k = spans + c->b;
    struct side qs = {.kind = c->q_lengths, .room = c->sq, .given = c->q_used};
    struct side ks = {.kind = c->k_lengths, .room = c->sk, .given = c->k_used};
    if (!spans) return -1;
    if (c->page) {
        t->table_pages = (c->sk + c->page - 1) / c->page + (int64_t)(c->seed % 2);
        if (!t->table_pages) t->table_pages = 1; /* a table has a column */
        t->table_stride = t->table_pages + (int64_t)(c->seed / 2 % 2) * 3;
        ks.room = t->table_pages * c->page;
    }
    qs.omit_used =
        (c->q_lengths == LENGTHS_START || c->q_lengths == LENGTHS_PACKED_USED) && !c->q_used && c->seed % 3 == 0;
    ks.omit_used =
        (c->k_lengths == LENGTHS_START || c->k_lengths == LENGTHS_PACKED_USED) && !c->k_used && c->seed % 3 == 1;
    qs.r = suite_random_of(c->seed, STREAM_Q_LENGTHS);
    ks.r = suite_random_of(c->seed, STREAM_K_LENGTHS);
    plan_spans(&qs, c, c->sq, q);
    plan_spans(&ks, c, c->sk, k);
    int failed = store_spans(t, &qs, q) | store_spans(t, &ks, k);
    for (int64_t b = 0; b < c->b; b++) {
        struct suite_sequence *s = &t->sequence[b];
        s->sq = q[b].used, s->sk = k[b].used;
        s->q_batch = c->q_lengths >= LENGTHS_PACKED ? 0 : b, s->q_row = q[b].base + q[b].start;
        s->q_room_row = q[b].base, s->q_room = q[b].room;
        s->k_batch = c->k_lengths >= LENGTHS_PACKED ? 0 : b, s->k_row = k[b].base + k[b].start;
        s->diagonal = c->mask & ATTN_DIAGONAL ? c->diagonal : c->mask & ATTN_TOP_LEFT ? 0 : s->sk - s->sq;
        s->row = t->rows;
        t->rows += s->sq * c->hq;
        t->pairs += (double)s->sq * (double)s->sk * (double)c->hq;
    }
    t->q_used = qs.used, t->q_offsets = qs.offsets, t->q_start = qs.start, t->q_axis = qs.axis, t->q_max = qs.max;
    t->k_used = ks.used, t->k_offsets = ks.offsets, t->k_start = ks.start, t->k_axis = ks.axis, t->k_max = ks.max;
    *q_total = qs.total, *k_total = ks.total;
    free(spans);
    return failed;
}

/* ---- pages ------------------------------------------------------------------------------------------------------ */

/* The keys that some query sees. Neighbouring queries have neighbouring bands, so they are one interval. */
static void seen_keys(const struct suite_built *t, int64_t b, int64_t *low, int64_t *high)
{
    int64_t first, end;
    *low = t->sequence[b].sk;
    *high = 0;
    for (int64_t i = 0; i < t->sequence[b].sq; i++) {
        suite_band(t, b, i, &first, &end);
        if (first < end && first < *low) *low = first;
        if (first < end && end > *high) *high = end;
    }
}

/* Pages in an order of their own for the keys that the bands show; -1 for all others. Returns the size of the pool. */
static int64_t build_pages(struct suite_built *t)
{
    const struct suite_case *c = &t->c;
    int64_t entries = c->b * t->table_stride, used = 0, spare = 3;
    if (add_integers(t, entries, &t->table)) return -1;
    int32_t *table = integers(t, t->table);
    for (int64_t n = 0; n < entries; n++) table[n] = -1;
    for (int64_t b = 0; b < c->b; b++) {
        int64_t first, end;
        seen_keys(t, b, &first, &end);
        for (int64_t j = first; j < end; j++) {
            int32_t *entry = &table[b * t->table_stride + (t->sequence[b].k_row + j) / c->page];
            if (*entry < 0) *entry = (int32_t)used++;
        }
    }
    struct suite_random r = suite_random_of(c->seed, STREAM_PAGES);
    int32_t *order = malloc(sizeof *order * (size_t)(used + spare));
    if (!order) return -1;
    for (int64_t n = 0; n < used + spare; n++) {
        int64_t other = suite_below(&r, n + 1);
        order[n] = order[other];
        order[other] = (int32_t)n;
    }
    for (int64_t n = 0; n < entries; n++)
        if (table[n] >= 0) table[n] = order[table[n]];
    free(order);
    return used + spare;
}

void suite_key_place(const struct suite_built *t, int64_t b, int64_t j, int64_t *batch, int64_t *row)
{
    const struct suite_sequence *s = &t->sequence[b];
    int64_t token = s->k_row + j;
    *batch = s->k_batch;
    *row = token;
    if (t->table < 0) return;
    const int32_t *table = (const int32_t *)(const void *)t->buffer[t->table].data;
    *batch = table[b * t->table_stride + token / t->c.page];
    *row = token % t->c.page;
}

/* ---- q, k, v ---------------------------------------------------------------------------------------------------- */

/* Views of one buffer whose rows hold, one behind the other, the heads of each of the given tensors. */
static int add_slices(struct suite_built *t, struct suite_view *const view[], const int64_t (*shape)[4], int count,
                      int32_t dtype)
{
    int64_t width = 0, rows = shape[0][0] * shape[0][2];
    for (int n = 0; n < count; n++) width += shape[n][1] * shape[n][3];
    int buffer = suite_add_buffer(t, attn_dtype_bytes((attn_dtype)dtype, width * rows), 1, 0);
    int64_t offset = 0;
    for (int n = 0; n < count; n++) {
        *view[n] = (struct suite_view){.buffer = buffer, .scale_buffer = -1, .offset = offset, .t.dtype = dtype};
        memcpy(view[n]->t.shape, shape[n], sizeof shape[n]);
        int64_t stride[4] = {shape[n][2] * width, shape[n][3], width, 1};
        memcpy(view[n]->t.stride, stride, sizeof stride);
        offset += shape[n][1] * shape[n][3];
    }
    return buffer < 0 ? -1 : 0;
}

static int add_qkv(struct suite_built *t, int64_t shape[3][4])
{
    const struct suite_case *c = &t->c;
    struct suite_view *const all[3] = {&t->q, &t->k, &t->v};
    int layout = c->layout, same_rows = shape[0][0] == shape[1][0] && shape[0][2] == shape[1][2];
    int own = layout == LAYOUT_HOSTILE || layout == LAYOUT_BHSD ? layout : LAYOUT_BSHD;
    if (layout == LAYOUT_PACKED && c->k_type == c->v_type && c->k_type == c->q_type && same_rows)
        return add_slices(t, all, (const int64_t(*)[4])shape, 3, c->q_type);
    if (suite_add_view(t, &t->q, c->q_type, shape[0], own, 0)) return -1;
    if (layout == LAYOUT_PACKED && c->k_type == c->v_type)
        return add_slices(t, all + 1, (const int64_t(*)[4])(shape + 1), 2, c->k_type);
    if (layout == LAYOUT_BROADCAST) shape[1][0] = shape[2][0] = 1;
    if (suite_add_view(t, &t->k, c->k_type, shape[1], own, 0)) return -1;
    if (layout == LAYOUT_MLA) {
        t->v = t->k;
        t->v.t.shape[3] = c->dv;
        return 0;
    }
    if (suite_add_view(t, &t->v, c->v_type, shape[2], own, 0)) return -1;
    if (layout == LAYOUT_BROADCAST) {
        t->k.t.shape[0] = t->v.t.shape[0] = c->b;
        t->k.t.stride[0] = t->v.t.stride[0] = 0;
    }
    return 0;
}

/* The factors of I8 and F8: constants that span the data, or poison that suite_write_row replaces row by row. */
static int add_scale(struct suite_built *t, struct suite_view *view, struct suite_fill fill)
{
    int64_t batches = t->c.layout == LAYOUT_BROADCAST ? 1 : view->t.shape[0], h = view->t.shape[1],
            s = view->t.shape[2];
    const float ends[2] = {3.5f * (fill.amount != 0 ? fabsf(fill.amount) : 1.0f), 0};
    float constant = suite_row_scale(view->t.dtype, ends, 2);
    if (!suite_is_scaled(view->t.dtype) || t->c.scaling == SCALING_NONE) return 0;
    int64_t count = t->c.scaling == SCALING_ROW ? batches * h * s : t->c.scaling == SCALING_HEAD ? h : 1;
    view->scale_buffer = suite_add_buffer(t, sizeof(float) * (size_t)count, sizeof(float), 0);
    if (view->scale_buffer < 0) return -1;
    if (t->c.scaling == SCALING_HEAD) view->t.scale_stride[1] = 1;
    if (t->c.scaling == SCALING_ROW) {
        view->t.scale_stride[0] = t->c.layout == LAYOUT_BROADCAST ? 0 : h * s;
        view->t.scale_stride[1] = s;
        view->t.scale_stride[2] = 1;
        return 0;
    }
    for (int64_t n = 0; n < count; n++)
        ((float *)(void *)t->buffer[view->scale_buffer].data)[n] = constant * (1.0f + 0.25f * (float)(n % 3));
    return 0;
}

static double *dense_array(int64_t heads, int64_t rows, int64_t size)
{
    return calloc((size_t)(heads * rows * size + 1), sizeof(double));
}

/* Writes one row where the library will find it and reads back what it says there. */
static void put(struct suite_built *t, const struct suite_view *view, int64_t batch, int64_t h, int64_t row,
                const float *x, double *dense)
{
    if (x) suite_write_row(t, view, batch, h, row, x);
    suite_read_row(t, view, batch, h, row, dense);
}

static int fill_sequence(struct suite_built *t, int64_t b, float *x)
{
    const struct suite_case *c = &t->c;
    struct suite_sequence *s = &t->sequence[b];
    int64_t who = c->identity ? c->identity[b] : b, kv_who = c->layout == LAYOUT_BROADCAST ? 0 : who, batch, row;
    s->q = dense_array(c->hq, s->sq, c->d);
    s->k = dense_array(c->hkv, s->sk, c->d);
    s->v = dense_array(c->hkv, s->sk, c->dv);
    if (!s->q || !s->k || !s->v) return -1;
    for (int64_t h = 0; h < c->hq; h++)
        for (int64_t i = 0; i < s->sq; i++) {
            suite_fill_row(c->fill_q, c->seed, TENSOR_Q, who, h, i, x, c->d);
            put(t, &t->q, s->q_batch, h, s->q_row + i, x, s->q + (h * s->sq + i) * c->d);
        }
    for (int64_t h = 0; h < c->hkv; h++)
        for (int64_t j = 0; j < s->sk; j++) {
            int64_t from = c->key_shuffle == 1 ? j : j * c->key_shuffle % s->sk, head = h / c->kv_repeat;
            suite_key_place(t, b, j, &batch, &row);
            if (batch < 0) continue; /* on a page that nobody needs */
            suite_fill_row(c->fill_k, c->seed, TENSOR_K, kv_who, head, from, x, c->d);
            put(t, &t->k, batch, h, row, x, s->k + (h * s->sk + j) * c->d);
            suite_fill_row(c->fill_v, c->seed, TENSOR_V, kv_who, head, from, x, c->dv);
            put(t, &t->v, batch, h, row, c->layout == LAYOUT_MLA ? NULL : x, s->v + (h * s->sk + j) * c->dv);
        }
    return 0;
}

static int build_qkv(struct suite_built *t, int64_t q_total, int64_t k_total)
{
    const struct suite_case *c = &t->c;
    int64_t q_batch = c->q_lengths >= LENGTHS_PACKED ? 1 : c->b, k_batch = c->k_lengths >= LENGTHS_PACKED ? 1 : c->b;
    t->table = -1;
    if (c->page) {
        k_batch = build_pages(t);
        k_total = c->page;
        if (k_batch < 0) return -1;
    }
    int64_t shape[3][4] = {
        {q_batch, c->hq, q_total, c->d}, {k_batch, c->hkv, k_total, c->d}, {k_batch, c->hkv, k_total, c->dv}};
    if (add_qkv(t, shape) || add_scale(t, &t->k, c->fill_k)) return -1;
    if (c->layout == LAYOUT_MLA) {
        t->v.scale_buffer = t->k.scale_buffer;
        memcpy(t->v.t.scale_stride, t->k.t.scale_stride, sizeof t->v.t.scale_stride);
    } else if (add_scale(t, &t->v, c->fill_v)) {
        return -1;
    }
    float *x = malloc(sizeof *x * (size_t)(c->d + c->dv + 1));
    int failed = !x;
    for (int64_t b = 0; !failed && b < c->b; b++) failed = fill_sequence(t, b, x);
    free(x);
    if (failed) return -1;
    int own = c->layout == LAYOUT_HOSTILE || c->layout == LAYOUT_BHSD ? c->layout : LAYOUT_BSHD;
    const int64_t out[4] = {q_batch, c->hq, q_total, c->dv}, lse[4] = {q_batch, c->hq, q_total, 1};
    if (suite_add_view(t, &t->out, c->out_type, out, own, 1) || suite_add_view(t, &t->lse, ATTN_F32, lse, own, 1))
        return -1;
    if (c->out_type != ATTN_F32) return suite_add_view(t, &t->wide, ATTN_F32, out, LAYOUT_BHSD, 1);
    t->wide = t->out;
    return 0;
}

int suite_build(struct suite_built *t, const struct suite_case *settled)
{
    int64_t q_total, k_total;
    memset(t, 0, sizeof *t);
    t->c = *settled;
    t->scale = settled->scale != 0 ? settled->scale : (float)(1.0 / sqrt((double)settled->d));
    t->sequence = calloc((size_t)(settled->b + 1), sizeof *t->sequence);
    if (!t->sequence || build_lengths(t, &q_total, &k_total) || build_qkv(t, q_total, k_total) ||
        suite_build_scores(t)) {
        suite_unbuild(t);
        return -1;
    }
    t->input_hash = suite_inputs_hash(t);
    return 0;
}

void suite_unbuild(struct suite_built *t)
{
    for (int64_t b = 0; t->sequence && b < t->c.b; b++) {
        free(t->sequence[b].q);
        free(t->sequence[b].k);
        free(t->sequence[b].v);
    }
    free(t->sequence);
    for (int n = 0; n < t->buffers; n++) suite_buffer_free(&t->buffer[n]);
    memset(t, 0, sizeof *t);
}
