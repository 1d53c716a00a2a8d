/* SPDX-License-Identifier: Apache-2.0
 * `attn bench`: verifies, then times. */
#include "bench.h"

#include "cli.h"
#include "json.h"

#include <math.h>
#include <stdio.h>

static const char help[] = "Usage: attn bench [OPTIONS]\n"
                           "\n"
                           "Times attention on random numbers. Some rows of each case's output are compared\n"
                           "with the float64 reference first; then calls are timed, after some to warm up.\n"
                           "\n"
                           "What:\n"
                           "  --shape B,HQ,HKV,SQ,SK,D[,DV]\n"
                           "                  Batch, query heads, key/value heads, query and key tokens,\n"
                           "                  head size of keys, of values. May be given several times.\n"
                           "                  The default is 1,16,16,1024,1024,64\n"
                           "  --suite S       A list of cases; --causal, --dtype, --kv-dtype and --v-in-k\n"
                           "                  leave only those that are so. S is prefill, decode or\n"
                           "                    seeds   13 shapes of 16 to 4096 tokens, full and causal, in\n"
                           "                            f32, f16 and bf16: 26 cases a type, first forward,\n"
                           "                            then backward; with --backward only that\n"
                           "                    train   the same for shapes of training, most of them\n"
                           "                            causal; forward writes the log-sum-exp too\n"
                           "  --causal        With a causal mask: the last query sees the last key\n"
                           "  --dtype T       Queries and output: f32 (default), f16 or bf16\n"
                           "  --kv-dtype T    Keys and values: f32, f16, bf16, f8_e4m3, f8_e5m2, i8, q8_0 or\n"
                           "                  q4_0; the default is that of the queries\n"
                           "  --v-in-k        V is the first DV columns of K (MLA)\n"
                           "  --backward      The gradients of Q, K and V instead of the output\n"
                           "  --unordered     Backward: sums of dQ in any order, faster on GPUs, not\n"
                           "                  repeatable\n"
                           "\n"
                           "How:\n"
                           "  --device D      auto (default), cpu, cuda, cuda:N or reference\n"
                           "  --threads N     CPU threads; default: one a physical core\n"
                           "  --seconds S     Time for the calls of a case, default 1.5; at least 3 are\n"
                           "                  made. Warming up and ceilings take a fifth of it more, and\n"
                           "                  no more than 0.3 s\n"
                           "  --repeat N      Exactly N calls instead (on a GPU N batches, see below)\n"
                           "  --graph         Calls as replays of a CUDA graph (--device cuda), see below\n"
                           "  --no-verify     Do not compare\n"
                           "  --json          Print JSON\n"
                           "  --list          Print the cases and measure nothing; with --json as JSON\n"
                           "  --copies        Instead of all that: the speed of copies between ordinary\n"
                           "                  memory and a GPU (--device cuda), and the time of a call whose\n"
                           "                  arrays are copied there and back, which is what the choice\n"
                           "                  between CPU and GPU rests upon\n"
                           "  --steps         Measure at the word of a script, see below\n"
                           "  --help          Show this page\n"
                           "\n"
                           "Each row gives the median and the least time, and\n"
                           "  GFLOP/s   2 (D + DV) for each query head and pair of query and visible key;\n"
                           "            backward 2 (3 D + 2 DV), 2.5 times as much if D = DV\n"
                           "  GB/s      bytes of K and V, read once for each key/value head (--v-in-k: K);\n"
                           "            backward of Q, K, V, the output and all gradients\n"
                           "  share     of the ceiling that is nearer: multiplying and adding float32 at the\n"
                           "            kernel's instruction-set level (GFLOP/s, the kind fma_f32), or\n"
                           "            reading memory (GB/s, the kind read), whichever takes longer for\n"
                           "            the case. Both are measured before each case on as many threads.\n"
                           "            At the level amx the forward of bf16 is held against products of\n"
                           "            bf16 tiles (the kind fma_bf16), all else against avx512's.\n"
                           "  check     how much of the permitted error is used, or WRONG (not timed)\n"
                           "The ceiling reads huge pages where the system has them, and so do the arrays of\n"
                           "the case, which lie where attn_malloc puts them. (An array of a program's own\n"
                           "in pages of 4 KiB is read up to a quarter slower.)\n"
                           "\n"
                           "With --device auto the arrays lie in ordinary memory, and where a GPU is sooner\n"
                           "it is taken: then copies there and back are a part of each call.\n"
                           "\n";

