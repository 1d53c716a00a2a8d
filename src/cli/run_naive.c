/* SPDX-License-Identifier: Apache-2.0
 * The yardstick of --check: tests/naive.c on the job's problem, one key/value head and as many query
 * rows at a time as keep its dense arrays small. */
#include "run.h"

#include "common/number.h"
#include "row_rule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PAIRS_AT_A_TIME = 1 << 24 };

struct yardstick {
    struct run_job *job;
    const unsigned char *dropout; /* [B, Hq, Sq, Sk]; NULL: none                                  */
    attn_tensor *results;
    int64_t group, rows_max; /* query heads a key/value head; rows at a time                 */
    /* What the arrays below hold now. */
    int64_t b, kv_head, first, rows, keys;
    double *q, *k, *v, *dout, *dlse;
    unsigned char *visible;
    float *bias, *keep, *slopes, *out, *lse, *dq, *dk, *dv, *dbias, *dsink;
    double *scores;          /* [Sk] */
    struct row_terms *terms; /* [B, Hq, Sq] of the whole job */
};

static int64_t offset_of(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t d)
{
    return b * t->stride[0] + h * t->stride[1] + i * t->stride[2] + d * t->stride[3];
}

/* An element of a cache, whatever its type. */
static double cache_element(const attn_tensor *t, int64_t b, int64_t h, int64_t j, int64_t d)
{
    int64_t n = offset_of(t, b, h, j, d);
    const uint8_t *bytes = t->data;
    double scale =
        t->scale ? (double)t->scale[b * t->scale_stride[0] + h * t->scale_stride[1] + j * t->scale_stride[2]] : 1;
    switch (t->dtype) {
    case ATTN_F8_E4M3: return scale * (double)attn_e4m3_to_f32(bytes[n]);
    case ATTN_F8_E5M2: return scale * (double)attn_e5m2_to_f32(bytes[n]);
    case ATTN_I8: return scale * (double)(int8_t)bytes[n];
    case ATTN_Q8_0:
        bytes += n / ATTN_BLOCK * ATTN_Q8_0_BYTES;
        return (double)attn_f16_to_f32(attn_load_u16(bytes)) * (double)(int8_t)bytes[2 + n % ATTN_BLOCK];
    case ATTN_Q4_0:
        bytes += n / ATTN_BLOCK * ATTN_Q4_0_BYTES;
        return (double)attn_f16_to_f32(attn_load_u16(bytes)) * attn_q4_0_code(bytes, (int)(n % ATTN_BLOCK));
    default: return run_element(t, n);
    }
}

static int new_array(struct yardstick *y, int64_t count, size_t item_bytes, void *array)
{
    void *block;
    int64_t bytes;
    if (__builtin_mul_overflow(count, (int64_t)item_bytes, &bytes) || (uint64_t)bytes > SIZE_MAX / 2)
        return cli_fail(CLI_CANNOT, "--check: out of memory");
    int status = run_alloc(y->job, (size_t)bytes, &block);
    memcpy(array, &block, sizeof block);
    return status;
}

static int new_arrays(struct yardstick *y)
{
    const struct cli_shape *s = &y->job->shape;
    const attn_problem *p = &y->job->problem;
    int64_t rows = y->group * y->rows_max, pairs = rows * s->seq_k;
    int status = new_array(y, rows * s->head_dim, sizeof(double), &y->q);
    if (!status) status = new_array(y, s->seq_k * s->head_dim, sizeof(double), &y->k);
    if (!status) status = new_array(y, s->seq_k * s->head_dim_v, sizeof(double), &y->v);
    if (!status) status = new_array(y, rows * s->head_dim_v, sizeof(float), &y->out);
    if (!status) status = new_array(y, rows, sizeof(float), &y->lse);
    if (!status) status = new_array(y, s->seq_k, sizeof(double), &y->scores);
    if (!status) status = new_array(y, pairs, 1, &y->visible);
    if (!status && p->bias.data && p->bias.dtype != ATTN_BOOL) status = new_array(y, pairs, sizeof(float), &y->bias);
    if (!status && y->dropout) status = new_array(y, pairs, sizeof(float), &y->keep);
    if (!status && p->alibi) status = new_array(y, y->group, sizeof(float), &y->slopes);
    if (status || !y->job->backward) return status;
    status = new_array(y, rows * s->head_dim_v, sizeof(double), &y->dout);
    if (!status) status = new_array(y, rows, sizeof(double), &y->dlse);
    if (!status) status = new_array(y, rows * s->head_dim, sizeof(float), &y->dq);
    if (!status) status = new_array(y, s->seq_k * s->head_dim, sizeof(float), &y->dk);
    if (!status) status = new_array(y, s->seq_k * s->head_dim_v, sizeof(float), &y->dv);
    if (!status && y->results[RUN_DBIAS].data) status = new_array(y, pairs, sizeof(float), &y->dbias);
    if (!status) status = new_array(y, y->group, sizeof(float), &y->dsink);
    return status;
}

