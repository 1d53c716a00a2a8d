/* SPDX-License-Identifier: Apache-2.0
 * attn_kv_append to caches in host memory, turned into one whose caches hold nothing but the new tokens. So a step of
 * decoding copies its rows to and fro, not the cache, and touches no other row. */
#ifndef ATTN_CUDA_APPEND_SHORT_H
#define ATTN_CUDA_APPEND_SHORT_H

#include "internal.h"

typedef struct attn_cuda_short {
    attn_append_job job; /* on arrays in host memory, as the given one */
    bool caches;         /* are short: their rows have to be brought back */
    void *memory;        /* of its arrays; release it */
} attn_cuda_short;

/* As far as the host can read what is needed; what it cannot stays as given. */
attn_status attn_cuda_short_make(const attn_context *ctx, const attn_append_job *given, attn_cuda_short *made);
/* Writes the rows of the short caches to their places in the given ones. */
void attn_cuda_short_finish(const attn_append_job *given, const attn_cuda_short *made);

#endif
