/* SPDX-License-Identifier: Apache-2.0
 * Gradients: what must come out exactly, and the same call made in other ways. */
#include "suite_gradients.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define ODD .b = 2, .hq = 4, .hkv = 2, .sq = 37, .sk = 53, .d = 24, .seed = 1
#define EVEN .b = 1, .hq = 2, .hkv = 1, .sq = 64, .sk = 128, .d = 64, .seed = 2

/* ---- other calls ------------------------------------------------------------------------------------------------- */

static const struct gradient_case bases[] = {
    {"f32", {ODD, .mask = ATTN_CAUSAL, .sink = 1, .bias = BIAS_F32}, 0, 1, 0, 0},
    {"f16-ragged",
     {.q_type = ATTN_F16,
      .b = 4,
      .hq = 4,
      .hkv = 2,
      .sq = 33,
      .sk = 70,
      .d = 32,
      .bias = BIAS_KEYS,
      .softcap = 20,
      .dropout = 0.2f,
      .q_lengths = LENGTHS_PACKED_USED,
      .k_lengths = LENGTHS_START,
      .seed = 4},
     ATTN_F16,
     0,
     0,
     0},
    {"bf16-window",
     {.q_type = ATTN_BF16, EVEN, .mask = ATTN_CAUSAL | ATTN_WINDOW_LEFT, .left = 30},
     ATTN_BF16,
     1,
     0,
     0},
    {"few-rows",
     {.b = 2, .hq = 4, .hkv = 2, .sq = 3, .sk = 1100, .d = 32, .mask = ATTN_CAUSAL | ATTN_WINDOW_LEFT, .left = 900},
     0,
     1,
     0,
     0},
};

static void expect_same(struct suite_check *check, const struct gradient_built *w, const struct gradient_result *a,
                        const struct gradient_result *b, const char *what)
{
    for (int n = 0; n < GRADIENTS; n++) {
        size_t bytes = sizeof(double) * (size_t)(w->gradient[n].rows * w->gradient[n].cols);
        if (!a->x[n] || !b->x[n]) continue;
        suite_expect(check, !memcmp(a->x[n], b->x[n], bytes), "%s: %s is not bit-equal", what, gradient_name(n));
    }
}

static void again(struct suite_check *check, struct gradient_built *w, const struct gradient_result *first)
{
    const struct gradient_call call = {0};
    struct gradient_result x;
    for (int n = 0; n < 2; n++) {
        if (gradient_run(check, w, &call, &x)) expect_same(check, w, first, &x, "a further call");
        gradient_result_free(&x);
    }
}

static void threads(struct suite_check *check, struct gradient_built *w, const struct gradient_result *first)
{
    for (int n = 1; n <= 3; n++) {
        struct gradient_call call = {.ctx = suite_context(check->target, n, NULL)};
        struct gradient_result x;
        char what[32];
        snprintf(what, sizeof what, "%d threads", n);
        if (!suite_expect(check, call.ctx != NULL, "no context for %s", what)) return;
        if (gradient_run(check, w, &call, &x)) expect_same(check, w, first, &x, what);
        gradient_result_free(&x);
        attn_destroy(call.ctx);
    }
}

/* old + new, within the roundings of new and of the sum. */
static void accumulate(struct suite_check *check, struct gradient_built *w, const struct gradient_result *first)
{
    const struct gradient_call call = {.flags = ATTN_GRAD_ACCUMULATE};
    struct gradient_result x;
    if (gradient_run(check, w, &call, &x))
        for (int n = 0; n < GRADIENTS; n++) {
            int32_t type = n == DSINK ? ATTN_F32 : w->g.type;
            for (int64_t e = 0; x.x[n] && e < w->gradient[n].rows * w->gradient[n].cols; e++) {
                double old = (double)gradient_old(e % w->gradient[n].cols), sum = old + first->x[n][e];
                double allowed = 2 * gradient_rounding(type, first->x[n][e]) + 2 * gradient_rounding(type, sum);
                suite_expect(check, fabs(x.x[n][e] - sum) <= allowed, "%s, element %lld: %.9g added to %.9g gave %.9g",
                             gradient_name(n), (long long)e, first->x[n][e], old, x.x[n][e]);
            }
        }
    gradient_result_free(&x);
}

