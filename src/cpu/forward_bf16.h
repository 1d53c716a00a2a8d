/* SPDX-License-Identifier: Apache-2.0
 * The forward kernel of the levels that multiply bf16, for Q, K and V of bf16 and more rows than forward_few takes; all else is
 * forward_vector.h's. The formula and the order are that file's, but for what follows.
 *
 * P is rounded to bf16, and so is what divides O: l is the sum of P as it was, for the LSE, `rounded` the sum of P as multiplied;
 * O l / rounded is what the block returns. Exponents are those of 2. Their base follows a row's maximum only when this has grown by
 * more than LAZY, so that O is rarely scaled in memory, and most rows need no maximum; m is that base.
 *
 * For each step of STEP16 keys: K as the right operand of S, 16 keys a panel, V as that of O, 16 columns a panel; rows in strips
 * of STRIP16: S to float32 in L1, softmax in float32, P as the left operand of O. Scores take the scale with the base, in
 * one fused operation, unless something stands between (softcap, bias, ALiBi): a rule on the problem, not on the block.
 *
 * Bytes: a block of R rows reads Sk (D + Dv) 2 bytes of K and V for 4 Sk R D flops: with R = 512, D = Dv = 128 512 flops a byte.
 * Scratch of a thread: Q, a step's K and V, a strip's P in bf16; a strip's S and O [rows][Dv] in float32.
 *
 * -inf: as in forward_vector.h. NaN: as there; bf16 keeps it. Subnormal operands and results of a
 * product count as 0, so values below 2^-63 are multiplied apart, times 2^64: they add to O, whatever the block's other keys are. */
#ifndef ATTN_CPU_FORWARD_BF16_H
#define ATTN_CPU_FORWARD_BF16_H

#include "block_bf16.h"
#include "forward_vector.h"
#include <math.h>

#define LAZY 5.0f /* 2^5 is far from all limits */
#define LOG2_E 1.44269504f
#define LN_2 0.693147181f

enum { ROW_STEP16 = 32, MOST_ROWS16 = 16 * ROW_STEP16, STEP16 = MOST_STEP /* keys packed at a time */ };

typedef struct scratch16 {
    uint16_t *q;         /* slabs of D' of `room` rows */
    uint16_t *k, *v;     /* panels of STEP16 keys, D' deep; panels of Dv' columns, STEP16 deep */
    uint16_t *tiny;      /* as v: values too small to be multiplied, times 2^64 */
    uint16_t *p;         /* 2 of: slabs of STEP16, STRIP16 rows */
    float *s;            /* 2 of: [STRIP16][STEP16] */
    float *o, *o_tiny;   /* [rows][Dv'] */
    float *m, *l;        /* [rows] */
    float *base;         /* [rows]: of the exponentials, as a power of 2 */
    float (*sums)[2][W]; /* [rows]: of P, of P as rounded; lane by lane */
    int64_t d, dv, room; /* D rounded up to a slab, Dv to a panel, rows to a tile */
} scratch16;

static int64_t scratch16_bytes(const attn_job *job, int64_t rows, scratch16 *t, char *base)
{
    t->d = whole_slabs(job->head_dim);
    t->dv = attn_round_up(job->head_dim_v, W);
    t->room = attn_round_up(rows, 16);
    /* What a problem of fewer keys than a step, or rows than a strip, cannot reach is left out. */
    const int64_t most_keys = attn_span_most(&job->kv_span, job->max_k);
    const int64_t keys = attn_min(STEP16, whole_slabs(attn_max(most_keys, 1)));
    const int64_t scores = rows > STRIP16 ? 2 * STRIP16 : rows, weights = rows > STRIP16 ? 2 * STEP16 : keys;
    const int64_t values = (t->dv - W) * STEP16 + keys * W;
    const scratch_part parts[] = {
        {&t->q, 2 * t->room * t->d}, {&t->k, 2 * keys * t->d},       {&t->v, 2 * values},
        {&t->tiny, 2 * values},      {&t->p, 2 * STRIP16 * weights}, {&t->s, 4 * scores * STEP16},
        {&t->o, 4 * rows * t->dv},   {&t->o_tiny, 4 * rows * t->dv}, {&t->m, 4 * rows},
        {&t->l, 4 * rows},           {&t->base, 4 * rows},           {&t->sums, 8 * W * rows}};
    return place_parts(parts, sizeof parts / sizeof *parts, base);
}

