/* SPDX-License-Identifier: Apache-2.0 */
#include "validate.h"

static attn_status check_type(const attn_tensor *t, const char *name, unsigned dtypes)
{
    if (t->dtype < ATTN_F32 || t->dtype > ATTN_Q4_0 || !(dtypes >> t->dtype & 1u))
        return attn_fail(ATTN_INVALID_ARGUMENT, "%s.dtype: %d (%s) is not allowed here", name, t->dtype,
                         attn_dtype_name((attn_dtype)t->dtype));
    if (t->flags) return attn_fail(ATTN_INVALID_ARGUMENT, "%s.flags: 0x%x, expected 0", name, t->flags);
    if (t->reserved[0] || t->reserved[1]) return attn_fail(ATTN_INVALID_ARGUMENT, "%s.reserved is not zero", name);
    bool scaled = DTYPES_SCALED >> t->dtype & 1u;
    if (!scaled && t->scale) return attn_fail(ATTN_INVALID_ARGUMENT, "%s.scale: only i8 and f8 tensors have one", name);
    if (t->dtype == ATTN_I8 && !t->scale) return attn_fail(ATTN_INVALID_ARGUMENT, "%s.scale: i8 needs one", name);
    return ATTN_OK;
}

static attn_status check_shape(const attn_tensor *t, const char *name, const int64_t shape[4])
{
    for (int axis = 0; axis < 4; axis++) {
        if (t->shape[axis] < 0 || t->shape[axis] > ATTN_MAX_SIZE)
            return attn_fail(ATTN_INVALID_ARGUMENT, "%s.shape[%d]: %lld is out of range", name, axis,
                             (long long)t->shape[axis]);
        if (shape && t->shape[axis] != shape[axis])
            return attn_fail(ATTN_INVALID_ARGUMENT, "%s.shape[%d]: %lld, expected %lld", name, axis,
                             (long long)t->shape[axis], (long long)shape[axis]);
    }
    if (attn_is_block(t->dtype) && t->shape[3] % ATTN_BLOCK)
        return attn_fail(ATTN_INVALID_ARGUMENT, "%s.shape[3]: %lld is not a multiple of 32, which %s needs", name,
                         (long long)t->shape[3], attn_dtype_name((attn_dtype)t->dtype));
    return ATTN_OK;
}

static bool is_empty(const attn_tensor *t) { return !t->shape[0] || !t->shape[1] || !t->shape[2] || !t->shape[3]; }

/* Offsets of all elements, in units of up to 8 bytes, fit in 63 bits. */
static bool extent_fits(const int64_t *shape, const int64_t *stride, int axes)
{
    int64_t sum = 0, part;
    for (int axis = 0; axis < axes; axis++) {
        if (shape[axis] <= 1) continue;
        int64_t step = stride[axis];
        if (step == INT64_MIN || __builtin_mul_overflow(shape[axis] - 1, step < 0 ? -step : step, &part) ||
            __builtin_add_overflow(sum, part, &sum))
            return false;
    }
    return sum <= INT64_MAX / 8;
}

/* What is written is also walked through, so its elements can be counted. */
static bool is_countable(const attn_tensor *t)
{
    int64_t count = t->shape[0];
    for (int axis = 1; axis < 4; axis++)
        if (__builtin_mul_overflow(count, t->shape[axis], &count)) return false;
    return true;
}

static attn_status check_strides(const attn_tensor *t, const char *name, attn_role role)
{
    if (is_empty(t)) return ATTN_OK; /* no element to go wrong */
    if (role == ROLE_OUTPUT && !is_countable(t))
        return attn_fail(ATTN_INVALID_ARGUMENT, "%s.shape: the number of elements overflows 64 bits", name);
    if (role != ROLE_BIAS && t->shape[3] > 1 && t->stride[3] != 1)
        return attn_fail(ATTN_INVALID_ARGUMENT, "%s.stride[3]: %lld, expected 1", name, (long long)t->stride[3]);
    for (int axis = 0; axis < 3 + (role == ROLE_BIAS); axis++) {
        if (t->shape[axis] <= 1) continue;
        if (role == ROLE_OUTPUT && t->stride[axis] == 0)
            return attn_fail(ATTN_INVALID_ARGUMENT, "%s.stride[%d]: 0, but outputs cannot overlap themselves", name,
                             axis);
        if (attn_is_block(t->dtype) && t->stride[axis] % ATTN_BLOCK)
            return attn_fail(ATTN_INVALID_ARGUMENT, "%s.stride[%d]: %lld is not a multiple of 32, which %s needs", name,
                             axis, (long long)t->stride[axis], attn_dtype_name((attn_dtype)t->dtype));
    }
    if (!extent_fits(t->shape, t->stride, 4) || (t->scale && !extent_fits(t->shape, t->scale_stride, 3)))
        return attn_fail(ATTN_INVALID_ARGUMENT, "%s.stride: the tensor's extent overflows 64 bits", name);
    return ATTN_OK;
}

