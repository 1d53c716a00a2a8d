/* SPDX-License-Identifier: Apache-2.0
 * Cases with strides beyond 32 bits, and those of gradients. */
#include "suite_cases.h"
#include "suite_format.h"
#include "suite_gradients.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- far apart ---- */

enum { SPREAD = 7 };
struct spread { /* the same tensors with one axis far apart, in memory that is reserved only */
    void *memory[SPREAD];
    size_t bytes[SPREAD];
    int n;
};

static size_t element_bytes(const attn_tensor *x) { return x->dtype == ATTN_F32 ? 4 : x->dtype == ATTN_BOOL ? 1 : 2; }

static int64_t offset_of(const attn_tensor *x, int64_t n)
{
    int64_t at = 0;
    for (int axis = 3; axis >= 0; n /= x->shape[axis--])
        if (x->shape[axis] > 1) at += n % x->shape[axis] * x->stride[axis];
    return at;
}

static void copy_elements(const attn_tensor *from, const attn_tensor *to)
{
    size_t bytes = element_bytes(from);
    for (int64_t n = 0; n < from->shape[0] * from->shape[1] * from->shape[2] * from->shape[3]; n++)
        memcpy((char *)to->data + offset_of(to, n) * (int64_t)bytes,
               (char *)from->data + offset_of(from, n) * (int64_t)bytes, bytes);
}

/* Returns 0 without address space. */
static int spread_tensor(struct spread *s, attn_tensor *x, int axis, int64_t stride)
{
    attn_tensor far = *x;
    far.stride[axis] = stride;
    int64_t last = 0;
    for (int n = 0; n < 4; n++) last += (far.shape[n] - 1) * far.stride[n];
    s->bytes[s->n] = (size_t)(last + 1) * element_bytes(x);
    far.data = s->memory[s->n] = suite_reserve(s->bytes[s->n]);
    if (!far.data) return 0;
    s->n++;
    copy_elements(x, &far);
    *x = far;
    return 1;
}

static void release(struct spread *s)
{
    for (int n = 0; n < s->n; n++) suite_release(s->memory[n], s->bytes[n]);
}

static int host_only(struct suite_check *check)
{
    if (!check->target->host) suite_skip(check, "needs memory that is reserved only");
    return check->target->host;
}

static const struct far {
    const char *name;
    int axis, only_bias;
    int64_t stride;
    int bias;
    int32_t type;
} fars[] = {
    {"A28-batches-far-apart", 0, 0, ((int64_t)1 << 31) + 7, BIAS_NONE, ATTN_F16},
    {"A28-heads-far-apart", 1, 0, ((int64_t)1 << 31) + 7, BIAS_NONE, ATTN_F16},
    {"A28-rows-far-apart", 2, 0, ((int64_t)1 << 30) + 5, BIAS_NONE, ATTN_F32},
    {"A28-rows-2-to-the-32", 2, 0, (int64_t)1 << 32, BIAS_NONE, ATTN_F16},
    {"A28-bias-heads-12180x12184", 1, 1, (int64_t)12180 * 12184 * 16, BIAS_F16, ATTN_F16},
    {"A28-bias-rows-2-to-the-31", 2, 1, (int64_t)1 << 31, BIAS_F32, ATTN_F16},
    {"A28-bias-columns-202752x16384", 3, 1, (int64_t)202752 * 16384, BIAS_BOOL, ATTN_F16},
};

/* A28, B-T19: offsets were 32 bits wide. Bit for bit what the compact tensors give. */
static void far_apart(struct suite_check *check, const void *arg)
{
    const struct far *f = arg;
    struct suite_case c = {.q_type = f->type, .b = 2, .hq = 4, .hkv = 2, .sq = 3, .sk = 4, .d = 8, .bias = f->bias};
    struct suite_built t;
    struct suite_result near = {0}, x = {0};
    struct spread s = {0};
    attn_exec exec = {.struct_size = sizeof exec, .flags = ATTN_EXEC_WAIT};
    if (!host_only(check)) return;
    suite_settle(&c);
    if (!suite_expect(check, !suite_build(&t, &c), "no memory")) return;
    attn_problem p = suite_problem(&t, check->target);
    attn_tensor *const all[6] = {&p.bias, &p.q, &p.k, &p.v, &p.out, &p.lse};
    attn_tensor out = p.out, lse = p.lse;
    int room = 1;
    for (int n = f->only_bias ? 0 : 1; room && n < (f->only_bias ? 1 : 6); n++)
        room = spread_tensor(&s, all[n], f->axis, f->stride);
    if (!room) suite_skip(check, "no address space");
    else if (suite_forward(check, &t, NULL, &near) &&
             suite_expect_status(check, attn_forward(check->target->ctx, &p, &exec), ATTN_OK, "attn_forward")) {
        if (p.out.data != out.data) copy_elements(&p.out, &out);
        if (p.lse.data != lse.data) copy_elements(&p.lse, &lse);
        if (suite_collect(check, &t, &t.out, &t.lse, &x)) suite_same(check, &t, &near, &x, "far apart");
        suite_expect_clean(check, &t);
    }
    suite_result_free(&near);
    suite_result_free(&x);
    release(&s);
    suite_unbuild(&t);
}

