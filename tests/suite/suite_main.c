/* SPDX-License-Identifier: Apache-2.0
 * The list of sections, and what a run looks like from outside. */
#include "suite_core.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Those first that find most in the shortest time. */
static const struct suite_section sections[] = {
    {"sizes", "around the sizes in which kernels work", suite_run_sizes},
    {"values", "exp, tanh, rounding, NaN", suite_run_values},
    {"ranges", "bf16 of all magnitudes", suite_run_ranges},
    {"random", "seeded random small problems, against the reference", suite_run_random},
    {"dropout", "masks against Philox written from the specification", suite_run_dropout},
    {"append", "cache writes, bit for bit", suite_run_append},
    {"merge", "parts of one attention", suite_run_merge},
    {"cases", "inputs that broke other libraries", suite_run_cases},
    {"grid", "pairwise over sizes, types and features, against the reference", suite_run_grid},
    {"determinism", "the same bits from every team, at every place of a batch", suite_run_determinism},
    {"metamorphic", "the same problem put differently", suite_run_metamorphic},
    {"gradients", "backward", suite_run_gradients},
    {"arguments", "each field wrong once", suite_run_arguments},
    {"concurrency", "threads, nesting, fork", suite_run_concurrency},
    {"memory", "workspaces and allocations", suite_run_memory},
};
enum { SECTIONS = sizeof sections / sizeof *sections };

/* ---- crashes name the case -------------------------------------------------------------------------------------- */

static const int crash_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
enum { CRASHES = sizeof crash_signals / sizeof *crash_signals };
static struct sigaction former[CRASHES];
static char running[512];
static volatile sig_atomic_t running_length;

void suite_note_running(const struct suite_target *target, const char *name)
{
    running_length = 0;
    if (!target) return;
    int n = snprintf(running, sizeof running, "CRASH %s %s\n     attn check --device %s --filter '%s'\n", target->name,
                     name, target->device, name);
    running_length = n < (int)sizeof running ? n : (int)sizeof running - 1;
}

/* Says which case it was, then lets what was there before, or the default, do its work. */
static void on_crash(int number)
{
    if (running_length && write(STDERR_FILENO, running, (size_t)running_length) < 0) running_length = 0;
    for (int n = 0; n < CRASHES; n++)
        if (crash_signals[n] == number) sigaction(number, &former[n], NULL);
    raise(number);
}

static void watch_crashes(int on)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_crash;
    sigemptyset(&action.sa_mask);
    for (int n = 0; n < CRASHES; n++) {
        if (on) sigaction(crash_signals[n], &action, &former[n]);
        else sigaction(crash_signals[n], &former[n], NULL);
    }
}

/* ---- the run ---------------------------------------------------------------------------------------------------- */

static void run_sections(struct suite *s)
{
    for (int n = 0; n < SECTIONS; n++) {
        s->section = &sections[n];
        s->section_index = n;
        sections[n].run(s);
    }
}

static void print_header(const struct suite *s)
{
    printf("%s\n%s list on", attn_build_info(), s->options->full ? "full" : "quick");
    for (int t = 0; t < s->targets; t++) printf("%s %s", t ? "," : "", s->target[t].name);
    printf("\n");
    fflush(stdout);
}

static int run(struct suite *s)
{
    if (!suite_find_targets(s)) {
        fprintf(stderr, "attn check: no device \"%s\" here: %s\n", s->options->device ? s->options->device : "any",
                attn_last_error());
        return 3;
    }
    if (!s->options->json) print_header(s);
    if (s->options->filter) {
        s->listing = 1;
        run_sections(s);
        s->listing = 0;
    }
    double start = suite_now();
    watch_crashes(1);
    run_sections(s);
    s->seconds = suite_now() - start;
    if (s->matched && !s->stopped && (!s->options->filter || s->options->timings)) suite_time(s);
    watch_crashes(0);
    int failed = suite_report(s, sections, SECTIONS);
    if (s->matched) return failed != 0;
    fprintf(stderr, "attn check: no case matches \"%s\"\n", s->options->filter ? s->options->filter : "");
    return 3;
}

int attn_suite_main(const struct attn_suite_options *options)
{
    struct suite *s = calloc(1, sizeof *s);
    if (!s) return 3;
    s->options = options;
    int result = run(s);
    for (int t = 0; t < s->targets; t++) attn_destroy(s->target[t].ctx);
    attn_destroy(s->reference.ctx);
    suite_report_free(s);
    free(s);
    return result;
}
