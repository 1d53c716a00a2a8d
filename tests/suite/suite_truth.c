/* SPDX-License-Identifier: Apache-2.0
 * The forward pass in float64 by the suite's own code, with the terms of the accuracy rule.
 *
 * Rows are done in tiles of ROWS, keys in tiles of KEYS that are turned so that the inner loops run over neighbouring
 * elements; each row still sums over d and over keys in order. */
#include "suite_case.h"

#include "row_rule.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 16, KEYS = 64 };

struct tile {
    const struct suite_built *t;
    struct suite_truth *truth;
    int64_t b, h, first, rows; /* queries first .. first + rows - 1 of one head */
    int64_t low, high;         /* keys that any of them may see */
    double *score;             /* [rows, high - low], then Z P */
    double *turned;            /* [D, KEYS] */
    double *absolute;          /* [rows, Dv] */
    double largest_key;        /* norm */
};

static double norm2(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t d = 0; d < n; d++) sum += x[d] * x[d];
    return sum;
}

/* Without columns that are not finite: those are judged by their places alone. */
static double finite_norm2(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t d = 0; d < n; d++)
        if (isfinite(x[d])) sum += x[d] * x[d];
    return sum;
}

/* score = q.k */
static void tile_dots(struct tile *w)
{
    const struct suite_case *c = &w->t->c;
    const struct suite_sequence *s = &w->t->sequence[w->b];
    int64_t kv = w->h / (c->hq / c->hkv), width = w->high - w->low;
    for (int64_t j0 = w->low; j0 < w->high; j0 += KEYS) {
        int64_t n = w->high - j0 < KEYS ? w->high - j0 : KEYS;
        for (int64_t j = 0; j < n; j++) {
            const double *k = s->k + (kv * s->sk + j0 + j) * c->d;
            double norm = norm2(k, c->d);
            if (norm > w->largest_key) w->largest_key = norm;
            for (int64_t d = 0; d < c->d; d++) w->turned[d * KEYS + j] = k[d];
        }
        for (int64_t i = 0; i < w->rows; i++) {
            const double *q = s->q + (w->h * s->sq + w->first + i) * c->d;
            double *out = w->score + i * width + (j0 - w->low);
            for (int64_t j = 0; j < n; j++) out[j] = 0;
            for (int64_t d = 0; d < c->d; d++) {
                double x = q[d];
                const double *column = w->turned + d * KEYS;
                for (int64_t j = 0; j < n; j++) out[j] += x * column[j];
            }
        }
    }
}

/* Scores of one row, in place; masked ones become -inf. Returns the largest magnitude of a visible score. */
static double row_scores(const struct tile *w, int64_t i, double *score)
{
    const struct suite_built *t = w->t;
    double slope = suite_slope(t, w->b, w->h), softcap = t->c.softcap, most = 0;
    int64_t first, end, diagonal = t->sequence[w->b].diagonal;
    suite_band(t, w->b, i, &first, &end);
    for (int64_t j = w->low; j < w->high; j++) {
        double *s = &score[j - w->low];
        int masked = j < first || j >= end;
        double x = (double)t->scale * *s;
        if (softcap > 0) x = softcap * tanh(x / softcap);
        if (!masked) x += suite_bias_at(t, w->b, w->h, i, j, &masked);
        x -= slope * (double)llabs(i + diagonal - j);
        *s = masked ? -INFINITY : x;
        if (*s != -INFINITY && fabs(x) > most) most = fabs(x);
    }
    return most;
}

/* P in place of scores, and what belongs to the row as a whole. */
static void row_softmax(const struct tile *w, int64_t i, double *score, int64_t row)
{
    const struct suite_built *t = w->t;
    const struct suite_sequence *s = &t->sequence[w->b];
    int64_t width = w->high - w->low;
    double sink = suite_sink(t, w->h), m = sink, l = 0, mean = 0, most = row_scores(w, i, score);
    for (int64_t j = 0; j < width; j++)
        if (score[j] > m || isnan(score[j])) m = score[j];
    w->truth->largest_score[row] = most;
    if (m == -INFINITY) {
        w->truth->lse[row] = -INFINITY;
        w->truth->lse_tolerance[row] = 0;
        for (int64_t j = 0; j < width; j++) score[j] = 0;
        return;
    }
    for (int64_t j = 0; j < width; j++) {
        double p = exp(score[j] - m);
        if (score[j] != -INFINITY) mean += p * fabs(score[j]);
        score[j] = p;
        l += p;
    }
    l += exp(sink - m);
    for (int64_t j = 0; j < width; j++) score[j] = score[j] / l;
    double lse = m + log(l), e = 0x1p-24;
    double q = sqrt(norm2(s->q + (w->h * s->sq + i) * t->c.d, t->c.d)), k = sqrt(w->largest_key);
    w->truth->lse[row] = lse;
    /* An error of the score s_j moves the LSE by P_j of it. Scores are off by a few e of themselves and by about two
     * e of |q||k| for the sum over d in any order; adding up exponentials costs e for each of them, in all
     * directions. */
    w->truth->lse_tolerance[row] =
        e * (4 * (1 + fabs(lse) + mean / l) + 2 * fabs((double)t->scale) * q * k + 2 * sqrt((double)width));
}

