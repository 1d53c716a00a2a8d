/* SPDX-License-Identifier: Apache-2.0
 * The tensors of a case, filled with standard normal numbers that depend on nothing but their place; its workspace; and
 * how much work it is. With --device cuda they lie in the GPU's memory, and pieces that the CPU fills are copied there. */
#include "bench.h"

#include "npy.h"
#include "suite/suite_case.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEED = 1, FILL_ROWS = 256 };

/* The number behind `key` at the start of a line of a file; 0 without. */
static double system_number(const char *path, const char *key)
{
    char line[128];
    double number = 0;
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    while (number == 0 && fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0) number = strtod(line + strlen(key), NULL);
    fclose(file);
    return number;
}

/* What the kernel says it can give, within the limit of the container. Without either, memory that is not there shows
 * when it is asked for. */
double bench_available_bytes(void)
{
    double free_bytes = 1024 * system_number("/proc/meminfo", "MemAvailable:");
    double limit = system_number("/sys/fs/cgroup/memory.max", "");
    if (limit > 0) limit -= system_number("/sys/fs/cgroup/memory.current", "");
    if (free_bytes <= 0) free_bytes = 0x1p62;
    return limit > 0 && limit < free_bytes ? limit : free_bytes;
}

int32_t bench_gpu(const struct bench_options *options)
{
    return options->backend == ATTN_BACKEND_CUDA ? 1 + options->ordinal : 0;
}

static int fail_memory(const struct bench_run *run, double bytes)
{
    char text[BENCH_TEXT];
    bench_case_text(run->c, text);
    if (run->host && bytes <= run->memory_bytes) /* others hold some of it */
        return cli_fail(CLI_CANNOT, "--shape %s: out of memory: it takes %.3g GB: %s", text, 1e-9 * bytes,
                        attn_last_error());
    return cli_fail(CLI_CANNOT, "--shape %s: out of memory: it takes %.3g GB, there are %.3g", text, 1e-9 * bytes,
                    1e-9 * run->memory_bytes);
}

/* Counts before it asks: systems promise more memory than they have, and end the process that uses it. */
static int take(struct bench_run *run, double bytes, void **block)
{
    run->taken_bytes += bytes;
    if (run->taken_bytes > run->memory_bytes) return fail_memory(run, run->taken_bytes);
    if (attn_malloc(run->context, bench_gpu(run->options), (size_t)bytes, block) != ATTN_OK)
        return fail_memory(run, run->taken_bytes);
    run->blocks[run->block_count++] = *block;
    return CLI_OK;
}

int bench_new_tensor(struct bench_run *run, attn_dtype type, int64_t heads, int64_t tokens, int64_t columns,
                     attn_tensor *tensor)
{
    int64_t batch = run->c->shape.batch;
    double rows = (double)batch * (double)heads * (double)tokens;
    void *data = NULL, *scale = NULL;
    int scaled = type == ATTN_I8 || type == ATTN_F8_E4M3 || type == ATTN_F8_E5M2;
    int status = take(run, rows * (double)attn_dtype_bytes(type, columns), &data);
    if (!status && scaled) status = take(run, rows * sizeof(float), &scale);
    *tensor = attn_bhsd(data, type, batch, heads, tokens, columns);
    if (status || !scaled) return status;
    tensor->scale = scale; /* a factor a row */
    tensor->scale_stride[0] = heads * tokens;
    tensor->scale_stride[1] = tokens;
    tensor->scale_stride[2] = 1;
    return CLI_OK;
}

attn_tensor bench_rows(const attn_tensor *t, int64_t b, int64_t h, int64_t first, int64_t rows)
{
    attn_tensor part = *t;
    int64_t n = b * t->stride[0] + h * t->stride[1] + first * t->stride[2];
    part.data = (char *)t->data + attn_dtype_bytes((attn_dtype)t->dtype, n);
    part.shape[0] = part.shape[1] = 1;
    part.shape[2] = rows;
    if (t->scale) part.scale += b * t->scale_stride[0] + h * t->scale_stride[1] + first * t->scale_stride[2];
    return part;
}

/* ---- numbers ---------------------------------------------------------------------------------------------------- */

struct filling {
    struct bench_run *run;
    attn_tensor *tensor;
    int number;         /* of the tensor, for its numbers */
    atomic_int failure; /* a status */
};

/* Memory of a task, for a piece of FILL_ROWS rows: the numbers, and on the way to a GPU what they become. */
struct piece {
    float *x, *scale;
    void *data;
};

