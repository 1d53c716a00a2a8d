/* SPDX-License-Identifier: Apache-2.0
 * The one place where a problem is checked. What passes here is right on every device; whether a device can
 * do it is the backend's answer. Nothing below this layer checks again. */
#include "validate.h"

/* ---- scalars --------------------------------------------------------------------------------- */

static attn_status check_mask(const attn_problem *p, attn_job *job)
{
    const uint32_t known = ATTN_CAUSAL | ATTN_TOP_LEFT | ATTN_WINDOW_LEFT | ATTN_WINDOW_RIGHT | ATTN_DIAGONAL;
    if (p->mask & ~known) return attn_fail(ATTN_INVALID_ARGUMENT, "mask: unknown bits in 0x%x", p->mask);
    if ((p->mask & ATTN_TOP_LEFT) && (p->mask & ATTN_DIAGONAL))
        return attn_fail(ATTN_INVALID_ARGUMENT, "mask: TOP_LEFT and DIAGONAL exclude each other");
    if ((p->mask & ATTN_WINDOW_LEFT) && p->window_left < 0)
        return attn_fail(ATTN_INVALID_ARGUMENT, "window_left: %lld is negative", (long long)p->window_left);
    if ((p->mask & ATTN_WINDOW_RIGHT) && p->window_right < 0)
        return attn_fail(ATTN_INVALID_ARGUMENT, "window_right: %lld is negative", (long long)p->window_right);
    if ((p->mask & ATTN_DIAGONAL) && (p->diagonal > ATTN_MAX_SIZE || p->diagonal < -ATTN_MAX_SIZE))
        return attn_fail(ATTN_INVALID_ARGUMENT, "diagonal: %lld is out of range", (long long)p->diagonal);

    /* A window wider than any tensor is no limit. */
    bool left = (p->mask & ATTN_WINDOW_LEFT) && p->window_left <= 2 * ATTN_MAX_SIZE;
    bool right = (p->mask & ATTN_WINDOW_RIGHT) && p->window_right <= 2 * ATTN_MAX_SIZE;
    job->window_left = left ? p->window_left : ATTN_OPEN;
    job->window_right = p->mask & ATTN_CAUSAL ? 0 : right ? p->window_right : ATTN_OPEN;
    job->bottom_right = !(p->mask & (ATTN_TOP_LEFT | ATTN_DIAGONAL));
    job->diagonal = p->mask & ATTN_DIAGONAL ? p->diagonal : 0;
    return ATTN_OK;
}

static attn_status check_origin(int64_t origin, int64_t size, const char *name)
{
    if (origin < 0 || origin > ((int64_t)1 << 32) - size)
        return attn_fail(ATTN_INVALID_ARGUMENT, "%s: %lld is out of range: origin and size must stay within 2^32", name,
                         (long long)origin);
    return ATTN_OK;
}

static attn_status check_dropout(const attn_problem *p, attn_job *job)
{
    if (!(p->dropout >= 0.0f && p->dropout <= 1.0f))
        return attn_fail(ATTN_INVALID_ARGUMENT, "dropout: %g is not a probability", (double)p->dropout);
    ATTN_TRY(attn_check_aligned(p->seed_offset, sizeof *p->seed_offset, "seed_offset"));
    job->has_dropout = p->dropout > 0.0f;
    job->keep_threshold = attn_dropout_threshold(p->dropout);
    job->keep_factor = p->dropout < 1.0f ? 1.0f / (1.0f - p->dropout) : 0.0f;
    job->seed = p->seed;
    job->offset = p->offset;
    job->seed_offset = p->seed_offset;
    if (!job->has_dropout) return ATTN_OK;
    job->batch_origin = p->batch_origin;
    job->head_origin = p->head_origin;
    job->row_origin = p->row_origin;
    job->column_origin = p->column_origin;
    int64_t queries = attn_min(job->max_q, job->q_span.room), keys = attn_min(job->max_k, job->kv_span.room);
    ATTN_TRY(check_origin(p->batch_origin, job->batch, "batch_origin"));
    ATTN_TRY(check_origin(p->head_origin, job->heads_q, "head_origin"));
    ATTN_TRY(check_origin(p->row_origin, queries, "row_origin"));
    return check_origin(p->column_origin, keys, "column_origin");
}

