/* SPDX-License-Identifier: Apache-2.0
 * Gradients of one problem: tensors, the float64 truth, the naive result, the result of a target, the judgement. */
#ifndef ATTN_SUITE_GRADIENTS_H
#define ATTN_SUITE_GRADIENTS_H

#include "suite_case.h"

enum { DQ, DK, DV, DBIAS, DSINK, GRADIENTS };

enum dout_kind {
    DOUT_NORMAL,
    DOUT_TURNED, /* in another layout than out */
    DOUT_SHARED, /* one row for all: batch, head and sequence strides 0 */
    DOUT_ONES,
    DOUT_LARGE /* 30000 everywhere */
};

struct gradient_case {
    const char *name;
    struct suite_case c;
    int32_t type; /* of dq, dk, dv, dbias; 0: F32 */
    int dlse, dout;
    int full; /* belongs to the full part only */
};

/* Elements [rows, cols]. dq: rows in the order of struct suite_result; dk, dv: sequence, kv head, key; dbias: as it
 * lies; dsink: one row a head. */
struct gradient {
    int64_t rows, cols;
    double *truth;
    double *spread; /* sum of squares of what roundings, independent of each other, may change */
    double *shift;  /* sum of what errors that agree with each other may change */
    float *naive;
};

struct gradient_built {
    struct suite_built t;
    struct gradient_case g;
    struct suite_view dout, dlse, view[DBIAS + 1];
    int dsink;                     /* buffer, or -1 */
    double *dout_rows, *dlse_rows; /* dense, in the order of struct suite_result */
    struct gradient gradient[GRADIENTS];
    int64_t *key_row; /* of each sequence: its first row in dk and dv */
};

struct gradient_result {
    double *x[GRADIENTS]; /* NULL: absent */
};

/* How a call is made. */
struct gradient_call {
    attn_context *ctx; /* NULL: the target's */
    uint32_t flags;
    unsigned absent; /* 1 << DQ ...: not asked for */
};

/* Return 0, or -1 without memory. */
int gradient_build(struct gradient_built *w, const struct gradient_case *g);
int gradient_truth(struct gradient_built *w);
void gradient_unbuild(struct gradient_built *w);
/* Forward and backward on check's target; everything but the values is checked. 1: result is there. */
int gradient_run(struct suite_check *check, struct gradient_built *w, const struct gradient_call *call,
                 struct gradient_result *result);
void gradient_result_free(struct gradient_result *result);
void gradient_judge(struct suite_check *check, const struct gradient_built *w, const struct gradient_result *result);
/* What ACCUMULATE finds in column d. */
float gradient_old(int64_t d);
double gradient_rounding(int32_t type, double x); /* what rounding to type may change */
const char *gradient_name(int which);
/* gradient_build for a case of a list, where a length of -1 stands for none. 1: it is built. */
int gradient_build_case(struct suite_check *check, struct gradient_built *w, const struct gradient_case *g);
void gradients_run_exact(struct suite *s); /* a part of the section */
extern const struct gradient_case gradient_few_cases[];
extern const size_t gradient_few_count;

#endif
