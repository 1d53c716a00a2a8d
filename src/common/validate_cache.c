/* SPDX-License-Identifier: Apache-2.0
 * Checks of attn_kv_append and attn_merge. */
#include "validate.h"

/* ---- append ---------------------------------------------------------------------------------- */

static attn_status check_set_scale(const attn_tensor *cache, const char *name)
{
    if (!(DTYPES_SCALED >> cache->dtype & 1u)) return ATTN_OK;
    if (!cache->scale) return attn_fail(ATTN_INVALID_ARGUMENT, "%s.scale: NULL, but SET_SCALE writes it", name);
    for (int axis = 0; axis < 3; axis++)
        if (cache->shape[axis] > 1 && cache->scale_stride[axis] == 0)
            return attn_fail(ATTN_INVALID_ARGUMENT, "%s.scale_stride[%d]: 0, but SET_SCALE needs one factor a row",
                             name, axis);
    return ATTN_OK;
}

static attn_status check_caches(const attn_append *a, attn_append_job *job)
{
    bool values = attn_present(&a->v_new);
    if (values != attn_present(&a->v_cache))
        return attn_fail(ATTN_INVALID_ARGUMENT, "v_new and v_cache: give both or neither");
    ATTN_TRY(attn_check_tensor(&a->k_new, "k_new", DTYPES_FLOAT, ROLE_INPUT, NULL, &job->k_new));
    const int64_t *c = a->k_cache.shape, *n = a->k_new.shape;
    const int64_t k_shape[4] = {c[0], n[1], c[2], n[3]};
    ATTN_TRY(attn_check_tensor(&a->k_cache, "k_cache", DTYPES_KV, ROLE_OUTPUT, k_shape, &job->k_cache));
    if (values) {
        const int64_t new_shape[4] = {n[0], n[1], n[2], a->v_new.shape[3]};
        const int64_t cache_shape[4] = {c[0], n[1], c[2], a->v_new.shape[3]};
        ATTN_TRY(attn_check_tensor(&a->v_new, "v_new", DTYPES_FLOAT, ROLE_INPUT, new_shape, &job->v_new));
        ATTN_TRY(attn_check_tensor(&a->v_cache, "v_cache", DTYPES_KV, ROLE_OUTPUT, cache_shape, &job->v_cache));
    }
    if (a->flags & ~(uint32_t)ATTN_APPEND_SET_SCALE)
        return attn_fail(ATTN_INVALID_ARGUMENT, "append.flags: unknown bits in 0x%x", a->flags);
    job->set_scale = (a->flags & ATTN_APPEND_SET_SCALE) != 0;
    if (job->set_scale) {
        ATTN_TRY(check_set_scale(&a->k_cache, "k_cache"));
        if (values) ATTN_TRY(check_set_scale(&a->v_cache, "v_cache"));
    }
    if (c[2] && c[0] > INT64_MAX / c[2])
        return attn_fail(ATTN_INVALID_ARGUMENT, "k_cache.shape: the number of its rows overflows 64 bits");
    if (n[3] > ATTN_MAX_HEAD_DIM || (values && a->v_new.shape[3] > ATTN_MAX_HEAD_DIM))
        return attn_fail(ATTN_UNSUPPORTED, "%s.shape[3]: head sizes above %d are not implemented",
                         n[3] > ATTN_MAX_HEAD_DIM ? "k_new" : "v_new", ATTN_MAX_HEAD_DIM);
    job->heads_kv = n[1];
    job->head_dim = n[3];
    job->head_dim_v = values ? a->v_new.shape[3] : 0;
    job->cache_rows = c[2];
    job->cache_batch = c[0];
    return ATTN_OK;
}

static attn_status check_append_batch(const attn_append *a, attn_append_job *job)
{
    job->batch = a->new_len.offsets ? a->new_len.count : a->k_new.shape[0];
    if (a->new_len.offsets && a->k_new.shape[0] != 1)
        return attn_fail(ATTN_INVALID_ARGUMENT, "k_new.shape[0]: %lld, expected 1 for packed sequences",
                         (long long)a->k_new.shape[0]);
    if (job->batch < 0 || job->batch > ATTN_MAX_SIZE)
        return attn_fail(ATTN_INVALID_ARGUMENT, "new_len.count: %lld is out of range", (long long)job->batch);
    if (a->slots || a->page_table) return ATTN_OK;
    int64_t expected = a->cache_len.offsets ? 1 : job->batch;
    if (a->k_cache.shape[0] != expected)
        return attn_fail(ATTN_INVALID_ARGUMENT, "k_cache.shape[0]: %lld, expected %lld", (long long)a->k_cache.shape[0],
                         (long long)expected);
    return ATTN_OK;
}

