/* SPDX-License-Identifier: Apache-2.0
 * The suites, and the cases that the options of `attn bench` ask for. */
#include "bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define DEFAULT_SHAPE "1,16,16,1024,1024,64" /* also on the help page */

enum { PREFILL, DECODE, SEEDS, TRAIN, SUITES };
const char *const bench_suite_words[] = {"prefill", "decode", "seeds", "train", NULL};

/* What a row stands for without --backward. */
static const struct {
    int both; /* forward and backward */
    int lse;  /* the forward writes it */
} suites[SUITES] = {[SEEDS] = {1, 0}, [TRAIN] = {1, 1}};

int bench_has_backward(const struct bench_options *options)
{
    return options->backward || (options->suite != BENCH_NOT_GIVEN && suites[options->suite].both);
}

enum { FULL = 1, CAUSAL = 2 };
#define TYPE(name) (1u << ATTN_##name)
#define FLOATS (TYPE(F32) | TYPE(F16) | TYPE(BF16))
#define CACHES (FLOATS | TYPE(Q8_0) | TYPE(Q4_0))

/* Each row is a case for each of its masks and types, in this order. Queries have the type of the keys, those on
 * quantised keys are float32. */
static const struct suite_row {
    int suite;
    struct cli_shape shape;
    unsigned masks;
    unsigned kv_types;
    int v_in_k;
} suite_rows[] = {
    {PREFILL, {1, 16, 16, 1024, 1024, 64, 64}, FULL | CAUSAL, FLOATS, 0},
    {PREFILL, {1, 32, 32, 2048, 2048, 128, 128}, FULL | CAUSAL, FLOATS, 0},
    {PREFILL, {1, 32, 32, 4096, 4096, 128, 128}, FULL | CAUSAL, FLOATS, 0},
    {PREFILL, {1, 16, 16, 1024, 1024, 256, 256}, FULL | CAUSAL, FLOATS, 0},
    {PREFILL, {1, 32, 8, 512, 4096, 128, 128}, FULL | CAUSAL, FLOATS, 0},
    {DECODE, {1, 32, 8, 1, 4096, 128, 128}, FULL, CACHES, 0},
    {DECODE, {1, 32, 8, 1, 32768, 128, 128}, FULL, CACHES, 0},
    {DECODE, {16, 32, 8, 1, 4096, 128, 128}, FULL, CACHES, 0},
    {DECODE, {1, 32, 8, 16, 8192, 128, 128}, FULL, CACHES, 0},
    {DECODE, {1, 128, 1, 1, 4096, 576, 512}, FULL, CACHES, 1}, /* MLA, absorbed */
    {SEEDS, {1, 1, 1, 16, 16, 16, 16}, FULL | CAUSAL, FLOATS, 0},
    {SEEDS, {1, 1, 1, 32, 32, 32, 32}, FULL | CAUSAL, FLOATS, 0},
    {SEEDS, {1, 1, 1, 64, 64, 64, 64}, FULL | CAUSAL, FLOATS, 0},
    {SEEDS, {1, 1, 1, 128, 128, 128, 128}, FULL | CAUSAL, FLOATS, 0},
    {SEEDS, {1, 1, 1, 256, 256, 256, 256}, FULL | CAUSAL, FLOATS, 0},
    {SEEDS, {1, 16, 16, 1024, 1024, 64, 64}, FULL | CAUSAL, FLOATS, 0},
    {SEEDS, {1, 32, 32, 1024, 1024, 64, 64}, FULL | CAUSAL, FLOATS, 0},
    {SEEDS, {1, 16, 16, 1024, 1024, 128, 128}, FULL | CAUSAL, FLOATS, 0},
    {SEEDS, {1, 32, 32, 2048, 2048, 128, 128}, FULL | CAUSAL, FLOATS, 0},
    {SEEDS, {1, 32, 32, 4096, 4096, 128, 128}, FULL | CAUSAL, FLOATS, 0},
    {SEEDS, {1, 16, 16, 1024, 1024, 256, 256}, FULL | CAUSAL, FLOATS, 0},
    {SEEDS, {1, 32, 32, 2048, 2048, 256, 256}, FULL | CAUSAL, FLOATS, 0},
    {SEEDS, {1, 32, 32, 4096, 4096, 256, 256}, FULL | CAUSAL, FLOATS, 0},
    {TRAIN, {4, 16, 16, 2048, 2048, 64, 64}, FULL | CAUSAL, FLOATS, 0},
    {TRAIN, {1, 32, 32, 4096, 4096, 128, 128}, CAUSAL, FLOATS, 0},
    {TRAIN, {2, 32, 8, 4096, 4096, 128, 128}, CAUSAL, FLOATS, 0},
    {TRAIN, {1, 32, 8, 8192, 8192, 128, 128}, CAUSAL, FLOATS, 0},
    {TRAIN, {4, 32, 8, 4, 4096, 128, 128}, CAUSAL, FLOATS, 0}, /* a short end behind a cached beginning */
};
enum { SUITE_ROWS = sizeof suite_rows / sizeof *suite_rows };

void bench_shape_text(const struct cli_shape *s, char text[BENCH_TEXT])
{
    int used = snprintf(text, BENCH_TEXT, "%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64,
                        s->batch, s->heads_q, s->heads_kv, s->seq_q, s->seq_k, s->head_dim);
    if (s->head_dim_v != s->head_dim) snprintf(text + used, BENCH_TEXT - (size_t)used, ",%" PRId64, s->head_dim_v);
}