/* A28: entries of a cache 2^30 elements apart: all was written to the first. */
static void far_cache(struct suite_check *check, const void *arg)
{
    enum { ENTRIES = 5, ROWS = 4, D = 8 };
    static float fresh[ENTRIES][D];
    static const int32_t used[ENTRIES] = {3, 0, 1, 2, 0};
    const int64_t stride = (int64_t)1 << 30;
    size_t bytes = (size_t)(ENTRIES * stride) * sizeof(float);
    float *cache = host_only(check) ? suite_reserve(bytes) : NULL;
    attn_append a = ATTN_APPEND_INIT;
    (void)arg;
    if (!cache) {
        suite_skip(check, "no address space");
        return;
    }
    for (int n = 0; n < ENTRIES * D; n++) fresh[n / D][n % D] = (float)(n + 1);
    a.k_new = attn_bhsd(fresh, ATTN_F32, ENTRIES, 1, 1, D);
    a.k_cache = attn_bhsd(cache, ATTN_F32, ENTRIES, 1, ROWS, D);
    a.k_cache.stride[0] = stride;
    a.cache_len.used = used;
    if (suite_expect_status(check, attn_kv_append(check->target->ctx, &a, NULL), ATTN_OK, "attn_kv_append"))
        for (int b = 0; b < ENTRIES; b++)
            for (int row = 0; row < ROWS; row++)
                for (int d = 0; d < D; d++) {
                    float expected = row == used[b] ? (float)(b * D + d + 1) : 0, got = cache[b * stride + row * D + d];
                    suite_expect(check, got == expected, "entry %d, row %d, column %d: %g, expected %g", b, row, d,
                                 (double)got, (double)expected);
                }
    suite_release(cache, bytes);
}

/* C10: an index of the dropout mask overflowed at 46341 x 46341. */
static void far_mask(struct suite_check *check, const void *arg)
{
    enum { ROWS = 3, COLUMNS = 64 };
    static unsigned char compact[ROWS][COLUMNS];
    static float somewhere[COLUMNS * 8];
    attn_problem p = ATTN_PROBLEM_INIT;
    struct spread s = {0};
    (void)arg;
    if (!host_only(check)) return;
    p.q = p.out = attn_bhsd(somewhere, ATTN_F32, 1, 1, ROWS, 8);
    p.k = p.v = attn_bhsd(somewhere, ATTN_F32, 1, 1, COLUMNS, 8);
    p.dropout = 0.5f, p.seed = 7, p.row_origin = 46340, p.column_origin = 46340;
    attn_tensor near = attn_bhsd(compact, ATTN_BOOL, 1, 1, ROWS, COLUMNS), keep = near;
    if (!spread_tensor(&s, &keep, 2, ((int64_t)1 << 31) + 1)) suite_skip(check, "no address space");
    else if (suite_expect_status(check, attn_dropout_mask(check->target->ctx, &p, &keep, NULL), ATTN_OK,
                                 "attn_dropout_mask")) {
        copy_elements(&keep, &near);
        for (int n = 0; n < ROWS * COLUMNS; n++) {
            int expected = suite_keeps(7, 0, 0.5f, 0, 0, 46340 + n / COLUMNS, 46340 + n % COLUMNS);
            suite_expect(check, compact[n / COLUMNS][n % COLUMNS] == expected, "element %d is not %d", n, expected);
        }
    }
    release(&s);
}

/* ---- gradients ---- */

/* The row that sees the only key hands it all of its dout; queries and keys get nothing. Where tensor cores do the forward and others the
 * backward, their scores are rounded otherwise, and P = exp(S - LSE) is 1 but for that. */
