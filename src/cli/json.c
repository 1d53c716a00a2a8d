/* SPDX-License-Identifier: Apache-2.0 */
#include "json.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of the UTF-8 sequence at s, or 0 if it is none (overlong forms, surrogates and values above
 * U+10FFFF are none). File names hold any bytes; JSON holds only Unicode. */
static int utf8_length(const unsigned char *s)
{
    static const struct {
        unsigned char first, last;            /* of the lead byte                                 */
        unsigned char second_min, second_max; /* of the byte behind it                            */
        int length;
    } forms[] = {
        {0x01, 0x7f, 0, 0, 1},       {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
        {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
        {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
    };
    for (size_t f = 0; f < sizeof forms / sizeof forms[0]; f++) {
        if (s[0] < forms[f].first || s[0] > forms[f].last) continue;
        if (forms[f].length == 1) return 1;
        if (s[1] < forms[f].second_min || s[1] > forms[f].second_max) return 0;
        for (int i = 2; i < forms[f].length; i++)
            if ((s[i] & 0xc0) != 0x80) return 0;
        return forms[f].length;
    }
    return 0;
}

static void write_string(FILE *file, const char *text)
{
    putc('"', file);
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        int length = utf8_length(s);
        if (length == 0) {
            fputs("\\ufffd", file);
            s++;
            continue;
        }
        if (*s == '"' || *s == '\\') fprintf(file, "\\%c", *s);
        else if (*s == '\n') fputs("\\n", file);
        else if (*s == '\t') fputs("\\t", file);
        else if (*s < 0x20 || *s == 0x7f) fprintf(file, "\\u%04x", *s);
        else fwrite(s, 1, (size_t)length, file);
        s += length;
    }
    putc('"', file);
}

static void begin_value(struct cli_json *json, const char *key)
{
    if (json->has_items) putc(',', json->file);
    json->has_items = 1;
    if (!key) return;
    write_string(json->file, key);
    putc(':', json->file);
}

void cli_json_open(struct cli_json *json, const char *key, char bracket)
{
    begin_value(json, key);
    putc(bracket, json->file);
    json->has_items = 0;
    json->depth++;
}

void cli_json_close(struct cli_json *json, char bracket)
{
    putc(bracket, json->file);
    json->has_items = 1; /* what was closed is an item of the one around it */
    if (--json->depth > 0) return;
    putc('\n', json->file);
    json->has_items = 0;
}

void cli_json_text(struct cli_json *json, const char *key, const char *value)
{
    begin_value(json, key);
    if (value) write_string(json->file, value);
    else fputs("null", json->file);
}

void cli_json_int(struct cli_json *json, const char *key, int64_t value)
{
    begin_value(json, key);
    fprintf(json->file, "%" PRId64, value);
}

void cli_json_bool(struct cli_json *json, const char *key, int value)
{
    begin_value(json, key);
    fputs(value ? "true" : "false", json->file);
}

void cli_json_real(struct cli_json *json, const char *key, double value)
{
    begin_value(json, key);
    if (!isfinite(value)) {
        fputs("null", json->file);
        return;
    }
    char text[32];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    fputs(text, json->file);
}

void cli_json_shape(struct cli_json *json, const char *key, const struct cli_shape *shape)
{
    cli_json_open(json, key, '{');
    cli_json_int(json, "batch", shape->batch);
    cli_json_int(json, "heads_q", shape->heads_q);
    cli_json_int(json, "heads_kv", shape->heads_kv);
    cli_json_int(json, "seq_q", shape->seq_q);
    cli_json_int(json, "seq_k", shape->seq_k);
    cli_json_int(json, "head_dim", shape->head_dim);
    cli_json_int(json, "head_dim_v", shape->head_dim_v);
    cli_json_close(json, '}');
}
