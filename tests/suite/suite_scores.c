/* SPDX-License-Identifier: Apache-2.0
 * What acts on scores: bands, bias, slopes, sinks, dropout. The rules are written here from docs/semantics.md, apart
 * from the library's code. */
#include "suite_case.h"
#include "suite_format.h"

#include <math.h>
#include <string.h>

enum { STREAM_BIAS = 21, STREAM_SINK };

void suite_band(const struct suite_built *t, int64_t b, int64_t i, int64_t *first, int64_t *end)
{
    const struct suite_case *c = &t->c;
    const struct suite_sequence *s = &t->sequence[b];
    int64_t aligned = i + s->diagonal, low = 0, high = s->sk - 1;
    if ((c->mask & ATTN_CAUSAL) && aligned < high) high = aligned;
    if ((c->mask & ATTN_WINDOW_RIGHT) && c->right < INT64_MAX / 2 && aligned + c->right < high)
        high = aligned + c->right;
    if ((c->mask & ATTN_WINDOW_LEFT) && c->left < INT64_MAX / 2 && aligned - c->left > low) low = aligned - c->left;
    *first = low;
    *end = high + 1;
    if (*end < *first) *first = *end = 0;
}

/* ---- building --------------------------------------------------------------------------------------------------- */

struct bias_shape {
    int32_t dtype;
    int b, h, q, k; /* 0: size 1 */
};

static struct bias_shape bias_shape_of(int kind)
{
    switch (kind) {
    case BIAS_F16: return (struct bias_shape){ATTN_F16, 1, 1, 1, 1};
    case BIAS_BF16: return (struct bias_shape){ATTN_BF16, 1, 1, 1, 1};
    case BIAS_HEADLESS: return (struct bias_shape){ATTN_F32, 0, 0, 1, 1};
    case BIAS_KEYS: return (struct bias_shape){ATTN_F32, 1, 0, 0, 1};
    case BIAS_QUERIES: return (struct bias_shape){ATTN_F32, 0, 1, 1, 0};
    case BIAS_BOOL: return (struct bias_shape){ATTN_BOOL, 1, 1, 1, 1};
    case BIAS_BOOL_KEYS: return (struct bias_shape){ATTN_BOOL, 1, 0, 0, 1};
    default: return (struct bias_shape){ATTN_F32, 1, 1, 1, 1};
    }
}

static int64_t bias_offset(const struct suite_view *bias, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const attn_tensor *x = &bias->t;
    int64_t element = bias->offset;
    if (x->shape[0] != 1) element += b * x->stride[0];
    if (x->shape[1] != 1) element += h * x->stride[1];
    if (x->shape[2] != 1) element += i * x->stride[2];
    if (x->shape[3] != 1) element += j * x->stride[3];
    return element;
}

/* Floats within +-5, BOOL keeps most; holes: every fourth row, the first one included, and a tenth of the rest. They
 * follow from the sequence and the indices that the bias has, not from where it lies. */
static float bias_value(const struct suite_case *c, int64_t b, int64_t h, int64_t i, int64_t j)
{
    struct bias_shape s = bias_shape_of(c->bias);
    uint64_t who = !s.b ? 0 : c->identity ? (uint64_t)c->identity[b] : (uint64_t)b;
    uint64_t pair = (s.h ? (uint64_t)h << 40 : 0) + (s.q ? (uint64_t)i << 20 : 0) + (s.k ? (uint64_t)j : 0);
    struct suite_random r = suite_random_of(c->seed, suite_mix((uint64_t)STREAM_BIAS << 56 ^ who) ^ pair);
    float x = 1.5f * suite_normal(&r);
    int hole = c->bias == BIAS_HOLES || c->bias == BIAS_BOOL ? i % 4 == 0 || suite_below(&r, 10) == 0
                                                             : suite_below(&r, 10) < 3;
    if (c->bias == BIAS_BOOL || c->bias == BIAS_BOOL_KEYS) return hole ? 0 : 1 + (float)suite_below(&r, 200);
    return c->bias == BIAS_HOLES && hole ? -INFINITY : x;
}

static void write_bias(struct suite_built *t, int64_t element, float x)
{
    unsigned char *data = t->buffer[t->bias.buffer].data;
    if (t->bias.t.dtype == ATTN_BOOL) data[element] = (unsigned char)x;
    else suite_encode(t->bias.t.dtype, data + attn_dtype_bytes((attn_dtype)t->bias.t.dtype, element), &x, 1, 1.0f);
}

static void fill_bias(struct suite_built *t)
{
    for (int64_t b = 0; b < t->c.b; b++)
        for (int64_t h = 0; h < (t->bias.t.shape[1] == 1 ? 1 : t->c.hq); h++)
            for (int64_t i = 0; i < t->sequence[b].sq; i++)
                for (int64_t j = 0; j < t->sequence[b].sk; j++) {
                    int64_t element = bias_offset(&t->bias, b, h, i, j);
                    write_bias(t, element, bias_value(&t->c, b, h, i, j));
                }
}

