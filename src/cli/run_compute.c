/* SPDX-License-Identifier: Apache-2.0
 * The calls of the library that `attn run` makes, timed. */
#include "run.h"

#include "timing.h"

static int create_context(struct run_job *job)
{
    const struct run_options *o = job->options;
    attn_config config = ATTN_CONFIG_INIT;
    config.backend = o->backend;
    config.device = o->ordinal;
    config.num_threads = (int32_t)o->threads;
    config.force = o->force;
    attn_status status = attn_create(&config, &job->context);
    return status == ATTN_OK ? CLI_OK : cli_fail_library(status, NULL);
}

/* An empty cache of this type for `plain`, with a factor a row where the type has factors. */
static int new_cache(struct run_job *job, const char *path, attn_dtype type, const attn_tensor *plain,
                     attn_tensor *cache)
{
    const int64_t *s = plain->shape;
    if ((type == ATTN_Q8_0 || type == ATTN_Q4_0) && s[3] % 32 != 0)
        return cli_fail(CLI_BAD_INPUT, "%s: --kv-dtype %s needs a head size that is a multiple of 32, it is %lld", path,
                        attn_dtype_name(type), (long long)s[3]);
    void *data, *scale = NULL;
    int scaled = type == ATTN_I8 || type == ATTN_F8_E4M3 || type == ATTN_F8_E5M2;
    int status = run_alloc(job, attn_dtype_bytes(type, run_count(plain)), &data);
    if (!status && scaled) status = run_alloc(job, (size_t)(s[0] * s[1] * s[2]) * sizeof(float), &scale);
    *cache = attn_bhsd(data, type, s[0], s[1], s[2], s[3]);
    if (!scaled) return status;
    cache->scale = scale;
    cache->scale_stride[0] = s[1] * s[2];
    cache->scale_stride[1] = s[2];
    cache->scale_stride[2] = 1;
    return status;
}

/* Replaces k and v of the problem by quantised copies, the way a cache is filled: by appending all
 * tokens in use to an empty one. */
static int quantise(struct run_job *job)
{
    const struct run_options *o = job->options;
    attn_problem *p = &job->problem;
    if (o->kv_dtype < 3) return CLI_OK; /* as stored, or a float type that the inputs have already */
    attn_dtype type = cli_kv_types[o->kv_dtype];
    attn_append append = ATTN_APPEND_INIT;
    append.k_new = p->k;
    append.v_new = p->v;
    append.new_len = p->kv_len;
    void *zeros;
    int status = new_cache(job, o->k, type, &p->k, &append.k_cache);
    if (!status) status = new_cache(job, o->v, type, &p->v, &append.v_cache);
    if (!status) status = run_alloc(job, (size_t)job->shape.batch * sizeof(int32_t), &zeros);
    if (status) return status;
    append.cache_len.used = zeros;
    if (append.k_cache.scale) append.flags = ATTN_APPEND_SET_SCALE;
    attn_status result = attn_kv_append(job->context, &append, NULL);
    if (result != ATTN_OK) return cli_fail_library(result, "--kv-dtype");
    p->k = append.k_cache;
    p->v = append.v_cache;
    return CLI_OK;
}

