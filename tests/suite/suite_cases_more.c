/* SPDX-License-Identifier: Apache-2.0
 * Cases that are no single judged forward call: sizes of zero, NaN, very many small problems, caches at their limits. */
#include "suite_cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static attn_exec waiting(void) { return (attn_exec){.struct_size = sizeof(attn_exec), .flags = ATTN_EXEC_WAIT}; }

/* ---- nothing to do ------------------------------------------------------------------------------------------------- */

/* A05, A06: heads, rows, columns or batches of 0: SIGFPE. Buffers of 0 bytes fault when they are touched. */
static const struct sizes {
    const char *name;
    int64_t b, hq, hk, hv, sq, sk, d, dv;
    attn_status status;
    const char *text;
} sizes[] = {
    {"A05-batch-0", 0, 16, 16, 16, 64, 4096, 8, 8, ATTN_OK, ""},
    {"A05-queries-0", 4, 16, 16, 16, 0, 4096, 8, 8, ATTN_OK, ""},
    {"A06-heads-0", 7, 0, 0, 0, 9, 7, 7, 7, ATTN_OK, ""},
    {"A06-lengths-0", 7, 9, 7, 7, 0, 0, 7, 7, ATTN_OK, ""},
    {"A06-key-heads-0", 2, 4, 0, 4, 8, 8, 16, 16, ATTN_INVALID_ARGUMENT, "shape[1]"},
    {"A06-key-and-value-heads-0", 2, 4, 0, 0, 8, 8, 16, 16, ATTN_INVALID_ARGUMENT, "k.shape[1]"},
    {"A06-all-0", 0, 2, 2, 2, 0, 0, 0, 0, ATTN_OK, ""},
    {"A06-head-size-0", 2, 4, 4, 4, 8, 8, 0, 16, ATTN_INVALID_ARGUMENT, "q.shape[3]"},
    {"A06-value-size-0", 2, 4, 4, 4, 8, 8, 16, 0, ATTN_OK, ""},
};

static void zero_sizes(struct suite_check *check, const void *arg)
{
    const struct sizes *z = arg;
    const int64_t shape[5][4] = {{z->b, z->hq, z->sq, z->d},
                                 {z->b, z->hk, z->sk, z->d},
                                 {z->b, z->hv, z->sk, z->dv},
                                 {z->b, z->hq, z->sq, z->dv},
                                 {z->b, z->hq, z->sq, 1}};
    struct suite_built t = {0};
    struct suite_view view[5];
    attn_problem p = ATTN_PROBLEM_INIT;
    attn_tensor *const tensor[5] = {&p.q, &p.k, &p.v, &p.out, &p.lse};
    attn_exec exec = waiting();
    int failed = 0;
    for (int n = 0; n < 5; n++)
        failed |= suite_add_view(&t, &view[n], n == 4 ? ATTN_F32 : ATTN_F16, shape[n], LAYOUT_BHSD, n >= 3);
    for (int causal = 0; causal < 2 && suite_expect(check, !failed, "no memory"); causal++) {
        p.mask = causal ? ATTN_CAUSAL : 0;
        for (int n = 0; n < 4 + (z->dv > 0); n++) *tensor[n] = suite_view_tensor(&t, &view[n], check->target);
        t.input_hash = suite_inputs_hash(&t);
        suite_expect_status(check, attn_query(check->target->ctx, ATTN_OP_FORWARD, &p, NULL, NULL, NULL), z->status,
                            "attn_query");
        suite_expect_status(check, attn_forward(check->target->ctx, &p, &exec), z->status, "attn_forward");
        if (z->status)
            suite_expect(check, strstr(attn_last_error(), z->text) != NULL, "the text is \"%s\"", attn_last_error());
        suite_fetch_outputs(check, &t);
        suite_expect_clean(check, &t);
    }
    suite_unbuild(&t);
}

/* ---- NaN --------------------------------------------------------------------------------------------------------------- */

