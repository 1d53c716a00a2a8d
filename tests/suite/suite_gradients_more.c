/* SPDX-License-Identifier: Apache-2.0
 * Gradients in float64 by the suite's own code, written from docs/semantics.md section 7, and their judgement.
 *
 * The row rule. With A_ij = Z_ij sum_d |dO_id v_jd|, B_i = sum_d |dO_id O_id| and w_ij = P_ij (A_ij + B_i + |dLSE_i|),
 * the magnitude of what dS_ij is the difference of:
 *   - rounding P, dP and dS to the type, and the sum over d, change dS_ij by up to 4 u w_ij, every pair on its own;
 *   - rounding O changes D_i by up to 2 u B_i, in all of a row together;
 *   - an error of the scores of 4 e (1 + max|s_i|) of themselves changes P_ij and so dS_ij by as much of w_ij, and
 *     errors of neighbouring scores may agree;
 *   - a P_ij below ROW_RULE_LOST may count as 0;
 *   - the result is rounded.
 * These go through dQ_i = scale sum_j dT_ij k_j and so on (the slope of the softcap is at most 1); the first two add as
 * squares, the others as magnitudes. For dV, dS_ij is Z_ij P_ij and w_ij likewise. So, for each row of a gradient,
 *
 *   |x - ref|^2 <= m^2 |naive - ref|^2 + sum (4 u w |scale k|)^2 + (2 u B |scale sum_j P_j k_j|)^2
 *                  + |sum 4 e (1 + max|s|) w |scale k||^2 + (2u)^2 |ref|^2,    m = 3,
 *
 * where u |x| is never below half of the smallest subnormal number. What nothing adds to is 0 exactly. */
#include "suite_gradients.h"
#include "suite_format.h"

#include "row_rule.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const double tiny = 0x1p-24; /* e */

const char *gradient_name(int which)
{
    static const char *const name[GRADIENTS] = {"dq", "dk", "dv", "dbias", "dsink"};
    return name[which];
}

/* ---- one query row ----------------------------------------------------------------------------------------------- */

struct row {
    struct gradient_built *w;
    int64_t b, h, i, kv, index; /* index: of dq, dout, dlse */
    int64_t first, end;
    double *p, *slope;                        /* [sk]; p: 0 where masked */
    double *out, *mean, *slack;               /* [Dv], [D], [D] */
    double u, score, dlse, delta, delta_size; /* score: 4 e (1 + max|s|) */
    double lse;
};

static void add(struct gradient *g, int64_t at, double x, double own, double shared)
{
    g->truth[at] += x;
    g->spread[at] += own * own;
    g->shift[at] += fabs(shared);
}

/* P, the slope of the softcap and the LSE. */
static void row_softmax(struct row *r)
{
    const struct suite_built *t = &r->w->t;
    const struct suite_sequence *s = &t->sequence[r->b];
    const double *q = s->q + (r->h * s->sq + r->i) * t->c.d, *keys = s->k + r->kv * s->sk * t->c.d;
    double cap = t->c.softcap, sink = suite_sink(t, r->h), m = sink, l = 0, most = isfinite(sink) ? fabs(sink) : 0;
    suite_band(t, r->b, r->i, &r->first, &r->end);
    for (int64_t j = r->first; j < r->end; j++) {
        double x = 0, th = 0;
        int masked;
        for (int64_t d = 0; d < t->c.d; d++) x += q[d] * keys[j * t->c.d + d];
        x *= (double)t->scale;
        if (cap > 0) th = tanh(x / cap), x = cap * th;
        x += suite_bias_at(t, r->b, r->h, r->i, j, &masked);
        x -= suite_slope(t, r->b, r->h) * fabs((double)(r->i + s->diagonal - j));
        r->slope[j] = 1 - th * th;
        r->p[j] = masked ? -INFINITY : x;
        if (r->p[j] > m || isnan(r->p[j])) m = r->p[j];
        if (r->p[j] != -INFINITY) most = fmax(most, fabs(x));
    }
    for (int64_t j = r->first; j < r->end; j++) {
        r->p[j] = r->p[j] == -INFINITY ? 0 : exp(r->p[j] - m);
        l += r->p[j];
    }
    if (sink != -INFINITY) l += exp(sink - m);
    for (int64_t j = r->first; j < r->end; j++)
        if (r->p[j] != 0) r->p[j] /= l;
    r->lse = m == -INFINITY ? m : m + log(l);
    r->score = 4 * tiny * (1 + most);
}