static void fill_rows(struct yardstick *y, const attn_tensor *t, double *rows)
{
    int64_t n = 0;
    for (int64_t g = 0; g < y->group; g++)
        for (int64_t r = 0; r < y->rows; r++)
            for (int64_t d = 0; d < t->shape[3]; d++)
                rows[n++] = run_element(t, offset_of(t, y->b, y->kv_head * y->group + g, y->first + r, d));
}

static void fill_keys(struct yardstick *y, const attn_tensor *t, double *keys)
{
    int64_t n = 0;
    for (int64_t j = 0; j < y->keys; j++)
        for (int64_t d = 0; d < t->shape[3]; d++) keys[n++] = cache_element(t, y->b, y->kv_head, j, d);
}

static int64_t bias_offset(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t j)
{
    return offset_of(t, t->shape[0] == 1 ? 0 : b, t->shape[1] == 1 ? 0 : h, t->shape[2] == 1 ? 0 : i,
                     t->shape[3] == 1 ? 0 : j);
}

/* Mask, bias and dropout of one pair; n is its place in the dense arrays. */
static void fill_pair(struct yardstick *y, int64_t n, int64_t h, int64_t i, int64_t j)
{
    const attn_problem *p = &y->job->problem;
    const struct cli_shape *s = &y->job->shape;
    if (p->bias.data) {
        double bias = run_element(&p->bias, bias_offset(&p->bias, y->b, h, i, j));
        if (y->bias) y->bias[n] = (float)bias;
        else if (bias == 0) y->visible[n] = 0;
    }
    if (y->keep) {
        int kept = y->dropout[((y->b * s->heads_q + h) * s->seq_q + i) * s->seq_k + j];
        y->keep[n] = kept ? 1.0f / (1.0f - p->dropout) : 0.0f;
    }
}

static void fill_pairs(struct yardstick *y)
{
    int64_t n = 0;
    for (int64_t g = 0; g < y->group; g++)
        for (int64_t i = y->first; i < y->first + y->rows; i++) {
            int64_t first, end;
            run_visible(y->job, y->b, i, &first, &end);
            for (int64_t j = 0; j < y->keys; j++, n++) {
                y->visible[n] = j >= first && j < end;
                fill_pair(y, n, y->kv_head * y->group + g, i, j);
            }
        }
}

static void store_rows(const struct yardstick *y, const float *rows, attn_tensor *t)
{
    for (int64_t g = 0; t->data && g < y->group; g++)
        for (int64_t r = 0; r < y->rows; r++)
            for (int64_t d = 0; d < t->shape[3]; d++)
                ((float *)t->data)[offset_of(t, y->b, y->kv_head * y->group + g, y->first + r, d)] = *rows++;
}

static void store_keys(const struct yardstick *y, const float *keys, attn_tensor *t)
{
    for (int64_t j = 0; t->data && j < y->keys; j++)
        for (int64_t d = 0; d < t->shape[3]; d++) ((float *)t->data)[offset_of(t, y->b, y->kv_head, j, d)] = *keys++;
}

/* Sums over the axes on which the bias broadcasts, and sinks over the batch. */
static void add_gradients(const struct yardstick *y)
{
    attn_tensor *dbias = &y->results[RUN_DBIAS];
    float *dsinks = y->results[RUN_DSINKS].data;
    int64_t n = 0;
    for (int64_t g = 0; g < y->group; g++) {
        int64_t h = y->kv_head * y->group + g;
        if (dsinks) dsinks[h] += y->dsink[g];
        for (int64_t i = y->first; dbias->data && i < y->first + y->rows; i++)
            for (int64_t j = 0; j < y->keys; j++)
                ((float *)dbias->data)[bias_offset(dbias, y->b, h, i, j)] += y->dbias[n++];
    }
}

