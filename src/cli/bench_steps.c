/* SPDX-License-Identifier: Apache-2.0
 * attn bench --steps: one measurement for each word that a script writes, so that the script can take those of several
 * programs in turn. Between two words the process waits in read(). */
#include "bench.h"

#include "json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define PEAK 0.15 /* seconds */
enum { CALLS_MAX = 1000000 };

static int answer(const char *key, double value)
{
    struct cli_json json = {.file = stdout};
    cli_json_open(&json, NULL, '{');
    cli_json_real(&json, key, value);
    cli_json_close(&json, '}');
    return cli_finish(CLI_OK);
}

/* calls 0: the batch of the case */
static int step_run(struct bench_run *run, int64_t calls)
{
    double seconds;
    int status = run->batch ? CLI_OK : bench_choose_batch(run);
    if (!status) status = bench_call(run, calls ? calls : run->batch, &seconds);
    return status ? status : answer("ms", 1e3 * seconds);
}

static int step_fma(struct bench_run *run)
{
    if (run->host) return answer("value", NAN); /* none is known of a GPU */
    return answer("value", bench_peak_fma(bench_level(run), run->plan.threads, PEAK));
}

static int step_read(struct bench_run *run)
{
    if (run->host) return answer("value", NAN);
    double value = bench_peak_read(run->peak, run->plan.threads, PEAK);
    return value > 0 ? answer("value", value) : cli_fail(CLI_CANNOT, "out of memory for the ceiling of reading");
}

static int describe(const struct bench_run *run)
{
    struct cli_json json = {.file = stdout};
    cli_json_open(&json, NULL, '{');
    bench_json_case(&json, run);
    cli_json_text(&json, "level", bench_level(run));
    cli_json_close(&json, '}');
    return cli_finish(CLI_OK);
}

static int step(struct bench_run *run, const char *line)
{
    int64_t calls = 0;
    if (strcmp(line, "fma") == 0) return step_fma(run);
    if (strcmp(line, "read") == 0) return step_read(run);
    if (strcmp(line, "run") == 0) return step_run(run, 0);
    if (strncmp(line, "run ", 4) != 0)
        return cli_fail(CLI_BAD_INPUT, "--steps: '%s' is none of run, fma, read, quit", line);
    int status = cli_parse_int("--steps: run", line + 4, 1, CALLS_MAX, &calls);
    return status ? status : step_run(run, calls);
}

int bench_steps(struct bench_run *run)
{
    char line[64];
    int status = describe(run);
    while (!status && run->verified != BENCH_WRONG && fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\r\n")] = 0;
        if (strcmp(line, "quit") == 0) break;
        status = step(run, line);
    }
    return status;
}
