/* SPDX-License-Identifier: Apache-2.0
 * Inputs that gave a wrong result, a crash or a refusal in other libraries. A: by kind, B: reported by users of one GPU
 * generation, C: seen while reading code. suite_cases.inc lists the forward calls; suite_cases_more.c and
 * suite_cases_far.c have the rest.
 *
 * Elsewhere: A07 merge/all-empty, merge/plus-infinity; A20 and B-T07, B-T09 are the sweep of head sizes here; A25 (lengths
 * of K and V that differ), the rest of A31, A32 (last page): arguments/, append/no-room-...; A32 (appending to a cache with
 * gaps): append/...-hostile; B-T06: memory/; B-T15: A34; B-T19: A28; B-T20: the plan's kernel in every case; B-T25, B-T26:
 * A01, A02; B-T32, B-T36, B-T37: bf16 and every shape on every target; C04: dropout/all-different.
 * Not applicable: A22, B-T11, B-T30, B-T38, C09 (compilers, speed, options of one GPU kernel), B-T04 (no shape known),
 * C08 (there is no such output). */
#include "suite_cases.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- expectations ---------------------------------------------------------------------------------------------- */

static int64_t row_of(const struct suite_built *t, int64_t b, int64_t h, int64_t i)
{
    return t->sequence[b].row + h * t->sequence[b].sq + i;
}

/* Row i of V of the head that query head h uses. */
static const double *value_row(const struct suite_built *t, int64_t b, int64_t h, int64_t j)
{
    return t->sequence[b].v + (h / (t->c.hq / t->c.hkv) * t->sequence[b].sk + j) * t->c.dv;
}

static void expect_lse(struct suite_check *check, const struct suite_result *x, int64_t row, double lse,
                       double tolerance)
{
    double got = x->lse[row];
    suite_expect(check, isinf(lse) ? got == lse : fabs(got - lse) <= tolerance, "row %lld: lse %.9g, expected %.9g",
                 (long long)row, got, lse);
}

static void expect_constant_row(struct suite_check *check, const struct suite_result *x, int64_t row, float value)
{
    for (int64_t d = 0; d < x->dv; d++)
        suite_expect(check, x->out[row * x->dv + d] == value, "row %lld, column %lld: %.9g, expected %.9g",
                     (long long)row, (long long)d, (double)x->out[row * x->dv + d], (double)value);
}

static void expect_value_row(struct suite_check *check, const struct suite_built *t, const struct suite_result *x,
                             int64_t row, const double *value)
{
    for (int64_t d = 0; d < x->dv; d++)
        suite_expect(check, x->out[row * x->dv + d] == value[d], "row %lld, column %lld: %.9g, its only key has %.9g",
                     (long long)row, (long long)d, (double)x->out[row * x->dv + d], value[d]);
    (void)t;
}

/* Every score is 0, so LSE is the logarithm of the number of keys that the row saw. */
typedef int64_t keys_seen(const struct suite_built *t, int64_t b, int64_t i);

static void expect_counts(struct suite_check *check, const struct suite_built *t, const struct suite_result *x,
                          keys_seen *count)
{
    for (int64_t b = 0; b < t->c.b; b++)
        for (int64_t h = 0; h < t->c.hq; h++)
            for (int64_t i = 0; i < t->sequence[b].sq; i++) {
                int64_t n = count(t, b, i), row = row_of(t, b, h, i);
                double sink = suite_sink(t, h), l = (double)n + (isinf(sink) ? 0 : exp(sink));
                expect_lse(check, x, row, l > 0 ? log(l) : -INFINITY, 1e-5);
                if (n == 0) expect_constant_row(check, x, row, 0);
            }
}

static int64_t seen_bottom_right(const struct suite_built *t, int64_t b, int64_t i)
{
    int64_t n = i + 1 + t->sequence[b].sk - t->sequence[b].sq;
    return n < 0 ? 0 : n;
}

static int64_t seen_top_left(const struct suite_built *t, int64_t b, int64_t i)
{
    return i + 1 < t->sequence[b].sk ? i + 1 : t->sequence[b].sk;
}

static int64_t seen_window4(const struct suite_built *t, int64_t b, int64_t i)
{
    (void)t, (void)b;
    return i + 1 < 4 ? i + 1 : 4;
}

/* Keys i - 2 and up. */
static int64_t seen_top_left_window2(const struct suite_built *t, int64_t b, int64_t i)
{
    int64_t sk = t->sequence[b].sk;
    return i < 2 ? sk : i - 2 < sk ? sk - (i - 2) : 0;
}