static attn_status check_append_pages(const attn_append *a, attn_append_job *job)
{
    ATTN_TRY(attn_check_page_table(a->page_table, a->page_table_pages, a->page_table_stride, a->k_cache.shape[2],
                                   "k_cache", &job->page_table_stride));
    if (!a->page_table || a->slots) return ATTN_OK;
    if (a->cache_len.offsets)
        return attn_fail(ATTN_INVALID_ARGUMENT, "cache_len.offsets: a paged cache has no packed sequences");
    job->page_table = a->page_table;
    job->page_size = a->k_cache.shape[2];
    return ATTN_OK;
}

/* Every new token has a place; nothing is written before this is known. */
static attn_status check_places(const attn_append *a, const attn_append_job *job)
{
    for (int64_t b = 0; b < job->batch; b++) {
        int64_t base, room, row, count;
        attn_span_rows(&job->new_span, b, &base, &room, &row, &count);
        if (!a->slots && count > 0) {
            int64_t cache_base, cache_room, cache_row, used;
            attn_span_rows(&job->cache_span, b, &cache_base, &cache_room, &cache_row, &used);
            if (used + count > cache_base + cache_room - cache_row)
                return attn_fail(ATTN_INVALID_ARGUMENT,
                                 "cache_len.used[%lld]: %lld tokens in use and %lld new ones do not fit %lld rows",
                                 (long long)b, (long long)used, (long long)count, (long long)cache_room);
        }
        for (int64_t i = 0; i < count; i++) {
            int64_t batch, place;
            bool there = attn_append_place(job, b, row, i, &batch, &place);
            if (!there && !a->slots)
                return attn_fail(ATTN_INVALID_ARGUMENT,
                                 "page_table[%lld]: the page of new token %lld is not in the pool of %lld",
                                 (long long)b, (long long)i, (long long)job->cache_batch);
            int64_t slot = a->slots ? a->slots[attn_append_token(job, b, row, i)] : 0;
            if (!there && slot != -1)
                return attn_fail(ATTN_INVALID_ARGUMENT, "slots: %lld is outside the cache's %lld rows", (long long)slot,
                                 (long long)(job->cache_batch * job->cache_rows));
        }
    }
    return ATTN_OK;
}

static attn_status check_positions(const attn_append_job *job)
{
    for (int64_t b = 0; b < job->batch; b++) {
        int64_t base, room, row, count;
        attn_span_rows(&job->new_span, b, &base, &room, &row, &count);
        for (int64_t i = 0; i < count; i++) {
            int64_t position = attn_append_position(job, b, row, i);
            if (position < 0 || position >= job->rope.max_pos)
                return attn_fail(ATTN_INVALID_ARGUMENT,
                                 "rope.%s: position %lld of new token %lld is not in 0 .. max_pos - 1 = %lld",
                                 job->rope.positions ? "positions" : "max_pos", (long long)position, (long long)i,
                                 (long long)job->rope.max_pos - 1);
        }
    }
    return ATTN_OK;
}

static attn_status check_rope(const attn_append *a, attn_append_job *job)
{
    if (!a->rope) {
        if (attn_present(&a->q)) return attn_fail(ATTN_INVALID_ARGUMENT, "q: given without rope");
        return ATTN_OK;
    }
    attn_rope *r = &job->rope;
    ATTN_TRY(attn_import(r, sizeof *r, a->rope, "rope"));
    job->rotate = true;
    if (!r->cos) return attn_fail(ATTN_INVALID_ARGUMENT, "rope.cos is NULL");
    if (!r->sin) return attn_fail(ATTN_INVALID_ARGUMENT, "rope.sin is NULL");
    ATTN_TRY(attn_check_aligned(r->cos, sizeof *r->cos, "rope.cos"));
    ATTN_TRY(attn_check_aligned(r->sin, sizeof *r->sin, "rope.sin"));
    ATTN_TRY(attn_check_aligned(r->positions, sizeof *r->positions, "rope.positions"));
    if (r->interleaved != 0 && r->interleaved != 1)
        return attn_fail(ATTN_INVALID_ARGUMENT, "rope.interleaved: %d, expected 0 or 1", r->interleaved);
    if (r->rotary_dim < 2 || r->rotary_dim % 2 || r->rotary_dim > job->head_dim)
        return attn_fail(ATTN_INVALID_ARGUMENT, "rope.rotary_dim: %lld, expected an even number up to head_dim %lld",
                         (long long)r->rotary_dim, (long long)job->head_dim);
    if (r->first_dim < 0 || r->first_dim > job->head_dim - r->rotary_dim)
        return attn_fail(ATTN_INVALID_ARGUMENT, "rope.first_dim: %lld and rotary_dim exceed head_dim %lld",
                         (long long)r->first_dim, (long long)job->head_dim);
    if (!r->positions && !a->cache_len.used)
        return attn_fail(ATTN_INVALID_ARGUMENT, "rope.positions: needed where cache_len.used is absent");
    if (attn_present(&a->q)) {
        const int64_t shape[4] = {a->k_new.shape[0], a->q.shape[1], a->k_new.shape[2], a->k_new.shape[3]};
        ATTN_TRY(attn_check_tensor(&a->q, "q", DTYPES_FLOAT, ROLE_OUTPUT, shape, &job->q));
        job->heads_q = a->q.shape[1];
    }
    return ATTN_OK;
}

