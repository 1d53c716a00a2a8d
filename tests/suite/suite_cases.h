/* SPDX-License-Identifier: Apache-2.0
 * What the files of the section "cases" share. */
#ifndef ATTN_SUITE_CASES_H
#define ATTN_SUITE_CASES_H

#include "suite_case.h"

struct known_case { /* one line of suite_cases.inc */
    const char *name;
    int quick;
    void (*edit)(struct suite_built *t, const struct known_case *k); /* NULL: the case as it is built */
    int64_t at, n;                                                   /* for edit */
    suite_more *more;
    struct suite_case c;
};

typedef void known_edit(struct suite_built *t, const struct known_case *k);
known_edit cases_hide_rows; /* rows at .. at + n - 1: no key is seen; a BOOL bias shows all else */
known_edit cases_hide_keys; /* keys at .. at + n - 1, for all rows */
known_edit cases_rise, cases_rounded_weights;
known_edit cases_show_corner, cases_lowest_rows, cases_lattice, cases_last_stride_zero, cases_last_axis_expanded;
known_edit cases_interleave_pages;
suite_function cases_run_edited; /* arg: struct known_case */

void suite_cases_more(struct suite *s);      /* what is no plain forward call */
void suite_cases_far(struct suite *s);       /* strides beyond 32 bits */
void suite_cases_gradients(struct suite *s); /* where the backend has backward */

#endif
