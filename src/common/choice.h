/* SPDX-License-Identifier: Apache-2.0
 * Automatic choice: the CPU or a GPU for a forward whose tensors are all the host's. */
#ifndef ATTN_CHOICE_H
#define ATTN_CHOICE_H

#include "survey.h"

/* Whether nobody has said who computes a forward of these tensors. */
bool attn_choice_is_free(const attn_context *ctx, const attn_exec *exec, const attn_survey *survey);

/* `plan` is the CPU's. Where a GPU would be done sooner it becomes that GPU's, and exec names it. Problems that are too
 * small for any GPU cost a few multiplications here. */
void attn_choose(const attn_context *ctx, const attn_job *job, const attn_survey *survey, attn_exec *exec,
                 attn_plan *plan);

/* Leaves out a workspace that does not lie where a freely chosen device computes: the caller could not know. */
attn_status attn_choice_fit_workspace(const attn_survey *survey, attn_exec *exec, const attn_plan *plan);

/* After a call of `plan` has failed: whether attn_choose took a GPU that turned out to be of no use. Then it is not taken
 * again by this context, and plan and exec are the CPU's. */
bool attn_choice_falls_back(const attn_context *ctx, const attn_job *job, attn_status status, attn_exec *exec,
                            attn_plan *plan);

#endif
