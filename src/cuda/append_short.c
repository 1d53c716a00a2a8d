/* SPDX-License-Identifier: Apache-2.0 */
#include "append_short.h"
#include "state.h"

/* ---- what the host can read ------------------------------------------------------------------ */

static attn_status are_readable(const void *const *pointers, int count, bool in_host_memory, bool *answer)
{
    *answer = true;
    for (int n = 0; n < count; n++) {
        int32_t owner;
        bool readable;
        if (!pointers[n]) continue;
        ATTN_TRY(attn_cuda_place(pointers[n], &owner, &readable));
        *answer = *answer && (in_host_memory ? owner < 0 : readable);
    }
    return ATTN_OK;
}

#define ARE_READABLE(pointers, in_host_memory, answer) \
  are_readable(pointers, sizeof(pointers) / sizeof *(pointers), in_host_memory, answer)

static attn_status what_is_short(const attn_append_job *j, bool *caches, bool *tables)
{
    const void *const indices[] = {j->new_span.used,      j->new_span.offsets, j->new_span.start, j->cache_span.used,
                                   j->cache_span.offsets, j->cache_span.start, j->page_table,     j->slots,
                                   j->rope.positions};
    const void *const rows[] = {j->k_cache.data, j->k_cache.scale, j->v_cache.data, j->v_cache.scale};
    const void *const angles[] = {j->rope.cos, j->rope.sin};
    bool known;
    ATTN_TRY(ARE_READABLE(indices, false, &known));
    ATTN_TRY(ARE_READABLE(rows, true, caches));
    ATTN_TRY(ARE_READABLE(angles, true, tables));
    *caches = known && *caches;
    *tables = known && *tables && j->rotate;
    return ATTN_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int64_t tokens_of(const attn_append_job *job)
{
    return (job->new_span.offsets ? 1 : job->batch) * job->new_rows;
}

/* Cuts pieces from a block, or only counts while there is none. */
typedef struct cutter {
    char *block;
    size_t used;
} cutter;

static void *cut(cutter *c, int64_t count, size_t bytes)
{
    enum { ALIGN = 64 };
    void *piece = c->block ? c->block + c->used : NULL;
    c->used += ((size_t)count * bytes + ALIGN - 1) / ALIGN * ALIGN;
    return piece;
}

/* Token by token, the heads of one side by side. */
static void shorten_view(attn_view *view, int64_t heads, int64_t tokens, int64_t d, cutter *c)
{
    if (!view->data) return;
    view->data = cut(c, tokens * heads, attn_dtype_bytes((attn_dtype)view->dtype, d));
    memcpy(view->stride, (int64_t[4]){0, d, heads * d, 1}, sizeof view->stride);
    if (!view->scale) return;
    view->scale = cut(c, tokens * heads, sizeof *view->scale);
    memcpy(view->scale_stride, (int64_t[3]){0, 1, heads}, sizeof view->scale_stride);
}

/* Of the angles, the rows that tokens need, one a token. */
static void shorten_rope(attn_rope *rope, int64_t tokens, cutter *c)
{
    const size_t row_bytes = (size_t)(rope->rotary_dim / 2) * sizeof(float);
    rope->cos = cut(c, tokens, row_bytes);
    rope->sin = cut(c, tokens, row_bytes);
    rope->positions = cut(c, tokens, sizeof *rope->positions);
    rope->max_pos = tokens;
}

static void shorten(const attn_append_job *given, bool caches, bool tables, attn_append_job *job, cutter *c)
{
    const int64_t tokens = tokens_of(given);
    *job = *given;
    if (tables) shorten_rope(&job->rope, tokens, c);
    if (!caches) return;
    shorten_view(&job->k_cache, job->heads_kv, tokens, job->head_dim, c);
    shorten_view(&job->v_cache, job->heads_kv, tokens, job->head_dim_v, c);
    job->slots = cut(c, tokens, sizeof *job->slots);
    job->page_table = NULL;
    job->page_size = 0;
    job->cache_span.offsets = job->cache_span.start = NULL; /* `used` still says positions */
    job->cache_batch = 1;
    job->cache_rows = tokens;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

typedef struct token {
    int64_t b, i, index;
    int64_t row; /* the sequence's first */
} token;

typedef void token_body(const attn_append_job *given, const attn_cuda_short *made, const token *t);

static void each_token(const attn_append_job *given, const attn_cuda_short *made, token_body *body)
{
    for (int64_t b = 0; b < given->batch; b++) {
        int64_t base, room, count;
        token t = {.b = b};
        attn_span_rows(&given->new_span, b, &base, &room, &t.row, &count);
        for (; t.i < count; t.i++) {
            t.index = attn_append_token(given, b, t.row, t.i);
            body(given, made, &t);
        }
    }
}

static void fill_rope(const attn_append_job *given, const attn_cuda_short *made, const token *t)
{
    const attn_rope *from = &given->rope, *to = &made->job.rope;
    const int64_t half = from->rotary_dim / 2, position = attn_append_position(given, t->b, t->row, t->i);
    const size_t bytes = (size_t)half * sizeof(float);
    memcpy((float *)(uintptr_t)to->cos + t->index * half, from->cos + position * half, bytes);
    memcpy((float *)(uintptr_t)to->sin + t->index * half, from->sin + position * half, bytes);
    ((int32_t *)(uintptr_t)to->positions)[t->index] = (int32_t)t->index;
}

static void fill_scales(const attn_view *from, const attn_view *to, int64_t heads, int64_t batch, int64_t row,
                        int64_t n)
{
    for (int64_t h = 0; from->scale && h < heads; h++)
        *attn_row_scale(to, 0, h, n) = *attn_row_scale(from, batch, h, row);
}

static void fill_caches(const attn_append_job *given, const attn_cuda_short *made, const token *t)
{
    const attn_append_job *job = &made->job;
    int64_t batch, row;
    if (!attn_append_place(given, t->b, t->row, t->i, &batch, &row)) return;
    ((int64_t *)(uintptr_t)job->slots)[t->index] = t->index;
    if (job->set_scale) return; /* they are written */
    fill_scales(&given->k_cache, &job->k_cache, job->heads_kv, batch, row, t->index);
    fill_scales(&given->v_cache, &job->v_cache, job->heads_kv, batch, row, t->index);
}

static void bring_back(const attn_view *from, const attn_view *to, const attn_append_job *given, int64_t d, int64_t n,
                       int64_t batch, int64_t row)
{
    const size_t bytes = attn_dtype_bytes((attn_dtype)to->dtype, d);
    for (int64_t h = 0; to->data && h < given->heads_kv; h++) {
        memcpy(attn_element(to, attn_row_offset(to, batch, h, row)), attn_element(from, attn_row_offset(from, 0, h, n)),
               bytes);
        if (to->scale && given->set_scale) *attn_row_scale(to, batch, h, row) = *attn_row_scale(from, 0, h, n);
    }
}

static void finish_token(const attn_append_job *given, const attn_cuda_short *made, const token *t)
{
    int64_t batch, row;
    if (!attn_append_place(given, t->b, t->row, t->i, &batch, &row)) return;
    bring_back(&made->job.k_cache, &given->k_cache, given, given->head_dim, t->index, batch, row);
    bring_back(&made->job.v_cache, &given->v_cache, given, given->head_dim_v, t->index, batch, row);
}

/* ---- the call -------------------------------------------------------------------------------- */

attn_status attn_cuda_short_make(const attn_context *ctx, const attn_append_job *given, attn_cuda_short *made)
{
    bool tables;
    cutter c = {0};
    *made = (attn_cuda_short){.job = *given};
    ATTN_TRY(what_is_short(given, &made->caches, &tables));
    tables = tables && given->rope.max_pos > tokens_of(given);
    if (!made->caches && !tables) return ATTN_OK;
    shorten(given, made->caches, tables, &made->job, &c);
    made->memory = attn_context_alloc(ctx, c.used);
    if (!made->memory) return attn_fail(ATTN_OUT_OF_MEMORY, "no host memory for %zu bytes of new tokens", c.used);
    c = (cutter){.block = made->memory};
    shorten(given, made->caches, tables, &made->job, &c);
    if (made->caches) /* -1: nowhere */
        memset((int64_t *)(uintptr_t)made->job.slots, 0xff, (size_t)tokens_of(given) * sizeof(int64_t));
    if (tables) each_token(given, made, fill_rope);
    if (made->caches) each_token(given, made, fill_caches);
    return ATTN_OK;
}

void attn_cuda_short_finish(const attn_append_job *given, const attn_cuda_short *made)
{
    if (made->caches) each_token(given, made, finish_token);
}
