/* SPDX-License-Identifier: Apache-2.0
 * What `attn bench` prints, for people and as JSON. */
#include "bench.h"

#include "json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *op_name(const struct bench_case *c) { return c->backward ? "backward" : "forward"; }

/* ---- a table ---------------------------------------------------------------------------------------------------- */

static int print_ceilings(const struct bench_run *run)
{
    if (run->host) {
        double copy;
        int status = bench_copy_speed(run, &copy);
        if (!status && copy > 0) printf("ceilings  copying within its memory %.4g GB/s, read and written\n", copy);
        return status;
    }
    double seconds = bench_aside(run->options);
    int threads = run->plan.threads;
    printf("ceilings  %d thread%s: arithmetic ", threads, threads == 1 ? "" : "s");
    for (int n = 0; bench_peak_level(n); n++)
        printf("%s%s %.4g", n ? ", " : "", bench_peak_level(n), bench_peak_fma(bench_peak_level(n), threads, seconds));
    printf(" GFLOP/s; reading %.3g GB/s\n", bench_peak_read(run->peak, threads, seconds));
    return CLI_OK;
}

int bench_print_header(const struct bench_run *run)
{
    attn_device_info info = {.struct_size = sizeof info};
    attn_status status = attn_device_get(run->plan.device, &info);
    if (status != ATTN_OK) return cli_fail_library(status, NULL);
    int cuda = run->plan.backend == ATTN_BACKEND_CUDA;
    printf("machine   %s, %d %s, %.1f GiB", info.name, (int)info.units, cuda ? "SMs" : "cores",
           (double)info.memory_bytes / 0x1p30);
    if (info.driver[0]) printf(", driver for %s", info.driver);
    putchar('\n');
    printf("build     %s\n", attn_build_info());
    return cuda && !run->host ? CLI_OK : print_ceilings(run);
}

static int same_way(const attn_plan *a, const attn_plan *b)
{
    return a->backend == b->backend && a->device == b->device && a->threads == b->threads &&
           strcmp(a->isa, b->isa) == 0 && strcmp(a->kernel, b->kernel) == 0;
}

/* Op, device, kernel, level and threads seldom change from row to row. */
static void print_group(const struct bench_run *run)
{
    const attn_plan *plan = &run->plan;
    printf("\n%s%s on %s: kernel %s (%s)", op_name(run->c), run->c->lse && !run->c->backward ? " with LSE" : "",
           cli_backend_name(plan->backend), plan->kernel, plan->isa);
    if (plan->threads) printf(", %d thread%s", (int)plan->threads, plan->threads == 1 ? "" : "s");
    if (run->options->graph) printf(", replayed from a CUDA graph");
    int cuda = plan->backend == ATTN_BACKEND_CUDA;
    printf("\n%-24s %-5s %-8s %-6s %10s %10s %9s %8s %7s  %-15s %s\n", "B,HQ,HKV,SQ,SK,D[,DV]", "type", "k and v",
           "mask", "median ms", "min ms", "GFLOP/s", "GB/s", cuda ? "of copy" : "share",
           cuda ? "batch waited ms" : "of ceiling", "check");
}

/* With four digits, but no exponent. */
static const char *number(double x, char text[32])
{
    int decimals = x >= 1000 ? 0 : x >= 100 ? 1 : x >= 10 ? 2 : x >= 1 ? 3 : 4;
    if (isfinite(x)) snprintf(text, 32, "%.*f", decimals, x);
    else strcpy(text, "-");
    return text;
}

void bench_print_row(const struct bench_run *run, const struct bench_run *before)
{
    const struct bench_case *c = run->c;
    struct bench_ceiling ceiling = bench_ceiling_of(run);
    char shape[BENCH_TEXT], a[32], b[32], d[32], e[32], share[32] = "-", of[64] = "-", check[32] = "-";
    if (!before || !same_way(&run->plan, &before->plan)) print_group(run);
    bench_shape_text(&c->shape, shape);
    if (ceiling.kind && isfinite(run->median)) {
        snprintf(share, sizeof share, "%.1f%%", 100 * ceiling.floor / run->median);
        snprintf(of, sizeof of, "%s %s", number(ceiling.value, a), ceiling.unit);
    }
    if (run->host && isfinite(run->median)) {
        snprintf(of, sizeof of, "%5" PRId64 " %s", run->batch, number(1e3 * run->waited, a));
    }
    if (run->verified == BENCH_WRONG) strcpy(check, "WRONG");
    if (run->verified == BENCH_VERIFIED) snprintf(check, sizeof check, "%.2f", run->share);
    printf("%-24s %-5s %-8s %-6s %10s %10s %9s %8s %7s  %-15s %s\n", shape, attn_dtype_name(c->dtype),
           attn_dtype_name(c->kv_dtype), c->causal ? "causal" : "full", number(1e3 * run->median, a),
           number(1e3 * run->least, b), number(1e-9 * run->flops / run->median, d),
           number(1e-9 * run->bytes / run->median, e), share, of, check);
}