/* One output missing, or one alone; gradient_run sees whether the others stay untouched. */
static void absent(struct suite_check *check, struct gradient_built *w, const struct gradient_result *first)
{
    (void)first;
    for (unsigned n = 0; n < 2 * GRADIENTS; n++) {
        unsigned one = 1u << n / 2, all = (1u << GRADIENTS) - 1;
        struct gradient_call call = {.absent = n % 2 ? one : all - one};
        struct gradient_result x;
        if (n % 3 == 0) call.flags = ATTN_GRAD_UNORDERED;
        if (gradient_run(check, w, &call, &x)) gradient_judge(check, w, &x);
        gradient_result_free(&x);
    }
}

static const struct relation {
    const char *name;
    void (*run)(struct suite_check *check, struct gradient_built *w, const struct gradient_result *first);
} relations[] = {{"again", again}, {"accumulate", accumulate}, {"threads", threads}, {"absent", absent}};

struct instance {
    const struct relation *relation;
    const struct gradient_case *base;
};

static void run_relation(struct suite_check *check, const void *arg)
{
    const struct instance *instance = arg;
    const struct gradient_call call = {0};
    struct gradient_built w;
    struct gradient_result first;
    if (!gradient_build_case(check, &w, instance->base)) return;
    if (suite_expect(check, !gradient_truth(&w), "no memory")) {
        if (gradient_run(check, &w, &call, &first)) instance->relation->run(check, &w, &first);
        gradient_result_free(&first);
    }
    gradient_unbuild(&w);
}

/* Builds and runs; 1: x is there, and both are to be freed. */
static int run_case(struct suite_check *check, const struct gradient_case *g, struct gradient_built *w,
                    struct gradient_result *x)
{
    const struct gradient_call call = {0};
    if (!gradient_build_case(check, w, g)) return 0;
    if (gradient_run(check, w, &call, x)) return 1;
    gradient_result_free(x);
    gradient_unbuild(w);
    return 0;
}

/* One key: P = 1 whatever the score, so dQ = dK = 0; with one query, dV = dout. */
static void one_key(struct suite_check *check, const void *arg)
{
    static const int32_t types[] = {ATTN_F16, ATTN_F32, ATTN_BF16};
    (void)arg;
    for (int n = 0; n < 24; n++) {
        int64_t sq = n / 3 % 2 ? 7 : 1, heads = n / 6 % 2 ? 3 : 1, d = n / 12 ? 80 : 16;
        struct gradient_case g = {.c = {.q_type = types[n % 3],
                                        .hq = heads,
                                        .hkv = heads,
                                        .sq = sq,
                                        .sk = 1,
                                        .d = d,
                                        .fill_q = {FILL_NORMAL, 3},
                                        .fill_k = {FILL_NORMAL, 3},
                                        .fill_v = {FILL_NORMAL, 3}},
                                  .type = types[n % 3]};
        struct gradient_built w;
        struct gradient_result x;
        if (!run_case(check, &g, &w, &x)) return;
        for (int64_t e = 0; e < heads * sq * d; e++)
            suite_expect(check, x.x[DQ][e] == 0, "dq is %g, not 0", x.x[DQ][e]);
        for (int64_t e = 0; e < heads * d; e++) suite_expect(check, x.x[DK][e] == 0, "dk is %g, not 0", x.x[DK][e]);
        for (int64_t e = 0; sq == 1 && e < heads * d; e++)
            suite_expect(check, x.x[DV][e] == w.dout_rows[e], "dv is %.9g, dout %.9g", x.x[DV][e], w.dout_rows[e]);
        gradient_result_free(&x);
        gradient_unbuild(&w);
    }
}

