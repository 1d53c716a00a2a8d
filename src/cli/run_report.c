/* SPDX-License-Identifier: Apache-2.0
 * What `attn run` prints, for people and as JSON. */
#include "run.h"

#include "json.h"

#include <inttypes.h>
#include <string.h>

static attn_device_info device_info(const struct run_job *job)
{
    attn_device_info info = {.struct_size = sizeof info};
    if (attn_device_get(job->forward.plan.device, &info) != ATTN_OK) info.name[0] = 0;
    return info;
}

static const char *kv_name(const struct run_job *job) { return attn_dtype_name((attn_dtype)job->problem.k.dtype); }

static void print_problem(const struct run_job *job)
{
    const struct cli_shape *s = &job->shape;
    printf("problem   batch %" PRId64 ", heads %" PRId64 "/%" PRId64 ", tokens %" PRId64 " x %" PRId64
           ", head size %" PRId64,
           s->batch, s->heads_q, s->heads_kv, s->seq_q, s->seq_k, s->head_dim);
    if (s->head_dim_v != s->head_dim) printf("/%" PRId64, s->head_dim_v);
    const char *q = attn_dtype_name((attn_dtype)job->problem.q.dtype), *k = kv_name(job);
    printf(", %s", q);
    if (strcmp(q, k) != 0) printf(" with keys in %s", k);
    puts(job->options->causal ? ", causal" : "");
    if (job->overflows) printf("note      %" PRId64 " input numbers became infinite in %s\n", job->overflows, q);
}

static void print_time(const char *label, const struct run_job *job, const struct run_time *time)
{
    printf("%-9s kernel %s (%s), %.4g ms", label, time->plan.kernel, time->plan.isa, 1e3 * time->median);
    if (job->options->repeat > 1) printf(" (median of %" PRId64 ")", job->options->repeat);
    if (time->median > 0) printf(", %.4g GFLOP/s", 1e-9 * time->flops / time->median);
    putchar('\n');
}

static void print_text(const struct run_job *job)
{
    const attn_plan *plan = &job->forward.plan;
    attn_device_info info = device_info(job);
    printf("device    %s", cli_backend_name(plan->backend));
    if (plan->backend == ATTN_BACKEND_CUDA) printf(":%d", (int)info.ordinal);
    printf(" (%s), ", info.name);
    if (plan->threads) printf("%d thread%s, ", (int)plan->threads, plan->threads == 1 ? "" : "s");
    printf("%d split%s%s\n", (int)plan->num_splits, plan->num_splits == 1 ? "" : "s",
           plan->staged ? ", arrays copied there and back" : "");
    print_problem(job);
    if (plan->reason[0]) printf("because   %s\n", plan->reason);
    print_time("forward", job, &job->forward);
    if (job->backward) print_time("backward", job, &job->back);
    for (int i = 0; i < job->verdict_count; i++) {
        const struct run_verdict *v = &job->verdicts[i];
        printf("check     %s: max error %.3g, relative %.3g, allowed %.3g", v->what, v->error, v->relative, v->allowed);
        if (v->row_share > 0) printf(", %.2g of the row rule", v->row_share);
        if (v->misplaced) printf(", %" PRId64 " not finite where they should be or the reverse", v->misplaced);
        puts(v->good ? ": good" : ": WRONG");
    }
    for (int i = 0; i < job->output_count; i++) printf("wrote     %s\n", job->outputs[i].path);
}

static void json_time(struct cli_json *json, const struct run_time *time)
{
    cli_json_text(json, "kernel", time->plan.kernel);
    cli_json_text(json, "isa", time->plan.isa);
    cli_json_int(json, "workspace_bytes", (int64_t)time->plan.workspace_bytes);
    cli_json_real(json, "median_ms", 1e3 * time->median);
    cli_json_real(json, "min_ms", 1e3 * time->least);
    cli_json_real(json, "gflops", time->median > 0 ? 1e-9 * time->flops / time->median : 0);
}

static void json_verdicts(struct cli_json *json, const struct run_job *job)
{
    int good = 1;
    cli_json_open(json, "checks", '[');
    for (int i = 0; i < job->verdict_count; i++) {
        const struct run_verdict *v = &job->verdicts[i];
        good &= v->good;
        cli_json_open(json, NULL, '{');
        cli_json_text(json, "what", v->what);
        cli_json_real(json, "max_error", v->error);
        cli_json_real(json, "relative_error", v->relative);
        cli_json_real(json, "allowed", v->allowed);
        cli_json_real(json, "row_share", v->row_share);
        cli_json_int(json, "misplaced", v->misplaced);
        cli_json_bool(json, "good", v->good);
        cli_json_close(json, '}');
    }
    cli_json_close(json, ']');
    cli_json_bool(json, "verified", job->verdict_count > 0 && good);
}

static void print_json(const struct run_job *job)
{
    struct cli_json json = {.file = stdout};
    const attn_plan *plan = &job->forward.plan;
    attn_device_info info = device_info(job);
    cli_json_open(&json, NULL, '{');
    cli_json_text(&json, "op", "forward");
    cli_json_text(&json, "device", cli_backend_name(plan->backend));
    cli_json_int(&json, "device_index", plan->device);
    cli_json_text(&json, "device_name", info.name);
    cli_json_text(&json, "dtype", attn_dtype_name((attn_dtype)job->problem.q.dtype));
    cli_json_text(&json, "kv_dtype", kv_name(job));
    cli_json_shape(&json, "shape", &job->shape);
    cli_json_bool(&json, "causal", job->options->causal);
    cli_json_int(&json, "threads", plan->threads);
    cli_json_int(&json, "splits", plan->num_splits);
    cli_json_bool(&json, "staged", plan->staged);
    cli_json_text(&json, "reason", plan->reason);
    json_time(&json, &job->forward);
    if (job->backward) {
        cli_json_open(&json, "backward", '{');
        json_time(&json, &job->back);
        cli_json_close(&json, '}');
    }
    cli_json_int(&json, "overflows", job->overflows);
    json_verdicts(&json, job);
    cli_json_open(&json, "outputs", '[');
    for (int i = 0; i < job->output_count; i++) cli_json_text(&json, NULL, job->outputs[i].path);
    cli_json_close(&json, ']');
    cli_json_close(&json, '}');
}

void run_report(const struct run_job *job)
{
    if (job->options->json) print_json(job);
    else print_text(job);
}
