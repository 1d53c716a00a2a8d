/* SPDX-License-Identifier: Apache-2.0
 * The naive result of a case (tests/naive.h), and results in general. */
#include "suite_case.h"

#include "naive.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

int64_t suite_count_runs(const struct suite_built *t, int64_t length)
{
    int64_t n = 0;
    for (int64_t b = 0; b < t->c.b; b++) n += (t->sequence[b].sq + length - 1) / length * t->c.hq;
    return n;
}

void suite_find_run(const struct suite_built *t, int64_t length, int64_t n, int64_t *b, int64_t *h, int64_t *first,
                    int64_t *count)
{
    int64_t each = 0;
    for (*b = 0;; ++*b) {
        each = (t->sequence[*b].sq + length - 1) / length;
        if (n < each * t->c.hq) break;
        n -= each * t->c.hq;
    }
    *h = n / each;
    *first = n % each * length;
    *count = t->sequence[*b].sq - *first;
    if (*count > length) *count = length;
}

int suite_result_new(struct suite_result *r, const struct suite_built *t, int lse)
{
    *r = (struct suite_result){.rows = t->rows, .dv = t->c.dv};
    r->out = calloc((size_t)(t->rows * t->c.dv) + 1, sizeof *r->out);
    if (lse) r->lse = calloc((size_t)t->rows + 1, sizeof *r->lse);
    if (r->out && (r->lse || !lse)) return 0;
    suite_result_free(r);
    return -1;
}

void suite_result_free(struct suite_result *r)
{
    free(r->out);
    free(r->lse);
    memset(r, 0, sizeof *r);
}

/* ---- the problem of one sequence -------------------------------------------------------------------------------- */

static void *array(int wanted, int64_t count, size_t size, int *failed)
{
    void *p = wanted ? malloc((size_t)count * size + 1) : NULL;
    if (wanted && !p) *failed = 1;
    return p;
}

/* The arrays of struct naive_problem that are const there. */
struct arrays {
    unsigned char *visible;
    float *bias, *keep, *slopes, *sink;
};

static void fill_pairs(const struct suite_built *t, int64_t b, struct arrays *a)
{
    const struct suite_sequence *s = &t->sequence[b];
    int64_t first, end, n = 0;
    for (int64_t h = 0; h < t->c.hq; h++)
        for (int64_t i = 0; i < s->sq; i++) {
            suite_band(t, b, i, &first, &end);
            for (int64_t j = 0; j < s->sk; j++, n++) {
                int masked = j < first || j >= end;
                double bias = masked ? 0 : suite_bias_at(t, b, h, i, j, &masked);
                if (a->visible) a->visible[n] = !masked && bias != -INFINITY;
                if (a->bias) a->bias[n] = (float)bias;
                if (a->keep) a->keep[n] = (float)suite_keep_factor(t, b, h, i, j);
            }
        }
}

int suite_naive_problem(struct naive_problem *p, const struct suite_built *t, int64_t b)
{
    const struct suite_case *c = &t->c;
    const struct suite_sequence *s = &t->sequence[b];
    int failed = 0, floats = t->bias.buffer >= 0 && t->bias.t.dtype != ATTN_BOOL;
    int64_t pairs = c->hq * s->sq * s->sk;
    struct arrays a;
    a.visible = array(c->mask || c->bias, pairs, 1, &failed);
    a.bias = array(floats, pairs, sizeof *a.bias, &failed);
    a.keep = array(c->dropout > 0, pairs, sizeof *a.keep, &failed);
    a.slopes = array(t->alibi >= 0, c->hq, sizeof *a.slopes, &failed);
    a.sink = array(t->sink >= 0, c->hq, sizeof *a.sink, &failed);
    *p = (struct naive_problem){.dtype = c->q_type,
                                .B = 1,
                                .Hq = c->hq,
                                .Hkv = c->hkv,
                                .Sq = s->sq,
                                .Sk = s->sk,
                                .D = c->d,
                                .Dv = c->dv,
                                .q = s->q,
                                .k = s->k,
                                .v = s->v,
                                .visible = a.visible,
                                .bias = a.bias,
                                .slopes = a.slopes,
                                .sink = a.sink,
                                .keep = a.keep,
                                .diagonal = s->diagonal,
                                .scale = t->scale,
                                .softcap = c->softcap};
    if (failed) {
        suite_naive_free(p);
        return -1;
    }
    for (int64_t h = 0; h < c->hq; h++) {
        if (a.slopes) a.slopes[h] = (float)suite_slope(t, b, h);
        if (a.sink) a.sink[h] = (float)suite_sink(t, h);
    }
    if (a.visible || a.bias || a.keep) fill_pairs(t, b, &a);
    return 0;
}

void suite_naive_free(struct naive_problem *p)
{
    free((void *)(uintptr_t)p->visible);
    free((void *)(uintptr_t)p->bias);
    free((void *)(uintptr_t)p->keep);
    free((void *)(uintptr_t)p->slopes);
    free((void *)(uintptr_t)p->sink);
    memset(p, 0, sizeof *p);
}

/* ---- forward ---------------------------------------------------------------------------------------------------- */

struct work {
    const struct suite_built *t;
    struct suite_result *naive;
    struct naive_problem *problem; /* [b] */
    atomic_int failed;
};

enum { RUN = 64 };

static void forward_run(void *arg, int64_t n)
{
    struct work *w = arg;
    int64_t b, h, first, count;
    suite_find_run(w->t, RUN, n, &b, &h, &first, &count);
    int64_t row = w->t->sequence[b].row + h * w->t->sequence[b].sq + first;
    if (naive_forward_rows(&w->problem[b], 0, h, first, first + count, w->naive->out + row * w->naive->dv,
                           w->naive->lse + row))
        atomic_store(&w->failed, 1);
}

int suite_naive_compute(struct suite_result *naive, const struct suite_built *t)
{
    struct work w = {.t = t, .naive = naive, .problem = calloc((size_t)t->c.b + 1, sizeof *w.problem)};
    memset(naive, 0, sizeof *naive);
    int failed = !w.problem || suite_result_new(naive, t, 1);
    for (int64_t b = 0; !failed && b < t->c.b; b++) failed = suite_naive_problem(&w.problem[b], t, b);
    if (!failed) suite_parallel(suite_count_runs(t, RUN), t->pairs * (double)(t->c.d + t->c.dv), forward_run, &w);
    for (int64_t b = 0; w.problem && b < t->c.b; b++) suite_naive_free(&w.problem[b]);
    free(w.problem);
    if (!failed && !w.failed) return 0;
    suite_result_free(naive);
    return -1;
}