static void one_key(struct suite_check *check, struct gradient_built *w, const struct gradient_result *x)
{
    const struct suite_built *t = &w->t;
    const double rounding = strncmp(check->target->isa, "sm", 2) ? 0 : 1e-5;
    for (int64_t n = 0; n < w->gradient[DQ].rows * t->c.d; n++)
        suite_expect(check, fabs(x->x[DQ][n]) <= 1e-4, "dq: %g, expected 0", x->x[DQ][n]);
    for (int64_t n = 0; n < w->gradient[DK].rows * t->c.d; n++)
        suite_expect(check, fabs(x->x[DK][n]) <= 1e-4, "dk: %g, expected 0", x->x[DK][n]);
    for (int64_t b = 0; b < t->c.b; b++)
        for (int64_t h = 0; h < t->c.hq; h++)
            for (int64_t d = 0; d < t->c.dv; d++) {
                const struct suite_sequence *s = &t->sequence[b];
                double dout = w->dout_rows[(s->row + h * s->sq + s->sq - 1) * t->c.dv + d],
                       got = x->x[DV][(w->key_row[b] + h) * t->c.dv + d];
                suite_expect(check, fabs(got - dout) <= rounding * fabs(dout),
                             "dv of sequence %lld: %.9g, dout is %.9g", (long long)b, got, dout);
            }
}

/* Keys that no query sees: exactly 0. */
static void keys_without_queries(struct suite_check *check, struct gradient_built *w, const struct gradient_result *x)
{
    const struct suite_built *t = &w->t;
    for (int64_t b = 0; b < t->c.b; b++)
        for (int64_t n = w->key_row[b] * t->c.d; n < w->key_row[b + 1] * t->c.d; n++)
            if (t->sequence[b].sq == 0)
                suite_expect(check, x->x[DK][n] == 0 && x->x[DV][n] == 0, "sequence %lld without queries: dk %g, dv %g",
                             (long long)b, x->x[DK][n], x->x[DV][n]);
}

static void outside_corner(struct suite_check *check, struct gradient_built *w, const struct gradient_result *x)
{
    for (int which = DQ; which <= DV; which++)
        for (int64_t n = 0; n < 64; n++) {
            double got = x->x[which][n];
            suite_expect(check, n < 32 ? isfinite(got) : got == 0, "%s, row %d: %g", gradient_name(which), (int)n / 8,
                         got);
        }
    (void)w;
}

#define F16 .q_type = ATTN_F16
#define INTS(...) ((const int32_t[]){__VA_ARGS__})
#define PACKED .q_lengths = LENGTHS_PACKED, .k_lengths = LENGTHS_PACKED
#define FEW_KEYS                                                                                               \
  .b = 3, .sq = 146, .sk = 1, .mask = ATTN_CAUSAL, .fill_q.amount = 3, .fill_k.amount = 3, .fill_v.amount = 3, \
  .q_used = INTS(76, 34, 146), .k_used = INTS(1, 1, 1)

static const struct known_gradient {
    struct gradient_case g;
    void (*more)(struct suite_check *check, struct gradient_built *w, const struct gradient_result *x);
    int corner, quick;
} gradients[] = {
    /* B-T25 too: NaN in the gradient of queries without a key. */
    {{"A01-packed-one-key-h1-d16", {F16, PACKED, FEW_KEYS, .d = 16}, 0, 0, DOUT_ONES, 0}, one_key, 0, 1},
    {{"A01-packed-one-key-h1-d32", {F16, PACKED, FEW_KEYS, .d = 32}, 0, 0, DOUT_ONES, 0}, one_key, 0, 1},
    {{"A01-packed-one-key-h5-d64", {F16, PACKED, FEW_KEYS, .d = 64, .hq = 5, .hkv = 5}, 0, 0, DOUT_ONES, 0},
     one_key,
     0,
     1},
    /* B-T26 too: NaN for one element of everything. */
    {{"A02-one-query-one-key",
      {F16, .sq = 1, .sk = 1, .d = 16, .fill_q.amount = 3, .fill_k.amount = 3, .fill_v.amount = 3},
      0,
      0,
      0,
      0},
     one_key,
     0,
     1},
    /* Sequences without queries: dK and dV were not written, or others' memory was. */
    {{"A04-sequences-without-queries",
      {F16, PACKED, .b = 4, .hq = 4, .d = 256, .sq = 76, .sk = 192, .q_used = INTS(0, 76, 52, 0),
       .k_used = INTS(159, 108, 53, 192)},
      0,
      0,
      0,
      0},
     keys_without_queries,
     0,
     0},
    {{"A04-first-without-queries",
      {F16, PACKED, .b = 2, .hq = 4, .d = 32, .sq = 7, .sk = 20, .q_used = INTS(0, 7), .k_used = INTS(20, 9)},
      0,
      0,
      0,
      0},
     keys_without_queries,
     0,
     1},
    /* An empty row's NaN reached every other row. */
    {{"A13-corner-of-a-mask", {.sq = 8, .sk = 8, .d = 8, .bias = BIAS_BOOL}, 0, 0, 0, 0}, outside_corner, 4, 1},
    /* Q, K and V as slices of one projection: dV was wrong. */
    {{"A27-slices-d256",
      {F16, .b = 2, .hq = 4, .hkv = 4, .sq = 40, .sk = 40, .d = 256, .layout = LAYOUT_PACKED},
      ATTN_F16,
      0,
      DOUT_TURNED,
      0},
     NULL,
     0,
     0},
    /* Forward and backward used different indices for the dropout of ragged batches. */
    {{"C05-ragged-dropout",
      {F16, PACKED, .b = 3, .hq = 2, .sq = 40, .sk = 50, .d = 32, .dropout = 0.4f, .dropout_seed = 5,
       .q_used = INTS(9, 40, 21), .k_used = INTS(50, 3, 33)},
      0,
      0,
      0,
      0},
     NULL,
     0,
     1},
};

