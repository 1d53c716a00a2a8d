/* SPDX-License-Identifier: Apache-2.0
 * The naive implementation of docs/semantics.md section 9: what a careful user would write without this library. Its
 * distance to the float64 reference is the yardstick for every backend, so it is simple and never changes.
 *
 * Arrays are dense, dequantised and gathered: [B, H, S, D] in row-major order. In forward, with `dtype` the type of
 * the query:
 *     scores   float32 sums over d in order, scale, softcap, bias and ALiBi in float32, then rounded to dtype
 *     softmax  float32
 *     P        rounded to dtype, dropout included
 *     output   float32 sums over the keys in order, rounded to dtype
 * In backward P, dP and dS are rounded to dtype in the same way, and so are the results. */
#ifndef ATTN_TESTS_NAIVE_H
#define ATTN_TESTS_NAIVE_H

#include <stdint.h>

struct naive_problem {
    int32_t dtype; /* attn_dtype of the query: F32, F16 or BF16 */
    int64_t B, Hq, Hkv, Sq, Sk, D, Dv;
    const double *q;              /* [B, Hq, Sq, D] */
    const double *k;              /* [B, Hkv, Sk, D] */
    const double *v;              /* [B, Hkv, Sk, Dv] */
    const unsigned char *visible; /* [B, Hq, Sq, Sk], non-zero: the query sees the key; NULL: all */
    const float *bias;            /* [B, Hq, Sq, Sk]; NULL: none */
    const float *slopes;          /* [B, Hq]; NULL: no ALiBi */
    const float *sink;            /* [Hq]; NULL: none */
    const float *keep;            /* [B, Hq, Sq, Sk], 0 or 1/(1 - p); NULL: no dropout */
    int64_t diagonal;             /* for ALiBi: query i is aligned with key i + diagonal */
    float scale;                  /* as it is: 0 has no meaning of its own here */
    float softcap;                /* 0: off */
};

/* out [B, Hq, Sq, Dv]; lse [B, Hq, Sq] or NULL. They return 0, or -1 without memory. */
int naive_forward(const struct naive_problem *p, float *out, float *lse);
/* Rows [first, end) of one head only; out and lse point at row `first` of that head. For threads. */
int naive_forward_rows(const struct naive_problem *p, int64_t b, int64_t h, int64_t first, int64_t end, float *out,
                       float *lse);

/* dout [B, Hq, Sq, Dv]; dlse [B, Hq, Sq] or NULL. The results have the shapes of q, k, v; dbias is [B, Hq, Sq, Sk], not
 * summed over the axes on which a bias broadcasts; dsink [Hq]. Each may be NULL. */
int naive_backward(const struct naive_problem *p, const double *dout, const double *dlse, float *dq, float *dk,
                   float *dv, float *dbias, float *dsink);

/* x rounded to a float type and back. */
float naive_round(int32_t dtype, float x);

#endif