static const char more[] = "On a GPU (--device cuda) all arrays lie in its memory. Calls are put on the\n"
                           "default stream in batches that take about 10 ms, or are one call where that is\n"
                           "more; the program waits for each batch, and the time of a batch, divided by its\n"
                           "calls, is one of those that median and least are taken of. So starting a call\n"
                           "counts only as far as it takes longer than the call before it. waited ms is the\n"
                           "median of five calls that are waited for one by one, as a program sees it that\n"
                           "needs each result at once. The same arrays are used in each call: what fits\n"
                           "into the GPU's cache is read from there. of copy is the share that GB/s has of\n"
                           "the speed of copies within the GPU's memory (the kind copy: bytes read and\n"
                           "written, by its driver, measured before each case): the limit of decoding, and\n"
                           "little where arithmetic is the limit.\n"
                           "\n"
                           "With --graph a batch, of at most 500 calls, is captured into a CUDA graph once,\n"
                           "and its replays are timed, each with a wait behind it: how soon the program can\n"
                           "start a small call does not count then. waited ms is without a graph, as ever.\n"
                           "\n"
                           "JSON is an array of {\"op\", \"device\", \"kernel\", \"isa\", \"dtype\", \"kv_dtype\",\n"
                           "\"shape\": {\"batch\", \"heads_q\", \"heads_kv\", \"seq_q\", \"seq_k\", \"head_dim\",\n"
                           "\"head_dim_v\"}, \"causal\", \"v_in_k\", \"threads\", \"flops\", \"bytes\",\n"
                           "\"workspace_bytes\", \"repeats\", \"median_ms\", \"min_ms\", \"batch\", \"graph\",\n"
                           "\"waited_ms\", \"tflops\", \"gbps\", \"fraction_of_peak\", \"peak\": {\"kind\",\n"
                           "\"value\"}, \"verified\"}. verified is null with --no-verify, peak is null where no\n"
                           "ceiling is known, waited_ms on the CPU, times are null where the result was\n"
                           "wrong. graph is true with --graph. workspace_bytes is what a call needs besides\n"
                           "its arrays.\n"
                           "\n"
                           "--steps is for one --shape and compares with other programs: their measurements\n"
                           "can be taken in turn, so that all see the same drift of the machine. It prints\n"
                           "the case as one line of JSON without times, but with the \"level\" whose products\n"
                           "are its ceiling, then answers each line it reads:\n"
                           "  run             one call, on a GPU a batch: {\"ms\": X}, the time of one call\n"
                           "  run N           N calls, one behind the other: the same, of their mean\n"
                           "  fma, read       that ceiling, for 0.15 s: {\"value\": X} in GFLOP/s or GB/s,\n"
                           "                  null on a GPU\n"
                           "  quit            ends, as the end of the input does\n"
                           "Set OMP_WAIT_POLICY=passive for it, or OpenMP's threads spin for a while after\n"
                           "each answer and disturb the others.\n"
                           "\n"
                           "Exit status 1: a result was wrong.\n"
                           "\n"
                           "Examples:\n"
                           "  attn bench --shape 1,32,8,4096,4096,128 --causal --dtype f16\n"
                           "  attn bench --suite decode --kv-dtype q8_0 --json\n"
                           "  attn bench --suite train --device cuda --dtype f16\n"
                           "  attn bench --backward --shape 1,32,8,2048,2048,128 --causal\n"
                           "  attn bench --device cuda --shape 1,32,8,1,4096,128 --dtype f16\n";

