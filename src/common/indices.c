/* SPDX-License-Identifier: Apache-2.0
 * ATTN_CFG_CHECK_INDICES: copies index arrays that lie in a GPU's memory to the host and validates what they hold as if
 * the caller had given the copies. */
#include "validate.h"

typedef struct copies {
    const attn_context *ctx;
    attn_exec exec;
    void *block[9]; /* lengths twice, page table, slots, positions */
    int count;
} copies;

static copies start(const attn_context *ctx, const attn_exec *exec)
{
    copies c = {.ctx = ctx, .exec = *exec};
    c.exec.flags |= ATTN_EXEC_WAIT;
    return c;
}

static attn_status end(copies *c, attn_status status)
{
    while (c->count) attn_context_release(c->ctx, c->block[--c->count]);
    return status;
}

/* Replaces the pointer at `field` by that to a copy, if the host cannot read what it leads to. */
static attn_status copy(copies *c, void *field, int64_t count, size_t size)
{
    const void *from;
    void *to;
    int32_t gpu;
    bool readable, done;
    size_t bytes;
    memcpy(&from, field, sizeof from);
    if (!from || count <= 0) return ATTN_OK;
    ATTN_TRY(attn_cuda_place(from, &gpu, &readable));
    if (readable) return ATTN_OK;
    if (__builtin_mul_overflow((size_t)count, size, &bytes) || !(to = attn_context_alloc(c->ctx, bytes)))
        return attn_fail(ATTN_OUT_OF_MEMORY, "no host memory to check an array of %lld elements", (long long)count);
    c->block[c->count++] = to;
    memcpy(field, &to, sizeof to);
    return attn_cuda_copy(c->ctx, to, from, bytes, false, &c->exec, &done);
}

static attn_status copy_lengths(copies *c, attn_lengths *lengths, int64_t batch)
{
    ATTN_TRY(copy(c, &lengths->used, batch, sizeof *lengths->used));
    ATTN_TRY(copy(c, &lengths->offsets, batch + 1, sizeof *lengths->offsets));
    return copy(c, &lengths->start, batch, sizeof *lengths->start);
}

static int64_t table_size(int64_t batch, int64_t stride, int64_t pages)
{
    int64_t size;
    if (batch < 1) return 0;
    return __builtin_mul_overflow(batch - 1, stride, &size) || size > INT64_MAX - pages ? INT64_MAX : size + pages;
}

static attn_status check_problem(copies *c, attn_problem *p, const attn_job *job)
{
    attn_job unused;
    ATTN_TRY(copy_lengths(c, &p->q_len, job->batch));
    ATTN_TRY(copy_lengths(c, &p->kv_len, job->batch));
    ATTN_TRY(copy(c, &p->page_table, table_size(job->batch, job->page_table_stride, p->page_table_pages),
                  sizeof *p->page_table));
    return attn_validate_problem(p, true, &unused);
}

attn_status attn_check_problem_indices(const attn_context *ctx, const attn_exec *exec, const attn_problem *problem,
                                       const attn_job *job)
{
    attn_problem p = *problem;
    copies c = start(ctx, exec);
    return end(&c, check_problem(&c, &p, job));
}

static attn_status check_append(copies *c, attn_append *a, attn_rope *rope, const attn_append_job *job)
{
    attn_append_job unused;
    int64_t tokens = (job->new_span.offsets ? 1 : job->batch) * job->new_rows;
    ATTN_TRY(copy_lengths(c, &a->new_len, job->batch));
    ATTN_TRY(copy_lengths(c, &a->cache_len, job->batch));
    if (!a->slots)
        ATTN_TRY(copy(c, &a->page_table, table_size(job->batch, job->page_table_stride, a->page_table_pages),
                      sizeof *a->page_table));
    ATTN_TRY(copy(c, &a->slots, tokens, sizeof *a->slots));
    if (a->rope) ATTN_TRY(copy(c, &rope->positions, tokens, sizeof *rope->positions));
    return attn_validate_append(a, true, &unused);
}

attn_status attn_check_append_indices(const attn_context *ctx, const attn_exec *exec, const attn_append *append,
                                      const attn_append_job *job)
{
    attn_append a = *append;
    attn_rope rope = job->rope;
    copies c = start(ctx, exec);
    if (a.rope) a.rope = &rope;
    return end(&c, check_append(&c, &a, &rope, job));
}
