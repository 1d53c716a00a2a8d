/* SPDX-License-Identifier: Apache-2.0 */
#include "values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE = 1 << 24, MAX_COUNT = 1 << 20 };

int values_open(values_file *file, const char *path)
{
    FILE *f = fopen(path, "rb");
    *file = (values_file){.text = f ? malloc(MAX_FILE) : NULL, .line = 1};
    if (!f) return 0;
    size_t n = file->text ? fread(file->text, 1, MAX_FILE - 1, f) : 0;
    int good = n > 0 && feof(f);
    fclose(f);
    if (!good) {
        values_close(file);
        return 0;
    }
    file->text[n] = 0;
    file->at = file->text;
    return 1;
}

void values_close(values_file *file)
{
    free(file->text);
    file->text = file->at = NULL;
}

/* The next word, of at most room - 1 characters; 0 at the end of the file or of the line, if that is asked for. */
static int take_word(values_file *file, char *word, size_t room, int in_line)
{
    size_t n = 0;
    for (;; file->at++) {
        if (*file->at == '#') file->at += strcspn(file->at, "\n");
        if (*file->at == '\n') {
            if (in_line) return 0;
            file->line++;
        } else if (*file->at != ' ') {
            break;
        }
    }
    while (*file->at && *file->at != ' ' && *file->at != '\n' && n + 1 < room) word[n++] = *file->at++;
    word[n] = 0;
    return n > 0;
}

static int take_setting(values_file *file, values_setting *s)
{
    char word[VALUES_NAME];
    *s = (values_setting){.count = 0};
    if (!take_word(file, s->key, sizeof s->key, 1)) return 0;
    while (take_word(file, word, sizeof word, 1)) {
        if (s->count == VALUES_NUMBERS) return 0;
        if (!s->count) s->word = strtoull(word, NULL, 10);
        s->number[s->count++] = strtod(word, NULL);
    }
    return s->count > 0;
}

/* The library's type of a type's name, 0 if it has none. */
static int32_t dtype_named(const char *name)
{
    for (int32_t t = ATTN_F32; t <= ATTN_Q4_0; t++) {
        if (!strcmp(name, attn_dtype_name((attn_dtype)t))) return t;
    }
    return 0;
}

static int take_numbers(values_file *file, values_array *a)
{
    char word[VALUES_NAME], *end;
    for (size_t i = 0; i < a->count; i++) {
        if (!take_word(file, word, sizeof word, 0)) return 0;
        a->number[i] = strcmp(word, "*") ? strtod(word, &end) : NAN;
        if (strcmp(word, "*") && *end) return 0;
    }
    return 1;
}

static int take_bytes(values_file *file, values_array *a)
{
    char word[3], *end;
    for (size_t i = 0; i < a->count; i++) { /* a line of bytes is one long word: it comes in twos */
        if (!take_word(file, word, sizeof word, 0)) return 0;
        a->number[i] = strcmp(word, "**") ? (double)strtoul(word, &end, 16) : NAN;
        if (strcmp(word, "**") && *end) return 0;
    }
    return 1;
}

/* NAME TYPE D0 D1 D2 D3, values. The type of bytes is the end of the name: k_q8_0. */
static int take_array(values_file *file, values_array *a)
{
    char word[VALUES_NAME];
    *a = (values_array){.count = 1};
    if (!take_word(file, a->name, sizeof a->name, 1) || !take_word(file, word, sizeof word, 1)) return 0;
    a->is_bytes = !strcmp(word, "hex");
    if (!a->is_bytes) a->dtype = dtype_named(word);
    else if (strchr(a->name, '_')) a->dtype = dtype_named(strchr(a->name, '_') + 1);
    for (int d = 0; d < 4; d++) {
        if (!take_word(file, word, sizeof word, 1)) return 0;
        long n = strtol(word, NULL, 10);
        if (n < 0 || n > MAX_COUNT || (n && a->count > (size_t)(MAX_COUNT / n))) return 0;
        a->dim[d] = n;
        a->count *= a->is_bytes && d == 3 ? attn_dtype_bytes((attn_dtype)a->dtype, n) : (size_t)n;
    }
    a->number = malloc((a->count ? a->count : 1) * sizeof *a->number);
    return a->number && (a->is_bytes ? take_bytes(file, a) : take_numbers(file, a));
}

int values_next(values_file *file, values_case *c)
{
    char word[VALUES_NAME];
    memset(c, 0, sizeof *c);
    if (!take_word(file, word, sizeof word, 0)) return *file->at ? -1 : 0;
    int good = !strcmp(word, "case") && take_word(file, c->name, sizeof c->name, 1) &&
               take_word(file, c->operation, sizeof c->operation, 1);
    while (good && take_word(file, word, sizeof word, 0)) {
        if (!strcmp(word, "end")) return 1;
        if (!strcmp(word, "set"))
            good = c->settings < VALUES_SETTINGS && take_setting(file, &c->setting[c->settings++]);
        else if (!strcmp(word, "in")) good = c->ins < VALUES_ARRAYS && take_array(file, &c->in[c->ins++]);
        else if (!strcmp(word, "want")) good = c->wants < VALUES_ARRAYS && take_array(file, &c->want[c->wants++]);
        else good = 0;
    }
    values_free(c);
    return -1;
}

void values_free(values_case *c)
{
    for (int i = 0; i < c->ins; i++) free(c->in[i].number);
    for (int i = 0; i < c->wants; i++) free(c->want[i].number);
    c->ins = c->wants = 0;
}

static const values_array *find(const values_array *arrays, int count, const char *name)
{
    size_t n = strlen(name);
    for (int i = 0; i < count; i++) {
        if (n && name[n - 1] == '_' ? !strncmp(arrays[i].name, name, n) : !strcmp(arrays[i].name, name))
            return &arrays[i];
    }
    return NULL;
}

const values_array *values_in(const values_case *c, const char *name) { return find(c->in, c->ins, name); }

const values_array *values_want(const values_case *c, const char *name) { return find(c->want, c->wants, name); }

static const values_setting *setting_of(const values_case *c, const char *key)
{
    for (int i = 0; i < c->settings; i++) {
        if (!strcmp(c->setting[i].key, key)) return &c->setting[i];
    }
    return NULL;
}

double values_number(const values_case *c, const char *key, int index, double otherwise)
{
    const values_setting *s = setting_of(c, key);
    return s && index < s->count ? s->number[index] : otherwise;
}

uint64_t values_word(const values_case *c, const char *key)
{
    const values_setting *s = setting_of(c, key);
    return s ? s->word : 0;
}