/* The way a cache is filled: by appending to it. */
static attn_status append(attn_context *context, attn_tensor rows, float *x)
{
    const int32_t used = 0;
    attn_append append = ATTN_APPEND_INIT;
    append.k_cache = rows;
    append.flags = rows.scale ? ATTN_APPEND_SET_SCALE : 0u;
    append.k_new = attn_bhsd(x, ATTN_F32, 1, 1, rows.shape[2], rows.shape[3]);
    append.cache_len.used = &used;
    return attn_kv_append(context, &append, NULL);
}

/* Rows of one head, which lie without a gap. */
static attn_status fill_on_gpu(const struct bench_run *run, const attn_tensor *rows, const struct piece *piece)
{
    attn_tensor here = *rows;
    size_t bytes = attn_dtype_bytes((attn_dtype)rows->dtype, rows->shape[2] * rows->shape[3]);
    here.data = piece->data;
    here.scale = rows->scale ? piece->scale : NULL;
    attn_status status = append(run->host, here, piece->x);
    if (status == ATTN_OK) status = attn_upload(run->context, rows->data, piece->data, bytes, NULL);
    if (status == ATTN_OK && rows->scale)
        status = attn_upload(run->context, rows->scale, piece->scale, (size_t)rows->shape[2] * sizeof(float), NULL);
    return status;
}

static attn_status fill_head(const struct filling *f, int64_t b, int64_t h, const struct piece *piece)
{
    int64_t tokens = f->tensor->shape[2], columns = f->tensor->shape[3];
    attn_status status = ATTN_OK;
    for (int64_t first = 0, rows; first < tokens && status == ATTN_OK; first += rows) {
        rows = tokens - first < FILL_ROWS ? tokens - first : FILL_ROWS;
        for (int64_t r = 0; r < rows; r++)
            suite_fill_row((struct suite_fill){FILL_NORMAL, 1}, SEED, f->number, b, h, first + r,
                           piece->x + r * columns, columns);
        attn_tensor part = bench_rows(f->tensor, b, h, first, rows);
        status = f->run->host ? fill_on_gpu(f->run, &part, piece) : append(f->run->context, part, piece->x);
    }
    return status;
}

static void fill_task(void *arg, int64_t n)
{
    struct filling *f = arg;
    int64_t heads = f->tensor->shape[1];
    size_t count = (size_t)(FILL_ROWS * f->tensor->shape[3]);
    struct piece piece = {.x = malloc(count * sizeof *piece.x),
                          .scale = malloc(FILL_ROWS * sizeof *piece.scale),
                          .data = malloc(count * sizeof *piece.x)}; /* no type is larger */
    int there = piece.x && piece.scale && piece.data;
    attn_status status = there ? fill_head(f, n / heads, n % heads, &piece) : ATTN_OUT_OF_MEMORY;
    free(piece.x);
    free(piece.scale);
    free(piece.data);
    if (status != ATTN_OK) atomic_store(&f->failure, (int)status);
}

/* On threads that are gone afterwards; so heads also come to lie in the memories of several processors. */
static int fill(struct bench_run *run, attn_tensor *tensor, int number)
{
    struct filling f = {.run = run, .tensor = tensor, .number = number};
    int64_t heads = tensor->shape[0] * tensor->shape[1];
    atomic_init(&f.failure, ATTN_OK);
    suite_parallel(heads, (double)heads * (double)tensor->shape[2] * (double)tensor->shape[3], fill_task, &f);
    attn_status failure = (attn_status)atomic_load(&f.failure);
    if (failure == ATTN_OK) return CLI_OK;
    return cli_fail(cli_exit_status(failure), "filling the tensors: %s", attn_status_string(failure));
}

/* ---- the case --------------------------------------------------------------------------------------------------- */

/* Pairs of a query and a key that it sees, of one head. Under the causal mask the last query sees all SK keys and each
 * one before it a key less. */
static double visible_pairs(const struct bench_case *c)
{
    double queries = (double)c->shape.seq_q, keys = (double)c->shape.seq_k;
    if (!c->causal) return queries * keys;
    double rows = queries < keys ? queries : keys; /* that see a key */
    return rows * keys - rows * (rows - 1) / 2;
}

/* In both masks the last query sees every key, so all of K and V are needed. */
static double kv_bytes(const struct bench_case *c, const attn_problem *p)
{
    const struct cli_shape *s = &c->shape;
    double row = (double)attn_dtype_bytes(c->kv_dtype, s->head_dim);
    if (!c->v_in_k) row += (double)attn_dtype_bytes(c->kv_dtype, s->head_dim_v);
    if (p->k.scale) row += (double)(c->v_in_k ? 1 : 2) * sizeof(float);
    return row * (double)s->batch * (double)s->heads_kv * (double)s->seq_k;
}

