/* SPDX-License-Identifier: Apache-2.0
 * A tiny attention problem with its own forward in float64: docs/semantics.md sections 1 to 4 once more, as plainly as can
 * be, so that its differences judge the gradients of the reference.
 *
 * Dense arrays of doubles, q [B, Hq, rows, D] and so on; packed sequences have a batch axis of size 1. The loss is
 * sum of dout * O + sum of dlse * LSE over the rows in use whose LSE is finite. */
#ifndef ATTN_UNIT_TINY_H
#define ATTN_UNIT_TINY_H

#include "attn/attn.h"

#include <math.h>
#include <stdbool.h>

enum { TINY = 8192, TINY_HEADS = 32, TINY_KEYS = 128 }; /* numbers of the largest arrays */

typedef enum tiny_bias {
    TINY_NO_BIAS,
    TINY_FLOAT,
    TINY_HOLES,
    TINY_BOOL
} tiny_bias; /* HOLES: floats, some of them -inf */

typedef struct tiny_side { /* the sequence axis of q, or of k and v */
    int64_t rows;
    const int32_t *used, *start, *offsets;
} tiny_side;

typedef struct tiny_values {
    double q[TINY], k[TINY], v[TINY], bias[TINY], slope[TINY_HEADS], sink[TINY_HEADS], dout[TINY], dlse[TINY];
    unsigned char keep[TINY];
    double out[TINY], lse[TINY]; /* results */
} tiny_values;

typedef struct tiny {
    int64_t b, hq, hkv, d, dv;
    tiny_side q_side, k_side;
    int32_t q_type, k_type, v_type; /* attn_dtype; 0: F32 */
    uint32_t mask;
    int64_t left, right, diagonal;
    float scale, softcap, dropout;
    tiny_bias bias_kind;
    int bias_axes; /* bit n: axis n does not broadcast */
    int alibi;     /* 1: [Hq], 2: [B, Hq] */
    int sink;      /* 1: all heads, 2: that of head 0 is -inf */
    bool no_dlse, accumulate;
    /* by tiny_settle */
    struct tiny_values *x;
    int64_t pairs[4], bias_shape[4]; /* [B, Hq, Sq, Sk], local index axes: as long as the longest room */
} tiny;

/* ---- rows -------------------------------------------------------------------------------------------------------------- */

typedef struct tiny_rows {
    int64_t base, room, first, used;
} tiny_rows;

static inline tiny_rows tiny_rows_of(const tiny_side *s, int64_t b)
{
    tiny_rows r = {0, s->rows, 0, 0};
    if (s->offsets) r = (tiny_rows){s->offsets[b], s->offsets[b + 1] - s->offsets[b], 0, 0};
    r.first = r.base + (s->start ? s->start[b] : 0);
    r.used = s->used ? s->used[b] : r.base + r.room - r.first;
    return r;
}

/* Index of a row in an array [batch axis, heads, rows]. */
static inline int64_t tiny_row(const tiny_side *s, int64_t heads, int64_t b, int64_t h, int64_t row)
{
    return ((s->offsets ? 0 : b) * heads + h) * s->rows + row;
}

static inline int64_t tiny_batch_axis(const tiny *t, const tiny_side *s) { return s->offsets ? 1 : t->b; }

static inline int64_t tiny_longest_room(const tiny *t, const tiny_side *s)
{
    int64_t longest = 0;
    for (int64_t b = 0; b < t->b; b++)
        if (tiny_rows_of(s, b).room > longest) longest = tiny_rows_of(s, b).room;
    return longest;
}

static inline void tiny_settle(tiny *t, struct tiny_values *values)
{
    const int64_t pairs[4] = {t->b, t->hq, tiny_longest_room(t, &t->q_side), tiny_longest_room(t, &t->k_side)};
    t->x = values;
    for (int axis = 0; axis < 4; axis++) {
        t->pairs[axis] = pairs[axis];
        t->bias_shape[axis] = t->bias_axes >> axis & 1 ? pairs[axis] : 1;
    }
}

/* Index into an array [B, Hq, Sq, Sk] of that shape, where axes of size 1 broadcast. */
static inline int64_t tiny_pair(const int64_t shape[4], int64_t b, int64_t h, int64_t i, int64_t j)
{
    const int64_t at[4] = {b, h, i, j};
    int64_t index = 0;
    for (int axis = 0; axis < 4; axis++) index = index * shape[axis] + (shape[axis] > 1 ? at[axis] : 0);
    return index;
}

/* ---- forward ------------------------------------------------------------------------------------------------------------- */