void bench_case_text(const struct bench_case *c, char text[BENCH_TEXT])
{
    bench_shape_text(&c->shape, text);
    size_t used = strlen(text);
    int same = c->kv_dtype == c->dtype;
    snprintf(text + used, BENCH_TEXT - used, " %s%s%s%s%s", attn_dtype_name(c->dtype), same ? "" : "/",
             same ? "" : attn_dtype_name(c->kv_dtype), c->causal ? " causal" : "", c->backward ? " backward" : "");
}

static int is_block(attn_dtype type) { return type == ATTN_Q8_0 || type == ATTN_Q4_0; }

/* What the library would also refuse, but by the names of its fields. */
static int check_case(const struct bench_case *c)
{
    const struct cli_shape *s = &c->shape;
    char text[BENCH_TEXT];
    bench_shape_text(s, text);
    const int64_t sizes[] = {s->batch, s->heads_q, s->heads_kv, s->seq_q, s->seq_k, s->head_dim, s->head_dim_v};
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++)
        if (sizes[n] < 1) return cli_fail(CLI_BAD_INPUT, "--shape: in %s a size is 0; there would be no work", text);
    if (s->heads_q % s->heads_kv)
        return cli_fail(CLI_BAD_INPUT, "--shape: in %s the query heads are no multiple of the key/value heads", text);
    if (c->v_in_k && s->head_dim_v > s->head_dim)
        return cli_fail(CLI_BAD_INPUT, "--v-in-k: in --shape %s V has more columns than K", text);
    if (c->backward && !(FLOATS >> c->kv_dtype & 1u))
        return cli_fail(CLI_BAD_INPUT, "--backward takes keys and values of f32, f16 or bf16, not %s",
                        attn_dtype_name(c->kv_dtype));
    if (is_block(c->kv_dtype) && (s->head_dim % 32 || s->head_dim_v % 32))
        return cli_fail(CLI_BAD_INPUT, "--kv-dtype %s needs head sizes that are multiples of 32, not those of %s",
                        attn_dtype_name(c->kv_dtype), text);
    return CLI_OK;
}

static int list_shapes(const struct bench_options *o, struct bench_case *cases, int *count)
{
    attn_dtype dtype = o->dtype == BENCH_NOT_GIVEN ? ATTN_F32 : cli_float_types[o->dtype];
    attn_dtype kv_dtype = o->kv_dtype == BENCH_NOT_GIVEN ? dtype : cli_kv_types[o->kv_dtype];
    for (int n = 0; n == 0 || n < o->shapes.count; n++) {
        struct bench_case *c = &cases[(*count)++];
        *c = (struct bench_case){
            .dtype = dtype, .kv_dtype = kv_dtype, .causal = o->causal, .v_in_k = o->v_in_k, .backward = o->backward};
        int status = cli_parse_shape("--shape", o->shapes.count ? o->shapes.items[n] : DEFAULT_SHAPE, &c->shape);
        if (!status) status = check_case(c);
        if (status) return status;
    }
    return CLI_OK;
}

/* Whether the options leave this case in. */
static int is_wanted(const struct bench_options *o, const struct bench_case *c)
{
    return (o->dtype == BENCH_NOT_GIVEN || cli_float_types[o->dtype] == c->dtype) &&
           (o->kv_dtype == BENCH_NOT_GIVEN || cli_kv_types[o->kv_dtype] == c->kv_dtype) && c->causal >= o->causal &&
           c->v_in_k >= o->v_in_k && (!c->backward || (FLOATS >> c->kv_dtype & 1u && !c->v_in_k));
}

static int list_direction(const struct bench_options *o, int backward, struct bench_case *cases, int *count)
{
    for (const struct suite_row *row = suite_rows; row < suite_rows + SUITE_ROWS; row++) {
        if (row->suite != o->suite) continue;
        for (int causal = 0; causal <= 1; causal++)
            for (size_t t = 0; t < sizeof cli_kv_types / sizeof *cli_kv_types; t++) {
                attn_dtype type = cli_kv_types[t];
                struct bench_case c = {.shape = row->shape,
                                       .dtype = FLOATS >> type & 1u ? type : ATTN_F32,
                                       .kv_dtype = type,
                                       .causal = causal,
                                       .v_in_k = row->v_in_k,
                                       .backward = backward,
                                       .lse = suites[row->suite].lse};
                if (!(row->masks >> causal & 1u) || !(row->kv_types >> type & 1u) || !is_wanted(o, &c)) continue;
                if (*count == BENCH_CASES_MAX)
                    return cli_fail(CLI_DEVICE_ERROR, "internal: more than %d cases", BENCH_CASES_MAX);
                cases[(*count)++] = c;
            }
    }
    return CLI_OK;
}

/* Backward behind all of forward, so that rows of one kernel stand together. */
static int list_suite(const struct bench_options *o, struct bench_case *cases, int *count)
{
    int status = o->backward ? CLI_OK : list_direction(o, 0, cases, count);
    if (!status && bench_has_backward(o)) status = list_direction(o, 1, cases, count);
    if (status || *count) return status;
    return cli_fail(CLI_BAD_INPUT,
                    "--suite %s has no such case; --dtype, --kv-dtype, --causal and --v-in-k restrict it",
                    bench_suite_words[o->suite]);
}

int bench_list_cases(const struct bench_options *options, struct bench_case cases[BENCH_CASES_MAX], int *count)
{
    *count = 0;
    return options->suite == BENCH_NOT_GIVEN ? list_shapes(options, cases, count) : list_suite(options, cases, count);
}