/* Backward reads Q, O, dO, K and V, and writes the gradients of Q, K and V. */
static double backward_bytes(const struct bench_case *c)
{
    const struct cli_shape *s = &c->shape;
    const double d = (double)s->head_dim, dv = (double)s->head_dim_v;
    const double query = (2 * d + 2 * dv) * (double)attn_dtype_bytes(c->dtype, 1);
    const double key = 2 * (d + dv) * (double)attn_dtype_bytes(c->kv_dtype, 1);
    return (double)s->batch *
           (query * (double)s->heads_q * (double)s->seq_q + key * (double)s->heads_kv * (double)s->seq_k);
}

/* What the verification takes for a while: K and V of one head as float64 and, for the naive implementation, as float32;
 * and a few numbers for each key. */
static double verification_bytes(const struct bench_run *run)
{
    const struct cli_shape *s = &run->c->shape;
    return run->options->no_verify || run->host ? 0
                                                : 12.0 * (double)s->seq_k * (double)(s->head_dim + s->head_dim_v + 4);
}

static int new_tensors(struct bench_run *run)
{
    const struct bench_case *c = run->c;
    const struct cli_shape *s = &c->shape;
    attn_problem *p = &run->problem;
    int status = bench_new_tensor(run, c->kv_dtype, s->heads_kv, s->seq_k, s->head_dim, &p->k);
    if (!status && !c->v_in_k) status = bench_new_tensor(run, c->kv_dtype, s->heads_kv, s->seq_k, s->head_dim_v, &p->v);
    if (!status) status = bench_new_tensor(run, c->dtype, s->heads_q, s->seq_q, s->head_dim, &p->q);
    if (!status) status = bench_new_tensor(run, c->dtype, s->heads_q, s->seq_q, s->head_dim_v, &p->out);
    if (!status && (c->lse || c->backward)) status = bench_new_tensor(run, ATTN_F32, s->heads_q, s->seq_q, 1, &p->lse);
    if (c->v_in_k) {
        p->v = p->k;
        p->v.shape[3] = s->head_dim_v;
    }
    return status;
}

/* Says no before any work is done. */
static int query(struct bench_run *run)
{
    char text[BENCH_TEXT + 8] = "--shape ";
    bench_case_text(run->c, text + strlen(text));
    const int backward = run->c->backward;
    attn_status status = attn_query(run->context, backward ? ATTN_OP_BACKWARD : ATTN_OP_FORWARD, &run->problem,
                                    backward ? &run->grads : NULL, NULL, &run->plan);
    if (status != ATTN_OK) return cli_fail_library(status, text);
    if (run->plan.staged) return CLI_OK; /* the GPU's memory is the library's business then */
    run->exec.workspace_bytes = run->plan.workspace_bytes;
    return take(run, (double)run->plan.workspace_bytes, &run->exec.workspace);
}

int bench_open(struct bench_run *run)
{
    attn_problem *p = &run->problem;
    const struct cli_shape *s = &run->c->shape;
    *p = (attn_problem)ATTN_PROBLEM_INIT;
    run->exec = (attn_exec)ATTN_EXEC_INIT;
    run->plan = (attn_plan)ATTN_PLAN_INIT;
    p->mask = run->c->causal ? ATTN_CAUSAL : 0u;
    run->taken_bytes = verification_bytes(run);
    const int backward = run->c->backward;
    int status = new_tensors(run);
    if (!status && backward) status = bench_open_gradients(run);
    if (!status) status = query(run);
    if (!status) status = fill(run, &p->q, 0);
    if (!status) status = fill(run, &p->k, 1);
    if (!status && !run->c->v_in_k) status = fill(run, &p->v, 2);
    if (!status && backward) status = fill(run, &run->grads.dout, 3);
    if (!status && backward) status = bench_forward_first(run);
    if (status) return status;
    const double d = (double)s->head_dim, dv = (double)s->head_dim_v;
    run->flops =
        2 * visible_pairs(run->c) * (double)s->batch * (double)s->heads_q * (backward ? 3 * d + 2 * dv : d + dv);
    run->bytes = backward ? backward_bytes(run->c) : kv_bytes(run->c, p);
    return CLI_OK;
}

void bench_close(struct bench_run *run)
{
    for (int n = 0; n < run->block_count; n++) attn_free(run->context, run->blocks[n]);
    run->block_count = 0;
}
