/* SPDX-License-Identifier: Apache-2.0
 * Where the arrays of a call lie, which decides who computes, what the host may read and what has to be staged. */
#ifndef ATTN_SURVEY_H
#define ATTN_SURVEY_H

#include "internal.h"

typedef struct attn_survey {
    bool asks;        /* the driver about pointers: without, all of them are the host's */
    bool cpu_only;    /* exec.device says so */
    bool readable;    /* by the host: all index arrays (lengths, page tables, slots, positions) */
    int32_t gpu;      /* that computes; -1: the CPU, unless a GPU's memory turns up */
    const char *host; /* the first array found in host memory; NULL: none */
    int32_t part;     /* its index, as in "out_parts[3]"; -1: it has none */
} attn_survey;

/* The name of an array in a text. */
typedef struct attn_array_name {
    char text[40];
} attn_array_name;
attn_array_name attn_survey_name(const char *name, int32_t part);

/* exec is checked. No driver is asked in a process where nobody can have memory of a GPU. */
void attn_survey_begin(attn_survey *survey, const attn_context *ctx, const attn_exec *exec);

/* For surveys that ask. These look at structs that are not validated yet. INVALID_ARGUMENT for memory of another GPU than
 * the one that computes, UNSUPPORTED for a GPU's where the CPU must; both name the field. */
attn_status attn_survey_problem(attn_survey *survey, const attn_problem *problem);
attn_status attn_survey_grads(attn_survey *survey, const attn_grads *grads);
attn_status attn_survey_append(attn_survey *survey, const attn_append *append);
/* These at validated ones. */
attn_status attn_survey_mask(attn_survey *survey, const attn_job *job, const attn_tensor *keep);
attn_status attn_survey_merge(attn_survey *survey, const attn_merge_job *job, const attn_tensor *out,
                              const attn_tensor *lse);

#endif
