/* SPDX-License-Identifier: Apache-2.0 */
#include "row_rule.h"

#include "attn/attn.h"

#include <math.h>

static int64_t pair_index(const struct naive_problem *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    return ((b * p->Hq + h) * p->Sq + i) * p->Sk + j;
}

static double score(const struct naive_problem *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const double *q = p->q + ((b * p->Hq + h) * p->Sq + i) * p->D;
    const double *k = p->k + ((b * p->Hkv + h / (p->Hq / p->Hkv)) * p->Sk + j) * p->D;
    double s = 0;
    int64_t n = pair_index(p, b, h, i, j);
    if (p->visible && !p->visible[n]) return -INFINITY;
    for (int64_t d = 0; d < p->D; d++) s += q[d] * k[d];
    s *= (double)p->scale;
    if (p->softcap > 0) s = (double)p->softcap * tanh(s / (double)p->softcap);
    if (p->bias) s += (double)p->bias[n];
    if (p->slopes) s -= (double)p->slopes[b * p->Hq + h] * fabs((double)(i + p->diagonal - j));
    return s;
}

struct row_terms row_rule_terms(const struct naive_problem *p, int64_t b, int64_t h, int64_t i, double *scores)
{
    struct row_terms t = {.d = (double)p->D};
    double m = p->sink ? (double)p->sink[h] : -INFINITY, l = 0;
    for (int64_t j = 0; j < p->Sk; j++) {
        scores[j] = score(p, b, h, i, j);
        m = fmax(m, scores[j]);
        if (scores[j] != -INFINITY) t.score = fmax(t.score, fabs(scores[j]));
    }
    if (m == -INFINITY) return t; /* an empty row is exact */
    if (p->sink) l = exp((double)p->sink[h] - m);
    for (int64_t j = 0; j < p->Sk; j++) l += exp(scores[j] - m);
    const double *v = p->v + (b * p->Hkv + h / (p->Hq / p->Hkv)) * p->Sk * p->Dv;
    for (int64_t j = 0; j < p->Sk; j++) {
        double norm2 = 0;
        scores[j] = exp(scores[j] - m) / l * (p->keep ? (double)p->keep[pair_index(p, b, h, i, j)] : 1);
        if (scores[j] == 0) continue; /* a masked value may be anything */
        for (int64_t d = 0; d < p->Dv; d++) norm2 += v[j * p->Dv + d] * v[j * p->Dv + d];
        t.values += scores[j] * scores[j] * norm2;
        if (scores[j] < ROW_RULE_LOST) t.lost += scores[j] * sqrt(norm2);
    }
    for (int64_t d = 0; d < p->Dv; d++) {
        double sum = 0;
        for (int64_t j = 0; j < p->Sk; j++)
            if (scores[j] != 0) sum += scores[j] * fabs(v[j * p->Dv + d]);
        t.absolute += sum * sum;
    }
    return t;
}

double row_rule_unit(int32_t dtype) { return dtype == ATTN_F16 ? 0x1p-11 : dtype == ATTN_BF16 ? 0x1p-8 : 0x1p-24; }

int32_t row_rule_type(int32_t a, int32_t b) { return row_rule_unit(a) > row_rule_unit(b) ? a : b; }

double row_rule_rounding(int32_t dtype, double x)
{
    double smallest = dtype == ATTN_F16 ? 0x1p-24 : dtype == ATTN_BF16 ? 0x1p-133 : 0x1p-149;
    return fmax(row_rule_unit(dtype) * fabs(x), smallest / 2);
}

double row_rule_limit(const struct row_terms *terms, double m, double u, double naive, double rounding)
{
    double score = fmax(4, sqrt(terms->d)) * 0x1p-24 * (1 + terms->score);
    return m * m * naive + 16 * u * u * terms->values + score * score * terms->absolute + 4 * rounding +
           terms->lost * terms->lost;
}

double row_rule_score_rounding(const struct row_terms *terms, int64_t dv)
{
    return dv ? 0x1p-24 * (1 + terms->score) * sqrt(terms->absolute / (double)dv) : 0;
}
