/* SPDX-License-Identifier: Apache-2.0
 * Accepts exactly the dictionary of the format: its three keys, each once, in any order. */
#include "npy_header.h"

#include <string.h>

struct cursor {
    const char *at, *end;
};

static void skip_space(struct cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n' || *c->at == '\r')) c->at++;
}

/* Takes the next visible character if it is `character`. */
static int take(struct cursor *c, char character)
{
    skip_space(c);
    if (c->at == c->end || *c->at != character) return 0;
    c->at++;
    return 1;
}

static int take_word(struct cursor *c, const char *word)
{
    size_t length = strlen(word);
    skip_space(c);
    if ((size_t)(c->end - c->at) < length || memcmp(c->at, word, length) != 0) return 0;
    c->at += length;
    return 1;
}

/* A quoted string without escapes, cut off to fit. */
static int take_string(struct cursor *c, char *out, size_t size)
{
    skip_space(c);
    if (c->at == c->end || (*c->at != '\'' && *c->at != '"')) return 0;
    char quote = *c->at++;
    size_t used = 0;
    for (; c->at < c->end && *c->at != quote; c->at++) {
        if (*c->at == '\\' || *c->at == '\n') return 0;
        if (used + 1 < size) out[used++] = *c->at;
    }
    out[used] = 0;
    if (c->at == c->end) return 0;
    c->at++;
    return 1;
}

static const char *take_size(struct cursor *c, int64_t *value)
{
    skip_space(c);
    if (c->at < c->end && *c->at == '-') return "a size of the shape is negative";
    if (c->at == c->end || *c->at < '0' || *c->at > '9') return "the shape is not a tuple of whole numbers";
    int64_t number = 0;
    for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++)
        if (__builtin_mul_overflow(number, 10, &number) || __builtin_add_overflow(number, *c->at - '0', &number))
            return "a size of the shape is too large";
    *value = number;
    return NULL;
}

static const char *take_shape(struct cursor *c, struct cli_npy_header *header)
{
    if (!take(c, '(')) return "the shape is not a tuple";
    int comma = 1;
    for (header->rank = 0; !take(c, ')'); header->rank++) {
        if (!comma) return "the shape is not a tuple of whole numbers";
        if (header->rank == CLI_NPY_RANK_MAX) return "the shape has more than 8 axes";
        const char *wrong = take_size(c, &header->shape[header->rank]);
        if (wrong) return wrong;
        comma = take(c, ',');
    }
    /* In Python (3) is a number, and only (3,) is a tuple. */
    return header->rank == 1 && !comma ? "the shape is not a tuple" : NULL;
}

static const char *take_descr(struct cursor *c, struct cli_npy_header *header)
{
    skip_space(c);
    if (c->at < c->end && (*c->at == '[' || *c->at == '{' || *c->at == '('))
        return "structured data types are not supported";
    return take_string(c, header->descr, sizeof header->descr) ? NULL : "the value of 'descr' is not a string";
}

static const char *take_order(struct cursor *c, struct cli_npy_header *header)
{
    if (take_word(c, "True")) header->fortran_order = 1;
    else if (take_word(c, "False")) header->fortran_order = 0;
    else return "the value of 'fortran_order' is neither True nor False";
    return NULL;
}

static const char *take_entry(struct cursor *c, struct cli_npy_header *header, unsigned *seen)
{
    static const struct {
        const char *key;
        const char *(*take_value)(struct cursor *, struct cli_npy_header *);
    } entries[] = {{"descr", take_descr}, {"fortran_order", take_order}, {"shape", take_shape}};
    char key[16];
    if (!take_string(c, key, sizeof key) || !take(c, ':')) return "the header is not a dictionary";
    for (unsigned e = 0; e < 3; e++) {
        if (strcmp(key, entries[e].key) != 0) continue;
        if (*seen & 1u << e) return "the header has a key twice";
        *seen |= 1u << e;
        return entries[e].take_value(c, header);
    }
    return "the header has an unknown key";
}

const char *cli_npy_parse_header(const char *text, size_t length, struct cli_npy_header *header)
{
    struct cursor c = {text, text + length};
    unsigned seen = 0;
    if (!take(&c, '{')) return "the header is not a dictionary";
    int comma = 1;
    while (!take(&c, '}')) {
        if (!comma) return "the header is not a dictionary";
        const char *wrong = take_entry(&c, header, &seen);
        if (wrong) return wrong;
        comma = take(&c, ',');
    }
    skip_space(&c);
    if (c.at != c.end) return "the header has text behind the dictionary";
    if (!(seen & 1u)) return "the header lacks the key 'descr'";
    if (!(seen & 2u)) return "the header lacks the key 'fortran_order'";
    if (!(seen & 4u)) return "the header lacks the key 'shape'";
    return NULL;
}
