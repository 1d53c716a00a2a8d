/* SPDX-License-Identifier: Apache-2.0
 * The options of `attn run`, and what is wrong with them before a file is opened. */
#include "run.h"

#include <float.h>
#include <string.h>

/* Largest window, diagonal and length that the library takes. */
#define SIZE_LIMIT 1099511627776.0

static const char *const layout_words[] = {"bhsd", "bshd", NULL};

/* Options whose text needs more than a number. */
struct texts {
    const char *align, *window, *device, *seed, *offset;
};

static int parse_table(int argc, char **argv, struct run_options *o, struct texts *t, int *words)
{
    const struct cli_option table[] = {
        {.name = "-o", .kind = CLI_TEXT, .target = &o->results[RUN_OUT]},
        {.name = "--out", .kind = CLI_TEXT, .target = &o->results[RUN_OUT]},
        {.name = "--lse", .kind = CLI_TEXT, .target = &o->results[RUN_LSE]},
        {.name = "--dq", .kind = CLI_TEXT, .target = &o->results[RUN_DQ]},
        {.name = "--dk", .kind = CLI_TEXT, .target = &o->results[RUN_DK]},
        {.name = "--dv", .kind = CLI_TEXT, .target = &o->results[RUN_DV]},
        {.name = "--dbias", .kind = CLI_TEXT, .target = &o->results[RUN_DBIAS]},
        {.name = "--dsinks", .kind = CLI_TEXT, .target = &o->results[RUN_DSINKS]},
        {.name = "--keep", .kind = CLI_TEXT, .target = &o->results[RUN_KEEP]},
        {.name = "--bias", .kind = CLI_TEXT, .target = &o->bias},
        {.name = "--alibi", .kind = CLI_TEXT, .target = &o->alibi},
        {.name = "--sinks", .kind = CLI_TEXT, .target = &o->sinks},
        {.name = "--q-lengths", .kind = CLI_TEXT, .target = &o->q_lengths},
        {.name = "--kv-lengths", .kind = CLI_TEXT, .target = &o->kv_lengths},
        {.name = "--grad-out", .kind = CLI_TEXT, .target = &o->grad_out},
        {.name = "--grad-lse", .kind = CLI_TEXT, .target = &o->grad_lse},
        {.name = "--expect", .kind = CLI_TEXT, .target = &o->expect},
        {.name = "--force", .kind = CLI_TEXT, .target = &o->force},
        {.name = "--align", .kind = CLI_TEXT, .target = &t->align},
        {.name = "--window", .kind = CLI_TEXT, .target = &t->window},
        {.name = "--device", .kind = CLI_TEXT, .target = &t->device},
        {.name = "--seed", .kind = CLI_TEXT, .target = &t->seed},
        {.name = "--offset", .kind = CLI_TEXT, .target = &t->offset},
        {.name = "--causal", .kind = CLI_FLAG, .target = &o->causal},
        {.name = "--check", .kind = CLI_FLAG, .target = &o->check},
        {.name = "--json", .kind = CLI_FLAG, .target = &o->json},
        {.name = "--layout", .kind = CLI_WORD, .target = &o->layout, .words = layout_words},
        {.name = "--dtype", .kind = CLI_WORD, .target = &o->dtype, .words = cli_float_words},
        {.name = "--kv-dtype", .kind = CLI_WORD, .target = &o->kv_dtype, .words = cli_kv_words},
        {.name = "--scale", .kind = CLI_REAL, .target = &o->scale, .low = -FLT_MAX, .high = FLT_MAX},
        {.name = "--softcap", .kind = CLI_REAL, .target = &o->softcap, .high = FLT_MAX},
        {.name = "--dropout", .kind = CLI_REAL, .target = &o->dropout, .high = 1},
        {.name = "--tolerance", .kind = CLI_REAL, .target = &o->tolerance, .high = FLT_MAX},
        {.name = "--threads", .kind = CLI_INT, .target = &o->threads, .low = 1, .high = 65536},
        {.name = "--splits", .kind = CLI_INT, .target = &o->splits, .low = 1, .high = 65536},
        {.name = "--repeat", .kind = CLI_INT, .target = &o->repeat, .low = 1, .high = 1000000},
    };
    return cli_parse_options(argc, argv, table, sizeof table / sizeof table[0], words);
}

