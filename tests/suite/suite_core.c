/* SPDX-License-Identifier: Apache-2.0
 * Which cases run, and what they said. */
#include "suite_core.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- selection -------------------------------------------------------------------------------------------------- */

int suite_selected(struct suite *s, int quick, const char *name)
{
    const char *filter = s->options->filter;
    if (s->listing) {
        if (filter && !strcmp(filter, name)) s->exact = 1;
        return 0;
    }
    if (s->stopped) return 0;
    if (s->exact) {
        if (strcmp(filter, name)) return 0;
    } else {
        if (filter && !strstr(name, filter)) return 0;
        if (!quick && !s->options->full) return 0;
    }
    s->matched++;
    return 1;
}

/* ---- checks ----------------------------------------------------------------------------------------------------- */

int suite_expect(struct suite_check *check, int ok, const char *format, ...)
{
    if (ok || check->failed++) return ok;
    va_list args;
    va_start(args, format);
    vsnprintf(check->text, sizeof check->text, format, args);
    va_end(args);
    return ok;
}

int suite_expect_status(struct suite_check *check, attn_status got, attn_status expected, const char *what)
{
    return suite_expect(check, got == expected, "%s: \"%s\" (%s), expected \"%s\"", what, attn_status_string(got),
                        got == ATTN_OK ? "" : attn_last_error(), attn_status_string(expected));
}

void suite_skip(struct suite_check *check, const char *reason)
{
    if (check->failed || check->skipped) return;
    check->skipped = 1;
    snprintf(check->text, sizeof check->text, "%s", reason);
}

void suite_no_memory(struct suite_check *check, const void *arg)
{
    (void)arg;
    suite_expect(check, 0, "no memory to build the case");
}

static void count_reason(struct suite_tally *tally, const char *text)
{
    char key[sizeof tally->reason[0].text];
    snprintf(key, sizeof key, "%.*s", (int)sizeof key - 1, text);
    for (int n = 0; n < SUITE_REASONS; n++) {
        if (!tally->reason[n].count) memcpy(tally->reason[n].text, key, sizeof key);
        if (n == SUITE_REASONS - 1 || !strcmp(tally->reason[n].text, key)) {
            tally->reason[n].count++; /* the last place counts all further reasons */
            return;
        }
    }
}

/* Kept for the report too. */
static void tell_failure(struct suite *s, const struct suite_check *check)
{
    struct suite_failure *grown = realloc(s->failures, sizeof *grown * (size_t)(s->failure_count + 1));
    if (grown) {
        s->failures = grown;
        grown[s->failure_count++] =
            (struct suite_failure){strdup(check->name), strdup(check->target->name), strdup(check->text)};
    }
    if (s->options->json) return;
    printf("FAIL %s %s: %s\n     attn check --device %s --filter '%s'\n", check->target->name, check->name, check->text,
           check->target->device, check->name);
    fflush(stdout);
}

static void conclude(struct suite *s, int target, const struct suite_check *check)
{
    struct suite_tally *tally = &s->tally[s->section_index][target];
    tally->cases++;
    if (check->worst > tally->worst) tally->worst = check->worst;
    if (check->failed) {
        tally->failed++;
        s->stopped = s->options->fail_fast;
        tell_failure(s, check);
    } else if (check->skipped) {
        tally->skipped++;
        count_reason(tally, check->text);
    } else {
        tally->passed++;
    }
    if (!s->options->verbose || s->options->json || check->failed) return;
    if (check->skipped) printf("skip %s %s: %s\n", check->target->name, check->name, check->text);
    else printf("pass %s %s (%.2f)\n", check->target->name, check->name, check->worst);
    fflush(stdout);
}

static void run_on(struct suite *s, int target, const char *name, suite_function *function, const void *arg)
{
    struct suite_check check = {.suite = s, .target = &s->target[target], .name = name};
    suite_note_running(check.target, name);
    function(&check, arg);
    suite_note_running(NULL, NULL);
    conclude(s, target, &check);
}

void suite_on_targets(struct suite *s, const char *name, suite_function *function, const void *arg)
{
    for (int t = 0; t < s->targets && !s->stopped; t++) run_on(s, t, name, function, arg);
}

void suite_each(struct suite *s, int quick, const char *name, suite_function *function, const void *arg)
{
    if (suite_selected(s, quick, name)) suite_on_targets(s, name, function, arg);
}

void suite_once(struct suite *s, int quick, const char *name, suite_function *function, const void *arg)
{
    if (suite_selected(s, quick, name)) run_on(s, 0, name, function, arg);
}
