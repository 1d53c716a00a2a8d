/* SPDX-License-Identifier: Apache-2.0
 * Pieces of validation that problem, gradients, append and merge share. Every error names the field. */
#ifndef ATTN_VALIDATE_H
#define ATTN_VALIDATE_H

#include "internal.h"

enum { /* dtype sets: bit per attn_dtype */
       DTYPES_FLOAT = 1u << ATTN_F32 | 1u << ATTN_F16 | 1u << ATTN_BF16,
       DTYPES_SCALED = 1u << ATTN_I8 | 1u << ATTN_F8_E4M3 | 1u << ATTN_F8_E5M2,
       DTYPES_BLOCK = 1u << ATTN_Q8_0 | 1u << ATTN_Q4_0,
       DTYPES_KV = DTYPES_FLOAT | DTYPES_SCALED | DTYPES_BLOCK
};

typedef enum attn_role { ROLE_INPUT, ROLE_OUTPUT, ROLE_BIAS } attn_role;

static inline bool attn_present(const attn_tensor *t) { return t->data != NULL; }
static inline bool attn_is_block(int32_t dtype) { return dtype == ATTN_Q8_0 || dtype == ATTN_Q4_0; }

/* Checks a tensor on its own (type, strides, alignment, extents) and makes its view. `shape` is what the
 * problem demands of it; NULL: anything. `data` may be NULL only where there are no elements. */
attn_status attn_check_tensor(const attn_tensor *t, const char *name, unsigned dtypes, attn_role role,
                              const int64_t shape[4], attn_view *view);

/* Checks length arrays of `batch` sequences against a sequence axis of `rows`, their contents only where the host can
 * read them, and fills the span. *largest: bound of the used lengths. */
attn_status attn_check_lengths(const attn_lengths *lengths, const char *name, bool readable, int64_t batch,
                               int64_t rows, attn_span *span, int64_t *largest);

/* `bytes`: a power of two; NULL is aligned. */
attn_status attn_check_aligned(const void *p, size_t bytes, const char *name);

/* A page table (which may be absent) of pages of `page_size` rows; *row_stride: elements between its rows. `pool` names
 * the tensor of the pages. */
attn_status attn_check_page_table(const int32_t *table, int64_t pages, int64_t stride, int64_t page_size,
                                  const char *pool, int64_t *row_stride);

attn_status attn_check_exec(const attn_context *ctx, const attn_exec *given, attn_exec *exec);

#endif
