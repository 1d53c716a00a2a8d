/* SPDX-License-Identifier: Apache-2.0
 * `attn info`: what is built in, which devices there are, and what would serve a given problem. */
#include "cli.h"
#include "json.h"
#include "options.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <sys/mman.h>

#define DEFAULT_SHAPE "1,32,8,4096,4096,128"

static const char help[] = "Usage: attn info [OPTIONS]\n"
                           "\n"
                           "Shows the version, how the library was built, the devices of this machine, and\n"
                           "which device and kernel automatic selection takes for a problem in host memory,\n"
                           "and why: with the time that it expects of the CPU and of a GPU, copies there\n"
                           "and back included, where the problem is large enough to be worth a comparison.\n"
                           "In a process that has not used a GPU yet the CPU keeps what takes it less than\n"
                           "50 ms.\n"
                           "\n"
                           "  --shape B,HQ,HKV,SQ,SK,D[,DV]\n"
                           "                    The problem: batch, query heads, key/value heads, query and\n"
                           "                    key tokens, head size of keys, of values. The default is\n"
                           "                    " DEFAULT_SHAPE "\n"
                           "  --dtype T         f32, f16 (default) or bf16\n"
                           "  --causal          With a causal mask\n"
                           "  --threads N       CPU threads; default: one a physical core\n"
                           "  --json            Print JSON\n"
                           "  --help            Show this page\n"
                           "\n"
                           "Example:\n"
                           "  attn info --shape 1,32,8,1,32768,128 --dtype bf16\n";

enum { DEVICES_MAX = 64 };

struct info {
    attn_device_info devices[DEVICES_MAX];
    int device_count;
    char no_gpu[512]; /* why there is none; "" where there is one                                 */
    struct cli_shape shape;
    attn_dtype dtype;
    int causal;
    int64_t threads;
    attn_plan plan;
    attn_status status; /* of automatic selection                                                 */
    char error[512];    /* and why it said no                                                     */
};

static int load_devices(struct info *info)
{
    int32_t count = 0;
    attn_status status = attn_device_count(&count);
    for (int32_t i = 0; i < count && i < DEVICES_MAX && status == ATTN_OK; i++) {
        info->devices[i].struct_size = sizeof info->devices[i];
        status = attn_device_get(i, &info->devices[i]);
        info->device_count = i + 1;
    }
    return status == ATTN_OK ? CLI_OK : cli_fail_library(status, NULL);
}

/* Only a context that insists on a GPU is told why there is none. */
static void find_out_why_no_gpu(struct info *info)
{
    attn_context *context;
    const attn_config config = {.struct_size = sizeof config, .backend = ATTN_BACKEND_CUDA};
    for (int i = 0; i < info->device_count; i++)
        if (info->devices[i].backend == ATTN_BACKEND_CUDA) return;
    if (attn_create(&config, &context) == ATTN_OK) attn_destroy(context);
    else snprintf(info->no_gpu, sizeof info->no_gpu, "%s", attn_last_error());
}

/* Addresses for tensors that are only asked about: address space without memory behind it, because
 * the sizes may be far beyond what this machine has. */
static int reserve(const int64_t shape[4], attn_dtype dtype, attn_tensor *tensor)
{
    int64_t bytes = (int64_t)attn_dtype_bytes(dtype, 1);
    for (int i = 0; i < 4; i++)
        if (__builtin_mul_overflow(bytes, shape[i], &bytes)) bytes = INT64_MAX;
    void *address = MAP_FAILED;
    if (bytes < INT64_MAX / 2 && (uint64_t)bytes < SIZE_MAX / 2)
        address = mmap(NULL, (size_t)bytes + 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) return cli_fail(CLI_CANNOT, "--shape: no address space for arrays of this size");
    *tensor = attn_bhsd(address, dtype, shape[0], shape[1], shape[2], shape[3]);
    return CLI_OK;
}