static attn_status check_memory(const attn_tensor *t, const char *name)
{
    if (!t->data && !is_empty(t)) return attn_fail(ATTN_INVALID_ARGUMENT, "%s.data is NULL", name);
    size_t align = t->dtype == ATTN_F32                                                       ? 4
                   : t->dtype == ATTN_F16 || t->dtype == ATTN_BF16 || attn_is_block(t->dtype) ? 2
                                                                                              : 1;
    if ((uintptr_t)t->data & (align - 1))
        return attn_fail(ATTN_INVALID_ARGUMENT, "%s.data: not aligned to %zu bytes", name, align);
    if ((uintptr_t)t->scale % sizeof(float))
        return attn_fail(ATTN_INVALID_ARGUMENT, "%s.scale: not aligned to 4 bytes", name);
    return ATTN_OK;
}

attn_status attn_check_tensor(const attn_tensor *t, const char *name, unsigned dtypes, attn_role role,
                              const int64_t shape[4], attn_view *view)
{
    ATTN_TRY(check_type(t, name, dtypes));
    ATTN_TRY(check_shape(t, name, shape));
    ATTN_TRY(check_strides(t, name, role));
    ATTN_TRY(check_memory(t, name));
    memset(view, 0, sizeof *view);
    view->data = t->data;
    view->scale = t->scale;
    view->dtype = t->dtype;
    if (is_empty(t)) return ATTN_OK; /* strides 0: they were not checked */
    for (int axis = 0; axis < 4; axis++) view->stride[axis] = t->shape[axis] > 1 ? t->stride[axis] : 0;
    for (int axis = 0; axis < 3; axis++) view->scale_stride[axis] = t->shape[axis] > 1 ? t->scale_stride[axis] : 0;
    return ATTN_OK;
}

attn_status attn_check_aligned(const void *p, size_t bytes, const char *name)
{
    return (uintptr_t)p & (bytes - 1) ? attn_fail(ATTN_INVALID_ARGUMENT, "%s: not aligned to %zu bytes", name, bytes)
                                      : ATTN_OK;
}

/* ---- lengths --------------------------------------------------------------------------------- */

static attn_status check_offsets(const attn_lengths *lengths, const char *name, bool readable, int64_t batch,
                                 int64_t rows)
{
    const int32_t *offsets = lengths->offsets;
    if (lengths->count == 0 && rows > 0)
        return attn_fail(ATTN_INVALID_ARGUMENT, "%s.count: 0, but offsets needs the number of sequences", name);
    if (lengths->count != batch)
        return attn_fail(ATTN_INVALID_ARGUMENT, "%s.count: %lld, expected %lld sequences", name,
                         (long long)lengths->count, (long long)batch);
    for (int64_t b = 0; readable && b <= batch; b++) {
        bool falls = b == 0 ? offsets[0] < 0 : offsets[b] < offsets[b - 1];
        if (falls || offsets[b] > rows)
            return attn_fail(ATTN_INVALID_ARGUMENT, "%s.offsets[%lld]: %d is %s", name, (long long)b, offsets[b],
                             falls ? "below its predecessor" : "beyond the tensor's rows");
    }
    return ATTN_OK;
}

attn_status attn_check_lengths(const attn_lengths *lengths, const char *name, bool readable, int64_t batch,
                               int64_t rows, attn_span *span, int64_t *largest)
{
    const void *const arrays[] = {lengths->used, lengths->offsets, lengths->start};
    const char *const fields[] = {"used", "offsets", "start"};
    for (int n = 0; n < 3; n++)
        if ((uintptr_t)arrays[n] % sizeof(int32_t))
            return attn_fail(ATTN_INVALID_ARGUMENT, "%s.%s: not aligned to 4 bytes", name, fields[n]);
    if (lengths->reserved) return attn_fail(ATTN_INVALID_ARGUMENT, "%s.reserved is not zero", name);
    if (lengths->max < 0 || lengths->max > ATTN_MAX_SIZE)
        return attn_fail(ATTN_INVALID_ARGUMENT, "%s.max: %lld is out of range", name, (long long)lengths->max);
    if (!lengths->offsets && lengths->count && lengths->count != batch)
        return attn_fail(ATTN_INVALID_ARGUMENT, "%s.count: %lld, but the batch is %lld", name,
                         (long long)lengths->count, (long long)batch);
    if (lengths->offsets) ATTN_TRY(check_offsets(lengths, name, readable, batch, rows));
    *span = (attn_span){lengths->used, lengths->offsets, lengths->start, rows};

    int64_t longest_room = lengths->offsets && readable ? 0 : rows;
    for (int64_t b = 0; readable && b < batch && (lengths->offsets || lengths->used || lengths->start); b++) {
        int64_t base, room, row, used;
        attn_span_rows(span, b, &base, &room, &row, &used);
        if (row < base || row > base + room)
            return attn_fail(ATTN_INVALID_ARGUMENT, "%s.start[%lld]: %lld is outside the sequence's %lld rows", name,
                             (long long)b, (long long)(row - base), (long long)room);
        if (used < 0 || used > base + room - row)
            return attn_fail(ATTN_INVALID_ARGUMENT, "%s.used[%lld]: %lld does not fit the %lld rows there are", name,
                             (long long)b, (long long)used, (long long)(base + room - row));
        if (lengths->max && used > lengths->max)
            return attn_fail(ATTN_INVALID_ARGUMENT, "%s.max: %lld, but sequence %lld has %lld tokens", name,
                             (long long)lengths->max, (long long)b, (long long)used);
        longest_room = attn_max(longest_room, room);
    }
    bool full = !lengths->offsets && !lengths->used && !lengths->start;
    if (full && batch && lengths->max && rows > lengths->max)
        return attn_fail(ATTN_INVALID_ARGUMENT, "%s.max: %lld, but every sequence has %lld tokens", name,
                         (long long)lengths->max, (long long)rows);
    *largest = lengths->max ? lengths->max : longest_room;
    return ATTN_OK;
}