static void row_delta(struct row *r)
{
    const struct suite_built *t = &r->w->t;
    const double *dout = r->w->dout_rows + r->index * t->c.dv;
    const double *values = t->sequence[r->b].v + r->kv * t->sequence[r->b].sk * t->c.dv;
    memset(r->out, 0, sizeof *r->out * (size_t)t->c.dv);
    r->delta = r->delta_size = 0;
    for (int64_t j = r->first; j < r->end; j++) {
        if (r->p[j] == 0) continue;
        double z = r->p[j] * suite_keep_factor(t, r->b, r->h, r->i, j);
        for (int64_t d = 0; d < t->c.dv; d++) r->out[d] += z * values[j * t->c.dv + d];
    }
    for (int64_t d = 0; d < t->c.dv; d++) {
        r->delta += dout[d] * r->out[d];
        r->delta_size += fabs(dout[d] * r->out[d]);
    }
    r->dlse = r->w->dlse_rows ? r->w->dlse_rows[r->index] : 0;
}

static int64_t bias_index(const struct row *r, int64_t j)
{
    const int64_t *n = r->w->t.bias.t.shape;
    int64_t b = n[0] == 1 ? 0 : r->b, h = n[1] == 1 ? 0 : r->h, i = n[2] == 1 ? 0 : r->i;
    return ((b * n[1] + h) * n[2] + i) * n[3] + (n[3] == 1 ? 0 : j);
}

/* What the pair (i, j) adds to everything. */
static void row_pair(struct row *r, int64_t j)
{
    struct gradient_built *w = r->w;
    const struct suite_built *t = &w->t;
    const struct suite_sequence *s = &t->sequence[r->b];
    int64_t dk = t->c.d, dv = t->c.dv, key = r->kv * s->sk + j, row = w->key_row[r->b] + key;
    const double *q = s->q + (r->h * s->sq + r->i) * dk, *k = s->k + key * dk, *v = s->v + key * dv;
    const double *dout = w->dout_rows + r->index * dv;
    double p = r->p[j], z = suite_keep_factor(t, r->b, r->h, r->i, j), dp = 0, size = 0, scale = (double)t->scale;
    double least = t->c.q_type == ATTN_F16 ? 0x1p-25 : 0; /* P and dS may be subnormal */
    for (int64_t d = 0; d < dv; d++) {
        dp += dout[d] * v[d];
        size += fabs(dout[d] * v[d]);
    }
    size = z * size + r->delta_size + fabs(r->dlse);
    double ds = p * (z * dp - r->delta + r->dlse), dt = ds * r->slope[j];
    double own = 4 * fmax(r->u * p * size, least * (1 + size)), score = r->score + (p < ROW_RULE_LOST);
    double shared = score * p * size;
    for (int64_t d = 0; d < dk; d++) {
        add(&w->gradient[DQ], r->index * dk + d, scale * dt * k[d], own * scale * k[d], shared * scale * k[d]);
        add(&w->gradient[DK], row * dk + d, scale * dt * q[d], own * scale * q[d], shared * scale * q[d]);
        r->mean[d] += p * r->slope[j] * k[d];
    }
    if (z != 0)
        for (int64_t d = 0; d < dv; d++)
            add(&w->gradient[DV], row * dv + d, z * p * dout[d], 4 * fmax(r->u * z * p, z * least) * dout[d],
                score * z * p * dout[d]);
    if (w->gradient[DBIAS].truth) add(&w->gradient[DBIAS], bias_index(r, j), ds, own, shared);
}