/* out += P V and |P| |V| over one tile of keys. */
static void tile_values(struct tile *w, int64_t row)
{
    const struct suite_built *t = w->t;
    const struct suite_sequence *s = &t->sequence[w->b];
    int64_t dv = t->c.dv, width = w->high - w->low;
    const double *values = s->v + w->h / (t->c.hq / t->c.hkv) * s->sk * dv;
    for (int64_t j0 = w->low; j0 < w->high; j0 += KEYS) {
        int64_t n = w->high - j0 < KEYS ? w->high - j0 : KEYS;
        double norm[KEYS];
        for (int64_t j = 0; j < n; j++) norm[j] = finite_norm2(values + (j0 + j) * dv, dv);
        for (int64_t i = 0; i < w->rows; i++) {
            double *out = w->truth->out + (row + i) * dv, *absolute = w->absolute + i * dv;
            int64_t first, end;
            suite_band(t, w->b, w->first + i, &first, &end);
            for (int64_t j = j0; j < j0 + n; j++) {
                double p = w->score[i * width + j - w->low];
                const double *v = values + j * dv;
                int masked = j < first || j >= end;
                if (!masked && p == 0)
                    masked = suite_bias_at(t, w->b, w->h, w->first + i, j, &masked) == -INFINITY || masked;
                if (masked) continue; /* a NaN there must not count */
                for (int64_t d = 0; d < dv; d++) out[d] += p * v[d];
                for (int64_t d = 0; d < dv; d++) absolute[d] += p * fabs(v[d]);
                w->truth->value_terms[row + i] += p * p * norm[j - j0];
                if (p < ROW_RULE_LOST) w->truth->lost_terms[row + i] += p * sqrt(norm[j - j0]);
            }
        }
    }
}

static void tile_dropout(struct tile *w)
{
    int64_t width = w->high - w->low;
    if (!(w->t->c.dropout > 0)) return;
    for (int64_t i = 0; i < w->rows; i++)
        for (int64_t j = 0; j < width; j++)
            w->score[i * width + j] *= suite_keep_factor(w->t, w->b, w->h, w->first + i, w->low + j);
}

static int tile_run(struct tile *w)
{
    const struct suite_case *c = &w->t->c;
    const struct suite_sequence *s = &w->t->sequence[w->b];
    int64_t row = s->row + w->h * s->sq + w->first, first, end;
    w->low = s->sk, w->high = 0;
    for (int64_t i = 0; i < w->rows; i++) {
        suite_band(w->t, w->b, w->first + i, &first, &end);
        if (first < end && first < w->low) w->low = first;
        if (end > w->high) w->high = end;
    }
    if (w->low > w->high) w->low = w->high;
    size_t scores = (size_t)(w->rows * (w->high - w->low));
    w->score = calloc(scores + (size_t)(c->d * KEYS + w->rows * c->dv) + 1, sizeof *w->score);
    if (!w->score) return -1;
    w->turned = w->score + scores;
    w->absolute = w->turned + c->d * KEYS;
    tile_dots(w);
    for (int64_t i = 0; i < w->rows; i++) row_softmax(w, w->first + i, w->score + i * (w->high - w->low), row + i);
    tile_dropout(w);
    tile_values(w, row);
    for (int64_t i = 0; i < w->rows; i++)
        w->truth->absolute_terms[row + i] = finite_norm2(w->absolute + i * c->dv, c->dv);
    free(w->score);
    return 0;
}

/* ---- all rows --------------------------------------------------------------------------------------------------- */

struct work {
    const struct suite_built *t;
    struct suite_truth *truth;
    atomic_int failed;
};

static void truth_run(void *arg, int64_t n)
{
    struct work *w = arg;
    struct tile tile = {.t = w->t, .truth = w->truth};
    suite_find_run(w->t, ROWS, n, &tile.b, &tile.h, &tile.first, &tile.rows);
    if (tile_run(&tile)) atomic_store(&w->failed, 1);
}

int suite_truth_compute(struct suite_truth *truth, const struct suite_built *t)
{
    size_t rows = (size_t)t->rows;
    double *all = calloc(rows * (size_t)(t->c.dv + 6) + 1, sizeof *all);
    memset(truth, 0, sizeof *truth);
    if (!all) return -1;
    truth->lse = all;
    truth->value_terms = all + rows;
    truth->absolute_terms = all + 2 * rows;
    truth->largest_score = all + 3 * rows;
    truth->lse_tolerance = all + 4 * rows;
    truth->lost_terms = all + 5 * rows;
    truth->out = all + 6 * rows;
    struct work w = {.t = t, .truth = truth};
    suite_parallel(suite_count_runs(t, ROWS), t->pairs * (double)(t->c.d + 2 * t->c.dv), truth_run, &w);
    return w.failed ? -1 : 0;
}

void suite_truth_free(struct suite_truth *truth)
{
    free(truth->lse);
    memset(truth, 0, sizeof *truth);
}
