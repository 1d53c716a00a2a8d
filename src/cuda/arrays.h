/* SPDX-License-Identifier: Apache-2.0
 * Where the arrays of a call lie. All of them must be the GPU's that computes: host tensors are not staged yet. */
#ifndef ATTN_CUDA_ARRAYS_H
#define ATTN_CUDA_ARRAYS_H

#include "state.h"

/* UNSUPPORTED for host memory, INVALID_ARGUMENT for another GPU's, both with the field's name. */
attn_status attn_cuda_check_job(const attn_job *job, int32_t ordinal);
attn_status attn_cuda_check_append(const attn_append_job *job, int32_t ordinal);
attn_status attn_cuda_check_merge(const attn_merge_job *job, int32_t ordinal);
attn_status attn_cuda_check_array(const void *pointer, const char *name, int32_t ordinal);

#endif
