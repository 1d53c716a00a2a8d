/* SPDX-License-Identifier: Apache-2.0
 * What many and few rows have in common in forward: the size of steps, scratch, and S to P. See forward_vector.h. */
#ifndef ATTN_CPU_FORWARD_STEP_H
#define ATTN_CPU_FORWARD_STEP_H

#include "block_vector.h"

enum {
    STEP = 128,            /* keys packed at a time */
    MOST_STEP = 256,       /* by any kernel of a level */
    STRIP = 4 * TILE_ROWS, /* rows between QK' and PV */
    ROW_STEP = 2 * TILE_ROWS < 24 ? 24 : 2 * TILE_ROWS,
    MOST_ROWS = 1024,
    FEW_STEP = 64, /* keys at a time then: f16, D = 128: K and V 16 KiB each */
    SHARE = 4,     /* rows that share a loaded key or value then */
    ROOM = (STRIP + W - 1) / W * W
};

typedef struct scratch {
    float *q;      /* many: [tile][D'][TILE_ROWS]; few: [rows][D'] */
    float *s;      /* [STRIP][STEP] */
    float *k;      /* many: [STEP / W][D'][W]; few: what take_few makes of a step */
    float *v;      /* many: [Dv' / W][STEP][W]; few: the same of V */
    float *o;      /* [rows][Dv'] */
    float *row;    /* [W][max(D', Dv')] */
    float *m, *l;  /* [rows] */
    int64_t d, dv; /* D' and Dv': D and Dv rounded up to W; zeros there */
} scratch;

/* Room for `size` floats behind the *used ones, from a multiple of 64 bytes on; without a base only counted. */
static float *place(float *base, int64_t *used, int64_t size)
{
    float *at = base ? base + *used : NULL;
    *used += attn_round_up(size, 16);
    return at;
}

/* What take_few may make of a step: widened rows, or factors, packed codes and rows of Q8_0 or f16. */
static int64_t few_floats(const attn_view *view, int64_t n, int64_t keys)
{
    const int64_t d = attn_round_up(n, W), widened = attn_min(FEW_STEP, keys) * d;
    if (is_direct(view, n)) return 0;
    return is_float_type(view->dtype) ? widened : attn_max(widened, FEW_STEP * (1 + d / 16 + d / 2));
}

/* rows: of the block, or the most. What a problem of fewer keys than a step or of few rows cannot reach is left out. */
static int64_t scratch_floats(const attn_job *job, int64_t rows, scratch *t, float *base)
{
    const int64_t d = attn_round_up(job->head_dim, W), dv = attn_round_up(job->head_dim_v, W);
    const int64_t most_keys = attn_span_most(&job->kv_span, job->max_k);
    const int64_t keys = attn_min(STEP, attn_round_up(attn_max(most_keys, 1), W));
    const bool few = attn_span_most(&job->q_span, job->max_q) * job->group <= FEW_ROWS; /* all blocks */
    const int64_t few_k = few_floats(&job->k, job->head_dim, keys), few_v = few_floats(&job->v, job->head_dim_v, keys);
    int64_t floats = 0;
    t->q = place(base, &floats, (few ? rows : attn_round_up(rows, TILE_ROWS)) * d);
    t->s = place(base, &floats, attn_min(rows, STRIP) * STEP);
    t->k = place(base, &floats, few ? few_k : attn_max(few_k, keys * d));
    t->v = place(base, &floats, few ? few_v : attn_max(few_v, (dv - W) * STEP + keys * W));
    t->o = place(base, &floats, rows * dv);
    t->row = place(base, &floats, few ? 0 : W * attn_max(d, dv));
    t->m = place(base, &floats, rows);
    t->l = place(base, &floats, rows);
    t->d = d;
    t->dv = dv;
    return floats;
}

static size_t scratch_bytes(const attn_job *job, int rows)
{
    scratch unused;
    return (size_t)scratch_floats(job, rows, &unused, NULL) * sizeof(float);
}

/* As many rows as have 1 MiB of Q and O, whatever the L2 cache holds: each step goes through them once, in order, so they may
 * come from L3, while K and V of the step stay in L2. The more rows, the less packing weighs. */
static int task_rows(const attn_job *job, size_t l2_bytes)
{
    (void)l2_bytes;
    const int64_t d = attn_round_up(job->head_dim, W) + attn_round_up(job->head_dim_v, W);
    return (int)attn_round_up(attn_min(MOST_ROWS, (1 << 20) / (int64_t)sizeof(float) / attn_max(d, 1)), ROW_STEP);
}

/* ---- S to P, the same for few and many rows -------------------------------------------------------- */

/* S of rows [r0, r0 + rows) to P in place; updates m and l. shrink: the factors by which sums so far shrink. */
static void softmax_rows(const attn_cpu_block *w, const scratch *t, int r0, int rows, const columns *c, float *shrink)
{
    float base[ROOM], total[ROOM];
    const int finish = has_finish(w->job) || c->edge, from = c->a0, to = c->a1;
    for (int r = 0; r < rows; r++) {
        float *s = t->s + r * STEP;
        if (finish) finish_scores(w, r0 + r, c, s);
        vf m = vf_set1(t->m[r0 + r]), m1 = m; /* one alone would wait for itself */
        int n = from;
        for (; n + W < to; n += 2 * W) {
            m = vf_max(vf_load(s + n), m);
            m1 = vf_max(vf_load(s + n + W), m1);
        }
        if (n < to) m = vf_max(vf_load(s + n), m);
        base[r] = vf_largest(vf_max(m, m1));
    }
    for (int r = 0; r < rows; r++) {
        float m = base[r];
        base[r] = m == -INFINITY ? 0.0f : m;
        shrink[r] = t->m[r0 + r] - base[r];
        t->m[r0 + r] = m;
    }
    for (int r = 0; r < rows; r += W) vf_store(shrink + r, vf_exp(vf_load(shrink + r)));
    for (int r = 0; r < rows; r++) {
        float *s = t->s + r * STEP;
        vf b = vf_set1(base[r]), sum = vf_zero();
        for (int n = from; n < to; n += W) {
            vf p = vf_exp(vf_sub(vf_load(s + n), b));
            vf_store(s + n, p);
            sum = vf_add(sum, p);
        }
        total[r] = vf_total(sum);
    }
    for (int r = 0; r < rows; r++) t->l[r0 + r] = t->l[r0 + r] * shrink[r] + total[r];
    if (w->job->has_dropout)
        for (int r = 0; r < rows; r++) drop_row(w, r0 + r, c, t->s + r * STEP);
}

#endif
