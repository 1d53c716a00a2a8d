/* SPDX-License-Identifier: Apache-2.0
 * A JSON writer. It puts the commas; the caller opens and closes in order. Inside an object every
 * value has a key, elsewhere key is NULL. */
#ifndef ATTN_CLI_JSON_H
#define ATTN_CLI_JSON_H

#include "options.h"

#include <stdint.h>
#include <stdio.h>

struct cli_json {
    FILE *file;
    int depth;     /* open objects and arrays                                                    */
    int has_items; /* the innermost open object or array already holds something                  */
};

void cli_json_open(struct cli_json *json, const char *key, char bracket); /* '{' or '['           */
/* Closing the outermost one ends the line. */
void cli_json_close(struct cli_json *json, char bracket);                      /* '}' or ']'           */
void cli_json_text(struct cli_json *json, const char *key, const char *value); /* NULL: null      */
void cli_json_int(struct cli_json *json, const char *key, int64_t value);
void cli_json_bool(struct cli_json *json, const char *key, int value);
/* The shortest text that reads back as the same double; null for NaN and infinities, which JSON
 * has no words for. */
void cli_json_real(struct cli_json *json, const char *key, double value);
/* An object with the names that all commands use for the sizes of a problem. */
void cli_json_shape(struct cli_json *json, const char *key, const struct cli_shape *shape);

#endif
