/* SPDX-License-Identifier: Apache-2.0
 * The accuracy rule of docs/semantics.md section 9. */
#include "suite_case.h"
#include "suite_format.h"

#include "row_rule.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* "sequence 0, head 1, query 5" */
static const char *place_of(const struct suite_built *t, int64_t row, char *text, size_t size)
{
    int64_t b = 0;
    while (b + 1 < t->c.b && row >= t->sequence[b + 1].row) b++;
    int64_t sq = t->sequence[b].sq ? t->sequence[b].sq : 1, in = row - t->sequence[b].row;
    snprintf(text, size, "sequence %lld, head %lld, query %lld", (long long)b, (long long)(in / sq),
             (long long)(in % sq));
    return text;
}

/* NaN and infinities stand where they should. A value that only rounding could carry across the largest number may
 * do so or not. */
static int same_places(double x, double ref, int32_t dtype)
{
    double expected = suite_round(dtype, ref), largest = dtype == ATTN_F16 ? 65504.0 : 3.38e38;
    if (isnan(ref)) return isnan(x);
    if (isnan(x)) return 0;
    if (isinf(x) == isinf(expected) && (!isinf(x) || x == expected)) return 1;
    return isfinite(ref) && fabs(ref) > 0.99 * largest && fabs(ref) < 1.01 * largest;
}

struct extremes {
    double x, naive, ref; /* largest |x - ref|, |naive - ref|, |ref| */
    double score;         /* and row_rule_score_rounding */
};

/* Returns the share of the row rule that row `row` uses up. */
static double row_share(const struct suite_built *t, const struct suite_truth *truth, const struct suite_result *naive,
                        const struct suite_result *x, int64_t row, struct extremes *most)
{
    int64_t dv = t->c.dv;
    int32_t dtype = row_rule_type(t->c.q_type, t->c.out_type);
    double error = 0, naive_error = 0, rounding = 0;
    for (int64_t n = row * dv; n < (row + 1) * dv; n++) {
        double ref = truth->out[n], dx = x->out[n] - ref, dn = naive->out[n] - ref;
        if (!isfinite(ref) || !isfinite(x->out[n])) continue; /* same_places() has looked */
        if (!isfinite(dn)) dn = 0;                            /* where naive overflows it allows nothing */
        error += dx * dx;
        naive_error += dn * dn;
        rounding += pow(row_rule_rounding(dtype, ref), 2);
        most->x = fmax(most->x, fabs(dx));
        most->naive = fmax(most->naive, fabs(dn));
        most->ref = fmax(most->ref, fabs(ref));
    }
    struct row_terms terms = {.values = truth->value_terms[row],
                              .absolute = truth->absolute_terms[row],
                              .score = truth->largest_score[row],
                              .lost = truth->lost_terms[row],
                              .d = (double)t->c.d};
    most->score = fmax(most->score, row_rule_score_rounding(&terms, dv));
    double limit = row_rule_limit(&terms, 2, row_rule_unit(dtype), naive_error, rounding);
    if (error == 0 || !isfinite(limit)) return 0;
    return limit > 0 ? sqrt(error / limit) : INFINITY;
}

static void judge_lse(struct suite_check *check, const struct suite_built *t, const struct suite_truth *truth,
                      const struct suite_result *x)
{
    char place[96];
    for (int64_t row = 0; x->lse && row < t->rows; row++) {
        double ref = truth->lse[row], got = x->lse[row];
        int ok = isnan(ref) ? isnan(got) : isinf(ref) ? got == ref : fabs(got - ref) <= truth->lse_tolerance[row];
        if (!ok)
            suite_expect(check, 0, "%s: lse %.9g, reference %.9g, tolerance %.3g",
                         place_of(t, row, place, sizeof place), got, ref, truth->lse_tolerance[row]);
    }
}

void suite_judge(struct suite_check *check, const struct suite_built *t, const struct suite_truth *truth,
                 const struct suite_result *naive, const struct suite_result *x)
{
    char place[96];
    struct extremes most = {0};
    int64_t dv = t->c.dv;
    for (int64_t n = 0; n < t->rows * dv; n++)
        if (!same_places(x->out[n], truth->out[n], t->c.out_type))
            suite_expect(check, 0, "%s, column %lld: %g, reference %g", place_of(t, n / dv, place, sizeof place),
                         (long long)(n % dv), (double)x->out[n], truth->out[n]);
    for (int64_t row = 0; row < t->rows; row++) {
        double share = row_share(t, truth, naive, x, row, &most);
        check->worst = fmax(check->worst, share);
        if (!(share <= 1))
            suite_expect(check, 0, "%s: %.3g of the row rule", place_of(t, row, place, sizeof place), share);
    }
    int32_t dtype = row_rule_type(t->c.q_type, t->c.out_type);
    double limit = 2 * most.naive + 2 * row_rule_rounding(dtype, most.ref) + most.score;
    if (most.x > 0) check->worst = fmax(check->worst, most.x / limit);
    suite_expect(check, most.x <= limit, "max |x - ref| %.4g, allowed %.4g (naive %.4g, max |ref| %.4g)", most.x, limit,
                 most.naive, most.ref);
    judge_lse(check, t, truth, x);
}

/* Two float64 computations of the same thing: 1e-9 of the row's terms apart, and one rounding of the output. */
void suite_judge_reference(struct suite_check *check, const struct suite_built *t, const struct suite_truth *truth,
                           const struct suite_result *reference)
{
    char place[96];
    int64_t dv = t->c.dv;
    for (int64_t row = 0; row < t->rows; row++) {
        double terms = 1e-9 * (1 + truth->largest_score[row]) * sqrt(truth->absolute_terms[row]);
        for (int64_t n = row * dv; n < (row + 1) * dv; n++) {
            double own = truth->out[n], x = reference->out[n];
            int ok = isnan(own)       ? isnan(x)
                     : !isfinite(own) ? x == own
                                      : fabs(x - own) <= 0x1p-24 * fabs(own) + terms + 1e-45;
            if (!ok)
                suite_expect(check, 0, "%s, column %lld: the reference says %.9g, the suite %.9g",
                             place_of(t, row, place, sizeof place), (long long)(n - row * dv), x, own);
        }
        double own = truth->lse[row], x = reference->lse[row];
        int ok = isnan(own)   ? isnan(x)
                 : isinf(own) ? x == own
                              : fabs(x - own) <= 0x1p-24 * fabs(own) + 1e-9 * (1 + fabs(own));
        if (!ok)
            suite_expect(check, 0, "%s: the reference says lse %.9g, the suite %.9g",
                         place_of(t, row, place, sizeof place), x, own);
    }
}

void suite_same(struct suite_check *check, const struct suite_built *t, const struct suite_result *a,
                const struct suite_result *b, const char *what)
{
    char place[96];
    if (!suite_expect(check, a->rows == b->rows && a->dv == b->dv, "%s: other shapes", what)) return;
    for (int64_t row = 0; row < a->rows; row++) {
        int same = !memcmp(a->out + row * a->dv, b->out + row * a->dv, sizeof *a->out * (size_t)a->dv);
        if (a->lse && b->lse) same = same && !memcmp(&a->lse[row], &b->lse[row], sizeof *a->lse);
        if (!same) suite_expect(check, 0, "%s: not bit-equal at %s", what, place_of(t, row, place, sizeof place));
    }
}
