/* SPDX-License-Identifier: Apache-2.0
 * attn bench --steps: one measurement for each word that a script writes, so that the script can take those of several
 * programs in turn. Between two words the process waits in read(). */
#include "bench.h"

#include "json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define PEAK 0.15 /* seconds */

static int answer(const char *key, double value)
{
    struct cli_json json = {.file = stdout};
    cli_json_open(&json, NULL, '{');
    cli_json_real(&json, key, value);
    cli_json_close(&json, '}');
    return cli_finish(CLI_OK);
}

static int step_run(struct bench_run *run)
{
    double seconds;
    int status = run->batch ? CLI_OK : bench_choose_batch(run);
    if (!status) status = bench_call(run, run->batch, &seconds);
    return status ? status : answer("ms", 1e3 * seconds);
}

static int step_fma(struct bench_run *run)
{
    if (run->host) return answer("value", NAN); /* none is known of a GPU */
    return answer("value", bench_peak_fma(run->plan.isa, run->plan.threads, PEAK));
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
    cli_json_close(&json, '}');
    return cli_finish(CLI_OK);
}

int bench_steps(struct bench_run *run)
{
    static const struct {
        const char *word;
        int (*step)(struct bench_run *run);
    } steps[] = {{"run", step_run}, {"fma", step_fma}, {"read", step_read}};
    enum { STEPS = sizeof steps / sizeof *steps };
    char line[64];
    int status = describe(run);
    while (!status && run->verified != BENCH_WRONG && fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\r\n")] = 0;
        if (strcmp(line, "quit") == 0) break;
        int n = 0;
        while (n < STEPS && strcmp(line, steps[n].word) != 0) n++;
        status = n < STEPS ? steps[n].step(run)
                           : cli_fail(CLI_BAD_INPUT, "--steps: '%s' is none of run, fma, read, quit", line);
    }
    return status;
}
