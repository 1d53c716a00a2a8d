/* SPDX-License-Identifier: Apache-2.0
 * What the files of the attn command share: exit statuses, the one way to report an error, the
 * table of commands. The command uses the public API only, so it is also its first user. */
#ifndef ATTN_CLI_H
#define ATTN_CLI_H

#include <attn/attn.h>

/* Exit statuses. Scripts depend on them; they never change. */
enum {
    CLI_OK = 0,
    CLI_WRONG_RESULT = 1, /* --check or --expect failed, a case of the suite failed, bench: wrong  */
    CLI_BAD_INPUT = 2,    /* usage, files, shapes, values                                         */
    CLI_CANNOT = 3,       /* right, but not on this machine: unsupported, no device, no memory    */
    CLI_DEVICE_ERROR = 4  /* a device or the library failed                                       */
};

struct cli_command {
    const char *name;
    const char *summary;               /* for the list in `attn --help`                                   */
    const char *help;                  /* the page of `attn help NAME`                                    */
    int (*run)(int argc, char **argv); /* argv[0] is the first word after the command's name      */
    const char *more;                  /* of the page, which may be longer than one literal may be; NULL */
};

extern const struct cli_command cli_cmd_info;
extern const struct cli_command cli_cmd_run;
extern const struct cli_command cli_cmd_check;
extern const struct cli_command cli_cmd_bench;

#if defined(__GNUC__)
#  define CLI_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#  define CLI_PRINTF(text, first)
#endif

/* Writes one line "attn: ..." to stderr, whatever the text holds, and returns status, so that an
 * error is reported and passed up in one statement. Call it once per failure, where it is found. */
int cli_fail(int status, const char *format, ...) CLI_PRINTF(2, 3);
/* The same for a failed call of the library: its own text, after `what` (NULL: no prefix). */
int cli_fail_library(attn_status status, const char *what);
/* The exit status that stands for a status of the library. */
int cli_exit_status(attn_status status);
/* Flushes stdout. A result that could not be printed (disk full) is an error like any other:
 * returns status if all was written, and reports otherwise. */
int cli_finish(int status);

const char *cli_backend_name(int32_t backend);

#endif