static int64_t seen_used(const struct suite_built *t, int64_t b, int64_t i)
{
    (void)i;
    return t->c.k_used[b];
}

static int64_t seen_packed(const struct suite_built *t, int64_t b, int64_t i)
{
    return t->c.k_used[b] - t->c.q_used[b] + i + 1;
}

#define COUNTS(rule)                                                                                        \
  static void counts_##rule(struct suite_check *check, struct suite_built *t, const struct suite_result *x) \
  {                                                                                                         \
    expect_counts(check, t, x, seen_##rule);                                                                \
  }
COUNTS(bottom_right)
COUNTS(top_left)
COUNTS(window4)
COUNTS(top_left_window2)
COUNTS(used)
COUNTS(packed)

static void counts_and_sink(struct suite_check *check, struct suite_built *t, const struct suite_result *x)
{
    suite_expect(check, t->sink >= 0, "the case has no sink");
    expect_counts(check, t, x, seen_bottom_right);
}

/* One key, causal: it is seen by the last row. */
static void last_row_sees_one_key(struct suite_check *check, struct suite_built *t, const struct suite_result *x)
{
    for (int64_t b = 0; b < t->c.b; b++)
        for (int64_t h = 0; h < t->c.hq; h++)
            for (int64_t i = 0; i < t->sequence[b].sq; i++) {
                int64_t row = row_of(t, b, h, i);
                if (i < t->sequence[b].sq - 1) expect_lse(check, x, row, -INFINITY, 0);
                if (i < t->sequence[b].sq - 1) expect_constant_row(check, x, row, 0);
                else expect_value_row(check, t, x, row, value_row(t, b, h, 0));
                if (t->c.fill_k.kind == FILL_CONSTANT && i == t->sequence[b].sq - 1) expect_lse(check, x, row, 0, 0);
            }
}

static void own_key(struct suite_check *check, struct suite_built *t, const struct suite_result *x)
{
    for (int64_t h = 0; h < t->c.hq; h++)
        for (int64_t i = 0; i < t->c.sq; i++) expect_value_row(check, t, x, row_of(t, 0, h, i), value_row(t, 0, h, i));
}

static void own_key_of_one(struct suite_check *check, struct suite_built *t, const struct suite_result *x)
{
    for (int64_t i = 0; i < t->c.sq; i++) expect_value_row(check, t, x, i, value_row(t, 0, 0, 0));
}

static void constant_value(struct suite_check *check, struct suite_built *t, const struct suite_result *x)
{
    for (int64_t row = 0; row < x->rows; row++) {
        expect_constant_row(check, x, row, t->c.fill_v.amount);
        suite_expect(check, isfinite(x->lse[row]), "row %lld: lse %g", (long long)row, (double)x->lse[row]);
    }
}

/* 128 * 64 * -64 / sqrt(128) */
static void score_far_below(struct suite_check *check, struct suite_built *t, const struct suite_result *x)
{
    constant_value(check, t, x);
    expect_lse(check, x, 0, -46340.95, 0.01);
}

static void all_ones(struct suite_check *check, struct suite_built *t, const struct suite_result *x)
{
    (void)t;
    for (int64_t row = 0; row < x->rows; row++) expect_constant_row(check, x, row, 1);
}

static void hidden_rows(struct suite_check *check, struct suite_built *t, const struct suite_result *x)
{
    int hidden = 0;
    for (int64_t h = 0; h < t->c.hq; h++)
        for (int64_t i = 0; i < t->c.sq; i++) {
            int64_t seen = 0, row = row_of(t, 0, h, i);
            for (int64_t j = 0; j < t->c.sk; j++) {
                int masked;
                seen += suite_bias_at(t, 0, h, i, j, &masked) != -INFINITY && !masked;
            }
            if (seen) continue;
            hidden++;
            expect_constant_row(check, x, row, 0);
            expect_lse(check, x, row, suite_sink(t, h), 1e-6);
        }
    suite_expect(check, hidden > 0, "no row is hidden");
}

static void below_50(struct suite_check *check, struct suite_built *t, const struct suite_result *x)
{
    (void)t;
    for (int64_t n = 0; n < x->rows * x->dv; n++)
        suite_expect(check, fabsf(x->out[n]) < 50, "%g: values of unused slots", (double)x->out[n]);
}

/* No score is further from 0 than the cap: LSE lies within it of the number of keys. */
static void capped(struct suite_check *check, struct suite_built *t, const struct suite_result *x)
{
    double n = log((double)t->c.sk);
    for (int64_t row = 0; row < x->rows; row++)
        suite_expect(check, fabs((double)x->lse[row] - n) <= (double)t->c.softcap,
                     "row %lld: lse %g beyond the softcap", (long long)row, (double)x->lse[row]);
}

static void lowest_rows_average(struct suite_check *check, struct suite_built *t, const struct suite_result *x)
{
    for (int64_t i = 0; i < 9; i++)
        for (int64_t d = 0; d < t->c.dv; d++) {
            double sum = 0, got = x->out[i * t->c.dv + d];
            for (int64_t j = 0; j < t->c.sk; j++) sum += value_row(t, 0, 0, j)[d];
            sum /= (double)t->c.sk;
            suite_expect(check, fabs(got - sum) <= 1e-5, "row %lld: %.9g, the mean of V is %.9g", (long long)i, got,
                         sum);
        }
}

static void alibi_alone(struct suite_check *check, struct suite_built *t, const struct suite_result *x)
{
    for (int64_t h = 0; h < t->c.hq; h++)
        for (int64_t i = 0; i < t->c.sq; i++) {
            double l = 0, slope = 0.5 / (double)(1 + h);
            for (int64_t j = 0; j < t->c.sk; j++) l += exp(-slope * fabs((double)(i + t->c.sk - t->c.sq - j)));
            expect_lse(check, x, row_of(t, 0, h, i), log(l), 1e-5);
        }
}

/* ---- the list ----------------------------------------------------------------------------------------------------- */

#define F32 .q_type = ATTN_F32
#define F16 .q_type = ATTN_F16
#define BF16 .q_type = ATTN_BF16
#define INTS(...) ((const int32_t[]){__VA_ARGS__})
#define PACKED .q_lengths = LENGTHS_PACKED, .k_lengths = LENGTHS_PACKED
#define NO_SCORES .fill_k = {FILL_CONSTANT, 0}
#define A01                                                                                             \
  F16, PACKED, .b = 3, .sq = 146, .sk = 1, .mask = ATTN_CAUSAL, .fill_q.amount = 3, .fill_k.amount = 3, \
               .fill_v.amount = 3, .q_used = INTS(76, 34, 146), .k_used = INTS(1, 1, 1)
#define FAR_BELOW                                                                            \
  .sq = 1, .sk = 1, .d = 128, .fill_q = {FILL_CONSTANT, 64}, .fill_k = {FILL_CONSTANT, -64}, \
  .fill_v = {FILL_CONSTANT, 1}
#define MLA_PREFILL .hq = 16, .hkv = 16, .sq = 99, .sk = 99, .d = 192, .dv = 128, .mask = ATTN_CAUSAL
#define MLA_LATENT .hq = 8, .hkv = 1, .sq = 9, .sk = 75, .d = 576, .dv = 512, .layout = LAYOUT_MLA
#define INTERLEAVED .b = 2, .hq = 4, .hkv = 2, .sq = 3, .sk = 512, .page = 256, .k_used = INTS(300, 400)
#define TINY .hq = 48, .hkv = 8, .d = 128, .mask = ATTN_CAUSAL
#define CAPPED .hq = 2, .sq = 40, .sk = 60, .softcap = 50, .fill_q.amount = 9, .fill_k.amount = 9
#define LOWEST .sq = 20, .sk = 50, .d = 16

#define EDIT(name, quick, edit, at, n, more, ...) {"cases/" name, quick, edit, at, n, more, {__VA_ARGS__}},
#define CASE(name, quick, more, ...) EDIT(name, quick, NULL, 0, 0, more, __VA_ARGS__)
static const struct known_case list[] = {
#include "suite_cases.inc"
};

static void run_known(struct suite *s, const struct known_case *k)
{
    if (k->edit) suite_each(s, k->quick, k->name, cases_run_edited, k);
    else suite_forward_case(s, k->quick, k->name, &k->c, k->more);
}

/* ---- sweeps --------------------------------------------------------------------------------------------------------- */

static void no_keys_at_all(struct suite_check *check, struct suite_built *t, const struct suite_result *x)
{
    for (int64_t row = 0; row < t->rows; row++) {
        expect_constant_row(check, x, row, 0);
        expect_lse(check, x, row, -INFINITY, 0);
    }
}

/* A05: K and V of length zero: an illegal instruction. */
static void sweep_no_keys(struct suite *s)
{
    static const int64_t lengths[] = {1, 64, 128, 256}, d[] = {128, 192};
    char name[96];
    for (int n = 0; n < 16; n++) {
        struct suite_case c = {F16, .b = 4, .hq = 16, .hkv = 16, .sq = lengths[n / 4], .d = d[n / 2 % 2], .dv = 128};
        c.mask = n % 2 ? ATTN_CAUSAL : 0;
        snprintf(name, sizeof name, "cases/A05-no-keys-s%d-d%d%s", (int)c.sq, (int)c.d, n % 2 ? "-causal" : "");
        suite_forward_case(s, c.sq == 1, name, &c, no_keys_at_all);
    }
}

/* A11, A34: rows without keys, and first keys that nobody sees, so that the running maximum stays -inf for whole tiles. */
static void sweep_hidden(struct suite *s)
{
    static const int64_t sizes[] = {1, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129};
    char name[96];
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++)
        for (int keys = 0; keys < 2; keys++)
            for (int place = 0; place < 3; place++) {
                struct known_case k = {.name = name,
                                       .quick = n % 3 == 0,
                                       .n = sizes[n],
                                       .at = place ? 5 : 0,
                                       .edit = cases_hide_rows,
                                       .c.sink = 1};
                static const char *const places[] = {"first", "middle", "last"};
                k.c.q_type = ATTN_F16, k.c.d = 32, k.c.bias = BIAS_F32;
                k.c.sq = keys ? 3 : k.n + (place == 1 ? 10 : 5);
                k.c.sk = keys ? k.n + (place == 1 ? 10 : 5) : 40;
                if (keys) k.edit = cases_hide_keys, k.c.sink = 0;
                else k.more = hidden_rows;
                snprintf(name, sizeof name, "cases/A%d-%s-%d-%s-hidden", keys ? 34 : 11, places[place], (int)sizes[n],
                         keys ? "keys" : "rows");
                run_known(s, &k);
            }
}