static int check_use(const struct bench_options *o)
{
    if (o->suite != BENCH_NOT_GIVEN && o->shapes.count)
        return cli_fail(CLI_BAD_INPUT, "--suite and --shape exclude each other");
    if (o->repeat && o->seconds >= 0) return cli_fail(CLI_BAD_INPUT, "--repeat and --seconds exclude each other");
    if (o->backward && (o->v_in_k || o->copies))
        return cli_fail(CLI_BAD_INPUT, "--backward and %s exclude each other", o->v_in_k ? "--v-in-k" : "--copies");
    if (o->unordered && !bench_has_backward(o))
        return cli_fail(CLI_BAD_INPUT, "--unordered is for backward: --backward, --suite seeds or --suite train");
    if (o->copies && (o->suite != BENCH_NOT_GIVEN || o->shapes.count || o->steps))
        return cli_fail(CLI_BAD_INPUT, "--copies measures no case: it excludes --shape, --suite and --steps");
    if (o->graph && (o->steps || o->copies))
        return cli_fail(CLI_BAD_INPUT, "--graph and %s exclude each other", o->steps ? "--steps" : "--copies");
    if (o->list && (o->steps || o->copies))
        return cli_fail(CLI_BAD_INPUT, "--list and %s exclude each other", o->steps ? "--steps" : "--copies");
    if (!o->steps) return CLI_OK;
    const char *other = o->suite != BENCH_NOT_GIVEN ? "--suite" : o->repeat ? "--repeat" : "--seconds";
    if (o->suite != BENCH_NOT_GIVEN || o->repeat || o->seconds >= 0)
        return cli_fail(CLI_BAD_INPUT, "--steps and %s exclude each other", other);
    if (o->shapes.count > 1) return cli_fail(CLI_BAD_INPUT, "--steps takes one --shape");
    return CLI_OK;
}

static int parse_options(int argc, char **argv, struct bench_options *o)
{
    const char *device = "auto";
    int words;
    *o = (struct bench_options){
        .suite = BENCH_NOT_GIVEN, .dtype = BENCH_NOT_GIVEN, .kv_dtype = BENCH_NOT_GIVEN, .seconds = -1};
    const struct cli_option table[] = {
        {.name = "--shape", .kind = CLI_LIST, .target = &o->shapes},
        {.name = "--suite", .kind = CLI_WORD, .target = &o->suite, .words = bench_suite_words},
        {.name = "--backward", .kind = CLI_FLAG, .target = &o->backward},
        {.name = "--unordered", .kind = CLI_FLAG, .target = &o->unordered},
        {.name = "--causal", .kind = CLI_FLAG, .target = &o->causal},
        {.name = "--dtype", .kind = CLI_WORD, .target = &o->dtype, .words = cli_float_words},
        {.name = "--kv-dtype", .kind = CLI_WORD, .target = &o->kv_dtype, .words = cli_kv_words},
        {.name = "--v-in-k", .kind = CLI_FLAG, .target = &o->v_in_k},
        {.name = "--device", .kind = CLI_TEXT, .target = &device},
        {.name = "--threads", .kind = CLI_INT, .target = &o->threads, .low = 1, .high = 1024},
        {.name = "--repeat", .kind = CLI_INT, .target = &o->repeat, .low = 1, .high = 1000000},
        {.name = "--seconds", .kind = CLI_REAL, .target = &o->seconds, .low = 0, .high = 3600},
        {.name = "--graph", .kind = CLI_FLAG, .target = &o->graph},
        {.name = "--no-verify", .kind = CLI_FLAG, .target = &o->no_verify},
        {.name = "--json", .kind = CLI_FLAG, .target = &o->json},
        {.name = "--list", .kind = CLI_FLAG, .target = &o->list},
        {.name = "--steps", .kind = CLI_FLAG, .target = &o->steps},
        {.name = "--copies", .kind = CLI_FLAG, .target = &o->copies},
    };
    int status = cli_parse_options(argc, argv, table, sizeof table / sizeof table[0], &words);
    if (status) return status;
    if (words) return cli_fail(CLI_BAD_INPUT, "bench takes no file; got '%s'", argv[0]);
    status = check_use(o);
    if (!status) status = cli_parse_device("--device", device, &o->backend, &o->ordinal);
    if (!status && o->graph && !bench_gpu(o))
        status = cli_fail(CLI_BAD_INPUT, "--graph captures calls on arrays of a GPU: it needs --device cuda");
    return status;
}

/* What a case may take where it lies: host memory that is left, besides that of the ceilings, or a GPU's. */
static int memory_of(const struct bench_options *o, double *bytes)
{
    attn_device_info info = {.struct_size = sizeof info};
    if (!bench_gpu(o)) return CLI_OK;
    attn_status status = attn_device_get(bench_gpu(o), &info);
    *bytes = (double)info.memory_bytes;
    return status == ATTN_OK ? CLI_OK : cli_fail_library(status, NULL);
}

