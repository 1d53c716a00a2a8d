/* SPDX-License-Identifier: Apache-2.0
 * The words of attn_config.force and ATTN_FORCE. */
#include "internal.h"
#include <errno.h>
#include <stdlib.h>

static const struct {
    const char *word;
    attn_backend backend;
} backend_words[] = {
    {"auto", ATTN_BACKEND_AUTO},
    {"cpu", ATTN_BACKEND_CPU},
    {"cuda", ATTN_BACKEND_CUDA},
    {"reference", ATTN_BACKEND_REFERENCE},
};

static attn_status parse_backend(int32_t *backend, const char *value, const char *source)
{
    for (size_t n = 0; n < sizeof backend_words / sizeof *backend_words; n++)
        if (strcmp(value, backend_words[n].word) == 0) {
            *backend = (int32_t)backend_words[n].backend;
            return ATTN_OK;
        }
    return attn_fail(ATTN_INVALID_ARGUMENT, "%s: backend=%s: expected auto, cpu, cuda or reference", source, value);
}

static attn_status parse_count(int32_t *count, long most, const char *key, const char *value, const char *source)
{
    char *end;
    errno = 0;
    long n = strtol(value, &end, 10);
    if (value[0] < '0' || value[0] > '9' || *end || errno || n < 1 || n > most)
        return attn_fail(ATTN_INVALID_ARGUMENT, "%s: %s=%s: expected a number from 1 to %ld", source, key, value, most);
    *count = (int32_t)n;
    return ATTN_OK;
}

static attn_status parse_name(char *name, size_t room, const char *key, const char *value, const char *source)
{
    size_t length = strlen(value);
    if (length == 0 || length >= room)
        return attn_fail(ATTN_INVALID_ARGUMENT, "%s: %s=%s: expected a name of 1 to %zu characters", source, key, value,
                         room - 1);
    memcpy(name, value, length + 1);
    return ATTN_OK;
}

/* One of two words. */
static attn_status parse_word(bool *is_second, const char *first, const char *second, const char *key,
                              const char *value, const char *source)
{
    *is_second = strcmp(value, second) == 0;
    if (*is_second || strcmp(value, first) == 0) return ATTN_OK;
    return attn_fail(ATTN_INVALID_ARGUMENT, "%s: %s=%s: expected %s or %s", source, key, value, first, second);
}

static attn_status parse_pair(attn_force *force, const char *key, const char *value, const char *source)
{
    if (strcmp(key, "backend") == 0) return parse_backend(&force->backend, value, source);
    if (strcmp(key, "splits") == 0) return parse_count(&force->splits, 65536, key, value, source);
    if (strcmp(key, "threads") == 0) return parse_count(&force->threads, ATTN_MAX_THREADS, key, value, source);
    if (strcmp(key, "isa") == 0) return parse_name(force->isa, sizeof force->isa, key, value, source);
    if (strcmp(key, "kernel") == 0) return parse_name(force->kernel, sizeof force->kernel, key, value, source);
    if (strcmp(key, "stage") == 0) return parse_word(&force->stage_never, "auto", "never", key, value, source);
    if (strcmp(key, "numa") == 0) return parse_word(&force->numa_never, "auto", "never", key, value, source);
    if (strcmp(key, "bind") == 0) {
        force->bind = true;
        return parse_word(&force->bind_cores, "never", "cores", key, value, source);
    }
    return attn_fail(ATTN_INVALID_ARGUMENT,
                     "%s: unknown key \"%s\": expected backend, isa, kernel, splits, threads, stage, numa or bind",
                     source, key);
}

attn_status attn_force_parse(attn_force *force, const char *words, const char *source)
{
    while (*words) {
        char pair[128];
        size_t length = strcspn(words, ",");
        if (length >= sizeof pair) return attn_fail(ATTN_INVALID_ARGUMENT, "%s: a word is too long", source);
        memcpy(pair, words, length);
        pair[length] = '\0';
        words += length;
        if (*words == ',' && !*++words) return attn_fail(ATTN_INVALID_ARGUMENT, "%s: ends with a comma", source);
        char *value = strchr(pair, '=');
        if (!value) return attn_fail(ATTN_INVALID_ARGUMENT, "%s: \"%s\" is not key=value", source, pair);
        *value++ = '\0';
        ATTN_TRY(parse_pair(force, pair, value, source));
    }
    return ATTN_OK;
}

bool attn_kernel_is(const char *kernel, const char *word)
{
    size_t length = strlen(word);
    return strncmp(kernel, word, length) == 0 && (!kernel[length] || kernel[length] == '_');
}
