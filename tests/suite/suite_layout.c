/* SPDX-License-Identifier: Apache-2.0
 * Tensors in guarded buffers: strides, rows, placement. */
#include "suite_case.h"
#include "suite_format.h"

#include <string.h>

int suite_add_buffer(struct suite_built *t, size_t bytes, size_t align, int output)
{
    if (t->buffers == SUITE_BUFFERS || suite_buffer_new(&t->buffer[t->buffers], bytes, align)) return -1;
    t->output[t->buffers] = output;
    return t->buffers++;
}

/* Elements from the first to the last one, both included. */
static int64_t extent(const int64_t shape[4], const int64_t stride[4])
{
    int64_t last = 0;
    for (int n = 0; n < 4; n++) {
        if (shape[n] <= 0) return 0;
        last += (shape[n] - 1) * stride[n];
    }
    return last + 1;
}

static void nonsense_strides(attn_tensor *t)
{
    static const int64_t nonsense[4] = {INT64_MAX, -77777777777, INT64_MIN, 3};
    for (int n = 0; n < 4; n++)
        if (t->shape[n] == 1) t->stride[n] = nonsense[n];
}

static size_t align_of(int32_t dtype)
{
    return dtype == ATTN_F32 ? 4 : dtype == ATTN_F16 || dtype == ATTN_BF16 || suite_is_block(dtype) ? 2 : 1;
}

int suite_add_view(struct suite_built *t, struct suite_view *view, int32_t dtype, const int64_t shape[4], int layout,
                   int output)
{
    int64_t unit = suite_is_block(dtype) ? SUITE_BLOCK : 1;
    int64_t pitch = shape[3] + (layout == LAYOUT_HOSTILE ? unit == 1 ? 3 : unit : 0);
    attn_tensor *x = &view->t;
    *view = (struct suite_view){.scale_buffer = -1, .offset = layout == LAYOUT_HOSTILE ? unit : 0, .t.dtype = dtype};
    memcpy(x->shape, shape, sizeof x->shape);
    x->stride[3] = 1;
    if (layout == LAYOUT_BHSD || layout == LAYOUT_HOSTILE) {
        x->stride[2] = pitch;
        x->stride[1] = shape[2] * pitch + (layout == LAYOUT_HOSTILE ? pitch : 0);
        x->stride[0] = shape[1] * x->stride[1];
    } else {
        x->stride[1] = shape[3];
        x->stride[2] = shape[1] * shape[3];
        x->stride[0] = shape[2] * x->stride[2];
    }
    int64_t elements = extent(shape, x->stride);
    if (elements) elements += view->offset;
    view->buffer = suite_add_buffer(t, attn_dtype_bytes((attn_dtype)dtype, elements), align_of(dtype), output);
    if (layout == LAYOUT_HOSTILE) nonsense_strides(x);
    return view->buffer < 0 ? -1 : 0;
}

static int64_t at(const attn_tensor *t, int axis, int64_t index)
{
    return t->shape[axis] == 1 ? 0 : index * t->stride[axis];
}

unsigned char *suite_row(struct suite_built *t, const struct suite_view *view, int64_t b, int64_t h, int64_t s)
{
    const attn_tensor *x = &view->t;
    int64_t element = view->offset + at(x, 0, b) + at(x, 1, h) + at(x, 2, s);
    return t->buffer[view->buffer].data + attn_dtype_bytes((attn_dtype)x->dtype, element);
}

static float *row_scale(struct suite_built *t, const struct suite_view *view, int64_t b, int64_t h, int64_t s)
{
    const int64_t *stride = view->t.scale_stride;
    if (view->scale_buffer < 0) return NULL;
    return (float *)(void *)t->buffer[view->scale_buffer].data + b * stride[0] + h * stride[1] + s * stride[2];
}

void suite_read_row(struct suite_built *t, const struct suite_view *view, int64_t b, int64_t h, int64_t s, double *x)
{
    const float *scale = row_scale(t, view, b, h, s);
    suite_decode(view->t.dtype, suite_row(t, view, b, h, s), x, view->t.shape[3], scale ? *scale : 1.0f);
}

void suite_write_row(struct suite_built *t, const struct suite_view *view, int64_t b, int64_t h, int64_t s,
                     const float *x)
{
    float *scale = row_scale(t, view, b, h, s);
    int64_t n = view->t.shape[3];
    if (scale && t->c.scaling == SCALING_ROW) *scale = suite_row_scale(view->t.dtype, x, n);
    suite_encode(view->t.dtype, suite_row(t, view, b, h, s), x, n, scale ? *scale : 1.0f);
}