/* A15: a masked key of NaN may or may not spread; nothing else may happen, and not to the other sequence. */
static void nan_at_masked_key(struct suite_check *check, const void *arg)
{
    const float nan[4] = {NAN, NAN, NAN, NAN};
    struct suite_case c = {.b = 2, .sq = 2, .sk = 2, .d = 4, .bias = BIAS_BOOL};
    struct suite_built t;
    struct suite_result x = {0};
    (void)arg;
    suite_settle(&c);
    if (!suite_expect(check, !suite_build(&t, &c), "no memory")) return;
    for (int b = 0; b < 2; b++)
        for (int i = 0; i < 2; i++) memcpy(suite_row(&t, &t.bias, b, 0, i), "\1\0", 2);
    suite_write_row(&t, &t.k, 0, 0, 1, nan);
    t.input_hash = suite_inputs_hash(&t);
    if (suite_forward(check, &t, NULL, &x))
        for (int n = 0; n < 16; n++) {
            double value = t.sequence[n / 8].v[n % 4];
            suite_expect(check, x.out[n] == value || (n < 8 && isnan(x.out[n])), "element %d: %g, the seen key has %g",
                         n, (double)x.out[n], value);
        }
    suite_result_free(&x);
    suite_unbuild(&t);
}

/* B-T01: the last keys beyond a multiple of four were dropped, and what an earlier call had left was used in their
 * place. So: a call that leaves NaN everywhere, then one that is judged. */
static void after_nan(struct suite_check *check, const void *arg)
{
    struct suite_case c = *(const struct suite_case *)arg;
    struct suite_built t;
    struct suite_truth truth = {0};
    struct suite_result naive = {0}, x = {0};
    for (int turn = 0; turn < 2 && !check->failed; turn++) {
        c.fill_q = c.fill_v = turn ? (struct suite_fill){FILL_NORMAL, 1} : (struct suite_fill){FILL_CONSTANT, NAN};
        if (!suite_expect(check, !suite_build(&t, &c), "no memory")) return;
        if (suite_forward(check, &t, NULL, &x) && turn == 0)
            for (int64_t n = 0; n < x.rows * x.dv; n++) suite_expect(check, isnan(x.out[n]), "NaN disappeared");
        if (turn &&
            suite_expect(check, !suite_truth_compute(&truth, &t) && !suite_naive_compute(&naive, &t), "no memory") &&
            x.out)
            suite_judge(check, &t, &truth, &naive, &x);
        suite_truth_free(&truth);
        suite_result_free(&naive);
        suite_result_free(&x);
        suite_unbuild(&t);
    }
}

static void sweep_after_nan(struct suite *s)
{
    char name[96];
    for (int n = 1; n <= 84; n++) {
        int64_t sk = n <= 64 ? n : n == 65 ? 2925 : n == 66 ? 4130 : 4111 + n - 66;
        struct suite_case c = {.q_type = ATTN_F16, .sq = n <= 64 ? sk : 5, .sk = sk, .d = 128, .seed = (uint64_t)n};
        if (sk > 4128 && n != 66) continue;
        suite_settle(&c);
        snprintf(name, sizeof name, "cases/B-T01-full-%d-after-nan", (int)sk);
        suite_each(s, n < 5 || (n <= 64 && n % 16 < 2) || n == 65, name, after_nan, &c);
    }
}

/* ---- very many small problems --------------------------------------------------------------------------------------------- */

static const struct many {
    const char *name;
    int64_t b, h, sequences; /* sequences: packed ones */
} manies[] = {{"A30-batch-65537", 65537, 1, 0}, {"A30-heads-65537", 1, 65537, 0}, {"A30-packed-80000", 1, 1, 80000}};

static float many_value(int64_t n, int64_t j, int64_t d) { return (float)((n * 7 + j * 3 + d) % 61); }