/* The reserved addresses are given back when the process ends. */
static int select_automatic(struct info *info)
{
    const struct cli_shape *s = &info->shape;
    const int64_t q[4] = {s->batch, s->heads_q, s->seq_q, s->head_dim};
    const int64_t k[4] = {s->batch, s->heads_kv, s->seq_k, s->head_dim};
    const int64_t v[4] = {s->batch, s->heads_kv, s->seq_k, s->head_dim_v};
    const int64_t out[4] = {s->batch, s->heads_q, s->seq_q, s->head_dim_v};
    attn_problem problem = ATTN_PROBLEM_INIT;
    attn_context *context = NULL;
    attn_config config = ATTN_CONFIG_INIT;
    int status = reserve(q, info->dtype, &problem.q);
    if (!status) status = reserve(k, info->dtype, &problem.k);
    if (!status) status = reserve(v, info->dtype, &problem.v);
    if (!status) status = reserve(out, info->dtype, &problem.out);
    if (status) return status;
    problem.mask = info->causal ? ATTN_CAUSAL : 0u;
    info->plan = (attn_plan)ATTN_PLAN_INIT;
    config.num_threads = (int32_t)info->threads;
    info->status = attn_create(&config, &context);
    if (info->status == ATTN_OK) info->status = attn_query(context, ATTN_OP_FORWARD, &problem, NULL, NULL, &info->plan);
    if (info->status != ATTN_OK)
        snprintf(info->error, sizeof info->error, "%s: %s", attn_status_string(info->status), attn_last_error());
    attn_destroy(context);
    return CLI_OK;
}

static void print_device(int index, const attn_device_info *device)
{
    printf("  %d  %s", index, cli_backend_name(device->backend));
    if (device->backend == ATTN_BACKEND_CUDA) printf(":%d", (int)device->ordinal);
    printf("  %s, %s, %d %s, %.1f GiB", device->name, device->arch, (int)device->units,
           device->backend == ATTN_BACKEND_CUDA ? "SMs" : "cores", (double)device->memory_bytes / 0x1p30);
    if (device->driver[0]) printf(", driver for %s", device->driver);
    putchar('\n');
}

static void print_text(const struct info *info)
{
    const struct cli_shape *s = &info->shape;
    const attn_plan *plan = &info->plan;
    uint32_t version = attn_version();
    printf("attn %u.%u.%u\n", version >> 16, version >> 8 & 255u, version & 255u);
    printf("build: %s\n", attn_build_info());
    puts("devices:");
    for (int i = 0; i < info->device_count; i++) print_device(i, &info->devices[i]);
    if (info->no_gpu[0]) printf("  -  no GPU: %s\n", info->no_gpu);
    puts("  -  reference  float64 on the CPU, only when asked for");
    printf("automatic, for batch %" PRId64 ", heads %" PRId64 "/%" PRId64 ", tokens %" PRId64 " x %" PRId64
           ", head size %" PRId64,
           s->batch, s->heads_q, s->heads_kv, s->seq_q, s->seq_k, s->head_dim);
    if (s->head_dim_v != s->head_dim) printf("/%" PRId64, s->head_dim_v);
    printf(", %s%s:\n", attn_dtype_name(info->dtype), info->causal ? ", causal" : "");
    if (info->status != ATTN_OK) {
        printf("  none: %s\n", info->error);
        return;
    }
    printf("  device %d (%s), kernel %s (%s), ", (int)plan->device, cli_backend_name(plan->backend), plan->kernel,
           plan->isa);
    if (plan->threads) printf("%d thread%s, ", (int)plan->threads, plan->threads == 1 ? "" : "s");
    printf("%d split%s, workspace %zu bytes\n", (int)plan->num_splits, plan->num_splits == 1 ? "" : "s",
           plan->workspace_bytes);
    if (plan->estimated_seconds > 0) printf("  estimated %.4g ms\n", 1e3 * plan->estimated_seconds);
    if (plan->reason[0]) printf("  because %s\n", plan->reason);
}

static void json_device(struct cli_json *json, int index, const attn_device_info *device)
{
    int cuda = device->backend == ATTN_BACKEND_CUDA;
    cli_json_open(json, NULL, '{');
    cli_json_int(json, "index", index);
    cli_json_text(json, "backend", cli_backend_name(device->backend));
    cli_json_int(json, "ordinal", device->ordinal);
    cli_json_text(json, "name", device->name);
    cli_json_text(json, "arch", device->arch);
    cli_json_int(json, "units", device->units);
    cli_json_text(json, "unit", cuda ? "SM" : "core");
    cli_json_int(json, "memory_bytes", (int64_t)device->memory_bytes);
    cli_json_text(json, "driver", device->driver[0] ? device->driver : NULL);
    cli_json_close(json, '}');
}

