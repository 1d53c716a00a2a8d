/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const cli_float_words[4] = {"f32", "f16", "bf16", NULL};
const attn_dtype cli_float_types[3] = {ATTN_F32, ATTN_F16, ATTN_BF16};
const char *const cli_kv_words[9] = {"f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "i8", "q8_0", "q4_0", NULL};
const attn_dtype cli_kv_types[8] = {ATTN_F32,     ATTN_F16, ATTN_BF16, ATTN_F8_E4M3,
                                    ATTN_F8_E5M2, ATTN_I8,  ATTN_Q8_0, ATTN_Q4_0};

/* strtol and strtod skip spaces and know "nan", "inf" and hexadecimal. None of these is meant here,
 * so a word is looked at before they are. */
static int only_holds(const char *text, const char *characters)
{
    return *text != 0 && text[strspn(text, characters)] == 0;
}

int cli_parse_int(const char *what, const char *text, double low, double high, int64_t *value)
{
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (!only_holds(text, "+-0123456789") || *end || end == text)
        return cli_fail(CLI_BAD_INPUT, "%s: '%s' is not a whole number", what, text);
    if (errno == ERANGE || (double)number < low || (double)number > high)
        return cli_fail(CLI_BAD_INPUT, "%s: %s is outside %.0f to %.0f", what, text, low, high);
    *value = number;
    return CLI_OK;
}

int cli_parse_u64(const char *what, const char *text, uint64_t *value)
{
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (!only_holds(text, "0123456789") || *end)
        return cli_fail(CLI_BAD_INPUT, "%s: '%s' is not a whole number from 0", what, text);
    if (errno == ERANGE || number > UINT64_MAX)
        return cli_fail(CLI_BAD_INPUT, "%s: %s is larger than %" PRIu64, what, text, UINT64_MAX);
    *value = number;
    return CLI_OK;
}

int cli_parse_real(const char *what, const char *text, double low, double high, float *value)
{
    char *end;
    double number = strtod(text, &end);
    if (!only_holds(text, "+-.eE0123456789") || *end || end == text)
        return cli_fail(CLI_BAD_INPUT, "%s: '%s' is not a number", what, text);
    if (!(number >= low && number <= high))
        return cli_fail(CLI_BAD_INPUT, "%s: %s is outside %g to %g", what, text, low, high);
    *value = (float)number;
    /* A scale that rounds to 0 would silently mean the default. */
    if (*value == 0 && strcspn(text, "123456789") < strcspn(text, "eE"))
        return cli_fail(CLI_BAD_INPUT, "%s: %s is too small for a float", what, text);
    return CLI_OK;
}

int cli_parse_word(const char *what, const char *text, const char *const *words, int *value)
{
    char list[256] = "";
    for (int i = 0; words[i]; i++) {
        if (strcmp(text, words[i]) == 0) {
            *value = i;
            return CLI_OK;
        }
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", words[i]);
    }
    return cli_fail(CLI_BAD_INPUT, "%s: '%s' is none of %s", what, text, list);
}

int cli_parse_shape(const char *what, const char *text, struct cli_shape *shape)
{
    int64_t numbers[7];
    int count = 0;
    char buffer[256];
    if (strlen(text) >= sizeof buffer) return cli_fail(CLI_BAD_INPUT, "%s: the value is too long", what);
    strcpy(buffer, text);
    for (char *part = buffer, *next; part; part = next) {
        next = strchr(part, ',');
        if (next) *next++ = 0;
        if (count == 7) return cli_fail(CLI_BAD_INPUT, "%s: '%s' has more than 7 numbers", what, text);
        int status = cli_parse_int(what, part, 0, INT32_MAX, &numbers[count]);
        if (status) return status;
        count++;
    }
    if (count < 6) return cli_fail(CLI_BAD_INPUT, "%s: '%s' is not B,HQ,HKV,SQ,SK,D[,DV]", what, text);
    *shape = (struct cli_shape){
        numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5], count == 7 ? numbers[6] : numbers[5]};
    return CLI_OK;
}

int cli_parse_device(const char *what, const char *text, int32_t *backend, int32_t *ordinal)
{
    static const char *const words[] = {"auto", "cpu", "reference", "cuda", NULL};
    static const int32_t backends[] = {ATTN_BACKEND_AUTO, ATTN_BACKEND_CPU, ATTN_BACKEND_REFERENCE, ATTN_BACKEND_CUDA};
    *ordinal = 0;
    if (strncmp(text, "cuda:", 5) == 0) {
        int64_t number = 0;
        int status = cli_parse_int(what, text + 5, 0, 1023, &number);
        *backend = ATTN_BACKEND_CUDA;
        *ordinal = (int32_t)number;
        return status;
    }
    for (int i = 0; words[i]; i++) {
        if (strcmp(text, words[i]) != 0) continue;
        *backend = backends[i];
        return CLI_OK;
    }
    return cli_fail(CLI_BAD_INPUT, "%s: '%s' is none of auto, cpu, cuda, cuda:N, reference", what, text);
}

static int store_item(const struct cli_option *option, const char *value)
{
    struct cli_list *list = option->target;
    if (list->count == CLI_LIST_MAX)
        return cli_fail(CLI_BAD_INPUT, "%s is given more than %d times", option->name, CLI_LIST_MAX);
    list->items[list->count++] = value;
    return CLI_OK;
}

static int store(const struct cli_option *option, const char *value)
{
    switch (option->kind) {
    case CLI_FLAG: *(int *)option->target = 1; return CLI_OK;
    case CLI_TEXT:
        if (!*value) return cli_fail(CLI_BAD_INPUT, "%s: the value is empty", option->name);
        *(const char **)option->target = value;
        return CLI_OK;
    case CLI_LIST: return store_item(option, value);
    case CLI_INT: return cli_parse_int(option->name, value, option->low, option->high, option->target);
    case CLI_U64: return cli_parse_u64(option->name, value, option->target);
    case CLI_REAL: return cli_parse_real(option->name, value, option->low, option->high, option->target);
    case CLI_WORD: return cli_parse_word(option->name, value, option->words, option->target);
    }
    return CLI_OK;
}

/* The option that word names, and behind '=' its value (NULL: in the next word). */
static const struct cli_option *find_option(const char *word, const struct cli_option *options, int count,
                                            const char **value)
{
    size_t length = strcspn(word, "=");
    *value = word[length] ? word + length + 1 : NULL;
    for (int i = 0; i < count; i++)
        if (strlen(options[i].name) == length && strncmp(options[i].name, word, length) == 0) return &options[i];
    return NULL;
}

int cli_parse_options(int argc, char **argv, const struct cli_option *options, int option_count, int *words)
{
    int kept = 0, ended = 0;
    for (int i = 0; i < argc; i++) {
        char *word = argv[i];
        if (ended || word[0] != '-' || word[1] == 0) {
            argv[kept++] = word;
            continue;
        }
        if (strcmp(word, "--") == 0) {
            ended = 1;
            continue;
        }
        const char *value;
        const struct cli_option *option = find_option(word, options, option_count, &value);
        if (!option) return cli_fail(CLI_BAD_INPUT, "unknown option '%s'", word);
        if (option->kind == CLI_FLAG && value) return cli_fail(CLI_BAD_INPUT, "%s takes no value", option->name);
        if (option->kind != CLI_FLAG && !value) {
            if (++i == argc) return cli_fail(CLI_BAD_INPUT, "%s needs a value", option->name);
            value = argv[i];
        }
        int status = store(option, value);
        if (status) return status;
    }
    *words = kept;
    return CLI_OK;
}