static void run_gradient(struct suite_check *check, const void *arg)
{
    const struct known_gradient *k = arg;
    struct gradient_built w;
    struct gradient_call call = {0};
    struct gradient_result x = {0};
    if (!suite_expect(check, !gradient_build(&w, &k->g), "no memory")) return;
    for (int64_t n = 0; k->corner && n < w.t.c.sq * w.t.c.sk; n++)
        suite_row(&w.t, &w.t.bias, 0, 0, n / w.t.c.sk)[n % w.t.c.sk] =
            n / w.t.c.sk < k->corner && n % w.t.c.sk < k->corner;
    w.t.input_hash = suite_inputs_hash(&w.t);
    if (suite_expect(check, !gradient_truth(&w), "no memory") && gradient_run(check, &w, &call, &x)) {
        gradient_judge(check, &w, &x);
        if (k->more) k->more(check, &w, &x);
    }
    gradient_result_free(&x);
    gradient_unbuild(&w);
}

/* A28: rows of dout and dq beyond 2^31 elements. */
static void far_gradient(struct suite_check *check, const void *arg)
{
    struct gradient_case near = {.c = {.hq = 2, .sq = 4, .sk = 6, .d = 8, .dv = 5}};
    struct gradient_built w;
    struct gradient_result x = {0};
    struct gradient_call call = {0};
    struct spread s = {0};
    (void)arg;
    if (!host_only(check)) return;
    if (!suite_expect(check, !gradient_build(&w, &near), "no memory")) return;
    if (gradient_run(check, &w, &call, &x)) {
        attn_problem p = suite_problem(&w.t, check->target);
        attn_grads g = ATTN_GRADS_INIT;
        g.dout = suite_view_tensor(&w.t, &w.dout, check->target);
        g.dq = suite_view_tensor(&w.t, &w.view[DQ], check->target);
        attn_tensor dq = g.dq;
        if (!spread_tensor(&s, &g.dout, 2, 2191757312) || !spread_tensor(&s, &g.dq, 2, 2191757312))
            suite_skip(check, "no address space");
        else if (suite_expect_status(check, attn_forward(check->target->ctx, &p, NULL), ATTN_OK, "attn_forward") &&
                 suite_expect_status(check, attn_backward(check->target->ctx, &p, &g, NULL), ATTN_OK,
                                     "attn_backward")) {
            copy_elements(&g.dq, &dq);
            for (int64_t n = 0; n < w.t.rows * w.t.c.d; n++)
                suite_expect(check, (double)((float *)dq.data)[n] == x.x[DQ][n],
                             "dq[%d] is not what compact tensors give", (int)n);
        }
    }
    gradient_result_free(&x);
    release(&s);
    gradient_unbuild(&w);
}

void suite_cases_gradients(struct suite *s)
{
    char name[96];
    for (size_t n = 0; n < sizeof gradients / sizeof *gradients; n++) {
        snprintf(name, sizeof name, "cases/%s-gradients", gradients[n].g.name);
        suite_each(s, gradients[n].quick, name, run_gradient, &gradients[n]);
    }
    suite_each(s, 1, "cases/A28-gradients-far-apart", far_gradient, NULL);
}

void suite_cases_far(struct suite *s)
{
    char name[96];
    for (size_t n = 0; n < sizeof fars / sizeof *fars; n++) {
        snprintf(name, sizeof name, "cases/%s", fars[n].name);
        suite_each(s, 1, name, far_apart, &fars[n]);
    }
    suite_each(s, 1, "cases/A28-cache-entries-far-apart", far_cache, NULL);
    suite_each(s, 1, "cases/C10-mask-beyond-46340", far_mask, NULL);
}