/* The CPU makes the numbers of a GPU's tensors. */
static int create_host(const struct bench_options *o, attn_context **context)
{
    attn_config config = ATTN_CONFIG_INIT;
    config.backend = ATTN_BACKEND_CPU;
    if (!bench_gpu(o)) return CLI_OK;
    attn_status status = attn_create(&config, context);
    return status == ATTN_OK ? CLI_OK : cli_fail_library(status, NULL);
}

static int create_context(const struct bench_options *o, attn_context **context)
{
    attn_config config = ATTN_CONFIG_INIT;
    config.backend = o->backend;
    config.device = o->ordinal;
    config.num_threads = (int32_t)o->threads;
    attn_status status = attn_create(&config, context);
    return status == ATTN_OK ? CLI_OK : cli_fail_library(status, NULL);
}

struct bench {
    struct bench_run run, before; /* of the case at hand; of the case before it */
    struct cli_json json;
    int rows, wrong;
    char first_wrong[3 * BENCH_TEXT];
};

/* The array is opened by its first row, so that an error before it leaves nothing on stdout. */
static void report(struct bench *bench)
{
    const struct bench_run *run = &bench->run;
    if (run->options->json) {
        if (bench->rows == 0) cli_json_open(&bench->json, NULL, '[');
        bench_json_row(&bench->json, run);
    } else {
        bench_print_row(run, bench->rows ? &bench->before : NULL);
    }
    fflush(stdout);
    bench->rows++;
    bench->before = *run;
    if (run->verified != BENCH_WRONG || bench->wrong++) return;
    char text[BENCH_TEXT];
    bench_case_text(run->c, text);
    snprintf(bench->first_wrong, sizeof bench->first_wrong, "%s: %s", text, run->wrong);
}

static int run_case(struct bench *bench)
{
    struct bench_run *run = &bench->run;
    int status = bench_open(run);
    if (!status && !bench->rows && !run->options->json && !run->options->steps) status = bench_print_header(run);
    if (!status) status = bench_call(run, 1, &run->first);
    if (!status && !run->options->no_verify)
        status = run->c->backward ? bench_verify_gradients(run) : bench_verify(run);
    if (!status && run->options->steps) return bench_steps(run);
    if (!status && run->verified != BENCH_WRONG) status = bench_measure(run);
    if (!status) report(bench);
    return status;
}

static int fail_wrong(const struct bench *bench, int cases)
{
    if (bench->run.options->steps && bench->run.verified == BENCH_WRONG)
        return cli_fail(CLI_WRONG_RESULT, "wrong result: %s", bench->run.wrong);
    if (!bench->wrong) return CLI_OK;
    return cli_fail(CLI_WRONG_RESULT, "wrong result in %d of %d cases, first in %s", bench->wrong, cases,
                    bench->first_wrong);
}

static int cmd_bench(int argc, char **argv)
{
    static struct bench_case cases[BENCH_CASES_MAX];
    static struct bench_options options;
    int count = 0;
    int status = parse_options(argc, argv, &options);
    if (!status && options.copies) return bench_copies(&options);
    if (!status) status = bench_list_cases(&options, cases, &count);
    if (!status && options.list) return bench_print_list(&options, cases, count);
    if (status) return status;
    attn_context *context = NULL, *host = NULL;
    double available = bench_available_bytes();
    struct bench_peak peak = {.limit_bytes = fmin(available / 8, 0x1p32)};
    static struct bench bench;
    bench.json.file = stdout;
    double memory = available - peak.limit_bytes;
    status = create_context(&options, &context);
    if (!status) status = create_host(&options, &host);
    if (!status) status = memory_of(&options, &memory);
    for (int n = 0; n < count && !status; n++) {
        bench.run = (struct bench_run){.options = &options,
                                       .context = context,
                                       .host = host,
                                       .peak = &peak,
                                       .c = &cases[n],
                                       .memory_bytes = memory,
                                       .median = NAN,
                                       .least = NAN,
                                       .waited = NAN};
        status = run_case(&bench);
        bench_close(&bench.run);
    }
    if (options.json && bench.rows) cli_json_close(&bench.json, ']');
    bench_peak_free(&peak);
    attn_destroy(host);
    attn_destroy(context);
    return status ? status : fail_wrong(&bench, count);
}

const struct cli_command cli_cmd_bench = {"bench", "Verify and time attention on this machine", help, cmd_bench, more};