static inline bool tiny_in_band(const tiny *t, int64_t c, int64_t j)
{
    if ((t->mask & ATTN_CAUSAL) && j > c) return false;
    if ((t->mask & ATTN_WINDOW_RIGHT) && j > c + t->right) return false;
    if ((t->mask & ATTN_WINDOW_LEFT) && j < c - t->left) return false;
    return true;
}

static inline double tiny_score(const tiny *t, int64_t b, int64_t h, int64_t i, int64_t j)
{
    tiny_rows q = tiny_rows_of(&t->q_side, b), k = tiny_rows_of(&t->k_side, b);
    int64_t diagonal = t->mask & ATTN_DIAGONAL ? t->diagonal : t->mask & ATTN_TOP_LEFT ? 0 : k.used - q.used;
    if (!tiny_in_band(t, i + diagonal, j)) return -INFINITY;

    const double *x = t->x->q + t->d * tiny_row(&t->q_side, t->hq, b, h, q.first + i);
    const double *y = t->x->k + t->d * tiny_row(&t->k_side, t->hkv, b, h / (t->hq / t->hkv), k.first + j);
    double s = 0.0;
    for (int64_t e = 0; e < t->d; e++) s += x[e] * y[e];
    s *= t->scale != 0.0f ? (double)t->scale : (double)(float)(1.0 / sqrt((double)t->d));
    if (t->softcap > 0.0f) s = (double)t->softcap * tanh(s / (double)t->softcap);
    if (t->bias_kind) {
        double bias = t->x->bias[tiny_pair(t->bias_shape, b, h, i, j)];
        if (t->bias_kind != TINY_BOOL) s += bias;
        else if (bias == 0.0) return -INFINITY;
    }
    if (t->alibi) s -= t->x->slope[(t->alibi == 2 ? b * t->hq : 0) + h] * fabs((double)(i + diagonal - j));
    return s;
}

/* O into t->out, LSE into t->lse; returns the row's part of the loss. */
static inline double tiny_row_forward(tiny *t, int64_t b, int64_t h, int64_t i)
{
    tiny_rows q = tiny_rows_of(&t->q_side, b), k = tiny_rows_of(&t->k_side, b);
    int64_t row = tiny_row(&t->q_side, t->hq, b, h, q.first + i);
    double sink = t->sink ? t->x->sink[h] : -INFINITY, s[TINY_KEYS], m = sink, l = 0.0, loss = 0.0;
    double *out = t->x->out + row * t->dv;
    for (int64_t e = 0; e < t->dv; e++) out[e] = 0.0;
    t->x->lse[row] = -INFINITY;
    for (int64_t j = 0; j < k.used; j++) m = fmax(m, s[j] = tiny_score(t, b, h, i, j));
    if (m == -INFINITY) return 0.0;

    for (int64_t j = 0; j < k.used; j++) l += exp(s[j] - m);
    l += exp(sink - m);
    t->x->lse[row] = m + log(l);
    for (int64_t j = 0; j < k.used; j++) {
        const double *v = t->x->v + t->dv * tiny_row(&t->k_side, t->hkv, b, h / (t->hq / t->hkv), k.first + j);
        double p = exp(s[j] - m) / l;
        if (t->dropout == 1.0f) p = 0.0;
        else if (t->dropout > 0.0f)
            p *= t->x->keep[tiny_pair(t->pairs, b, h, i, j)] ? (double)(1.0f / (1.0f - t->dropout)) : 0.0;
        for (int64_t e = 0; e < t->dv; e++) out[e] += p * v[e];
    }
    for (int64_t e = 0; e < t->dv; e++) loss += t->x->dout[row * t->dv + e] * out[e];
    return loss + (t->no_dlse ? 0.0 : t->x->dlse[row] * t->x->lse[row]);
}

static inline double tiny_loss(tiny *t)
{
    double loss = 0.0;
    for (int64_t b = 0; b < t->b; b++)
        for (int64_t h = 0; h < t->hq; h++)
            for (int64_t i = 0; i < tiny_rows_of(&t->q_side, b).used; i++) loss += tiny_row_forward(t, b, h, i);
    return loss;
}

/* d loss / d x by central differences, whose error of order h^2 two step sizes cancel (Richardson). */
static inline double tiny_derivative(tiny *t, double *x)
{
    const double at = *x, h = 1e-4;
    double difference[2];
    for (int n = 0; n < 2; n++) {
        double step = h / (n + 1);
        *x = at + step;
        double above = tiny_loss(t);
        *x = at - step;
        difference[n] = (above - tiny_loss(t)) / (2.0 * step);
    }
    *x = at;
    return (4.0 * difference[1] - difference[0]) / 3.0;
}

#endif