/* As task_rows, with half the bytes but for O. */
static int task_rows16(const attn_job *job, size_t l2_bytes)
{
    const int64_t d = whole_slabs(job->head_dim), dv = attn_round_up(job->head_dim_v, W);
    const int64_t room = (int64_t)(l2_bytes / 4 * 3) - 2 * 2 * STEP16 * (d + dv) - 12 * STRIP16 * STEP16;
    const int64_t rows = room / attn_max(2 * d + 4 * dv, 1) / ROW_STEP16 * ROW_STEP16;
    return (int)attn_min(MOST_ROWS16, attn_max(4 * ROW_STEP16, rows));
}

/* ---- operands ------------------------------------------------------------------------------------ */

static void pack_queries16(const attn_cpu_block *w, const scratch16 *t)
{
    for (int64_t r = 0; r < t->room; r++)
        put_left(r < w->rows ? row_of(w, &w->job->q, r) : NULL, w->job->head_dim, t->room, t->q + r * SLAB);
}

/* Elements that products of weights would lose, as subnormal results are 0: not 0 and below 2^-63. */
static int is_tiny(uint16_t x) { return (x & 0x7fff) != 0 && (x & 0x7fff) < (127 - 63) << 7; }

/* A row without its tiny elements, and these times 2^64. */
static void split_row(const void *row, int64_t n, uint16_t *rest, uint16_t *tiny)
{
    for (int64_t d = 0; d < n; d++) {
        const uint16_t x = attn_load_u16((const char *)row + 2 * d);
        const int small = is_tiny(x);
        rest[d] = small ? 0 : x;
        tiny[d] = small ? attn_f32_to_bf16(attn_bf16_to_f32(x) * 0x1p64f) : 0;
    }
}

/* Values n and n + 1, some of them tiny; `any`: the step has had such. */
static void put_small_values(const scratch16 *t, const columns *c, const void *const *rows, int n, int64_t dv, int any)
{
    uint16_t rest[2][ATTN_MAX_HEAD_DIM], tiny[2][ATTN_MAX_HEAD_DIM];
    for (int j = 0; j < 2; j++) split_row(rows[j], dv, rest[j], tiny[j]);
    for (int64_t d = 0; !any && d < t->dv; d += W)
        memset(t->tiny + d * STEP16 + c->a0 * W, 0, (size_t)((c->a1 - c->a0) * W) * sizeof *t->tiny);
    put_right_rows(rest[0], rest[1], dv, STEP16, t->v + n * W);
    put_right_rows(tiny[0], tiny[1], dv, STEP16, t->tiny + n * W);
}

/* Keys of the columns [a0, a1); those outside [c0, c1) are zero, as are values. Whether some value is tiny. */
static int pack_step16(const attn_cpu_block *w, const scratch16 *t, const columns *c)
{
    const attn_job *job = w->job;
    const char *rows[STEP16];
    int tiny = 0;
    find_rows(w, &job->k, c->key, c->c0, c->c1, rows);
    for (int n = c->a0; n < c->a1; n += W) {
        const void *of[W];
        for (int j = 0; j < W; j++) of[j] = n + j < c->c0 || n + j >= c->c1 ? (const void *)zero_row : rows[n + j];
        put_right_columns(of, job->head_dim, t->k + n * t->d);
    }
    find_rows(w, &job->v, c->key, c->c0, c->c1, rows);
    for (int n = c->a0; n < c->a1; n += 2) {
        const void *of[2];
        for (int j = 0; j < 2; j++) of[j] = n + j < c->c0 || n + j >= c->c1 ? (const void *)zero_row : rows[n + j];
        if (!put_right_rows(of[0], of[1], job->head_dim_v, STEP16, t->v + n * W)) continue;
        put_small_values(t, c, of, n, job->head_dim_v, tiny);
        tiny = 1;
    }
    return tiny;
}

/* ---- S to P ---------------------------------------------------------------------------------------- */

static int scales_first(const attn_job *job) { return has_finish(job) || !(job->scale > 0.0f); }

/* 2^x for x <= LAZY, 1e-7; 0 below 2^-126, so that no result is subnormal. x = t + r, t whole, 0 <= r < 1, 2^r by a polynomial
 * fitted to least relative error (8e-8) with constant 1. */
VECTOR vf exp2_of(vf x)
{
    const vf r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vf p = vf_set1(1.86713017e-3f);
    p = vf_fma(p, r, vf_set1(9.01702978e-3f));
    p = vf_fma(p, r, vf_set1(5.57999127e-2f));
    p = vf_fma(p, r, vf_set1(2.40164444e-1f));
    p = vf_fma(p, r, vf_set1(6.93151295e-1f));
    p = vf_fma(p, r, vf_set1(1.0f));
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, vf_set1(-126.0f), _CMP_NLT_UQ), p, x);
}