/* ---- page tables ----------------------------------------------------------------------------- */

attn_status attn_check_page_table(const int32_t *table, int64_t pages, int64_t stride, int64_t page_size,
                                  const char *pool, int64_t *row_stride)
{
    if (!table != !pages)
        return attn_fail(ATTN_INVALID_ARGUMENT, "page_table_pages: %lld, but page_table is %s", (long long)pages,
                         table ? "given" : "NULL");
    if (!table) return ATTN_OK;
    ATTN_TRY(attn_check_aligned(table, sizeof *table, "page_table"));
    *row_stride = stride ? stride : pages;
    if (pages < 0 || pages > ATTN_MAX_SIZE)
        return attn_fail(ATTN_INVALID_ARGUMENT, "page_table_pages: %lld is out of range", (long long)pages);
    if (*row_stride < pages || *row_stride > ATTN_MAX_SIZE)
        return attn_fail(ATTN_INVALID_ARGUMENT, "page_table_stride: %lld is less than page_table_pages or out of range",
                         (long long)stride);
    if (page_size < 1 || page_size > ATTN_MAX_SIZE / pages)
        return attn_fail(ATTN_INVALID_ARGUMENT, "%s.shape[2]: pages of %lld rows are out of range", pool,
                         (long long)page_size);
    return ATTN_OK;
}

/* ---- exec ------------------------------------------------------------------------------------ */

/* The device that a call asks for must be one that the context permits. */
static attn_status check_exec_device(const attn_context *ctx, int32_t device)
{
    int32_t gpus = 0;
    if (device < 0) return attn_fail(ATTN_INVALID_ARGUMENT, "exec.device: %d, expected 0 (automatic) or more", device);
    if (device == 0) return ATTN_OK;
    bool only_gpu = ctx->backend == &attn_cuda_backend;
    if (only_gpu && device != ctx->gpu + 2)
        return attn_fail(ATTN_NO_DEVICE, "exec.device: %d, expected 0 (automatic) or %d (device %d, the context's GPU)",
                         device, ctx->gpu + 2, ctx->gpu + 1);
    if (only_gpu || device == 1) return ATTN_OK;
    if (!ctx->cuda)
        return attn_fail(ATTN_NO_DEVICE,
                         "exec.device: %d, expected 0 (automatic) or 1 (device 0): the context has no GPU", device);
    if (attn_cuda_count(&gpus) == ATTN_OK && device <= gpus + 1) return ATTN_OK;
    return attn_fail(ATTN_NO_DEVICE, "exec.device: %d, but there are %d GPUs", device, gpus);
}

attn_status attn_check_exec(const attn_context *ctx, const attn_exec *given, attn_exec *exec)
{
    *exec = (attn_exec)ATTN_EXEC_INIT;
    exec->flags = ATTN_EXEC_WAIT;
    if (!given) return ATTN_OK;
    ATTN_TRY(attn_import(exec, sizeof *exec, given, "exec"));
    if (exec->flags & ~(uint32_t)ATTN_EXEC_WAIT)
        return attn_fail(ATTN_INVALID_ARGUMENT, "exec.flags: unknown bits in 0x%x", exec->flags);
    if (exec->reserved) return attn_fail(ATTN_INVALID_ARGUMENT, "exec.reserved is not zero");
    ATTN_TRY(check_exec_device(ctx, exec->device));
    return attn_check_aligned(exec->workspace, 64, "exec.workspace");
}