/* A20, B-T07, B-T09: head sizes that crashed, were refused, or came out wrong. */
static void sweep_head_sizes(struct suite *s)
{
    char name[96];
    for (int d = 1; d <= 256; d++) {
        struct suite_case c = {F16, .hq = 2, .sq = 5, .sk = 70, .d = d, .mask = ATTN_CAUSAL, .seed = (uint64_t)d};
        c.q_type = d % 3 == 0 ? ATTN_F32 : d % 3 == 1 ? ATTN_F16 : ATTN_BF16;
        snprintf(name, sizeof name, "cases/A20-head-size-%d", d);
        suite_forward_case(s, d == 1 || d == 72 || (d >= 80 && d <= 176 && d % 16 == 0) || d == 136 || d == 255, name,
                           &c, NULL);
    }
}

/* C11: sizes, groups and features of another library's own tests. */
static void sweep_other_tests(struct suite *s)
{
    static const int64_t d[] = {40, 64, 72, 80, 96, 128, 192, 256, 320, 512, 576}, sk[] = {113, 512, 1024};
    static const int64_t sq[] = {1, 3, 32, 75}, groups[] = {1, 4, 8, 12, 16, 20, 32};
    char name[96];
    for (int n = 0; n < 44; n++) {
        struct suite_case c = {
            F16, .d = d[n % 11], .sq = sq[n % 4], .sk = sk[n % 3], .hq = groups[n % 7], .seed = (uint64_t)n};
        if (c.sq > 3) c.hq = c.hq > 4 ? 4 : c.hq;
        c.dv = c.d == 576 ? 512 : c.d == 320 ? 256 : c.d;
        c.bias = n % 2 ? BIAS_HOLES : BIAS_NONE;
        c.sink = n / 2 % 2;
        c.alibi = n / 4 % 2 ? ALIBI_HEADS : ALIBI_NONE;
        c.softcap = n / 8 % 2 ? 10 : 0;
        c.layout = n / 3 % 2 ? LAYOUT_BSHD : LAYOUT_BHSD;
        snprintf(name, sizeof name, "cases/C11-matrix-%02d-s%dx%d-d%d-g%d", n, (int)c.sq, (int)c.sk, (int)c.d,
                 (int)c.hq);
        suite_forward_case(s, n % 22 == 0, name, &c, NULL);
    }
}

void suite_run_cases(struct suite *s)
{
    for (size_t n = 0; n < sizeof list / sizeof *list; n++) run_known(s, &list[n]);
    sweep_no_keys(s);
    sweep_hidden(s);
    sweep_head_sizes(s);
    sweep_other_tests(s);
    suite_cases_more(s);
    suite_cases_far(s);
    suite_cases_gradients(s);
}
