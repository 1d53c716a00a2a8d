/* SPDX-License-Identifier: Apache-2.0
 * Reads values.txt; make_values.py describes its format. */
#ifndef ATTN_TESTS_TORCH_VALUES_H
#define ATTN_TESTS_TORCH_VALUES_H

#include <attn/attn.h>
#include <stddef.h>
#include <stdint.h>

enum { VALUES_NAME = 32, VALUES_ARRAYS = 32, VALUES_SETTINGS = 16, VALUES_NUMBERS = 5 };

typedef struct values_array {
    char name[VALUES_NAME];
    int32_t dtype; /* attn_dtype of floats and bytes; 0: plain numbers (f64, i32, i64) */
    int is_bytes;  /* number[] holds bytes */
    int64_t dim[4];
    size_t count;   /* of number[] */
    double *number; /* NaN in a wanted array: left alone by the library */
} values_array;

typedef struct values_setting {
    char key[VALUES_NAME];
    int count;
    double number[VALUES_NUMBERS];
    uint64_t word; /* the first number, if it is a whole one */
} values_setting;

typedef struct values_case {
    char name[VALUES_NAME], operation[VALUES_NAME];
    int ins, wants, settings;
    values_array in[VALUES_ARRAYS], want[VALUES_ARRAYS];
    values_setting setting[VALUES_SETTINGS];
} values_case;

typedef struct values_file {
    char *text, *at;
    int line;
} values_file;

int values_open(values_file *file, const char *path);
void values_close(values_file *file);

/* 1: a case was read, and values_free is due; 0: there is none left; -1: the file is malformed at file->line. */
int values_next(values_file *file, values_case *c);
void values_free(values_case *c);

/* NULL if the case has no array of that name; a name that ends in '_' finds the array that starts so. */
const values_array *values_in(const values_case *c, const char *name);
const values_array *values_want(const values_case *c, const char *name);
/* `otherwise` if it is not set. */
double values_number(const values_case *c, const char *key, int index, double otherwise);
uint64_t values_word(const values_case *c, const char *key);

#endif
