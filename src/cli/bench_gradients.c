/* SPDX-License-Identifier: Apache-2.0
 * What `attn bench` needs for backward besides: gradient tensors, the forward that goes before, and whether gradients are right.
 * Of some heads some rows of dQ, dK and dV are summed again in float64 (docs/semantics.md section 7) from the forward's O and
 * LSE, as attn_backward does. An element may differ by two roundings to its type and by 8 e (1 + max(|s|, |s - LSE|)) of the magnitudes that
 * its sum is made of, e being float32's unit roundoff; by 4 u of them too, u of the type, where tensor cores or products of bf16 multiply P and dS in it. */
#include "bench.h"

#include "suite/suite_core.h"
#include "suite/suite_format.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { HEADS = 6, ROWS = 4, SEED = 2 };

int bench_open_gradients(struct bench_run *run)
{
    const struct bench_case *c = run->c;
    const struct cli_shape *s = &c->shape;
    attn_grads *g = &run->grads;
    *g = (attn_grads)ATTN_GRADS_INIT;
    if (run->options->unordered) g->flags = ATTN_GRAD_UNORDERED;
    int status = bench_new_tensor(run, c->dtype, s->heads_q, s->seq_q, s->head_dim_v, &g->dout);
    if (!status) status = bench_new_tensor(run, c->dtype, s->heads_q, s->seq_q, s->head_dim, &g->dq);
    if (!status) status = bench_new_tensor(run, c->kv_dtype, s->heads_kv, s->seq_k, s->head_dim, &g->dk);
    if (!status) status = bench_new_tensor(run, c->kv_dtype, s->heads_kv, s->seq_k, s->head_dim_v, &g->dv);
    return status;
}

int bench_forward_first(struct bench_run *run)
{
    attn_status status = attn_forward(run->context, &run->problem, NULL);
    return status == ATTN_OK ? CLI_OK : cli_fail_library(status, "attn_forward");
}

/* ---- float64 ------------------------------------------------------------------------------------------------------ */

/* Rows of one head as float64. */
struct rows {
    double *q, *k, *v, *out, *dout, *lse;
};

/* One gradient row on its way: the sum, and of the magnitudes of its terms. */
struct sums {
    int64_t columns;
    double *x, *size; /* [columns] */
    double most;      /* max|s|, |s - LSE|: what float32 rounds in the exponent */
};

/* NULL: no memory, or they do not come from the GPU where they lie. */
static double *decode(const struct bench_run *run, const attn_tensor *t, int64_t b, int64_t h, int64_t first,
                      int64_t rows)
{
    const int64_t columns = t->shape[3], stride = t->stride[2], elements = rows ? (rows - 1) * stride + columns : 0;
    const size_t bytes = attn_dtype_bytes((attn_dtype)t->dtype, elements);
    const attn_tensor part = bench_rows(t, b, h, first, rows);
    double *x = malloc(sizeof *x * (size_t)(rows * columns) + 1);
    char *copy = run->host ? malloc(bytes + 1) : NULL;
    const char *from = run->host ? copy : part.data;
    if (!x || !from || (run->host && attn_download(run->context, copy, part.data, bytes, NULL) != ATTN_OK)) {
        free(x);
        x = NULL;
    }
    for (int64_t r = 0; x && r < rows; r++)
        suite_decode(t->dtype, from + attn_dtype_bytes((attn_dtype)t->dtype, r * stride), x + r * columns, columns,
                     1.0f);
    free(copy);
    return x;
}

static double dot(const double *a, const double *b, int64_t n, double *size)
{
    double sum = 0;
    *size = 0;
    for (int64_t d = 0; d < n; d++) {
        sum += a[d] * b[d];
        *size += fabs(a[d] * b[d]);
    }
    return sum;
}

static void add(struct sums *to, double factor, double size, const double *row)
{
    for (int64_t d = 0; d < to->columns; d++) {
        to->x[d] += factor * row[d];
        to->size[d] += size * fabs(row[d]);
    }
}

/* The pair (i, j): what it adds to row i of dQ, row j of dK, row j of dV, where these are not NULL. */
static void add_pair(const struct bench_run *run, const struct rows *t, int64_t i, int64_t j, struct sums *dq,
                     struct sums *dk, struct sums *dv)
{
    const struct cli_shape *s = &run->c->shape;
    const int64_t d = s->head_dim, n = s->head_dim_v;
    const double scale = (double)(float)(1 / sqrt((double)d));
    double unused, value_size, out_size;
    if (run->c->causal && j > i + s->seq_k - s->seq_q) return;
    const double score = scale * dot(t->q + i * d, t->k + j * d, d, &unused), p = exp(score - t->lse[i]);
    const double dp = dot(t->dout + i * n, t->v + j * n, n, &value_size);
    const double delta = dot(t->dout + i * n, t->out + i * n, n, &out_size);
    const double ds = p * (dp - delta) * scale, size = p * (value_size + out_size) * scale;
    struct sums *const all[3] = {dq, dk, dv};
    for (int m = 0; m < 3; m++)
        if (all[m]) all[m]->most = fmax(all[m]->most, fmax(fabs(score), fabs(score - t->lse[i])));
    if (dq) add(dq, ds, size, t->k + j * d);
    if (dk) add(dk, ds, size, t->q + i * d);
    if (dv) add(dv, p, p, t->dout + i * n);
}

/* ---- judgement ---------------------------------------------------------------------------------------------------- */