static void row_gradients(struct row *r)
{
    struct gradient_built *w = r->w;
    const struct suite_built *t = &w->t;
    double total = 0;
    row_softmax(r);
    if (r->lse == -INFINITY) return;
    row_delta(r);
    memset(r->mean, 0, sizeof *r->mean * (size_t)t->c.d);
    for (int64_t j = r->first; j < r->end; j++) {
        if (r->p[j] == 0) continue;
        total += r->p[j];
        row_pair(r, j);
    }
    double common = 2 * r->u * r->delta_size;
    for (int64_t d = 0; d < t->c.d; d++)
        add(&w->gradient[DQ], r->index * t->c.d + d, 0, common * (double)t->scale * r->mean[d], 0);
    if (w->gradient[DBIAS].truth && t->bias.t.shape[3] == 1 && total > 0)
        add(&w->gradient[DBIAS], bias_index(r, 0), 0, common * total, 0);
    if (!w->gradient[DSINK].truth) return;
    double p = exp(suite_sink(t, r->h) - r->lse), size = p * (r->delta_size + fabs(r->dlse));
    if (p != 0) add(&w->gradient[DSINK], r->h, p * (r->dlse - r->delta), 4 * r->u * size, r->score * size);
}

/* ---- all rows ---------------------------------------------------------------------------------------------------- */

struct work {
    struct gradient_built *w;
    atomic_int failed;
};

/* The query heads of one key/value head of one sequence. */
static void truth_head(void *arg, int64_t n)
{
    struct work *work = arg;
    struct gradient_built *w = work->w;
    const struct suite_case *c = &w->t.c;
    struct row r = {.w = w, .b = n / c->hkv, .kv = n % c->hkv};
    const struct suite_sequence *s = &w->t.sequence[r.b];
    double *memory = calloc((size_t)(2 * s->sk + c->dv + c->d + 1), sizeof *memory);
    if (!memory) {
        atomic_store(&work->failed, 1);
        return;
    }
    r.p = memory, r.slope = r.p + s->sk, r.out = r.slope + s->sk, r.mean = r.out + c->dv;
    r.u = fmax(fmax(suite_unit(c->q_type), suite_unit(c->out_type)), suite_unit(w->g.type));
    for (r.h = r.kv * (c->hq / c->hkv); r.h < (r.kv + 1) * (c->hq / c->hkv); r.h++)
        for (r.i = 0; r.i < s->sq; r.i++) {
            r.index = s->row + r.h * s->sq + r.i;
            row_gradients(&r);
        }
    free(memory);
}

static void naive_sequence(void *arg, int64_t b)
{
    struct work *work = arg;
    struct gradient_built *w = work->w;
    struct suite_built *t = &w->t;
    struct naive_problem p;
    struct gradient *g = w->gradient;
    const struct suite_sequence *s = &t->sequence[b];
    int64_t pairs = t->c.hq * s->sq * s->sk, n = 0;
    float *dbias = g[DBIAS].truth ? malloc(sizeof *dbias * (size_t)(pairs + 1)) : NULL;
    float *dsink = malloc(sizeof *dsink * (size_t)t->c.hq);
    int failed = suite_naive_problem(&p, t, b) || !dsink || (g[DBIAS].truth && !dbias);
    if (!failed)
        failed = naive_backward(&p, w->dout_rows + s->row * t->c.dv, w->dlse_rows ? w->dlse_rows + s->row : NULL,
                                g[DQ].naive + s->row * t->c.d, g[DK].naive + w->key_row[b] * t->c.d,
                                g[DV].naive + w->key_row[b] * t->c.dv, dbias, dsink);
    struct row r = {.w = w, .b = b};
    for (r.h = 0; !failed && dbias && r.h < t->c.hq; r.h++)
        for (r.i = 0; r.i < s->sq; r.i++)
            for (int64_t j = 0; j < s->sk; j++) g[DBIAS].naive[bias_index(&r, j)] += dbias[n++];
    for (int64_t h = 0; !failed && g[DSINK].truth && h < t->c.hq; h++) g[DSINK].naive[h] += dsink[h];
    suite_naive_free(&p);
    free(dbias);
    free(dsink);
    if (failed) atomic_store(&work->failed, 1);
}

int gradient_truth(struct gradient_built *w)
{
    struct work work = {.w = w};
    const struct suite_case *c = &w->t.c;
    int together = w->gradient[DBIAS].truth || w->gradient[DSINK].truth; /* sums over heads or sequences: one thread */
    double cost = together ? 0 : w->t.pairs * 4 * (double)(c->d + c->dv);
    suite_parallel(c->b * c->hkv, cost, truth_head, &work);
    suite_parallel(c->b, cost, naive_sequence, &work);
    for (int64_t n = 0; w->gradient[DBIAS].truth && n < w->gradient[DBIAS].rows * w->gradient[DBIAS].cols; n++)
        w->gradient[DBIAS].naive[n] = naive_round(c->q_type, w->gradient[DBIAS].naive[n]);
    return work.failed ? -1 : 0;
}

