/* SPDX-License-Identifier: Apache-2.0
 * Inputs of the section "cases" that are changed after they were built, and the course of such a case. */
#include "suite_cases.h"
#include "suite_format.h"

#include <float.h>
#include <math.h>
#include <string.h>

static void set_bias(struct suite_built *t, int64_t h, int64_t i, int64_t j, float x)
{
    int32_t dtype = t->bias.t.dtype;
    unsigned char *row = suite_row(t, &t->bias, 0, h, i);
    if (dtype == ATTN_BOOL) row[j] = x != -INFINITY;
    else suite_encode(dtype, row + attn_dtype_bytes((attn_dtype)dtype, j), &x, 1, 1.0f);
}

static void set_rows(struct suite_built *t, int64_t at, int64_t n, float hidden, int others)
{
    for (int64_t h = 0; h < t->c.hq; h++)
        for (int64_t i = 0; i < t->c.sq; i++)
            for (int64_t j = 0; j < t->c.sk; j++) {
                if (i >= at && i < at + n) set_bias(t, h, i, j, hidden);
                else if (others) set_bias(t, h, i, j, 0);
            }
}

void cases_hide_rows(struct suite_built *t, const struct known_case *k)
{
    set_rows(t, k->at, k->n, -INFINITY, t->c.bias == BIAS_BOOL);
}

void cases_hide_keys(struct suite_built *t, const struct known_case *k)
{
    for (int64_t h = 0; h < t->c.hq; h++)
        for (int64_t i = 0; i < t->c.sq; i++)
            for (int64_t j = k->at; j < k->at + k->n; j++) set_bias(t, h, i, j, -INFINITY);
}

void cases_show_corner(struct suite_built *t, const struct known_case *k)
{
    for (int64_t i = 0; i < t->c.sq; i++)
        for (int64_t j = 0; j < t->c.sk; j++) set_bias(t, 0, i, j, i < k->at && j < k->at ? 1 : -INFINITY);
}

/* All scores of these rows are the type's lowest number. */
void cases_lowest_rows(struct suite_built *t, const struct known_case *k)
{
    float lowest = t->c.bias == BIAS_F16 ? -65504.0f : t->c.bias == BIAS_BF16 ? -0x1.fep127f : -FLT_MAX;
    set_rows(t, k->at, k->n, lowest, 0);
}

static void put(struct suite_built *t, const struct suite_view *view, double *dense, int64_t row, float x)
{
    suite_write_row(t, view, 0, 0, row, &x);
    dense[row] = x;
}

void cases_lattice(struct suite_built *t, const struct known_case *k)
{
    static const float q[] = {-20000, 0}, key[] = {1, 0}, value[] = {1, 100};
    (void)k;
    for (int n = 0; n < 2; n++) {
        put(t, &t->q, t->sequence[0].q, n, q[n]);
        put(t, &t->k, t->sequence[0].k, n, key[n]);
        put(t, &t->v, t->sequence[0].v, n, value[n]);
        set_bias(t, 0, n, 0, 1);
        set_bias(t, 0, n, 1, -INFINITY);
    }
}

/* Every hundred keys the scores rise by 64: far beyond what one base of exponentials can hold. */
void cases_rise(struct suite_built *t, const struct known_case *k)
{
    (void)k;
    for (int64_t j = 0; j < t->c.sk; j++) put(t, &t->k, t->sequence[0].k, j, 64.0f * (float)(j / 100));
}

/* One key has weight 1, the others 0.2528, which 8 bits hold as 0.2520. */
void cases_rounded_weights(struct suite_built *t, const struct known_case *k)
{
    (void)k;
    for (int64_t j = 0; j < t->c.sk; j++) put(t, &t->k, t->sequence[0].k, j, j == 0 ? 0.0f : -1.375f);
}

void cases_last_stride_zero(struct suite_built *t, const struct known_case *k)
{
    (void)k;
    t->bias.t.stride[3] = 0;
}

void cases_last_axis_expanded(struct suite_built *t, const struct known_case *k)
{
    (void)k;
    t->bias.t.stride[3] = 0;
    t->bias.t.shape[3] = t->c.sk;
}

static void fill_pool(struct suite_built *t, const struct suite_view *view, float value)
{
    float x[256];
    for (int n = 0; n < 256; n++) x[n] = value;
    for (int64_t page = 0; page < view->t.shape[0]; page++)
        for (int64_t h = 0; h < t->c.hkv; h++)
            for (int64_t row = 0; row < t->c.page; row++) suite_write_row(t, view, page, h, row, x);
}

static void put_dense(struct suite_built *t, const struct suite_view *view, int64_t page, int64_t h, int64_t row,
                      const double *dense)
{
    float x[256];
    for (int64_t d = 0; d < view->t.shape[3]; d++) x[d] = (float)dense[d];
    suite_write_row(t, view, page, h, row, x);
}

/* Sequence 0 has pages 0 and 2, sequence 1 has 1 and 3; every other slot holds 100. */
void cases_interleave_pages(struct suite_built *t, const struct known_case *k)
{
    static const int32_t table[] = {0, 2, 1, 3};
    (void)k;
    fill_pool(t, &t->k, 100);
    fill_pool(t, &t->v, 100);
    memcpy(t->buffer[t->table].data, table, sizeof table);
    for (int64_t b = 0; b < t->c.b; b++)
        for (int64_t h = 0; h < t->c.hkv; h++)
            for (int64_t j = 0; j < t->sequence[b].sk; j++) {
                int64_t page, row, at = (h * t->sequence[b].sk + j) * t->c.d;
                suite_key_place(t, b, j, &page, &row);
                put_dense(t, &t->k, page, h, row, t->sequence[b].k + at);
                put_dense(t, &t->v, page, h, row, t->sequence[b].v + at);
            }
}

void cases_run_edited(struct suite_check *check, const void *arg)
{
    const struct known_case *k = arg;
    struct suite_case c = k->c;
    struct suite_built t;
    struct suite_truth truth = {0};
    struct suite_result naive = {0}, x = {0};
    suite_settle(&c);
    if (!suite_expect(check, !suite_build(&t, &c), "no memory")) return;
    k->edit(&t, k);
    t.input_hash = suite_inputs_hash(&t);
    if (suite_expect(check, !suite_truth_compute(&truth, &t) && !suite_naive_compute(&naive, &t), "no memory") &&
        suite_forward(check, &t, NULL, &x)) {
        suite_judge(check, &t, &truth, &naive, &x);
        if (k->more) k->more(check, &t, &x);
    }
    suite_truth_free(&truth);
    suite_result_free(&naive);
    suite_result_free(&x);
    suite_unbuild(&t);
}