static void json_automatic(struct cli_json *json, const struct info *info)
{
    const attn_plan *plan = &info->plan;
    cli_json_open(json, "automatic", '{');
    cli_json_shape(json, "shape", &info->shape);
    cli_json_text(json, "dtype", attn_dtype_name(info->dtype));
    cli_json_bool(json, "causal", info->causal);
    cli_json_text(json, "error", info->status == ATTN_OK ? NULL : info->error);
    if (info->status == ATTN_OK) {
        cli_json_int(json, "device_index", plan->device);
        cli_json_text(json, "device", cli_backend_name(plan->backend));
        cli_json_text(json, "kernel", plan->kernel);
        cli_json_text(json, "isa", plan->isa);
        cli_json_int(json, "threads", plan->threads);
        cli_json_int(json, "splits", plan->num_splits);
        cli_json_bool(json, "staged", plan->staged);
        cli_json_int(json, "workspace_bytes", (int64_t)plan->workspace_bytes);
        cli_json_real(json, "estimated_ms", 1e3 * plan->estimated_seconds);
        cli_json_real(json, "cpu_ms", plan->cpu_seconds > 0 ? 1e3 * plan->cpu_seconds : NAN);
        cli_json_real(json, "gpu_ms", plan->gpu_seconds > 0 ? 1e3 * plan->gpu_seconds : NAN);
        cli_json_text(json, "reason", plan->reason);
    }
    cli_json_close(json, '}');
}

static void print_json(const struct info *info)
{
    struct cli_json json = {.file = stdout};
    char text[40];
    uint32_t version = attn_version();
    snprintf(text, sizeof text, "%u.%u.%u", version >> 16, version >> 8 & 255u, version & 255u);
    cli_json_open(&json, NULL, '{');
    cli_json_text(&json, "version", text);
    cli_json_text(&json, "build", attn_build_info());
    cli_json_open(&json, "backends", '[');
    for (int i = 0; i < info->device_count; i++)
        if (i == 0 || info->devices[i].backend != info->devices[i - 1].backend)
            cli_json_text(&json, NULL, cli_backend_name(info->devices[i].backend));
    cli_json_text(&json, NULL, "reference");
    cli_json_close(&json, ']');
    cli_json_open(&json, "devices", '[');
    for (int i = 0; i < info->device_count; i++) json_device(&json, i, &info->devices[i]);
    cli_json_close(&json, ']');
    cli_json_text(&json, "no_gpu", info->no_gpu[0] ? info->no_gpu : NULL);
    json_automatic(&json, info);
    cli_json_close(&json, '}');
}

static int cmd_info(int argc, char **argv)
{
    const char *shape = DEFAULT_SHAPE;
    static struct info info;
    int causal = 0, as_json = 0, dtype = 1, words;
    const struct cli_option table[] = {
        {.name = "--shape", .kind = CLI_TEXT, .target = &shape},
        {.name = "--dtype", .kind = CLI_WORD, .target = &dtype, .words = cli_float_words},
        {.name = "--causal", .kind = CLI_FLAG, .target = &causal},
        {.name = "--threads", .kind = CLI_INT, .target = &info.threads, .low = 1, .high = 1024},
        {.name = "--json", .kind = CLI_FLAG, .target = &as_json},
    };
    int status = cli_parse_options(argc, argv, table, sizeof table / sizeof table[0], &words);
    if (status) return status;
    if (words) return cli_fail(CLI_BAD_INPUT, "info takes no file; got '%s'", argv[0]);
    info.dtype = cli_float_types[dtype];
    info.causal = causal;
    status = cli_parse_shape("--shape", shape, &info.shape);
    if (!status) status = load_devices(&info);
    if (!status) find_out_why_no_gpu(&info);
    if (!status) status = select_automatic(&info);
    if (status) return status;
    if (as_json) print_json(&info);
    else print_text(&info);
    return info.status == ATTN_OK ? CLI_OK : cli_fail(cli_exit_status(info.status), "%s", info.error);
}

const struct cli_command cli_cmd_info = {"info", "Version, devices, and what serves a problem", help, cmd_info, NULL};