void suite_fill_row(struct suite_fill fill, uint64_t seed, int tensor, int64_t sequence, int64_t head, int64_t token,
                    float *x, int64_t n)
{
    uint64_t stream =
        suite_mix((uint64_t)tensor << 56 ^ (uint64_t)sequence << 40) ^ (uint64_t)head << 32 ^ (uint64_t)token;
    struct suite_random r = suite_random_of(seed, stream);
    float amount = fill.amount != 0 ? fill.amount : 1.0f;
    for (int64_t i = 0; i < n; i++) x[i] = fill.kind == FILL_CONSTANT ? fill.amount : amount * suite_normal(&r);
}

/* ---- placement -------------------------------------------------------------------------------------------------- */

static void *place(struct suite_built *t, int buffer, const struct suite_target *target)
{
    return buffer < 0 ? NULL : suite_buffer_place(&t->buffer[buffer], target);
}

attn_tensor suite_view_tensor(struct suite_built *t, const struct suite_view *view, const struct suite_target *target)
{
    attn_tensor x = view->t;
    if (view->buffer < 0) return (attn_tensor){0};
    x.data = (unsigned char *)place(t, view->buffer, target) + attn_dtype_bytes((attn_dtype)x.dtype, view->offset);
    x.scale = place(t, view->scale_buffer, target);
    return x;
}

static attn_lengths place_lengths(struct suite_built *t, int used, int offsets, int start, int64_t max,
                                  const struct suite_target *target)
{
    attn_lengths l = {.used = place(t, used, target),
                      .offsets = place(t, offsets, target),
                      .start = place(t, start, target),
                      .max = max};
    if (offsets >= 0) l.count = t->c.b;
    return l;
}

attn_problem suite_problem(struct suite_built *t, const struct suite_target *target)
{
    const struct suite_case *c = &t->c;
    attn_problem p = {.struct_size = sizeof p, .mask = c->mask};
    p.q = suite_view_tensor(t, &t->q, target);
    p.k = suite_view_tensor(t, &t->k, target);
    p.v = suite_view_tensor(t, &t->v, target);
    p.out = suite_view_tensor(t, &t->out, target);
    if (!c->no_lse) p.lse = suite_view_tensor(t, &t->lse, target);
    p.bias = suite_view_tensor(t, &t->bias, target);
    p.q_len = place_lengths(t, t->q_used, t->q_offsets, t->q_start, t->q_max, target);
    p.kv_len = place_lengths(t, t->k_used, t->k_offsets, t->k_start, t->k_max, target);
    p.page_table = place(t, t->table, target);
    p.page_table_pages = t->table_pages;
    p.page_table_stride = t->table_stride == t->table_pages ? 0 : t->table_stride;
    p.alibi = place(t, t->alibi, target);
    p.alibi_batch_stride = c->alibi == ALIBI_BATCH ? c->hq + 1 : 0;
    p.sink = place(t, t->sink, target);
    p.scale = c->scale;
    p.softcap = c->softcap;
    p.window_left = c->left;
    p.window_right = c->right;
    p.diagonal = c->diagonal;
    p.num_splits = c->num_splits;
    p.dropout = c->dropout;
    p.seed = c->seed_in_memory ? 1 : c->dropout_seed; /* what seed_offset overrides */
    p.offset = c->seed_in_memory ? 2 : c->dropout_offset;
    p.seed_offset = place(t, t->seeds, target);
    p.batch_origin = c->origin[0];
    p.head_origin = c->origin[1];
    p.row_origin = c->origin[2];
    p.column_origin = c->origin[3];
    return p;
}

void suite_poison_outputs(struct suite_built *t)
{
    for (int n = 0; n < t->buffers; n++)
        if (t->output[n] && t->buffer[n].bytes) memset(t->buffer[n].data, SUITE_POISON, t->buffer[n].bytes);
}

uint64_t suite_inputs_hash(const struct suite_built *t)
{
    uint64_t h = 1;
    for (int n = 0; n < t->buffers; n++)
        if (!t->output[n]) h = suite_mix(h) ^ suite_hash(t->buffer[n].data, t->buffer[n].bytes);
    return h;
}
