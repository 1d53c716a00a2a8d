/* SPDX-License-Identifier: Apache-2.0
 * What a run has found: a table and a block for bug reports, or JSON with the facts of both. */
#include "suite_core.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAILURES_SHOWN = 5 };

static void add(struct suite_tally *sum, const struct suite_tally *t)
{
    sum->cases += t->cases;
    sum->passed += t->passed;
    sum->failed += t->failed;
    sum->skipped += t->skipped;
}

static void print_table(const struct suite *s, const struct suite_section *sections, int count)
{
    printf("\n%-14s %-12s %7s %7s %7s %7s %7s\n", "section", "target", "cases", "passed", "failed", "skipped", "worst");
    for (int n = 0; n < count; n++)
        for (int t = 0; t < s->targets; t++) {
            const struct suite_tally *tally = &s->tally[n][t];
            if (!tally->cases) continue;
            char worst[16] = "-"; /* of the accuracy rule: 1 is the limit */
            if (tally->worst > 0) snprintf(worst, sizeof worst, "%.2f", tally->worst);
            printf("%-14s %-12s %7d %7d %7d %7d %7s\n", sections[n].name, s->target[t].name, tally->cases,
                   tally->passed, tally->failed, tally->skipped, worst);
            for (int r = 0; r < SUITE_REASONS && tally->reason[r].count; r++)
                printf("%-14s   skipped %d: %s%s\n", "", tally->reason[r].count, tally->reason[r].text,
                       r == SUITE_REASONS - 1 ? " (and other reasons)" : "");
        }
}

/* ---- facts ------------------------------------------------------------------------------------------------------ */

/* The sums of one target. */
static struct suite_tally tally_of(const struct suite *s, int t, int sections)
{
    struct suite_tally sum = {0};
    for (int n = 0; n < sections; n++) add(&sum, &s->tally[n][t]);
    return sum;
}

/* Whether the target is the first one on its device, the reference being on none of its own. */
static int begins_device(const struct suite *s, int t)
{
    if (s->target[t].backend == ATTN_BACKEND_REFERENCE && s->targets > 1) return 0;
    for (int n = 0; n < t; n++)
        if (s->target[n].index == s->target[t].index && s->target[n].backend != ATTN_BACKEND_REFERENCE) return 0;
    return 1;
}

/* The version of NVIDIA's kernel module, which is what people call the driver's; "" where there is none. */
static void kernel_module(char text[64])
{
    FILE *file = fopen("/sys/module/nvidia/version", "r");
    if (!file || !fgets(text, 64, file)) *text = '\0';
    text[strcspn(text, "\n")] = '\0';
    if (file) fclose(file);
}

static void version_text(char text[32])
{
    uint32_t version = attn_version();
    snprintf(text, 32, "%u.%u.%u", version >> 16, version >> 8 & 255u, version & 255u);
}

/* The environment that changes what runs. */
static const char *const variables[] = {"ATTN_FORCE", "ATTN_CUDA_DRIVER", "OMP_NUM_THREADS", "OMP_WAIT_POLICY"};
enum { VARIABLES = sizeof variables / sizeof *variables };

/* ---- a block to paste ------------------------------------------------------------------------------------------- */

static void print_device(const struct suite_target *target)
{
    attn_device_info info = {.struct_size = sizeof info};
    char module[64];
    int cuda = target->backend == ATTN_BACKEND_CUDA;
    if (attn_device_get(target->index, &info) != ATTN_OK) {
        printf("device    %s: %s\n", target->device, attn_last_error());
        return;
    }
    printf("device    %s: %s, %s, %d %s, %.1f GiB", target->device, info.name, info.arch, (int)info.units,
           cuda ? "SMs" : "cores", (double)info.memory_bytes / 0x1p30);
    if (info.driver[0]) printf(", driver for %s", info.driver);
    kernel_module(module);
    if (cuda && module[0]) printf(", kernel module %s", module);
    printf("\n");
}

