/* SPDX-License-Identifier: Apache-2.0
 * The row part of the accuracy rule (docs/semantics.md section 9) for a problem in the dense form of naive.h. */
#ifndef ATTN_TESTS_ROW_RULE_H
#define ATTN_TESTS_ROW_RULE_H

#include "naive.h"

/* P below it may count as 0: exp() of kernels need not know subnormal numbers. */
#define ROW_RULE_LOST 0x1p-120

/* What one row's terms are made of, in float64. */
struct row_terms {
    double values;   /* sum over j of (P_j |V_j|)^2, |V_j| the norm of value j */
    double absolute; /* squared norm of sum over j of P_j |V_j|, by elements */
    double score;    /* max |s_j| over visible keys */
    double d;        /* terms of each score */
    double lost;     /* sum over j with P_j < ROW_RULE_LOST of P_j |V_j| */
};

/* Of query i of head h of sequence b. scores: room for Sk numbers. */
struct row_terms row_rule_terms(const struct naive_problem *p, int64_t b, int64_t h, int64_t i, double *scores);

/* The one of two types that rounds more: of query and output. */
int32_t row_rule_type(int32_t a, int32_t b);
/* Unit roundoff of F32, F16 or BF16, and what half a unit in the last place of x comes to: subnormals have a floor. */
double row_rule_unit(int32_t dtype);
double row_rule_rounding(int32_t dtype, double x);

/* The largest permitted |x - ref|^2 of a row: m is 2 forward, u the unit roundoff of the dtype, naive the row's
 * |naive - ref|^2, rounding its sum of row_rule_rounding(ref)^2. */
double row_rule_limit(const struct row_terms *terms, double m, double u, double naive, double rounding);

/* What one rounding of the row's largest score is worth in an element of its output, which has dv columns: the row's part
 * in the limit of max|x - ref|. */
double row_rule_score_rounding(const struct row_terms *terms, int64_t dv);

#endif