/* ---- JSON ------------------------------------------------------------------------------------------------------- */

static void json_verified(struct cli_json *json, const struct bench_run *run)
{
    if (run->verified == BENCH_UNVERIFIED) cli_json_text(json, "verified", NULL);
    else cli_json_bool(json, "verified", run->verified == BENCH_VERIFIED);
}

static void json_count(struct cli_json *json, const char *key, double count)
{
    if (count < 0x1p53) cli_json_int(json, key, (int64_t)count);
    else cli_json_real(json, key, count);
}

static void json_problem(struct cli_json *json, const struct bench_case *c)
{
    cli_json_text(json, "dtype", attn_dtype_name(c->dtype));
    cli_json_text(json, "kv_dtype", attn_dtype_name(c->kv_dtype));
    cli_json_shape(json, "shape", &c->shape);
    cli_json_bool(json, "causal", c->causal);
    cli_json_bool(json, "v_in_k", c->v_in_k);
}

static void json_way(struct cli_json *json, const struct bench_run *run)
{
    const attn_plan *plan = &run->plan;
    cli_json_text(json, "op", op_name(run->c));
    cli_json_text(json, "device", cli_backend_name(plan->backend));
    cli_json_text(json, "kernel", plan->kernel);
    cli_json_text(json, "isa", plan->isa);
    json_problem(json, run->c);
    cli_json_int(json, "threads", plan->threads);
    json_count(json, "flops", run->flops);
    json_count(json, "bytes", run->bytes);
    json_count(json, "workspace_bytes", (double)run->plan.workspace_bytes);
}

void bench_json_case(struct cli_json *json, const struct bench_run *run)
{
    json_way(json, run);
    json_verified(json, run);
}

void bench_json_row(struct cli_json *json, const struct bench_run *run)
{
    struct bench_ceiling ceiling = bench_ceiling_of(run);
    cli_json_open(json, NULL, '{');
    json_way(json, run);
    cli_json_int(json, "repeats", run->repeats);
    cli_json_real(json, "median_ms", 1e3 * run->median);
    cli_json_real(json, "min_ms", 1e3 * run->least);
    cli_json_int(json, "batch", run->batch);
    cli_json_bool(json, "graph", run->options->graph);
    cli_json_real(json, "waited_ms", 1e3 * run->waited);
    cli_json_real(json, "tflops", 1e-12 * run->flops / run->median);
    cli_json_real(json, "gbps", 1e-9 * run->bytes / run->median);
    cli_json_real(json, "fraction_of_peak", ceiling.floor / run->median);
    if (ceiling.kind) {
        cli_json_open(json, "peak", '{');
        cli_json_text(json, "kind", ceiling.kind);
        cli_json_real(json, "value", ceiling.value);
        cli_json_close(json, '}');
    } else {
        cli_json_text(json, "peak", NULL);
    }
    json_verified(json, run);
    cli_json_close(json, '}');
}

int bench_print_list(const struct bench_options *options, const struct bench_case *cases, int count)
{
    struct cli_json json = {.file = stdout};
    char text[BENCH_TEXT];
    if (options->json) cli_json_open(&json, NULL, '[');
    for (int n = 0; n < count; n++) {
        if (options->json) {
            cli_json_open(&json, NULL, '{');
            cli_json_text(&json, "op", op_name(&cases[n]));
            json_problem(&json, &cases[n]);
            cli_json_close(&json, '}');
        } else {
            bench_case_text(&cases[n], text);
            puts(text);
        }
    }
    if (options->json) cli_json_close(&json, ']');
    return cli_finish(CLI_OK);
}