static void print_target(const struct suite *s, int t, int sections)
{
    struct suite_tally sum = tally_of(s, t, sections);
    printf("target    %s: %d passed, %d failed, %d skipped; kernels", s->target[t].name, sum.passed, sum.failed,
           sum.skipped);
    for (int n = 0; n < SUITE_KERNELS && s->kernel[t][n][0]; n++) printf(" %s", s->kernel[t][n]);
    printf("%s\n", s->kernel[t][0][0] ? "" : " none asked for");
}

static void print_timing(const struct suite *s, const struct suite_timing *timing)
{
    const struct suite_shape *p = timing->shape;
    printf("timing    %s: %s %s (%d,%d,%d,%d,%d,%d): ", s->target[timing->target].name, p->name,
           attn_dtype_name((attn_dtype)p->dtype), p->b, p->hq, p->hkv, p->sq, p->sk, p->d);
    if (!(timing->seconds > 0)) printf("not timed: %s\n", timing->text);
    else
        printf("%s, %.4g ms, %.4g GFLOP/s, %.3g GB/s\n", timing->kernel, 1e3 * timing->seconds,
               1e-9 * suite_shape_flops(p) / timing->seconds, 1e-9 * suite_shape_bytes(p) / timing->seconds);
}

static void print_block(const struct suite *s, int sections, const struct suite_tally *sum)
{
    char version[32];
    version_text(version);
    printf("\n----- report of attn check: please paste from this line -----\nversion   attn %s\nbuild     %s\n",
           version, attn_build_info());
    for (int n = 0; n < VARIABLES; n++)
        if (getenv(variables[n])) printf("set       %s=%s\n", variables[n], getenv(variables[n]));
    for (int t = 0; t < s->targets; t++)
        if (begins_device(s, t)) print_device(&s->target[t]);
    printf("cases     %s list, %s%s%s%d of %d wrong, %.1f s\n", s->options->full ? "full" : "quick",
           s->options->filter ? "filter '" : "", s->options->filter ? s->options->filter : "",
           s->options->filter ? "', " : "", sum->failed, sum->cases, s->seconds);
    for (int t = 0; t < s->targets; t++) print_target(s, t, sections);
    for (int n = 0; n < s->failure_count && n < FAILURES_SHOWN; n++)
        printf("failed    %s %s: %s\n", s->failures[n].target, s->failures[n].name, s->failures[n].text);
    if (s->failure_count > FAILURES_SHOWN) printf("failed    and %d more\n", s->failure_count - FAILURES_SHOWN);
    for (int n = 0; n < s->timing_count; n++) print_timing(s, &s->timing[n]);
    if (!s->timing_count)
        printf("timing    none with --filter unless --timings is given, and none after --fail-fast has stopped\n");
    printf("----- report of attn check: to this line -----\n");
}

/* ---- JSON ------------------------------------------------------------------------------------------------------- */

static void print_escaped(const char *text)
{
    putchar('"');
    for (; text && *text; text++) {
        if (*text == '"' || *text == '\\') putchar('\\');
        if ((unsigned char)*text >= 0x20) putchar(*text);
        else printf("\\u%04x", (unsigned)*text);
    }
    putchar('"');
}

/* "key":"text", or null without a text. */
static void json_text(const char *before, const char *key, const char *text)
{
    printf("%s\"%s\":", before, key);
    if (text && *text) print_escaped(text);
    else printf("null");
}

static void json_devices(const struct suite *s)
{
    const char *comma = "";
    char module[64];
    kernel_module(module);
    printf(",\"devices\":[");
    for (int t = 0; t < s->targets; t++) {
        attn_device_info info = {.struct_size = sizeof info};
        int cuda = s->target[t].backend == ATTN_BACKEND_CUDA;
        if (!begins_device(s, t) || attn_device_get(s->target[t].index, &info) != ATTN_OK) continue;
        printf("%s{", comma);
        json_text("", "device", s->target[t].device);
        json_text(",", "name", info.name);
        json_text(",", "arch", info.arch);
        printf(",\"units\":%d,\"memory_bytes\":%llu", (int)info.units, (unsigned long long)info.memory_bytes);
        json_text(",", "driver", info.driver);
        json_text(",", "kernel_module", cuda ? module : NULL);
        printf("}");
        comma = ",";
    }
    printf("]");
}