/* ---- judgement --------------------------------------------------------------------------------------------------- */

double gradient_rounding(int32_t type, double x)
{
    return fmax(suite_unit(type) * fabs(x), type == ATTN_F16 ? 0x1p-25 : type == ATTN_F32 ? 0x1p-150 : 0x1p-134);
}

static int same_places(double x, double ref, int32_t type)
{
    double expected = suite_round(type, ref);
    if (isnan(ref)) return isnan(x);
    if (isnan(x)) return 0;
    if (isinf(x) || isinf(expected)) return x == expected || (type == ATTN_F16 && fabs(fabs(ref) / 65520 - 1) < 0.01);
    return 1;
}

/* The reference: rounded once from sums of which 1e-9 of the terms may differ. */
static int reference_is_close(const struct gradient *g, int64_t at, double x, int32_t type)
{
    double ref = g->truth[at];
    if (!isfinite(ref) || !isfinite(x)) return 1; /* same_places() has looked */
    return fabs(x - ref) <= 1.001 * gradient_rounding(type, ref) + 1e-9 / (4 * tiny) * g->shift[at];
}

static void judge_one(struct suite_check *check, const struct gradient_built *w, int which, const double *x)
{
    const struct gradient *g = &w->gradient[which];
    const struct suite_case *c = &w->t.c;
    int32_t type = which == DSINK ? ATTN_F32 : w->g.type;
    int reference = check->target->backend == ATTN_BACKEND_REFERENCE;
    const char *name = gradient_name(which);
    double most = 0, most_naive = 0, most_ref = 0;
    for (int64_t row = 0; row < g->rows; row++) {
        double error = 0, limit = 0;
        for (int64_t n = row * g->cols; n < (row + 1) * g->cols; n++) {
            double ref = g->truth[n], dx = x[n] - ref, dn = (double)g->naive[n] - ref;
            double rounding = fmax(gradient_rounding(type, ref), gradient_rounding(c->q_type, ref));
            int nothing = g->spread[n] == 0 && g->shift[n] == 0 && ref == 0;
            if (!same_places(x[n], ref, type) || (nothing && x[n] != 0) ||
                (reference && !reference_is_close(g, n, x[n], type)))
                suite_expect(check, 0, "%s, row %lld, column %lld: %.9g, truth %.9g", name, (long long)row,
                             (long long)(n - row * g->cols), x[n], ref);
            if (!isfinite(ref) || !isfinite(x[n])) continue;
            if (!isfinite(dn)) dn = 0; /* where naive overflows it allows nothing */
            error += dx * dx;
            limit += 9 * dn * dn + g->spread[n] + g->shift[n] * g->shift[n] + 4 * rounding * rounding;
            most = fmax(most, fabs(dx));
            most_naive = fmax(most_naive, fabs(dn));
            most_ref = fmax(most_ref, fabs(ref));
        }
        double share = error > 0 ? sqrt(error / limit) : 0;
        check->worst = fmax(check->worst, share);
        suite_expect(check, share <= 1, "%s, row %lld: %.3g of the row rule", name, (long long)row, share);
    }
    /* A row of dsink is one number, and the row rule knows what naive does not: that D comes from a rounded O, P from a rounded
     * LSE. */
    if (which == DSINK) return;
    double limit = 3 * most_naive + 2 * fmax(gradient_rounding(type, most_ref), gradient_rounding(c->q_type, most_ref));
    if (most > 0) check->worst = fmax(check->worst, most / limit);
    suite_expect(check, most <= limit, "%s: max |x - ref| %.4g, allowed %.4g (naive %.4g, max |ref| %.4g)", name, most,
                 limit, most_naive, most_ref);
}

void gradient_judge(struct suite_check *check, const struct gradient_built *w, const struct gradient_result *result)
{
    for (int n = 0; n < GRADIENTS; n++)
        if (result->x[n]) judge_one(check, w, n, result->x[n]);
}