static int64_t clamp(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

int64_t run_used(const attn_lengths *lengths, int64_t b, int64_t all) { return lengths->used ? lengths->used[b] : all; }

int64_t run_diagonal(const struct run_job *job, int64_t b)
{
    const attn_problem *p = &job->problem;
    if (p->mask & ATTN_DIAGONAL) return p->diagonal;
    if (p->mask & ATTN_TOP_LEFT) return 0;
    return run_used(&p->kv_len, b, job->shape.seq_k) - run_used(&p->q_len, b, job->shape.seq_q);
}

void run_visible(const struct run_job *job, int64_t b, int64_t i, int64_t *first, int64_t *end)
{
    const attn_problem *p = &job->problem;
    int64_t keys = run_used(&p->kv_len, b, job->shape.seq_k), center = i + run_diagonal(job, b);
    *first = p->mask & ATTN_WINDOW_LEFT ? clamp(center - p->window_left, 0, keys) : 0;
    *end = p->mask & ATTN_WINDOW_RIGHT ? clamp(center + p->window_right + 1, *first, keys) : keys;
    if (p->mask & ATTN_CAUSAL) *end = clamp(center + 1, *first, *end);
}

/* Pairs of a query and a key that its band lets it see, over all sequences, for one head. */
static double visible_pairs(const struct run_job *job)
{
    const int64_t *q = job->problem.q.shape;
    double pairs = 0;
    if (q[0] == 0 || q[1] == 0 || q[2] == 0 || q[3] == 0) return 0; /* the other sizes may be anything */
    for (int64_t b = 0; b < job->shape.batch; b++)
        for (int64_t i = 0; i < run_used(&job->problem.q_len, b, job->shape.seq_q); i++) {
            int64_t first, end;
            run_visible(job, b, i, &first, &end);
            pairs += (double)(end - first);
        }
    return pairs;
}

static attn_status call_once(struct run_job *job, attn_op op)
{
    if (op == ATTN_OP_BACKWARD) return attn_backward(job->context, &job->problem, &job->grads, NULL);
    return attn_forward(job->context, &job->problem, NULL);
}

/* One call to warm up, then --repeat measured ones. */
static int measure(struct run_job *job, attn_op op, struct run_time *time)
{
    int64_t repeat = job->options->repeat;
    void *block;
    int status = run_alloc(job, (size_t)repeat * sizeof(double), &block);
    if (status) return status;
    double *seconds = block;
    for (int64_t n = -1; n < repeat; n++) {
        double start = cli_now();
        attn_status result = call_once(job, op);
        if (result != ATTN_OK) return cli_fail_library(result, NULL);
        if (n >= 0) seconds[n] = cli_now() - start;
    }
    time->median = cli_median(seconds, repeat);
    time->least = seconds[0];
    return CLI_OK;
}

/* Says no before any work is done. */
static int query(struct run_job *job, attn_op op, struct run_time *time)
{
    const struct cli_shape *s = &job->shape;
    double pairs = 2 * visible_pairs(job) * (double)s->heads_q, dim = (double)s->head_dim,
           dim_v = (double)s->head_dim_v;
    time->plan = (attn_plan)ATTN_PLAN_INIT;
    time->flops = op == ATTN_OP_BACKWARD ? pairs * (3 * dim + 2 * dim_v) : pairs * (dim + dim_v);
    attn_status status =
        attn_query(job->context, op, &job->problem, op == ATTN_OP_BACKWARD ? &job->grads : NULL, NULL, &time->plan);
    if (status == ATTN_OK) return CLI_OK;
    if (status == ATTN_UNSUPPORTED && op == ATTN_OP_BACKWARD && job->options->backend != ATTN_BACKEND_REFERENCE)
        return cli_fail(cli_exit_status(status), "%s: %s; --device reference can do it", attn_status_string(status),
                        attn_last_error());
    return cli_fail_library(status, NULL);
}

static int write_keep(struct run_job *job)
{
    const attn_tensor *keep = &job->results[RUN_KEEP].tensor;
    if (!keep->data) return CLI_OK;
    attn_status status = attn_dropout_mask(job->context, &job->problem, keep, NULL);
    return status == ATTN_OK ? CLI_OK : cli_fail_library(status, "--keep");
}

int run_compute(struct run_job *job)
{
    int status = create_context(job);
    if (!status) status = quantise(job);
    if (!status) status = run_new_results(job);
    if (!status) status = query(job, ATTN_OP_FORWARD, &job->forward);
    if (!status && job->backward) status = query(job, ATTN_OP_BACKWARD, &job->back);
    if (!status) status = measure(job, ATTN_OP_FORWARD, &job->forward);
    if (!status && job->backward) status = measure(job, ATTN_OP_BACKWARD, &job->back);
    return status ? status : write_keep(job);
}