static int judge(struct bench_run *run, const char *name, const attn_tensor *of, int64_t b, int64_t h, int64_t row,
                 const struct sums *ref)
{
    double *x = decode(run, of, b, h, row, 1), worst = 0;
    const int rounds = run->plan.backend == ATTN_BACKEND_CUDA || bench_is_bf16(run);
    const double weights = 0x1p-21 * (1 + ref->most) + (rounds ? 4 * suite_unit(run->problem.q.dtype) : 0);
    if (!x) return cli_fail(CLI_CANNOT, "the rows of %s cannot be fetched", name);
    for (int64_t d = 0; d < ref->columns; d++) {
        const double rounding = fmax(suite_unit(of->dtype) * fabs(ref->x[d]), of->dtype == ATTN_F16 ? 0x1p-25 : 0);
        const double error = fabs(x[d] - ref->x[d]);
        const double share = error == 0 ? 0 : error / (2 * rounding + weights * ref->size[d]);
        worst = isfinite(x[d]) && share >= 0 ? fmax(worst, share) : INFINITY;
    }
    free(x);
    run->share = fmax(run->share, worst);
    if (worst <= 1 || run->verified == BENCH_WRONG) return CLI_OK;
    run->verified = BENCH_WRONG;
    snprintf(run->wrong, sizeof run->wrong,
             "%s, sequence %" PRId64 ", head %" PRId64 ", row %" PRId64 ": %.3g times what is permitted", name, b, h,
             row, worst);
    return CLI_OK;
}

static int open_rows(const struct bench_run *run, int64_t b, int64_t h, struct rows *t)
{
    const attn_problem *p = &run->problem;
    const int64_t hkv = h / (run->c->shape.heads_q / run->c->shape.heads_kv);
    const int64_t m = run->c->shape.seq_q, n = run->c->shape.seq_k;
    *t = (struct rows){
        decode(run, &p->q, b, h, 0, m),   decode(run, &p->k, b, hkv, 0, n),          decode(run, &p->v, b, hkv, 0, n),
        decode(run, &p->out, b, h, 0, m), decode(run, &run->grads.dout, b, h, 0, m), decode(run, &p->lse, b, h, 0, m)};
    return t->q && t->k && t->v && t->out && t->dout && t->lse ? CLI_OK
                                                               : cli_fail(CLI_CANNOT, "rows cannot be fetched");
}

static void close_rows(struct rows *t)
{
    double *const all[] = {t->q, t->k, t->v, t->out, t->dout, t->lse};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++) free(all[n]);
}

static void clear(struct sums *sums, int64_t columns)
{
    for (int64_t d = 0; d < columns; d++) sums->x[d] = sums->size[d] = 0;
    sums->columns = columns;
    sums->most = 0;
}

/* A row of dK and dV sums over all heads of the group. */
static int judge_key(struct bench_run *run, int64_t b, int64_t hkv, int64_t j, struct sums *dk, struct sums *dv)
{
    const struct cli_shape *s = &run->c->shape;
    const int64_t group = s->heads_q / s->heads_kv;
    int status = CLI_OK;
    clear(dk, s->head_dim);
    clear(dv, s->head_dim_v);
    for (int64_t h = hkv * group; h < (hkv + 1) * group && !status; h++) {
        struct rows t;
        status = open_rows(run, b, h, &t);
        for (int64_t i = 0; i < s->seq_q && !status; i++) add_pair(run, &t, i, j, NULL, dk, dv);
        close_rows(&t);
    }
    if (status) return status;
    status = judge(run, "dk", &run->grads.dk, b, hkv, j, dk);
    return status ? status : judge(run, "dv", &run->grads.dv, b, hkv, j, dv);
}

static int judge_queries(struct bench_run *run, int64_t b, int64_t h, const int64_t *rows, int count, struct sums *dq)
{
    struct rows t;
    int status = open_rows(run, b, h, &t);
    for (int n = 0; n < count && !status; n++) {
        clear(dq, run->c->shape.head_dim);
        for (int64_t j = 0; j < run->c->shape.seq_k; j++) add_pair(run, &t, rows[n], j, dq, NULL, NULL);
        status = judge(run, "dq", &run->grads.dq, b, h, rows[n], dq);
    }
    close_rows(&t);
    return status;
}

int bench_verify_gradients(struct bench_run *run)
{
    const struct cli_shape *s = &run->c->shape;
    const int64_t group = s->heads_q / s->heads_kv;
    struct suite_random random = suite_random_of(SEED, 0);
    double room[4][ATTN_BENCH_COLUMNS];
    struct sums one = {.x = room[0], .size = room[1]}, two = {.x = room[2], .size = room[3]};
    int64_t heads[HEADS], rows[ROWS];
    int head_count = bench_choose(&random, s->batch * s->heads_q, 0, HEADS, heads), status = CLI_OK;
    run->verified = BENCH_VERIFIED;
    run->share = 0;
    for (int n = 0; n < head_count && !status; n++) {
        const int64_t b = heads[n] / s->heads_q, h = heads[n] % s->heads_q;
        int count = bench_choose(&random, s->seq_q, 1, ROWS, rows);
        status = judge_queries(run, b, h, rows, count, &one);
        count = bench_choose(&random, s->seq_k, 1, ROWS, rows);
        for (int m = 0; m < count && !status; m++) status = judge_key(run, b, h / group, rows[m], &one, &two);
    }
    return status;
}