static int build_bias(struct suite_built *t)
{
    const struct suite_case *c = &t->c;
    struct bias_shape s = bias_shape_of(c->bias);
    int64_t shape[4] = {s.b ? c->b : 1, s.h ? c->hq : 1, s.q ? t->q_axis : 1, s.k ? t->k_axis : 1};
    t->bias.buffer = t->bias.scale_buffer = -1;
    if (c->bias == BIAS_NONE) return 0;
    if (c->bias == BIAS_TURNED) {
        int64_t turned[4] = {shape[0], shape[1], shape[3], shape[2]};
        if (suite_add_view(t, &t->bias, s.dtype, turned, LAYOUT_BHSD, 0)) return -1;
        memcpy(t->bias.t.shape, shape, sizeof shape);
        int64_t swapped = t->bias.t.stride[2];
        t->bias.t.stride[2] = t->bias.t.stride[3];
        t->bias.t.stride[3] = swapped;
    } else if (suite_add_view(t, &t->bias, s.dtype, shape, c->layout == LAYOUT_HOSTILE ? LAYOUT_HOSTILE : LAYOUT_BHSD,
                              0)) {
        return -1;
    }
    fill_bias(t);
    return 0;
}

static float *floats(struct suite_built *t, int64_t count, int *buffer)
{
    *buffer = suite_add_buffer(t, sizeof(float) * (size_t)count, sizeof(float), 0);
    return *buffer < 0 ? NULL : (float *)(void *)t->buffer[*buffer].data;
}

static int build_slopes(struct suite_built *t)
{
    const struct suite_case *c = &t->c;
    int64_t batches = c->alibi == ALIBI_BATCH ? c->b : 1, stride = c->hq + (c->alibi == ALIBI_BATCH);
    t->alibi = -1;
    if (c->alibi == ALIBI_NONE) return 0;
    float *slope = floats(t, batches * stride, &t->alibi); /* [B, H]: a gap of poison at the end of each row */
    for (int64_t b = 0; slope && b < batches; b++)
        for (int64_t h = 0; h < c->hq; h++) slope[b * stride + h] = 0.5f / (float)(1 + h + 2 * b);
    return slope ? 0 : -1;
}

static int build_sink(struct suite_built *t)
{
    struct suite_random r = suite_random_of(t->c.seed, STREAM_SINK);
    t->sink = -1;
    if (!t->c.sink) return 0;
    float *sink = floats(t, t->c.hq, &t->sink);
    for (int64_t h = 0; sink && h < t->c.hq; h++) sink[h] = t->c.sink == 2 ? -INFINITY : 2.0f * suite_normal(&r);
    return sink ? 0 : -1;
}

static int build_seeds(struct suite_built *t)
{
    const uint64_t seeds[2] = {t->c.dropout_seed, t->c.dropout_offset};
    t->seeds = -1;
    if (!t->c.seed_in_memory) return 0;
    t->seeds = suite_add_buffer(t, sizeof seeds, sizeof seeds[0], 0);
    if (t->seeds < 0) return -1;
    memcpy(t->buffer[t->seeds].data, seeds, sizeof seeds);
    return 0;
}

int suite_build_scores(struct suite_built *t)
{
    return build_bias(t) || build_slopes(t) || build_sink(t) || build_seeds(t) ? -1 : 0;
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

double suite_bias_at(const struct suite_built *t, int64_t b, int64_t h, int64_t i, int64_t j, int *masked)
{
    *masked = 0;
    if (t->bias.buffer < 0) return 0;
    int64_t element = bias_offset(&t->bias, b, h, i, j);
    const unsigned char *data = t->buffer[t->bias.buffer].data;
    double x;
    suite_decode(t->bias.t.dtype, data + attn_dtype_bytes((attn_dtype)t->bias.t.dtype, element), &x, 1, 1.0f);
    if (t->bias.t.dtype != ATTN_BOOL) return x;
    *masked = x == 0;
    return 0;
}

double suite_slope(const struct suite_built *t, int64_t b, int64_t h)
{
    if (t->alibi < 0) return 0;
    const float *slope = (const float *)(const void *)t->buffer[t->alibi].data;
    return slope[(t->c.alibi == ALIBI_BATCH ? b * (t->c.hq + 1) : 0) + h];
}

double suite_sink(const struct suite_built *t, int64_t h)
{
    return t->sink < 0 ? -INFINITY : ((const float *)(const void *)t->buffer[t->sink].data)[h];
}

double suite_keep_factor(const struct suite_built *t, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const struct suite_case *c = &t->c;
    if (!(c->dropout > 0)) return 1;
    if (!suite_keeps(c->dropout_seed, c->dropout_offset, c->dropout, c->origin[0] + b, c->origin[1] + h,
                     c->origin[2] + i, c->origin[3] + j))
        return 0;
    return 1.0f / (1.0f - c->dropout);
}
