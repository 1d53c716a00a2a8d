/* SPDX-License-Identifier: Apache-2.0
 * --check and --expect: a result against the float64 reference and against a given array. */
#include "run.h"

#include "row_rule.h"

#include <math.h>
#include <stdlib.h>

/* What a comparison found. Numbers that are NaN or infinite in both, and equally, agree. */
struct difference {
    double largest;   /* max |x - expected| over finite pairs                                     */
    double magnitude; /* max |expected| over finite ones                                          */
    int64_t misplaced;
};

static void add_difference(struct difference *d, double x, double expected)
{
    if (!isfinite(x) || !isfinite(expected)) {
        d->misplaced += !(x == expected || (isnan(x) && isnan(expected)));
        return;
    }
    d->largest = fmax(d->largest, fabs(x - expected));
    d->magnitude = fmax(d->magnitude, fabs(expected));
}

static struct difference compare_tensors(const attn_tensor *x, const attn_tensor *expected)
{
    struct difference d = {0, 0, 0};
    int64_t count = run_count(x);
    for (int64_t n = 0; n < count; n++) add_difference(&d, run_element(x, n), run_element(expected, n));
    return d;
}

static void add_verdict(struct run_job *job, const char *what, const struct difference *d, double allowed)
{
    struct run_verdict *v = &job->verdicts[job->verdict_count++];
    *v = (struct run_verdict){.what = what, .error = d->largest, .allowed = allowed, .misplaced = d->misplaced};
    if (d->largest > 0) v->relative = d->magnitude > 0 ? d->largest / d->magnitude : INFINITY;
    v->good = d->misplaced == 0 && d->largest <= allowed;
}

/* The type whose rounding counts: of the query or of the result. */
static int32_t coarser(const struct run_job *job, enum run_result which)
{
    int32_t x = job->results[which].tensor.dtype;
    return which == RUN_LSE ? x : row_rule_type(job->problem.q.dtype, x);
}

/* The accuracy rule (docs/semantics.md section 9): the limit of max|x - reference|. naive is what the
 * naive implementation misses the reference by; terms are those of the output's rows. */
static double cli_judge(const struct run_job *job, enum run_result which, const struct difference *naive,
                        const struct row_terms *terms)
{
    const int64_t *shape = job->results[RUN_OUT].tensor.shape;
    double score = 0;
    for (int64_t row = 0; which == RUN_OUT && row < shape[0] * shape[1] * shape[2]; row++)
        score = fmax(score, row_rule_score_rounding(&terms[row], shape[3]));
    double factor = which <= RUN_LSE ? 2 : 3;
    return factor * naive->largest + 2 * row_rule_rounding(coarser(job, which), naive->magnitude) + score;
}

/* Largest share of the row rule that a row of the output takes up; over 1 is wrong. */
static double row_share(const struct run_job *job, const attn_tensor *expected, const attn_tensor *naive,
                        const struct row_terms *terms)
{
    const attn_tensor *x = &job->results[RUN_OUT].tensor;
    const int64_t *shape = x->shape;
    int32_t dtype = coarser(job, RUN_OUT);
    double worst = 0;
    for (int64_t row = 0; row < shape[0] * shape[1] * shape[2]; row++) {
        int64_t b = row / shape[2] / shape[1], h = row / shape[2] % shape[1], i = row % shape[2];
        int64_t first = b * x->stride[0] + h * x->stride[1] + i * x->stride[2];
        double error = 0, naive_error = 0, rounding = 0, half;
        for (int64_t n = first; n < first + shape[3]; n++) {
            double ref = run_element(expected, n), dx = run_element(x, n) - ref, dn = run_element(naive, n) - ref;
            if (!isfinite(dx)) continue; /* counted as misplaced, or so in both */
            error += dx * dx;
            naive_error += isfinite(dn) ? dn * dn : 0;
            half = row_rule_rounding(dtype, ref);
            rounding += half * half;
        }
        double limit = row_rule_limit(&terms[row], 2, row_rule_unit(dtype), naive_error, rounding);
        if (error > 0) worst = fmax(worst, limit > 0 ? sqrt(error / limit) : INFINITY);
    }
    return worst;
}

/* Float32 tensors like the job's results, set to zero. */
static int new_like_results(struct run_job *job, attn_tensor tensors[RUN_RESULTS])
{
    for (int r = 0; r < RUN_KEEP; r++) {
        const attn_tensor *mine = &job->results[r].tensor;
        if (!mine->data) continue;
        tensors[r] = *mine;
        tensors[r].dtype = ATTN_F32;
        int status = run_alloc(job, (size_t)run_count(mine) * sizeof(float), &tensors[r].data);
        if (status) return status;
    }
    return CLI_OK;
}