/* P of 32 columns from scores against a base, rounded; adds to the row's two sums. */
VECTOR __m512i soften_slab(vf low, vf high, float sums[2][W])
{
    low = exp2_of(low);
    high = exp2_of(high);
    const __m512i two = round_two(low, high);
    vf_store(sums[0], vf_add(vf_load(sums[0]), vf_add(low, high)));
    vf_store(sums[1], sum_pairs(vf_load(sums[1]), two));
    return two;
}

/* x shrunk; what would be subnormal is 0, as the next product would take it, if there is one. */
VECTOR vf shrink_sums(vf x, vf shrink)
{
    const vf y = vf_mul(x, shrink);
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(vf_abs(y), vf_set1(0x1p-126f), _CMP_NLT_UQ), y);
}

/* Everything of row r so far shrinks to a new base. */
static void shrink_row(const scratch16 *t, int r, int tiny, float base, float to)
{
    const vf shrink = vf_set1(base == -INFINITY ? 0.0f : exp2f(base - to));
    float *const o[2] = {t->o + r * t->dv, t->o_tiny + r * t->dv};
    t->base[r] = to;
    for (int n = 0; n < 2; n++) vf_store(t->sums[r][n], vf_mul(vf_load(t->sums[r][n]), shrink));
    for (int n = 0; base != -INFINITY && n < 1 + tiny; n++)
        for (int64_t d = 0; d < t->dv; d += W) vf_store(o[n] + d, shrink_sums(vf_load(o[n] + d), shrink));
}

static void add_sums(const scratch16 *t, int r, float sums[2][W])
{
    for (int n = 0; n < 2; n++) {
        vf_store(t->sums[r][n], vf_add(vf_load(t->sums[r][n]), vf_load(sums[n])));
        vf_store(sums[n], vf_zero());
    }
}

/* A strip on its way: it has a place for S and one for P, of which there are two. */
typedef struct strip {
    meanwhile softmax; /* first: a turn gets its address */
    const attn_cpu_block *w;
    const scratch16 *t;
    columns c;
    int r0, rows, place;
    int tiny, tiny_here; /* some value of the block so far is, of the step */
    int row, at;         /* to be softened next: columns [at, at + 32) of that row */
    int each;            /* such parts a turn */
    float sums[2][W];    /* of the row's columns before `at` */
} strip;

/* Fused, a score's distance to its base is off by 2^-24 of the base, which must stay far below 1 for P not to overflow; from here on
 * product and difference are rounded, so that the largest score is its base. */
#define FAR 65536.0f

static int is_far(float base) { return base > FAR || base < -FAR; }

static float *scores_of(const strip *x, int r) { return x->t->s + (x->place * STRIP16 + r) * STEP16; }
static uint16_t *weights_of(const strip *x, int r) { return x->t->p + x->place * STRIP16 * STEP16 + r * SLAB; }

static void next_row(strip *x)
{
    x->at = x->c.a0;
    if (++x->row == x->rows) x->softmax.turn = NULL;
}

/* The next row as a whole: whatever may stand between S and P, and its maximum. */
static void soften_row(strip *x)
{
    const attn_cpu_block *w = x->w;
    const attn_job *job = w->job;
    const columns *c = &x->c;
    const int r = x->row;
    float *s = scores_of(x, r), factor = job->scale * LOG2_E;
    uint16_t *p = weights_of(x, r);
    if (scales_first(job)) {
        for (int n = c->a0; n < c->a1; n += W) vf_store(s + n, vf_mul(vf_load(s + n), vf_set1(job->scale)));
        factor = LOG2_E;
        finish_scores(w, x->r0 + r, c, s);
    } else if (c->edge) {
        mask_scores(w, x->r0 + r, c, s);
    }
    vf m = vf_set1(-INFINITY);
    for (int n = c->a0; n < c->a1; n += W) m = vf_max(vf_load(s + n), m);
    const float largest = vf_largest(m), before = x->t->base[x->r0 + r];
    if (before == -INFINITY ? largest > -INFINITY
        : is_far(before)    ? largest * factor - before > LAZY
                            : fmaf(largest, factor, -before) > LAZY)
        shrink_row(x->t, x->r0 + r, x->tiny, before, largest * factor);
    const float base = x->t->base[x->r0 + r];
    vf b = vf_set1(base == -INFINITY ? 0.0f : base), f = vf_set1(factor);
    for (int n = 0; n < 2; n++) vf_store(x->sums[n], vf_zero());
    if (is_far(base)) {
        for (int n = c->a0; n < c->a1; n += W) vf_store(s + n, vf_sub(vf_mul(vf_load(s + n), f), b));
        f = vf_set1(1.0f);
        b = vf_zero();
    }
    for (int n = c->a0; n < c->a1; n += SLAB) {
        const __m512i two = soften_slab(vf_fms(vf_load(s + n), f, b), vf_fms(vf_load(s + n + W), f, b), x->sums);
        if (job->has_dropout) { /* of P as rounded */
            vf_store(s + n, vf_load_bf16(&two));
            vf_store(s + n + W, vf_load_bf16((const char *)&two + 2 * W));
        }
        _mm512_storeu_si512(p + n * STRIP16, two);
    }
    add_sums(x->t, x->r0 + r, x->sums);
    if (job->has_dropout) {
        drop_row(w, x->r0 + r, c, s);
        for (int n = c->a0; n < c->a1; n += SLAB)
            _mm512_storeu_si512(p + n * STRIP16, round_two(vf_load(s + n), vf_load(s + n + W)));
    }
    next_row(x);
}