static void expect_many(struct suite_check *check, struct suite_built *t, const struct suite_view *out,
                        const struct suite_view *lse, int packed)
{
    double x[8], l;
    for (int64_t n = 0; n < out->t.shape[0] * out->t.shape[1] * out->t.shape[2] && !check->failed; n++) {
        int64_t s = n % out->t.shape[2], h = n / out->t.shape[2] % out->t.shape[1],
                b = n / out->t.shape[2] / out->t.shape[1];
        int64_t who = packed ? s / 2 : b + h;
        suite_read_row(t, out, b, h, s, x);
        suite_read_row(t, lse, b, h, s, &l);
        for (int64_t d = 0; d < 8; d++) {
            double mean = ((double)many_value(who, 0, d) + (double)many_value(who, 1, d)) / 2;
            suite_expect(check, x[d] == mean, "problem %lld, column %lld: %g, expected %g", (long long)who,
                         (long long)d, x[d], mean);
        }
        suite_expect(check, fabs(l - log(2)) < 1e-6, "problem %lld: lse %g, expected ln 2", (long long)who, l);
        suite_poison_row(t, out, b, h, s);
        suite_poison_row(t, lse, b, h, s);
    }
}

/* A30: grids beyond 65535: garbage without an error. Two keys of score 0 each: O is their mean, LSE ln 2. */
static void very_many(struct suite_check *check, const void *arg)
{
    const struct many *m = arg;
    int64_t rows = m->sequences ? 2 * m->sequences : 2;
    const int64_t shape[4] = {m->b, m->h, rows, 8}, lse_shape[4] = {m->b, m->h, rows, 1};
    struct suite_built t = {0};
    struct suite_view view[5];
    attn_problem p = ATTN_PROBLEM_INIT;
    attn_tensor *const tensor[5] = {&p.q, &p.k, &p.v, &p.out, &p.lse};
    attn_exec exec = waiting();
    float x[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    int offsets = suite_add_buffer(&t, sizeof(int32_t) * (size_t)(m->sequences + 1), sizeof(int32_t), 0),
        failed = offsets < 0;
    for (int n = 0; n < 5; n++)
        failed |=
            suite_add_view(&t, &view[n], n == 4 ? ATTN_F32 : ATTN_F16, n == 4 ? lse_shape : shape, LAYOUT_BHSD, n >= 3);
    if (suite_expect(check, !failed, "no memory")) {
        for (int64_t n = 0; n <= m->sequences; n++) ((int32_t *)(void *)t.buffer[offsets].data)[n] = (int32_t)(2 * n);
        for (int64_t n = 0; n < m->b * m->h * rows; n++) {
            int64_t b = n / rows / m->h, h = n / rows % m->h, s = n % rows;
            for (int d = 0; d < 8; d++) x[d] = many_value(m->sequences ? s / 2 : b + h, s % 2, d);
            suite_write_row(&t, &view[2], b, h, s, x);
        }
        memset(t.buffer[view[0].buffer].data, 0x3c, t.buffer[view[0].buffer].bytes); /* about 1.06 */
        memset(t.buffer[view[1].buffer].data, 0, t.buffer[view[1].buffer].bytes);
        t.input_hash = suite_inputs_hash(&t);
        for (int n = 0; n < 5; n++) *tensor[n] = suite_view_tensor(&t, &view[n], check->target);
        if (m->sequences) {
            p.q_len = (attn_lengths){
                .offsets = suite_buffer_place(&t.buffer[offsets], check->target), .count = m->sequences, .max = 2};
            p.kv_len = p.q_len;
        }
        if (suite_expect_status(check, attn_forward(check->target->ctx, &p, &exec), ATTN_OK, "attn_forward")) {
            suite_fetch_outputs(check, &t);
            expect_many(check, &t, &view[3], &view[4], m->sequences > 0);
            suite_expect_clean(check, &t);
        }
    }
    suite_unbuild(&t);
}

/* ---- caches at their limit -------------------------------------------------------------------------------------------------- */

/* A31: one page of 256, and lengths of 256 and 257. */
static void page_overrun(struct suite_check *check, const void *arg)
{
    static const int32_t full[] = {256};
    struct suite_case c = {.q_type = ATTN_F16, .hq = 2, .sq = 1, .sk = 256, .d = 64, .page = 256, .k_used = full};
    struct suite_built t;
    struct suite_result x = {0};
    (void)arg;
    suite_settle(&c);
    attn_context *ctx = suite_checking_context(check->target);
    if (!suite_expect(check, ctx && !suite_build(&t, &c), "no memory")) return;
    suite_forward(check, &t, NULL, &x);
    ((int32_t *)(void *)t.buffer[t.k_used].data)[0] = 257;
    t.input_hash = suite_inputs_hash(&t);
    attn_problem p = suite_problem(&t, check->target);
    suite_expect_status(check, attn_forward(ctx, &p, NULL), ATTN_INVALID_ARGUMENT, "257 tokens in a page of 256");
    suite_expect(check, strstr(attn_last_error(), "kv_len.used") != NULL, "the text is \"%s\"", attn_last_error());
    suite_fetch_outputs(check, &t);
    suite_expect_clean(check, &t);
    suite_result_free(&x);
    suite_unbuild(&t);
    attn_destroy(ctx);
}

static void append_overrun(struct suite_check *check, const void *arg)
{
    const int64_t one[4] = {1, 1, 1, 8}, page[4] = {1, 1, 256, 8};
    static const float x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    int32_t used = 256, table = 0;
    double got[8];
    struct suite_built t = {0};
    struct suite_view fresh, cache;
    (void)arg;
    if (suite_expect(check,
                     !suite_add_view(&t, &fresh, ATTN_F32, one, LAYOUT_BHSD, 0) &&
                         !suite_add_view(&t, &cache, ATTN_F16, page, LAYOUT_BHSD, 1),
                     "no memory")) {
        attn_append a = ATTN_APPEND_INIT;
        suite_write_row(&t, &fresh, 0, 0, 0, x);
        t.input_hash = suite_inputs_hash(&t);
        a.k_new = suite_view_tensor(&t, &fresh, check->target);
        a.k_cache = suite_view_tensor(&t, &cache, check->target);
        a.page_table = &table, a.page_table_pages = 1, a.cache_len.used = &used;
        suite_expect_status(check, attn_kv_append(check->target->ctx, &a, NULL), ATTN_INVALID_ARGUMENT,
                            "a token behind 256 in a page of 256");
        suite_fetch_outputs(check, &t);
        suite_expect_clean(check, &t);
        used = 255; /* in host memory everywhere, as the table */
        suite_expect_status(check, attn_kv_append(check->target->ctx, &a, NULL), ATTN_OK,
                            "a token behind 255 in a page of 256");
        suite_fetch_outputs(check, &t);
        suite_read_row(&t, &cache, 0, 0, 255, got);
        for (int d = 0; d < 8; d++)
            suite_expect(check, got[d] == (double)x[d], "column %d of the last row: %g", d, got[d]);
        suite_poison_row(&t, &cache, 0, 0, 255);
        suite_expect_clean(check, &t);
    }
    suite_unbuild(&t);
}

void suite_cases_more(struct suite *s)
{
    char name[96];
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        snprintf(name, sizeof name, "cases/%s", sizes[n].name);
        suite_each(s, 1, name, zero_sizes, &sizes[n]);
    }
    suite_each(s, 1, "cases/A15-nan-at-masked-key", nan_at_masked_key, NULL);
    for (size_t n = 0; n < sizeof manies / sizeof *manies; n++) {
        snprintf(name, sizeof name, "cases/%s", manies[n].name);
        suite_each(s, 0, name, very_many, &manies[n]);
    }
    suite_each(s, 1, "cases/A31-257-tokens-in-256", page_overrun, NULL);
    suite_each(s, 1, "cases/A31-append-to-a-full-page", append_overrun, NULL);
    sweep_after_nan(s);
}