/* A row's dS add up to its dLSE, and the dV of a head to the sum of its dO. */
static void vanishing_sums(struct suite_check *check, const void *arg)
{
    static const int32_t types[] = {ATTN_F32, ATTN_F16, ATTN_BF16};
    (void)arg;
    for (int n = 0; n < 12; n++) {
        struct gradient_case g = {.c = {.q_type = types[n % 3],
                                        .hq = 4,
                                        .hkv = 2,
                                        .sq = 17,
                                        .sk = 40,
                                        .d = 32,
                                        .bias = BIAS_F32,
                                        .mask = n / 6 ? ATTN_CAUSAL : 0,
                                        .seed = (uint64_t)n},
                                  .dlse = n / 3 % 2};
        struct gradient_built w;
        struct gradient_result x;
        if (!run_case(check, &g, &w, &x)) return;
        const struct gradient *bias = &w.gradient[DBIAS];
        int ready = suite_expect(check, !gradient_truth(&w), "no memory");
        for (int64_t row = 0; ready && row < bias->rows; row++) {
            double sum = w.dlse_rows ? -w.dlse_rows[row] : 0, allowed = 0;
            for (int64_t e = row * bias->cols; e < (row + 1) * bias->cols; e++) {
                sum += x.x[DBIAS][e];
                allowed += sqrt(bias->spread[e]) + bias->shift[e];
            }
            suite_expect(check, fabs(sum) <= allowed, "row %lld of dbias adds up to %g too much, allowed %g",
                         (long long)row, sum, allowed);
        }
        for (int64_t e = 0; ready && e < 2 * 32; e++) {
            double sum = 0, allowed = 0;
            for (int64_t j = 0; j < 40; j++) {
                int64_t at = (e / 32 * 40 + j) * 32 + e % 32;
                sum += x.x[DV][at];
                allowed += sqrt(w.gradient[DV].spread[at]) + w.gradient[DV].shift[at];
            }
            for (int64_t i = 0; i < 2 * 17; i++) sum -= w.dout_rows[(e / 32 * 34 + i) * 32 + e % 32];
            suite_expect(check, fabs(sum) <= allowed, "dv of a column adds up to %g too much, allowed %g", sum,
                         allowed);
        }
        gradient_result_free(&x);
        gradient_unbuild(&w);
    }
}

/* NaN in one row of dout: in that row of dq, in dk and dv of its kv head and sequence, nowhere else. */
static void nan_stays(struct suite_check *check, const void *arg)
{
    const struct gradient_case *g = arg;
    const struct gradient_call call = {0};
    struct gradient_built w;
    struct gradient_result x;
    float poison[64];
    if (!gradient_build_case(check, &w, g)) return;
    int64_t dv = w.t.c.dv, row = w.t.sequence[1].row + 2 * w.t.sequence[1].sq + 5; /* sequence 1, head 2, query 5 */
    for (int n = 0; n < 64; n++) poison[n] = NAN;
    suite_write_row(&w.t, &w.dout, 1, 2, 5, poison);
    for (int64_t d = 0; d < dv; d++) w.dout_rows[row * dv + d] = NAN;
    w.t.input_hash = suite_inputs_hash(&w.t);
    if (suite_expect(check, !gradient_truth(&w), "no memory") && gradient_run(check, &w, &call, &x)) {
        gradient_judge(check, &w, &x);
        gradient_result_free(&x);
    }
    gradient_unbuild(&w);
}

/* A sequence's gradients do not depend on what else is in the batch, on its place there or on the threads. */
static void alone(struct suite_check *check, const void *arg)
{
    static const int32_t queries[] = {130, 5, 300, 33}, keys[] = {250, 400, 7, 250};
    (void)arg;
    for (int n = 0; n < 4; n++) {
        const int32_t q[] = {queries[n], queries[(n + 1) % 4], queries[(n + 2) % 4], queries[(n + 3) % 4]};
        const int32_t k[] = {keys[n], keys[(n + 1) % 4], keys[(n + 2) % 4], keys[(n + 3) % 4]};
        struct gradient_case g = {.c = {.q_type = check->target->backend == ATTN_BACKEND_CUDA ? ATTN_F16 : ATTN_F32,
                                        .hq = 6,
                                        .hkv = 2,
                                        .d = 24,
                                        .dropout = 0.2f,
                                        .mask = ATTN_CAUSAL,
                                        .q_used = q,
                                        .k_used = k,
                                        .q_lengths = n % 2 ? LENGTHS_PACKED : LENGTHS_USED,
                                        .k_lengths = LENGTHS_USED,
                                        .seed = 11},
                                  .dlse = 1};
        struct gradient_built one, all;
        struct gradient_result x, y;
        struct gradient_call call = {.ctx = suite_context(check->target, 3, NULL)};
        if (!suite_expect(check, call.ctx != NULL, "no context")) return;
        g.c.b = 1, g.c.sq = q[0], g.c.sk = k[0];
        int ready = run_case(check, &g, &one, &x);
        g.c.b = 4, g.c.sq = 300, g.c.sk = 400;
        if (ready && gradient_build_case(check, &all, &g)) {
            const int done = gradient_run(check, &all, &call, &y);
            for (int m = DQ; done && m <= DV; m++)
                suite_expect(
                    check,
                    !memcmp(x.x[m], y.x[m], sizeof(double) * (size_t)(one.gradient[m].rows * one.gradient[m].cols)),
                    "%s of %d queries depends on the batch", gradient_name(m), (int)q[0]);
            gradient_result_free(&y);
            gradient_unbuild(&all);
        }
        attn_destroy(call.ctx);
        if (!ready) return;
        gradient_result_free(&x);
        gradient_unbuild(&one);
    }
}

