/* SPDX-License-Identifier: Apache-2.0
 * `attn bench --copies`: what the cost model of automatic choice assumes of a GPU, measured: copies of ordinary memory, by
 * the driver alone and as a staged call makes them, and a staged call in which nothing else counts. */
#include "bench.h"

#include "cli.h"
#include "json.h"
#include "timing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TIMES = 9, CALLS = 101, SIZES = 4 };
static const size_t sizes[SIZES] = {1 << 16, 1 << 20, 1 << 24, 1 << 28};

struct copies {
    attn_context *context;
    int32_t device;
    char *host;
    void *gpu;
    int32_t *used;                                /* 0, in the GPU's memory */
    double up[SIZES], down[SIZES], staged[SIZES]; /* GB/s */
    double call;                                  /* seconds */
};

static int copy_once(const struct copies *c, size_t bytes, int up, double *seconds)
{
    const double start = cli_now();
    attn_status status = up ? attn_upload(c->context, c->gpu, c->host, bytes, NULL)
                            : attn_download(c->context, c->host, c->gpu, bytes, NULL);
    *seconds = cli_now() - start;
    return status == ATTN_OK ? CLI_OK : cli_fail_library(status, "copying");
}

static int measure_copy(const struct copies *c, size_t bytes, int up, double *gbps)
{
    double times[TIMES];
    int status = copy_once(c, bytes, up, &times[0]); /* to warm up */
    for (int n = 0; n < TIMES && !status; n++) status = copy_once(c, bytes, up, &times[n]);
    if (!status) *gbps = 1e-9 * (double)bytes / cli_median(times, TIMES);
    return status;
}

/* Appends one key to a cache of so many bytes, which goes to the GPU and back because its length lies there. */
static int stage_once(const struct copies *c, size_t bytes, double *seconds)
{
    enum { SIZE = 64 };
    float key[SIZE] = {1};
    attn_append call = ATTN_APPEND_INIT;
    attn_exec exec = ATTN_EXEC_INIT;
    call.k_new = attn_bhsd(key, ATTN_F32, 1, 1, 1, SIZE);
    call.k_cache = attn_bhsd(c->host, ATTN_F32, 1, 1, (int64_t)(bytes / sizeof key), SIZE);
    call.cache_len.used = c->used;
    exec.device = c->device + 1;
    const double start = cli_now();
    attn_status status = attn_kv_append(c->context, &call, &exec);
    *seconds = cli_now() - start;
    return status == ATTN_OK ? CLI_OK : cli_fail_library(status, "attn_kv_append");
}

static int measure_staged(const struct copies *c, size_t bytes, double *gbps)
{
    double times[TIMES];
    int status = stage_once(c, bytes, &times[0]);
    for (int n = 0; n < TIMES && !status; n++) status = stage_once(c, bytes, &times[n]);
    if (!status) *gbps = 2e-9 * (double)bytes / cli_median(times, TIMES);
    return status;
}

/* Host tensors of one token. */
static int measure_call(struct copies *c)
{
    float q[16] = {1}, k[16] = {1}, v[16] = {1}, out[16];
    double times[CALLS];
    attn_problem problem = ATTN_PROBLEM_INIT;
    attn_exec exec = ATTN_EXEC_INIT;
    attn_status status = ATTN_OK;
    problem.q = attn_bhsd(q, ATTN_F32, 1, 1, 1, 16);
    problem.k = attn_bhsd(k, ATTN_F32, 1, 1, 1, 16);
    problem.v = attn_bhsd(v, ATTN_F32, 1, 1, 1, 16);
    problem.out = attn_bhsd(out, ATTN_F32, 1, 1, 1, 16);
    exec.device = c->device + 1;
    exec.flags = ATTN_EXEC_WAIT;
    for (int n = -1; n < CALLS && status == ATTN_OK; n++) {
        const double start = cli_now();
        status = attn_forward(c->context, &problem, &exec);
        times[n < 0 ? 0 : n] = cli_now() - start;
    }
    if (status != ATTN_OK) return cli_fail_library(status, "attn_forward");
    c->call = cli_median(times, CALLS);
    return CLI_OK;
}

/* After the other sizes have said that it takes no minutes, as it would in an emulator. */
static int is_soon(const struct copies *c, int n)
{
    const double longest = 0.5;
    return n == 0 || 2e-9 * (double)sizes[n] < longest * c->staged[n - 1];
}

static int measure(struct copies *c)
{
    const size_t most = sizes[SIZES - 1];
    c->host = malloc(most);
    if (!c->host) return cli_fail(CLI_CANNOT, "out of memory: %zu bytes to copy", most);
    memset(c->host, 1, most);
    const int32_t none = 0;
    void *used = NULL;
    attn_status made = attn_malloc(c->context, c->device, most, &c->gpu);
    if (made == ATTN_OK) made = attn_malloc(c->context, c->device, sizeof none, &used);
    c->used = used;
    if (made == ATTN_OK) made = attn_upload(c->context, used, &none, sizeof none, NULL);
    if (made != ATTN_OK) return cli_fail_library(made, "memory of the GPU");
    int status = CLI_OK;
    for (int n = 0; n < SIZES && !status; n++) {
        status = measure_copy(c, sizes[n], 1, &c->up[n]);
        if (!status) status = measure_copy(c, sizes[n], 0, &c->down[n]);
    }
    attn_free(c->context, c->gpu);
    c->gpu = NULL;
    for (int n = 0; n < SIZES && !status && is_soon(c, n); n++) status = measure_staged(c, sizes[n], &c->staged[n]);
    return status ? status : measure_call(c);
}

static void print_text(const struct copies *c)
{
    puts("ordinary memory          to the GPU   and back   staged both ways   (GB/s)");
    for (int n = 0; n < SIZES; n++)
        printf("%9zu bytes  %17.4g  %9.4g  %17.4g%s\n", sizes[n], c->up[n], c->down[n], c->staged[n],
               c->staged[n] > 0 ? "" : " (left out)");
    printf("staged call of one token %.4g us\n", 1e6 * c->call);
}

static void print_json(const struct copies *c)
{
    struct cli_json json = {.file = stdout};
    cli_json_open(&json, NULL, '{');
    cli_json_open(&json, "copies", '[');
    for (int n = 0; n < SIZES; n++) {
        cli_json_open(&json, NULL, '{');
        cli_json_int(&json, "bytes", (int64_t)sizes[n]);
        cli_json_real(&json, "to_gpu_gbps", c->up[n]);
        cli_json_real(&json, "from_gpu_gbps", c->down[n]);
        if (c->staged[n] > 0) cli_json_real(&json, "staged_gbps", c->staged[n]);
        cli_json_close(&json, '}');
    }
    cli_json_close(&json, ']');
    cli_json_real(&json, "staged_call_us", 1e6 * c->call);
    cli_json_close(&json, '}');
}

int bench_copies(const struct bench_options *options)
{
    struct copies c = {.device = options->ordinal + 1};
    attn_config config = ATTN_CONFIG_INIT;
    config.backend = ATTN_BACKEND_CUDA;
    config.device = options->ordinal;
    attn_status made = attn_create(&config, &c.context);
    if (made != ATTN_OK) return cli_fail_library(made, NULL);
    const int status = measure(&c);
    if (!status && options->json) print_json(&c);
    else if (!status) print_text(&c);
    attn_free(c.context, c.used);
    attn_free(c.context, c.gpu);
    free(c.host);
    attn_destroy(c.context);
    return status;
}