static attn_status check_scalars(const attn_problem *p, attn_job *job)
{
    if (!isfinite(p->scale)) return attn_fail(ATTN_INVALID_ARGUMENT, "scale: %g is not finite", (double)p->scale);
    if (!(p->softcap >= 0.0f) || !isfinite(p->softcap))
        return attn_fail(ATTN_INVALID_ARGUMENT, "softcap: %g, expected a finite number >= 0", (double)p->softcap);
    if (p->num_splits < 0 || p->num_splits > 65536)
        return attn_fail(ATTN_INVALID_ARGUMENT, "num_splits: %d is not in 0 .. 65536", p->num_splits);
    if (p->alibi_batch_stride < 0 || p->alibi_batch_stride > ATTN_MAX_SIZE)
        return attn_fail(ATTN_INVALID_ARGUMENT, "alibi_batch_stride: %lld is out of range",
                         (long long)p->alibi_batch_stride);
    ATTN_TRY(attn_check_aligned(p->alibi, sizeof *p->alibi, "alibi"));
    ATTN_TRY(attn_check_aligned(p->sink, sizeof *p->sink, "sink"));
    job->scale = p->scale != 0.0f ? p->scale : (float)(1.0 / sqrt((double)p->q.shape[3]));
    job->softcap = p->softcap;
    job->num_splits = p->num_splits;
    job->alibi = p->alibi;
    job->alibi_batch_stride = p->alibi_batch_stride;
    job->sink = p->sink;
    return ATTN_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Batch size: the sequences of q; k and v must agree. */
static attn_status check_batch(const attn_problem *p, attn_job *job)
{
    job->batch = p->q.shape[0];
    if (p->q_len.offsets) {
        if (p->q.shape[0] != 1)
            return attn_fail(ATTN_INVALID_ARGUMENT, "q.shape[0]: %lld, expected 1 for packed sequences",
                             (long long)p->q.shape[0]);
        job->batch = p->q_len.count;
        if (job->batch < 0 || job->batch > ATTN_MAX_SIZE)
            return attn_fail(ATTN_INVALID_ARGUMENT, "q_len.count: %lld is out of range", (long long)job->batch);
    }
    if (p->page_table) {
        if (p->kv_len.offsets)
            return attn_fail(ATTN_INVALID_ARGUMENT, "kv_len.offsets: a paged cache has no packed sequences");
        return ATTN_OK;
    }
    int64_t expected = p->kv_len.offsets ? 1 : job->batch;
    if (p->k.shape[0] != expected)
        return attn_fail(ATTN_INVALID_ARGUMENT, "k.shape[0]: %lld, expected %lld", (long long)p->k.shape[0],
                         (long long)expected);
    return ATTN_OK;
}

static attn_status check_pages(const attn_problem *p, attn_job *job)
{
    ATTN_TRY(attn_check_page_table(p->page_table, p->page_table_pages, p->page_table_stride, p->k.shape[2], "k",
                                   &job->page_table_stride));
    if (!p->page_table) return ATTN_OK;
    job->page_table = p->page_table;
    job->page_size = p->k.shape[2];
    job->page_count = p->k.shape[0];
    return ATTN_OK;
}

/* Every page that a key inside the band needs lies in the pool. */
static attn_status check_page_entries(const attn_job *job)
{
    if (attn_job_is_empty(job)) return ATTN_OK;
    for (int64_t b = 0; job->page_size && b < job->batch; b++) {
        attn_sequence s = attn_sequence_of(job, b);
        int64_t first, end, unused;
        if (s.q_len == 0) continue;
        attn_visible(job, &s, 0, &first, &unused);
        attn_visible(job, &s, s.q_len - 1, &unused, &end);
        for (int64_t j = first; j < end; j += job->page_size - (s.k_row + j) % job->page_size) {
            int64_t column = (s.k_row + j) / job->page_size;
            int32_t page = job->page_table[b * job->page_table_stride + column];
            if (page < 0 || page >= job->page_count)
                return attn_fail(ATTN_INVALID_ARGUMENT, "page_table[%lld][%lld]: page %d is not in the pool of %lld",
                                 (long long)b, (long long)column, page, (long long)job->page_count);
        }
    }
    return ATTN_OK;
}

/* The pool may hold any element type of its own; q, k and v agree in batch, heads and feature sizes. */
static attn_status check_qkv(const attn_problem *p, attn_job *job)
{
    ATTN_TRY(attn_check_tensor(&p->q, "q", DTYPES_FLOAT, ROLE_INPUT, NULL, &job->q));
    ATTN_TRY(attn_check_tensor(&p->k, "k", DTYPES_KV, ROLE_INPUT, NULL, &job->k));
    ATTN_TRY(check_batch(p, job));
    const int64_t v_shape[4] = {p->k.shape[0], p->k.shape[1], p->k.shape[2], p->v.shape[3]};
    ATTN_TRY(attn_check_tensor(&p->v, "v", DTYPES_KV, ROLE_INPUT, v_shape, &job->v));
    job->heads_q = p->q.shape[1];
    job->heads_kv = p->k.shape[1];
    job->head_dim = p->q.shape[3];
    job->head_dim_v = p->v.shape[3];
    if (p->k.shape[3] != job->head_dim)
        return attn_fail(ATTN_INVALID_ARGUMENT, "k.shape[3]: %lld, but q has head_dim %lld", (long long)p->k.shape[3],
                         (long long)job->head_dim);
    return ATTN_OK;
}

/* Head counts and sizes matter only where there is something to compute. */
static attn_status check_heads(attn_job *job, int64_t rows)
{
    if (!job->batch || !job->heads_q || !rows || !job->head_dim_v) return ATTN_OK;
    if (job->heads_kv == 0 || job->heads_q % job->heads_kv)
        return attn_fail(ATTN_INVALID_ARGUMENT, "k.shape[1]: %lld heads, of which q's %lld are no multiple",
                         (long long)job->heads_kv, (long long)job->heads_q);
    job->group = job->heads_q / job->heads_kv;
    if (job->head_dim == 0) return attn_fail(ATTN_INVALID_ARGUMENT, "q.shape[3]: head_dim is 0");
    if (job->head_dim > ATTN_MAX_HEAD_DIM || job->head_dim_v > ATTN_MAX_HEAD_DIM)
        return attn_fail(ATTN_UNSUPPORTED, "%s.shape[3]: head sizes above %d are not implemented",
                         job->head_dim > ATTN_MAX_HEAD_DIM ? "q" : "v", ATTN_MAX_HEAD_DIM);
    return ATTN_OK;
}

static attn_status check_outputs(const attn_problem *p, attn_job *job)
{
    const int64_t out_shape[4] = {p->q.shape[0], p->q.shape[1], p->q.shape[2], p->v.shape[3]};
    const int64_t lse_shape[4] = {p->q.shape[0], p->q.shape[1], p->q.shape[2], 1};
    ATTN_TRY(attn_check_tensor(&p->out, "out", DTYPES_FLOAT, ROLE_OUTPUT, out_shape, &job->out));
    if (!attn_present(&p->lse)) return ATTN_OK;
    return attn_check_tensor(&p->lse, "lse", 1u << ATTN_F32, ROLE_OUTPUT, lse_shape, &job->lse);
}

/* A packed batch's longest sequence, unless the caller gives it, is known to whoever can read the offsets. */
static int is_loose(const attn_lengths *lengths, bool readable)
{
    return !readable && lengths->offsets && !lengths->max;
}

/* An axis that goes over the queries or keys of the longest sequence: at most the bound where that is all we know. */
static bool fits_axis(const attn_job *job, int axis, int64_t size)
{
    const int64_t full[4] = {job->batch, job->heads_q, job->max_q, job->max_k};
    const int32_t loose[4] = {0, 0, job->loose_q, job->loose_k};
    return size == full[axis] || (loose[axis] && size >= 0 && size < full[axis]);
}

/* `shape` of each axis: 1 or the problem's. */
static attn_status check_bias_shape(const attn_tensor *bias, const char *name, const attn_job *job)
{
    const int64_t full[4] = {job->batch, job->heads_q, job->max_q, job->max_k};
    for (int axis = 0; axis < 4; axis++)
        if (bias->shape[axis] != 1 && !fits_axis(job, axis, bias->shape[axis]))
            return attn_fail(ATTN_INVALID_ARGUMENT, "%s.shape[%d]: %lld, expected 1 or %lld", name, axis,
                             (long long)bias->shape[axis], (long long)full[axis]);
    return ATTN_OK;
}

static attn_status check_bias(const attn_problem *p, attn_job *job)
{
    if (!attn_present(&p->bias)) return ATTN_OK;
    ATTN_TRY(check_bias_shape(&p->bias, "bias", job));
    memcpy(job->bias_shape, p->bias.shape, sizeof job->bias_shape);
    return attn_check_tensor(&p->bias, "bias", DTYPES_FLOAT | 1u << ATTN_BOOL, ROLE_BIAS, NULL, &job->bias);
}

attn_status attn_validate_problem(const attn_problem *p, bool readable, attn_job *job)
{
    memset(job, 0, sizeof *job);
    ATTN_TRY(check_mask(p, job));
    ATTN_TRY(check_qkv(p, job));
    ATTN_TRY(check_scalars(p, job));
    ATTN_TRY(check_pages(p, job));
    int64_t rows = p->q.shape[2], keys = p->page_table ? p->page_table_pages * job->page_size : p->k.shape[2];
    ATTN_TRY(attn_check_lengths(&p->q_len, "q_len", readable, job->batch, rows, &job->q_span, &job->max_q));
    ATTN_TRY(attn_check_lengths(&p->kv_len, "kv_len", readable, job->batch, keys, &job->kv_span, &job->max_k));
    job->loose_q = is_loose(&p->q_len, readable);
    job->loose_k = is_loose(&p->kv_len, readable);
    ATTN_TRY(check_heads(job, rows));
    ATTN_TRY(check_dropout(p, job));
    ATTN_TRY(check_outputs(p, job));
    ATTN_TRY(check_bias(p, job));
    return readable ? check_page_entries(job) : ATTN_OK;
}

/* ---- gradients ------------------------------------------------------------------------------- */

static attn_status check_gradient(const attn_tensor *t, const char *name, const attn_tensor *of, attn_view *view)
{
    if (!attn_present(t)) return ATTN_OK;
    return attn_check_tensor(t, name, DTYPES_FLOAT, ROLE_OUTPUT, of->shape, view);
}

static attn_status check_dbias(const attn_problem *p, const attn_grads *g, attn_job *job)
{
    if (!attn_present(&g->dbias)) return ATTN_OK;
    if (!attn_present(&p->bias)) return attn_fail(ATTN_INVALID_ARGUMENT, "dbias: the problem has no bias");
    if (p->bias.dtype == ATTN_BOOL) return attn_fail(ATTN_INVALID_ARGUMENT, "dbias: a bool bias has no gradient");
    return attn_check_tensor(&g->dbias, "dbias", DTYPES_FLOAT, ROLE_OUTPUT, p->bias.shape, &job->dbias);
}

attn_status attn_validate_grads(const attn_problem *p, const attn_grads *g, attn_job *job)
{
    if (g->flags & ~(uint32_t)(ATTN_GRAD_ACCUMULATE | ATTN_GRAD_UNORDERED))
        return attn_fail(ATTN_INVALID_ARGUMENT, "grads.flags: unknown bits in 0x%x", g->flags);
    job->accumulate = (g->flags & ATTN_GRAD_ACCUMULATE) != 0;
    job->unordered = (g->flags & ATTN_GRAD_UNORDERED) != 0;
    if (job->page_size) return attn_fail(ATTN_UNSUPPORTED, "page_table: backward of a paged cache is not implemented");
    bool work = job->batch && job->heads_q && p->q.shape[2] && job->head_dim_v;
    if (work && !job->lse.data) return attn_fail(ATTN_INVALID_ARGUMENT, "lse: backward needs the forward's lse");
    ATTN_TRY(attn_check_tensor(&g->dout, "dout", DTYPES_FLOAT, ROLE_INPUT, p->out.shape, &job->dout));
    if (attn_present(&g->dlse)) {
        const int64_t shape[4] = {p->q.shape[0], p->q.shape[1], p->q.shape[2], 1};
        ATTN_TRY(attn_check_tensor(&g->dlse, "dlse", 1u << ATTN_F32, ROLE_INPUT, shape, &job->dlse));
    }
    ATTN_TRY(check_gradient(&g->dq, "dq", &p->q, &job->dq));
    ATTN_TRY(check_gradient(&g->dk, "dk", &p->k, &job->dk));
    ATTN_TRY(check_gradient(&g->dv, "dv", &p->v, &job->dv));
    ATTN_TRY(check_dbias(p, g, job));
    if (g->dsink && !p->sink) return attn_fail(ATTN_INVALID_ARGUMENT, "dsink: the problem has no sink");
    ATTN_TRY(attn_check_aligned(g->dsink, sizeof *g->dsink, "dsink"));
    job->dsink = g->dsink;
    return ATTN_OK;
}

attn_status attn_validate_keep(attn_job *job, const attn_tensor *keep, attn_view *view)
{
    if (job->loose_q && fits_axis(job, 2, keep->shape[2])) job->max_q = keep->shape[2];
    if (job->loose_k && fits_axis(job, 3, keep->shape[3])) job->max_k = keep->shape[3];
    const int64_t shape[4] = {job->batch, job->heads_q, job->max_q, job->max_k};
    return attn_check_tensor(keep, "keep", 1u << ATTN_BOOL, ROLE_OUTPUT, shape, view);
}
