/* SPDX-License-Identifier: Apache-2.0
 * Command line options from a table, and strict readers of numbers: a value is the whole word or
 * it is an error that names the option. */
#ifndef ATTN_CLI_OPTIONS_H
#define ATTN_CLI_OPTIONS_H

#include "cli.h"

enum cli_option_kind {
    CLI_FLAG, /* int *: set to 1; takes no value                                                */
    CLI_TEXT, /* const char **                                                                  */
    CLI_LIST, /* struct cli_list *: every value of an option that may be given several times    */
    CLI_INT,  /* int64_t *: from low to high                                                    */
    CLI_U64,  /* uint64_t *: any                                                                */
    CLI_REAL, /* float *: from low to high; NaN and what float cannot hold are errors           */
    CLI_WORD  /* int *: the index of the value in words                                         */
};

enum { CLI_LIST_MAX = 64 };
struct cli_list {
    const char *items[CLI_LIST_MAX];
    int count;
};

struct cli_option {
    const char *name; /* "--causal", or "-o"                                                      */
    enum cli_option_kind kind;
    void *target;             /* as the kind says                                                         */
    double low, high;         /* CLI_INT, CLI_REAL; |.| <= 2^53                                           */
    const char *const *words; /* CLI_WORD: ends with NULL                                         */
};

/* Reads "--name value", "--name=value" and "-o value"; "--" ends the options. Words that are no
 * options are moved to the front of argv and counted in *words. The last of a repeated option
 * counts, but for CLI_LIST. Returns CLI_OK or has reported the error. */
int cli_parse_options(int argc, char **argv, const struct cli_option *options, int option_count, int *words);

/* Each reads the whole of text or reports an error that names `what`. */
int cli_parse_int(const char *what, const char *text, double low, double high, int64_t *value);
int cli_parse_u64(const char *what, const char *text, uint64_t *value);
int cli_parse_real(const char *what, const char *text, double low, double high, float *value);
int cli_parse_word(const char *what, const char *text, const char *const *words, int *value);

/* Sizes of one problem, as in --shape B,HQ,HKV,SQ,SK,D[,DV]. */
struct cli_shape {
    int64_t batch, heads_q, heads_kv, seq_q, seq_k, head_dim, head_dim_v;
};
int cli_parse_shape(const char *what, const char *text, struct cli_shape *shape);

/* auto, cpu, reference, cuda or cuda:N, as the backend and ordinal of attn_config. */
int cli_parse_device(const char *what, const char *text, int32_t *backend, int32_t *ordinal);

/* The names of F32, F16 and BF16 for CLI_WORD, in this order, and the types. */
extern const char *const cli_float_words[4];
extern const attn_dtype cli_float_types[3];
/* The same for all storage types of keys and values. */
extern const char *const cli_kv_words[9];
extern const attn_dtype cli_kv_types[8];

#endif
