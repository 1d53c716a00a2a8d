/* SPDX-License-Identifier: Apache-2.0
 * The arrays of each operation as operands of staging: shapes from the job, pointers and strides inside it, where they
 * are changed. Arrays that are absent are in the lists too, with a NULL pointer. */
#ifndef ATTN_CUDA_ARRAYS_H
#define ATTN_CUDA_ARRAYS_H

#include "kernels/params.h"
#include "staging.h"

enum { ATTN_CUDA_JOB_ARRAYS = 25, ATTN_CUDA_APPEND_ARRAYS = 18, ATTN_CUDA_MASK_ARRAYS = 2 };

/* Each fills `list` and returns how many they are. */
int attn_cuda_job_arrays(attn_job *job, attn_cuda_operand list[ATTN_CUDA_JOB_ARRAYS]);
/* is_short: of a call that writes every row of its caches that will be looked at (append_short.c). */
int attn_cuda_append_arrays(attn_append_job *job, bool is_short, attn_cuda_operand list[ATTN_CUDA_APPEND_ARRAYS]);
int attn_cuda_mask_arrays(attn_simt_mask *mask, attn_cuda_operand list[ATTN_CUDA_MASK_ARRAYS]);
/* list has room for 2 + 2 merge->parts; `part` is where the parts are described. */
int attn_cuda_merge_arrays(attn_simt_merge *merge, attn_simt_part *part, attn_cuda_operand *list);

#endif