attn_status attn_validate_append(const attn_append *a, bool readable, attn_append_job *job)
{
    int64_t unused;
    memset(job, 0, sizeof *job);
    ATTN_TRY(check_caches(a, job));
    ATTN_TRY(check_append_batch(a, job));
    ATTN_TRY(check_append_pages(a, job));
    ATTN_TRY(attn_check_aligned(a->slots, sizeof *a->slots, "slots"));
    ATTN_TRY(attn_check_aligned(a->cache_len.used, sizeof *a->cache_len.used, "cache_len.used"));
    job->new_rows = a->k_new.shape[2];
    job->slots = a->slots;
    if (!a->slots && !a->cache_len.used && job->batch)
        return attn_fail(ATTN_INVALID_ARGUMENT, "cache_len.used is NULL: needed unless slots is given");
    int64_t rows = job->page_size ? a->page_table_pages * job->page_size : job->cache_rows;
    ATTN_TRY(
        attn_check_lengths(&a->new_len, "new_len", readable, job->batch, job->new_rows, &job->new_span, &job->max_new));
    if (a->slots) /* used only says positions there; any room will do */
        job->cache_span = (attn_span){a->cache_len.used, NULL, NULL, rows};
    else
        ATTN_TRY(attn_check_lengths(&a->cache_len, "cache_len", readable, job->batch, rows, &job->cache_span, &unused));
    if (readable) ATTN_TRY(check_places(a, job));
    ATTN_TRY(check_rope(a, job));
    return job->rotate && readable ? check_positions(job) : ATTN_OK;
}

/* ---- merge ----------------------------------------------------------------------------------- */

attn_status attn_validate_merge(int32_t n, const attn_tensor *out_parts, const attn_tensor *lse_parts,
                                const attn_tensor *out, const attn_tensor *lse, attn_merge_job *job)
{
    memset(job, 0, sizeof *job);
    if (n < 1 || n > 65536) return attn_fail(ATTN_INVALID_ARGUMENT, "n: %d is not in 1 .. 65536", n);
    if (!out_parts) return attn_fail(ATTN_INVALID_ARGUMENT, "out_parts is NULL");
    if (!lse_parts) return attn_fail(ATTN_INVALID_ARGUMENT, "lse_parts is NULL");
    if (!out) return attn_fail(ATTN_INVALID_ARGUMENT, "out is NULL");
    ATTN_TRY(attn_check_tensor(out, "out", DTYPES_FLOAT, ROLE_OUTPUT, NULL, &job->out));
    const int64_t lse_shape[4] = {out->shape[0], out->shape[1], out->shape[2], 1};
    if (lse && attn_present(lse))
        ATTN_TRY(attn_check_tensor(lse, "lse", 1u << ATTN_F32, ROLE_OUTPUT, lse_shape, &job->lse));
    for (int32_t part = 0; part < n; part++) {
        attn_view unused;
        ATTN_TRY(attn_check_tensor(&out_parts[part], "out_parts[]", DTYPES_FLOAT, ROLE_INPUT, out->shape, &unused));
        ATTN_TRY(attn_check_tensor(&lse_parts[part], "lse_parts[]", 1u << ATTN_F32, ROLE_INPUT, lse_shape, &unused));
    }
    job->parts = n;
    job->out_parts = out_parts;
    job->lse_parts = lse_parts;
    memcpy(job->shape, out->shape, sizeof job->shape);
    return ATTN_OK;
}