static int resolve_align(struct run_options *o, const char *text)
{
    if (!text || strcmp(text, "bottom-right") == 0) return CLI_OK;
    if (strcmp(text, "top-left") == 0) {
        o->mask |= ATTN_TOP_LEFT;
        return CLI_OK;
    }
    if (strspn(text, "+-0123456789") == 0)
        return cli_fail(CLI_BAD_INPUT, "--align: '%s' is none of bottom-right, top-left, a whole number", text);
    o->mask |= ATTN_DIAGONAL;
    return cli_parse_int("--align", text, -SIZE_LIMIT, SIZE_LIMIT, &o->diagonal);
}

static int resolve_window_side(struct run_options *o, const char *text, uint32_t bit, int64_t *value)
{
    if (strcmp(text, "-") == 0) return CLI_OK;
    o->mask |= bit;
    return cli_parse_int("--window", text, 0, SIZE_LIMIT, value);
}

static int resolve_window(struct run_options *o, const char *text)
{
    char left[32];
    if (!text) return CLI_OK;
    const char *comma = strchr(text, ',');
    if (!comma || strchr(comma + 1, ',') || comma - text >= (int)sizeof left)
        return cli_fail(CLI_BAD_INPUT, "--window: '%s' is not L,R with '-' for an open side", text);
    memcpy(left, text, (size_t)(comma - text));
    left[comma - text] = 0;
    int status = resolve_window_side(o, left, ATTN_WINDOW_LEFT, &o->window_left);
    return status ? status : resolve_window_side(o, comma + 1, ATTN_WINDOW_RIGHT, &o->window_right);
}

static int resolve_dropout(struct run_options *o, const struct texts *t)
{
    const char *needless = t->seed ? "--seed" : t->offset ? "--offset" : o->results[RUN_KEEP] ? "--keep" : NULL;
    if (o->dropout < 0 && needless) return cli_fail(CLI_BAD_INPUT, "%s needs --dropout", needless);
    int status = t->seed ? cli_parse_u64("--seed", t->seed, &o->seed) : CLI_OK;
    return status || !t->offset ? status : cli_parse_u64("--offset", t->offset, &o->offset);
}

static int check_gradients(const struct run_options *o)
{
    static const char *const names[] = {"--dq", "--dk", "--dv", "--dbias", "--dsinks"};
    int wanted = 0;
    for (int i = 0; i < 5; i++) {
        if (!o->results[RUN_DQ + i]) continue;
        wanted = 1;
        if (!o->grad_out) return cli_fail(CLI_BAD_INPUT, "%s needs --grad-out", names[i]);
    }
    if (o->grad_out && !wanted)
        return cli_fail(CLI_BAD_INPUT, "--grad-out needs one of --dq, --dk, --dv, --dbias, --dsinks");
    if (o->grad_lse && !o->grad_out) return cli_fail(CLI_BAD_INPUT, "--grad-lse needs --grad-out");
    if (o->results[RUN_DBIAS] && !o->bias) return cli_fail(CLI_BAD_INPUT, "--dbias needs --bias");
    if (o->results[RUN_DSINKS] && !o->sinks) return cli_fail(CLI_BAD_INPUT, "--dsinks needs --sinks");
    return CLI_OK;
}

static int check_use(const struct run_options *o)
{
    if (o->tolerance >= 0 && !o->expect) return cli_fail(CLI_BAD_INPUT, "--tolerance needs --expect");
    if (o->check || o->expect || o->repeat > 1) return CLI_OK;
    for (int i = 0; i < RUN_RESULTS; i++)
        if (o->results[i]) return CLI_OK;
    return cli_fail(CLI_BAD_INPUT, "nothing to do with the result: give -o, --check, --expect or --repeat");
}

int run_parse_options(int argc, char **argv, struct run_options *options)
{
    struct texts texts = {.device = "auto"};
    int words;
    *options = (struct run_options){
        .dropout = -1, .tolerance = -1, .dtype = RUN_AS_STORED, .kv_dtype = RUN_AS_STORED, .repeat = 1};
    int status = parse_table(argc, argv, options, &texts, &words);
    if (status) return status;
    if (words != 3)
        return cli_fail(CLI_BAD_INPUT, "run takes three files, Q.npy K.npy V.npy; got %d%s%s", words,
                        words > 3 ? ", the fourth is " : "", words > 3 ? argv[3] : "");
    options->q = argv[0];
    options->k = argv[1];
    options->v = argv[2];
    options->mask = options->causal ? ATTN_CAUSAL : 0u;
    status = resolve_align(options, texts.align);
    if (!status) status = resolve_window(options, texts.window);
    if (!status) status = cli_parse_device("--device", texts.device, &options->backend, &options->ordinal);
    if (!status) status = resolve_dropout(options, &texts);
    if (!status) status = check_gradients(options);
    return status ? status : check_use(options);
}