static int measure_rows(struct yardstick *y)
{
    const struct run_job *job = y->job;
    const attn_problem *p = &job->problem;
    const attn_grads *grads = &job->grads;
    int64_t head = y->kv_head * y->group;
    float scale = p->scale != 0 ? p->scale : 1.0f / sqrtf((float)job->shape.head_dim);
    struct naive_problem naive = {.dtype = p->q.dtype,
                                  .B = 1,
                                  .Hq = y->group,
                                  .Hkv = 1,
                                  .Sq = y->rows,
                                  .Sk = y->keys,
                                  .D = job->shape.head_dim,
                                  .Dv = job->shape.head_dim_v,
                                  .q = y->q,
                                  .k = y->k,
                                  .v = y->v,
                                  .visible = y->visible,
                                  .bias = y->bias,
                                  .slopes = y->slopes,
                                  .sink = p->sink ? p->sink + head : NULL,
                                  .keep = y->keep,
                                  .diagonal = run_diagonal(job, y->b) + y->first,
                                  .scale = scale,
                                  .softcap = p->softcap};
    fill_rows(y, &p->q, y->q);
    fill_pairs(y);
    for (int64_t g = 0; y->slopes && g < y->group; g++)
        y->slopes[g] = p->alibi[y->b * p->alibi_batch_stride + head + g];
    int failed = naive_forward(&naive, y->out, y->lse);
    for (int64_t g = 0; g < y->group; g++)
        for (int64_t r = 0; r < y->rows; r++)
            y->terms[(y->b * job->shape.heads_q + head + g) * job->shape.seq_q + y->first + r] =
                row_rule_terms(&naive, 0, g, r, y->scores);
    store_rows(y, y->out, &y->results[RUN_OUT]);
    store_rows(y, y->lse, &y->results[RUN_LSE]);
    if (failed || !job->backward) return failed;
    fill_rows(y, &grads->dout, y->dout);
    if (grads->dlse.data) fill_rows(y, &grads->dlse, y->dlse);
    failed =
        naive_backward(&naive, y->dout, grads->dlse.data ? y->dlse : NULL, y->dq, y->dk, y->dv, y->dbias, y->dsink);
    store_rows(y, y->dq, &y->results[RUN_DQ]);
    store_keys(y, y->dk, &y->results[RUN_DK]);
    store_keys(y, y->dv, &y->results[RUN_DV]);
    add_gradients(y);
    return failed;
}

static int measure_head(struct yardstick *y)
{
    const struct run_job *job = y->job;
    int64_t seq_q = run_used(&job->problem.q_len, y->b, job->shape.seq_q);
    y->keys = run_used(&job->problem.kv_len, y->b, job->shape.seq_k);
    fill_keys(y, &job->problem.k, y->k);
    fill_keys(y, &job->problem.v, y->v);
    for (y->first = 0; y->first < seq_q; y->first += y->rows_max) {
        y->rows = seq_q - y->first < y->rows_max ? seq_q - y->first : y->rows_max;
        if (measure_rows(y)) return cli_fail(CLI_CANNOT, "--check: out of memory");
    }
    return CLI_OK;
}

int run_naive(struct run_job *job, const unsigned char *dropout, attn_tensor results[RUN_RESULTS],
              struct row_terms *terms)
{
    const struct cli_shape *s = &job->shape;
    struct yardstick y = {.job = job, .dropout = dropout, .results = results, .terms = terms};
    float *lse = results[RUN_LSE].data;
    for (int64_t n = 0; lse && n < run_count(&results[RUN_LSE]); n++) lse[n] = -INFINITY;
    if (s->batch == 0 || s->heads_q == 0 || s->seq_q == 0) return CLI_OK;
    y.group = s->heads_q / s->heads_kv;
    /* Gradients of keys are sums over all rows, rounded once, so backward takes them together. */
    int64_t fit = PAIRS_AT_A_TIME / (y.group * (s->seq_k + 1)) + 16;
    y.rows_max = job->backward || fit > s->seq_q ? s->seq_q : fit;
    int status = new_arrays(&y);
    for (y.b = 0; y.b < s->batch && !status; y.b++)
        for (y.kv_head = 0; y.kv_head < s->heads_kv && !status; y.kv_head++) status = measure_head(&y);
    return status;
}