/* The job's problem with results of its own, in float32, computed by the reference. */
static attn_status compute_reference(struct run_job *job, attn_context *reference, attn_tensor expected[RUN_RESULTS])
{
    attn_problem problem = job->problem;
    attn_grads grads = job->grads;
    problem.num_splits = 0;
    problem.out = expected[RUN_OUT];
    problem.lse = expected[RUN_LSE];
    grads.dq = expected[RUN_DQ];
    grads.dk = expected[RUN_DK];
    grads.dv = expected[RUN_DV];
    grads.dbias = expected[RUN_DBIAS];
    grads.dsink = expected[RUN_DSINKS].data;
    attn_status status = attn_forward(reference, &problem, NULL);
    if (status == ATTN_OK && job->backward) status = attn_backward(reference, &problem, &grads, NULL);
    return status;
}

/* The dropout mask by the reference; *mask stays NULL without dropout. */
static int new_dropout_mask(struct run_job *job, attn_context *reference, unsigned char **mask)
{
    const struct cli_shape *s = &job->shape;
    const int64_t shape[4] = {s->batch, s->heads_q, s->seq_q, s->seq_k};
    attn_tensor keep;
    if (job->problem.dropout <= 0) return CLI_OK;
    int status = run_new_tensor(job, ATTN_BOOL, shape, &keep);
    if (status) return status;
    *mask = keep.data;
    keep = attn_bhsd(keep.data, ATTN_BOOL, shape[0], shape[1], shape[2], shape[3]);
    attn_status result = attn_dropout_mask(reference, &job->problem, &keep, NULL);
    return result == ATTN_OK ? CLI_OK : cli_fail_library(result, "--check");
}

static int judge(struct run_job *job, attn_context *reference)
{
    attn_tensor expected[RUN_RESULTS] = {{0}}, naive[RUN_RESULTS] = {{0}};
    unsigned char *mask = NULL;
    void *terms = NULL;
    const struct cli_shape *s = &job->shape;
    size_t rows = (size_t)(s->batch * s->heads_q * s->seq_q);
    int status = run_alloc(job, rows * sizeof(struct row_terms), &terms);
    if (!status) status = new_like_results(job, expected);
    if (!status) status = new_like_results(job, naive);
    if (!status) status = new_dropout_mask(job, reference, &mask);
    if (status) return status;
    attn_status result = compute_reference(job, reference, expected);
    if (result != ATTN_OK) return cli_fail_library(result, "--check");
    status = run_naive(job, mask, naive, terms);
    for (int r = 0; r < RUN_KEEP && !status; r++) {
        if (!expected[r].data) continue;
        struct difference d = compare_tensors(&job->results[r].tensor, &expected[r]);
        struct difference yardstick = compare_tensors(&naive[r], &expected[r]);
        add_verdict(job, run_result_names[r], &d, cli_judge(job, (enum run_result)r, &yardstick, terms));
        if (r != RUN_OUT) continue;
        struct run_verdict *v = &job->verdicts[job->verdict_count - 1];
        v->row_share = row_share(job, &expected[r], &naive[r], terms);
        v->good &= v->row_share <= 1;
    }
    return status;
}

int run_check(struct run_job *job)
{
    attn_config config = ATTN_CONFIG_INIT;
    attn_context *reference;
    config.backend = ATTN_BACKEND_REFERENCE;
    config.num_threads = (int32_t)job->options->threads;
    /* What is forced on the device under test is not meant for its judge. */
    unsetenv("ATTN_FORCE");
    attn_status created = attn_create(&config, &reference);
    if (created != ATTN_OK) return cli_fail_library(created, "--check");
    int status = judge(job, reference);
    attn_destroy(reference);
    return status;
}

static double expected_element(const struct cli_npy *array, int64_t n)
{
    if (array->type == CLI_NPY_F64) return ((const double *)array->data)[n];
    attn_tensor t = {.data = array->data, .dtype = array->type == CLI_NPY_F16 ? ATTN_F16 : ATTN_F32};
    return run_element(&t, n);
}

int run_expect(struct run_job *job)
{
    const struct cli_npy *expected = &job->expected;
    const struct run_tensor *out = &job->results[RUN_OUT];
    struct difference d = {0, 0, 0};
    for (int64_t n = 0; n < expected->count; n++)
        add_difference(&d, run_element(&out->tensor, n), expected_element(expected, n));
    float given = job->options->tolerance;
    double tolerance = given >= 0 ? (double)given : out->tensor.dtype == ATTN_F32 ? 1e-4 : 1e-3;
    add_verdict(job, job->options->expect, &d, tolerance * d.magnitude);
    return CLI_OK;
}
