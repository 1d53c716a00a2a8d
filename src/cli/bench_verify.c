/* SPDX-License-Identifier: Apache-2.0
 * Is the output right? The reference would take minutes for all of it, so some heads are looked at, of each some windows
 * of queries. A window is a problem of its own, one head of one sequence whose diagonal is given, and is judged as
 * `attn run --check` judges. */
#include "bench.h"

#include "run.h"
#include "suite/suite_core.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { HEADS = 6, WINDOWS = 4, WINDOW_ROWS = 4, WHOLE_ROWS = 16, SEED = 2 };

int bench_choose(struct suite_random *random, int64_t n, int middle, int most, int64_t *chosen)
{
    int count = 0;
    for (int draw = 0; draw < 4 * most && count < most; draw++) {
        int64_t x = draw == 0 ? 0 : draw == 1 ? n - 1 : draw == 2 && middle ? n / 2 : suite_below(random, n);
        int known = 0;
        for (int i = 0; i < count; i++) known |= chosen[i] == x;
        if (!known) chosen[count++] = x;
    }
    return count;
}

/* Keeps the verdict if it is the worst so far. */
static void note(struct bench_run *run, const struct run_verdict *v, int64_t b, int64_t h, int64_t first, int64_t rows)
{
    double share = v->error > 0 ? fmax(v->error / v->allowed, v->row_share) : 0;
    if (v->misplaced) share = INFINITY;
    if (share > run->share) run->share = share;
    if (v->good || run->verified == BENCH_WRONG) return;
    run->verified = BENCH_WRONG;
    char why[64];
    if (v->misplaced) snprintf(why, sizeof why, "%" PRId64 " numbers are not finite", v->misplaced);
    else snprintf(why, sizeof why, "%.3g times what the accuracy rule permits", share);
    snprintf(run->wrong, sizeof run->wrong,
             "sequence %" PRId64 ", head %" PRId64 ", queries %" PRId64 " to %" PRId64 ": %s", b, h, first,
             first + rows - 1, why);
}

/* The rows for the judge, copied into memory of the job where they lie on a GPU. Rows of the first columns of K (V of
 * --v-in-k) bring the columns between them. */
static int fetch_rows(struct bench_run *run, struct run_job *job, const attn_tensor *t, int64_t b, int64_t h,
                      int64_t first, int64_t rows, attn_tensor *part)
{
    *part = bench_rows(t, b, h, first, rows);
    if (!run->host) return CLI_OK;
    void *data = NULL, *scale = NULL;
    int64_t elements = rows ? (rows - 1) * t->stride[2] + t->shape[3] : 0;
    size_t bytes = attn_dtype_bytes((attn_dtype)t->dtype, elements), scale_bytes = (size_t)rows * sizeof(float);
    int status = run_alloc(job, bytes, &data);
    if (!status && part->scale) status = run_alloc(job, scale_bytes, &scale);
    if (status) return status;
    attn_status copied = attn_download(run->context, data, part->data, bytes, NULL);
    if (copied == ATTN_OK && scale) copied = attn_download(run->context, scale, part->scale, scale_bytes, NULL);
    part->data = data;
    part->scale = scale;
    return copied == ATTN_OK ? CLI_OK : cli_fail_library(copied, "attn_download");
}

static int verify_window(struct bench_run *run, int64_t b, int64_t h, int64_t first, int64_t rows)
{
    const struct cli_shape *s = &run->c->shape;
    const attn_problem *p = &run->problem;
    int64_t hkv = h / (s->heads_q / s->heads_kv);
    const struct run_options options = {.threads = run->options->threads};
    struct run_job job = {.options = &options, .problem = ATTN_PROBLEM_INIT, .rank = 4};
    job.shape = (struct cli_shape){1, 1, 1, rows, s->seq_k, s->head_dim, s->head_dim_v};
    int status = fetch_rows(run, &job, &p->q, b, h, first, rows, &job.problem.q);
    if (!status) status = fetch_rows(run, &job, &p->k, b, hkv, 0, s->seq_k, &job.problem.k);
    if (!status) status = fetch_rows(run, &job, &p->v, b, hkv, 0, s->seq_k, &job.problem.v);
    if (!status) status = fetch_rows(run, &job, &p->out, b, h, first, rows, &job.results[RUN_OUT].tensor);
    job.problem.mask = p->mask | ATTN_DIAGONAL;
    job.problem.diagonal = s->seq_k - s->seq_q + first;
    if (!status) status = run_check(&job);
    if (!status) note(run, &job.verdicts[0], b, h, first, rows);
    for (int n = 0; n < job.block_count; n++) free(job.blocks[n]);
    return status;
}

int bench_verify(struct bench_run *run)
{
    const struct cli_shape *s = &run->c->shape;
    struct suite_random random = suite_random_of(SEED, 0);
    int64_t rows = s->seq_q <= WHOLE_ROWS ? s->seq_q : WINDOW_ROWS, heads[HEADS], windows[WINDOWS];
    int head_count = bench_choose(&random, s->batch * s->heads_q, 0, HEADS, heads), status = CLI_OK;
    run->verified = BENCH_VERIFIED;
    run->share = 0;
    for (int n = 0; n < head_count && !status; n++) {
        int window_count = bench_choose(&random, s->seq_q - rows + 1, 1, WINDOWS, windows);
        for (int w = 0; w < window_count && !status; w++)
            status = verify_window(run, heads[n] / s->heads_q, heads[n] % s->heads_q, windows[w], rows);
    }
    return status;
}