static void soften_rows(meanwhile *softmax)
{
    strip *x = (strip *)(void *)softmax;
    for (int n = 0; n < x->each && x->softmax.turn; n += (x->c.a1 - x->c.a0) / SLAB) soften_row(x);
}

/* Parts of rows of which every column is seen and has but the scale between S and P. A row that outgrows its base is begun again. */
static void soften_parts(meanwhile *softmax)
{
    strip *x = (strip *)(void *)softmax;
    const vf f = vf_set1(x->w->job->scale * LOG2_E);
    for (int n = 0; n < x->each && x->softmax.turn; n++) {
        const float *s = scores_of(x, x->row) + x->at;
        const vf b = vf_set1(x->t->base[x->r0 + x->row]);
        const vf low = vf_fms(vf_load(s), f, b), high = vf_fms(vf_load(s + W), f, b);
        if (_mm512_cmp_ps_mask(vf_max(low, high), vf_set1(LAZY), _CMP_GT_OQ)) {
            soften_row(x);
            continue;
        }
        _mm512_storeu_si512(weights_of(x, x->row) + x->at * STRIP16, soften_slab(low, high, x->sums));
        x->at += SLAB;
        if (x->at < x->c.a1) continue;
        add_sums(x->t, x->r0 + x->row, x->sums);
        next_row(x);
    }
}

/* ---- the block ------------------------------------------------------------------------------------- */

static void score_strip16(const strip *x, meanwhile *other)
{
    const scratch16 *t = x->t;
    const columns *c = &x->c;
    product(x->rows, c->a1 - c->a0, t->d / SLAB, t->q + x->r0 * SLAB, t->room * SLAB, t->k + c->a0 * t->d, W * t->d, 0,
            t->s + x->place * STRIP16 * STEP16 + c->a0, STEP16, other);
}

static void value_strip16(const strip *x, meanwhile *other)
{
    const scratch16 *t = x->t;
    const columns *c = &x->c;
    const uint16_t *p = weights_of(x, 0) + c->a0 * STRIP16;
    const int slabs = (c->a1 - c->a0) / SLAB;
    const int64_t row = x->r0 * t->dv;
    product(x->rows, t->dv, slabs, p, STRIP16 * SLAB, t->v + c->a0 * W, STEP16 * W, 1, t->o + row, t->dv, other);
    if (x->tiny_here)
        product(x->rows, t->dv, slabs, p, STRIP16 * SLAB, t->tiny + c->a0 * W, STEP16 * W, 1, t->o_tiny + row, t->dv,
                NULL);
}

/* The next strip from *row on that sees keys of the step. */
static strip *take_strip(const attn_cpu_block *w, const scratch16 *t, int64_t key, const int tiny[2], int *row,
                         strip *x)
{
    for (; *row < w->rows; *row += STRIP16) {
        const int rows = w->rows - *row < STRIP16 ? w->rows - *row : STRIP16;
        const columns c = slab_columns(w, *row, rows, key, STEP16);
        if (c.c0 >= c.c1) continue;
        *x = (strip){.w = w, .t = t, .c = c, .r0 = *row, .rows = rows, .tiny = tiny[0], .tiny_here = tiny[1]};
        *row += STRIP16;
        return x;
    }
    return NULL;
}

/* The softmax of a strip as turns for the products beside it. */
static meanwhile *plan_softmax(strip *x, int before, int behind)
{
    const scratch16 *t = x->t;
    const int parts = (x->c.a1 - x->c.a0) / SLAB, squares = (int)attn_ceil_div(x->rows, 16);
    const int turns = 2 * squares * parts * (int)(before * attn_ceil_div(t->dv, SLAB) + behind * t->d / SLAB);
    int whole = x->c.edge || x->w->job->has_dropout || scales_first(x->w->job);
    for (int r = 0; r < x->rows; r++) whole = whole || is_far(t->base[x->r0 + r]); /* none yet is, too */
    x->at = x->c.a0;
    x->each = (int)attn_ceil_div(x->rows * parts, attn_max(1, turns));
    x->softmax.turn = whole ? soften_rows : soften_parts;
    return &x->softmax;
}