/* Keys that no query belongs to: gradients of 0, whatever their number. The reference is slow and gets small heads. */
static void no_queries(struct suite_check *check, const void *arg)
{
    static const int32_t queries[] = {0, 1208, 840, 0}, keys[] = {2538, 1742, 840, 3072};
    int64_t d = check->target->backend == ATTN_BACKEND_REFERENCE ? 8 : 256;
    const struct gradient_case g = {.c = {.q_type = ATTN_F16,
                                          .b = 4,
                                          .hq = 4,
                                          .sq = 1208,
                                          .sk = 3072,
                                          .d = d,
                                          .q_used = queries,
                                          .k_used = keys,
                                          .q_lengths = LENGTHS_PACKED,
                                          .k_lengths = LENGTHS_PACKED}};
    struct gradient_built w;
    struct gradient_result x;
    (void)arg;
    if (!run_case(check, &g, &w, &x)) return;
    for (int n = DQ; n <= DV; n++)
        for (int64_t e = 0; e < w.gradient[n].rows * d; e++) {
            int empty = n != DQ && (e / d < w.key_row[1] || e / d >= w.key_row[3]);
            if (!(empty ? x.x[n][e] == 0 : isfinite(x.x[n][e])))
                suite_expect(check, 0, "%s, row %lld: %g", gradient_name(n), (long long)(e / d), x.x[n][e]);
        }
    gradient_result_free(&x);
    gradient_unbuild(&w);
}

/* A feature stride other than 1 is refused on every device, before anything is written. */
static void dout_of_one_number(struct suite_check *check, const void *arg)
{
    struct gradient_built w;
    struct suite_built *t = &w.t;
    if (!gradient_build_case(check, &w, arg)) return;
    suite_poison_outputs(t);
    attn_problem p = suite_problem(t, check->target);
    attn_grads g = {.struct_size = sizeof g, .dout = suite_view_tensor(t, &w.dout, check->target)};
    g.dq = suite_view_tensor(t, &w.view[DQ], check->target);
    g.dout.stride[3] = 0;
    suite_expect_status(check, attn_query(check->target->ctx, ATTN_OP_BACKWARD, &p, &g, NULL, NULL),
                        ATTN_INVALID_ARGUMENT, "attn_query, dout with feature stride 0");
    suite_expect_status(check, attn_backward(check->target->ctx, &p, &g, NULL), ATTN_INVALID_ARGUMENT,
                        "attn_backward, dout with feature stride 0");
    suite_expect(check, strstr(attn_last_error(), "dout") != NULL, "its text does not name dout: %s",
                 attn_last_error());
    suite_fetch_outputs(check, t);
    suite_expect_clean(check, t);
    gradient_unbuild(&w);
}

void gradients_run_exact(struct suite *s)
{
    static const struct gradient_case nan_case = {.c = {ODD}};
    static const struct gradient_case nan_few = {.c = {.b = 2, .hq = 4, .hkv = 2, .sq = 6, .sk = 500, .d = 24}};
    static const struct gradient_case shared = {.c = {.b = 2, .hq = 32, .sq = 4, .sk = 4, .d = 128},
                                                .dout = DOUT_SHARED};
    char name[96];
    for (size_t r = 0; r < sizeof relations / sizeof *relations; r++)
        for (size_t b = 0; b < sizeof bases / sizeof *bases; b++) {
            struct instance instance = {&relations[r], &bases[b]};
            snprintf(name, sizeof name, "gradients/%s-%s", relations[r].name, bases[b].name);
            suite_each(s, b == r % 3 || b == 3, name, run_relation, &instance);
        }
    suite_each(s, 1, "gradients/one-key", one_key, NULL);
    suite_each(s, 1, "gradients/alone", alone, NULL);
    suite_each(s, 1, "gradients/vanishing-sums", vanishing_sums, NULL);
    suite_each(s, 1, "gradients/nan-in-dout", nan_stays, &nan_case);
    suite_each(s, 1, "gradients/nan-in-dout-few", nan_stays, &nan_few);
    suite_each(s, 1, "gradients/dout-feature-stride-0", dout_of_one_number, &shared);
    suite_each(s, 0, "gradients/no-queries-many-keys", no_queries, NULL);
}
