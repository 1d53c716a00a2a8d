/* SPDX-License-Identifier: Apache-2.0
 * The measured calls of a case, and what its time is held against. */
#include "bench.h"

#include "timing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BUDGET 1.5 /* also on the help page */
#define BATCH 0.01 /* seconds of calls between two waits */
#define ASIDE 0.1  /* seconds for each ceiling and for warming up, less where the budget is smaller */

/* A graph keeps its calls in memory, so it has fewer. */
enum { REPEATS_MIN = 3, REPEATS_MAX = 100000, BATCH_MAX = 1000, GRAPH_MAX = 500, WAITED = 5 };

static int check(const struct bench_run *run, attn_status status)
{
    return status == ATTN_OK ? CLI_OK : cli_fail_library(status, run->c->backward ? "attn_backward" : "attn_forward");
}

int bench_put(const struct bench_run *run, const attn_exec *exec, int64_t calls)
{
    attn_status status = ATTN_OK;
    for (int64_t n = 0; n < calls && status == ATTN_OK; n++)
        status = run->c->backward ? attn_backward(run->context, &run->problem, &run->grads, exec)
                                  : attn_forward(run->context, &run->problem, exec);
    return check(run, status);
}

int bench_call(struct bench_run *run, int64_t calls, double *seconds)
{
    double start = cli_now();
    int status = bench_put(run, &run->exec, calls);
    if (!status && run->host) status = check(run, attn_sync(run->context, NULL));
    *seconds = (cli_now() - start) / (double)calls;
    return status;
}

int bench_choose_batch(struct bench_run *run)
{
    double waited[WAITED];
    int status = CLI_OK;
    run->batch = 1;
    if (!run->host) return CLI_OK;
    for (int n = 0; n < WAITED && !status; n++) status = bench_call(run, 1, &waited[n]);
    if (status) return status;
    run->waited = cli_median(waited, WAITED);
    run->batch = (int64_t)fmin(fmax(BATCH / run->waited, 1), run->options->graph ? GRAPH_MAX : BATCH_MAX);
    return CLI_OK;
}

static double budget(const struct bench_options *o) { return o->seconds < 0 ? BUDGET : (double)o->seconds; }

double bench_aside(const struct bench_options *o) { return ASIDE * fmin(1, budget(o) / BUDGET); }

/* The first call of all counts. */
static int warm_up(struct bench_run *run)
{
    double spent = run->first, seconds;
    while (spent < bench_aside(run->options)) {
        int status = bench_call(run, 1, &seconds);
        if (status) return status;
        spent += seconds;
    }
    return CLI_OK;
}

static int time_calls(struct bench_run *run, const struct bench_graph *graph, double *times, int64_t most)
{
    double spent = 0;
    int64_t n = 0;
    while (n < most && (run->options->repeat || n < REPEATS_MIN || spent < budget(run->options))) {
        int status = graph ? bench_graph_replay(run, graph, &times[n]) : bench_call(run, run->batch, &times[n]);
        if (status) return status;
        spent += times[n++] * (double)run->batch;
    }
    run->repeats = n;
    run->median = cli_median(times, n);
    run->least = times[0];
    return CLI_OK;
}

static int has_products_of_bf16(const struct bench_run *run)
{
    return strcmp(run->plan.isa, "amx") == 0 || strcmp(run->plan.isa, "avx512bf16") == 0;
}

int bench_is_bf16(const struct bench_run *run)
{
    return has_products_of_bf16(run) && run->c->dtype == ATTN_BF16 && run->c->kv_dtype == ATTN_BF16;
}

/* What has few queries is avx512's work too, but bound by reading. */
const char *bench_level(const struct bench_run *run)
{
    return has_products_of_bf16(run) && !bench_is_bf16(run) ? "avx512" : run->plan.isa;
}

/* Before each case, so that a drifting machine shows. */
static int measure_ceilings(struct bench_run *run)
{
    double seconds = bench_aside(run->options);
    if (run->host) return bench_copy_speed(run, &run->copy);
    if (run->plan.backend == ATTN_BACKEND_CUDA) return CLI_OK; /* copies there and back count too: none is known */
    run->fma = bench_peak_fma(bench_level(run), run->plan.threads, seconds);
    run->read = bench_peak_read(run->peak, run->plan.threads, seconds);
    return run->read > 0 ? CLI_OK : cli_fail(CLI_CANNOT, "out of memory for the ceiling of reading");
}

int bench_measure(struct bench_run *run)
{
    int64_t most = run->options->repeat ? run->options->repeat : REPEATS_MAX;
    double *times = malloc((size_t)most * sizeof *times);
    struct bench_graph *graph = NULL;
    if (!times) return cli_fail(CLI_CANNOT, "--repeat: out of memory");
    int status = measure_ceilings(run);
    if (!status) status = warm_up(run);
    if (!status) status = bench_choose_batch(run);
    if (!status && run->options->graph) status = bench_graph_open(run, &graph);
    if (!status) status = time_calls(run, graph, times, most);
    bench_graph_close(graph);
    free(times);
    return status;
}

struct bench_ceiling bench_ceiling_of(const struct bench_run *run)
{
    if (run->copy > 0) return (struct bench_ceiling){"copy", "GB/s", run->copy, 1e-9 * run->bytes / run->copy};
    if (run->fma <= 0 || run->read <= 0) return (struct bench_ceiling){NULL, NULL, NAN, NAN};
    const char *kind = bench_is_bf16(run) ? "fma_bf16" : "fma_f32";
    struct bench_ceiling fma = {kind, "GFLOP/s", run->fma, 1e-9 * run->flops / run->fma};
    struct bench_ceiling read = {"read", "GB/s", run->read, 1e-9 * run->bytes / run->read};
    return read.floor > fma.floor ? read : fma;
}