/* The rows of a step strip by strip: while `here` is softened, O of the strip before it and S of the one behind it are multiplied. */
static void run_strips(const attn_cpu_block *w, const scratch16 *t, int64_t key, const int tiny[2], ahead *next)
{
    strip room[3], *before = NULL, *here = NULL, *behind;
    int row = 0, count = 0;
    do {
        behind = take_strip(w, t, key, tiny, &row, &room[count % 3]);
        if (behind) behind->place = count++ % 2;
        meanwhile *softmax = here ? plan_softmax(here, before != NULL, behind != NULL) : NULL;
        if (behind) score_strip16(behind, softmax);
        if (before) value_strip16(before, softmax);
        while (softmax && softmax->turn) softmax->turn(softmax);
        fetch_ahead(next);
        before = here;
        here = behind;
    } while (before || here);
}

/* Whether o_tiny has something. */
static int forward_block16(const attn_cpu_block *w, const scratch16 *t)
{
    int64_t first, end;
    int tiny[2] = {0, 0};
    ahead next;
    pack_queries16(w, t);
    attn_block_band(w, &first, &end);
    if (first >= end) return 0; /* a step would be packed that scratch may have no room for */
    const int64_t step_strips = attn_ceil_div(w->rows, STRIP16);
    for (int64_t key = first / STEP16 * STEP16; key < end; key += STEP16) {
        const columns all = slab_columns(w, 0, w->rows, key, STEP16);
        tiny[1] = pack_step16(w, t, &all);
        if (tiny[1] && !tiny[0]) memset(t->o_tiny, 0, (size_t)(w->rows * t->dv) * sizeof *t->o_tiny);
        tiny[0] |= tiny[1];
        plan_ahead(w, key + STEP16, end, STEP16, step_strips, &next);
        run_strips(w, t, key, tiny, &next);
    }
    return tiny[0];
}

static void forward16(const attn_cpu_block *w, void *memory, attn_cpu_state *state)
{
    scratch16 t;
    scratch16_bytes(w->job, w->rows, &t, memory);
    *state = (attn_cpu_state){t.m, t.l, t.o, t.dv};
    for (int r = 0; r < w->rows; r++) t.base[r] = -INFINITY;
    memset(t.sums, 0, (size_t)w->rows * sizeof *t.sums);
    memset(t.o, 0, (size_t)(w->rows * t.dv) * sizeof *t.o);
    product_begin();
    const int tiny = forward_block16(w, &t);
    product_end();
    for (int r = 0; r < w->rows; r++) {
        const float rounded = vf_total(vf_load(t.sums[r][1]));
        t.m[r] = t.base[r] * LN_2;
        t.l[r] = vf_total(vf_load(t.sums[r][0]));
        if (!(rounded > 0.0f)) continue;
        const vf f = vf_set1(t.l[r] / rounded);
        for (int64_t d = 0; d < t.dv; d += W) {
            float *o = t.o + r * t.dv + d;
            const vf x = tiny ? vf_fma(vf_load(t.o_tiny + r * t.dv + d), vf_set1(0x1p-64f), vf_load(o)) : vf_load(o);
            vf_store(o, vf_mul(x, f));
        }
    }
}

/* ---- which of the two --------------------------------------------------------------------------------- */

static size_t any_scratch_bytes(const attn_job *job, int rows)
{
    scratch16 unused;
    const size_t vectors = scratch_bytes(job, rows);
    if (!attn_job_is_bf16(job) || attn_span_most(&job->q_span, job->max_q) * job->group <= FEW_ROWS) return vectors;
    const size_t bytes = (size_t)scratch16_bytes(job, rows, &unused, NULL);
    return bytes > vectors ? bytes : vectors;
}

static int any_task_rows(const attn_job *job, size_t l2_bytes)
{
    return attn_job_is_bf16(job) ? task_rows16(job, l2_bytes) : task_rows(job, l2_bytes) / ROW_STEP16 * ROW_STEP16;
}

static void any_forward(const attn_cpu_block *w, void *memory, attn_cpu_state *state)
{
    if (attn_job_is_bf16(w->job) && w->seq.q_len * w->job->group > FEW_ROWS) forward16(w, memory, state);
    else forward(w, memory, state);
}

#endif
