/* SPDX-License-Identifier: Apache-2.0
 * Output files that appear complete or not at all. All are checked before the work and written
 * after it: first every temporary file, then every rename. */
#ifndef ATTN_CLI_OUTPUT_H
#define ATTN_CLI_OUTPUT_H

#include "npy.h"

#include <sys/types.h>

struct cli_output {
    const char *option;   /* for messages: "--lse"                                                */
    const char *path;     /* as given                                                             */
    struct cli_npy array; /* what is written; data belongs to the caller                          */
    /* Set by cli_output_check. */
    char *target; /* absolute, links followed; NULL: path is a device, written directly    */
    mode_t mode;
};

/* Finds out whether the file can be written, without leaving a trace. A file whose mode has no
 * write permission is refused for every user, root too. */
int cli_output_check(struct cli_output *output);
/* Writes all. On failure no target is changed, unless a rename itself failed half way. */
int cli_output_write(struct cli_output *outputs, int count);
void cli_output_free(struct cli_output *outputs, int count);

#endif