static void json_targets(const struct suite *s, int sections)
{
    printf(",\"targets\":[");
    for (int t = 0; t < s->targets; t++) {
        struct suite_tally sum = tally_of(s, t, sections);
        printf("%s{", t ? "," : "");
        json_text("", "target", s->target[t].name);
        printf(",\"passed\":%d,\"failed\":%d,\"skipped\":%d,\"kernels\":[", sum.passed, sum.failed, sum.skipped);
        for (int n = 0; n < SUITE_KERNELS && s->kernel[t][n][0]; n++) {
            printf("%s", n ? "," : "");
            print_escaped(s->kernel[t][n]);
        }
        printf("]}");
    }
    printf("]");
}

static void json_sections(const struct suite *s, const struct suite_section *sections, int count)
{
    const char *comma = "";
    printf(",\"sections\":[");
    for (int n = 0; n < count; n++)
        for (int t = 0; t < s->targets; t++) {
            const struct suite_tally *tally = &s->tally[n][t];
            if (!tally->cases) continue;
            printf("%s{\"section\":\"%s\",\"target\":\"%s\",\"cases\":%d,\"passed\":%d,\"failed\":%d,\"skipped\":%d,"
                   "\"worst\":%.4g}",
                   comma, sections[n].name, s->target[t].name, tally->cases, tally->passed, tally->failed,
                   tally->skipped, isfinite(tally->worst) ? tally->worst : 1e30);
            comma = ",";
        }
    printf("]");
}

static void json_failures(const struct suite *s)
{
    printf(",\"failures\":[");
    for (int n = 0; n < s->failure_count; n++) {
        json_text(n ? ",{" : "{", "target", s->failures[n].target);
        json_text(",", "name", s->failures[n].name);
        json_text(",", "text", s->failures[n].text);
        printf("}");
    }
    printf("]");
}

static void json_timings(const struct suite *s)
{
    printf(",\"timings\":[");
    for (int n = 0; n < s->timing_count; n++) {
        const struct suite_timing *timing = &s->timing[n];
        const struct suite_shape *p = timing->shape;
        json_text(n ? ",{" : "{", "target", s->target[timing->target].name);
        json_text(",", "name", p->name);
        json_text(",", "dtype", attn_dtype_name((attn_dtype)p->dtype));
        printf(",\"shape\":[%d,%d,%d,%d,%d,%d]", p->b, p->hq, p->hkv, p->sq, p->sk, p->d);
        json_text(",", "kernel", timing->kernel);
        if (timing->seconds > 0) printf(",\"ms\":%.6g", 1e3 * timing->seconds);
        else printf(",\"ms\":null");
        json_text(",", "not_timed", timing->text);
        printf("}");
    }
    printf("]");
}

static void print_json(const struct suite *s, const struct suite_section *sections, int count,
                       const struct suite_tally *sum)
{
    char version[32];
    version_text(version);
    json_text("{", "version", version);
    json_text(",", "build", attn_build_info());
    printf(",\"full\":%s", s->options->full ? "true" : "false");
    json_text(",", "filter", s->options->filter);
    json_devices(s);
    json_targets(s, count);
    json_sections(s, sections, count);
    json_failures(s);
    json_timings(s);
    printf(",\"seconds\":%.4g,\"passed\":%d,\"failed\":%d,\"skipped\":%d}\n", s->seconds, sum->passed, sum->failed,
           sum->skipped);
}

/* ---- both ------------------------------------------------------------------------------------------------------- */

int suite_report(struct suite *s, const struct suite_section *sections, int count)
{
    struct suite_tally sum = {0};
    for (int n = 0; n < count; n++)
        for (int t = 0; t < s->targets; t++) add(&sum, &s->tally[n][t]);
    if (s->options->json) {
        print_json(s, sections, count, &sum);
    } else {
        print_table(s, sections, count);
        printf("%d passed, %d failed, %d skipped\n", sum.passed, sum.failed, sum.skipped);
        if (sum.cases) print_block(s, count, &sum);
    }
    return sum.failed;
}

void suite_report_free(struct suite *s)
{
    for (int n = 0; n < s->failure_count; n++) {
        free(s->failures[n].name);
        free(s->failures[n].target);
        free(s->failures[n].text);
    }
    free(s->failures);
}
