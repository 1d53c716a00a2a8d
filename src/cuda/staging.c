/* SPDX-License-Identifier: Apache-2.0 */
#include "staging.h"

enum {
    BOUNCE_BYTES = 1 << 20,
    DIRECT_BYTES = 64 << 10, /* runs of this length and more are worth a driver call each */
    COPY_ALIGN = 256
};

/* ---- boxes ----------------------------------------------------------------------------------- */

static void insert_axis(attn_cuda_box *b, int axis, int64_t count, int64_t step)
{
    int n = b->axes++;
    for (; n > 0 && b->step[n - 1] > step; n--) {
        b->axis[n] = b->axis[n - 1];
        b->count[n] = b->count[n - 1];
        b->step[n] = b->step[n - 1];
    }
    b->axis[n] = axis;
    b->count[n] = count;
    b->step[n] = step;
}

/* Validation has made sure that nothing overflows. */
static attn_cuda_box box_of(const attn_cuda_operand *o, char *data)
{
    attn_cuda_box b = {.low = data, .run = (size_t)(o->run / o->unit * o->unit_bytes)};
    for (int axis = 0; axis < o->axes; axis++) {
        int64_t step = o->stride[axis] / o->unit * o->unit_bytes;
        if (o->count[axis] <= 1 || step == 0) continue;
        if (step < 0) b.low += step * (o->count[axis] - 1);
        insert_axis(&b, axis, o->count[axis], step < 0 ? -step : step);
    }
    return b;
}

static bool is_empty(const attn_cuda_operand *o)
{
    int64_t least = o->run;
    for (int axis = 0; axis < o->axes; axis++) least = attn_min(least, o->count[axis]);
    return least <= 0;
}

static attn_status bytes_of(const attn_cuda_operand *o, size_t *bytes)
{
    *bytes = o->box.run;
    for (int n = 0; n < o->box.axes; n++)
        if (__builtin_mul_overflow(*bytes, (size_t)o->box.count[n], bytes) || *bytes > SIZE_MAX / 4)
            return attn_fail(ATTN_OUT_OF_MEMORY, "%s: its elements take more memory than there is", o->name);
    return ATTN_OK;
}

/* Whether each run of `o` is a part of the holder's run at the same indices, as v is of k in MLA. */
static bool is_held(const attn_cuda_operand *o)
{
    const attn_cuda_operand *h = o->holder;
    if (!h || !h->staged || h->held || o->unit != h->unit || o->unit_bytes != h->unit_bytes) return false;
    const attn_cuda_box *inner = &o->box, *outer = &h->box;
    if (inner->axes != outer->axes || inner->low < outer->low ||
        (size_t)(inner->low - outer->low) + inner->run > outer->run)
        return false;
    for (int n = 0; n < inner->axes; n++) {
        int axis = inner->axis[n];
        if (axis != outer->axis[n] || inner->count[n] != outer->count[n] || o->stride[axis] != h->stride[axis])
            return false;
    }
    return true;
}

/* Rows of one step follow each other without a gap: they are one run. */
static attn_cuda_box merged(attn_cuda_box b)
{
    while (b.axes && (uint64_t)b.step[0] == b.run) {
        b.run *= (size_t)b.count[0];
        b.axes--;
        memmove(b.count, b.count + 1, sizeof *b.count * (size_t)b.axes);
        memmove(b.step, b.step + 1, sizeof *b.step * (size_t)b.axes);
    }
    return b;
}

/* ---- layout ---------------------------------------------------------------------------------- */

static attn_status measure(attn_cuda_operand *o, size_t *bytes)
{
    char *data;
    attn_cuda_kind kind;
    int32_t unused;
    size_t own = 0;
    memcpy(&data, o->field, sizeof data);
    if (!data || is_empty(o)) return ATTN_OK;
    ATTN_TRY(attn_cuda_locate(data, &kind, &unused));
    if (kind != ATTN_CUDA_HOST) return ATTN_OK;
    o->box = box_of(o, data);
    o->held = is_held(o);
    o->staged = true;
    if (o->held) {
        o->offset = o->holder->offset + (size_t)(o->box.low - o->holder->box.low);
        return ATTN_OK;
    }
    ATTN_TRY(bytes_of(o, &own));
    o->offset = *bytes;
    if (__builtin_add_overflow(*bytes, (own + COPY_ALIGN - 1) / COPY_ALIGN * COPY_ALIGN, bytes))
        return attn_fail(ATTN_OUT_OF_MEMORY, "host tensors take more memory than there is");
    return ATTN_OK;
}

attn_status attn_cuda_staging_measure(attn_cuda_staging *s, size_t *bytes, const char **first)
{
    *bytes = 0;
    *first = NULL;
    for (int n = 0; n < s->count; n++) {
        ATTN_TRY(measure(&s->operands[n], bytes));
        if (s->operands[n].staged && !*first) *first = s->operands[n].name;
    }
    return ATTN_OK;
}

static void redirect(const attn_cuda_staging *s, const attn_cuda_operand *o)
{
    CUdeviceptr address = s->copies + o->offset;
    size_t step = o->held ? o->holder->box.run : o->box.run;
    for (int n = 0; n < o->box.axes; n++) {
        int64_t *stride = &o->stride[o->box.axis[n]], packed = (int64_t)step / o->unit_bytes * o->unit;
        if (*stride < 0) address += step * (size_t)(o->box.count[n] - 1);
        *stride = *stride < 0 ? -packed : packed;
        step *= (size_t)o->box.count[n];
    }
    void *data = (void *)(uintptr_t)address;
    memcpy(o->field, &data, sizeof data);
}

/* ---- copies ---------------------------------------------------------------------------------- */

static attn_status copy_run(const attn_cuda_staging *s, char *host, CUdeviceptr device, size_t bytes, bool upload)
{
    const attn_cuda_driver *driver = s->device->driver;
    return upload ? ATTN_CUDA_CALL(driver, upload, device, host, bytes, s->stream)
                  : ATTN_CUDA_CALL(driver, download, host, device, bytes, s->stream);
}

static attn_status wait(const attn_cuda_staging *s)
{
    return ATTN_CUDA_CALL(s->device->driver, stream_synchronize, s->stream);
}

typedef struct walk {
    char *at;
    int64_t index[4], left; /* runs to go */
} walk;

static void next_run(const attn_cuda_box *b, walk *w)
{
    w->left--;
    for (int n = 0; n < b->axes; n++) {
        w->at += b->step[n];
        if (++w->index[n] < b->count[n]) return;
        w->at -= b->step[n] * b->count[n];
        w->index[n] = 0;
    }
}

static void bounce_runs(const attn_cuda_box *b, walk *w, char *bounce, int64_t count, bool upload)
{
    for (int64_t n = 0; n < count; n++, bounce += b->run, next_run(b, w)) {
        if (upload) memcpy(bounce, w->at, b->run);
        else memcpy(w->at, bounce, b->run);
    }
}

/* The driver may still read the bounce buffer after an upload has returned. */
static attn_status copy_bounced(const attn_cuda_staging *s, const attn_cuda_box *b, walk *w, CUdeviceptr device,
                                bool upload)
{
    int64_t most = (int64_t)(BOUNCE_BYTES / b->run);
    while (w->left) {
        int64_t count = attn_min(w->left, most);
        size_t bytes = (size_t)count * b->run;
        if (upload) bounce_runs(b, w, s->bounce, count, true);
        ATTN_TRY(copy_run(s, s->bounce, device, bytes, upload));
        ATTN_TRY(wait(s));
        if (!upload) bounce_runs(b, w, s->bounce, count, false);
        device += bytes;
    }
    return ATTN_OK;
}

static bool bounces(const attn_cuda_box *b) { return b->axes > 0 && b->run < DIRECT_BYTES; }

static attn_status copy(attn_cuda_staging *s, const attn_cuda_operand *o, bool upload)
{
    const attn_cuda_box b = merged(o->box);
    CUdeviceptr device = s->copies + o->offset;
    walk w = {.at = b.low, .left = 1};
    for (int n = 0; n < b.axes; n++) w.left *= b.count[n];
    if (bounces(&b)) return copy_bounced(s, &b, &w, device, upload);
    for (; w.left; next_run(&b, &w), device += b.run) ATTN_TRY(copy_run(s, w.at, device, b.run, upload));
    return ATTN_OK;
}

/* Before the call computes, so that nothing is missing afterwards. */
static attn_status take_bounce(attn_cuda_staging *s)
{
    for (int n = 0; n < s->count && !s->bounce; n++) {
        const attn_cuda_operand *o = &s->operands[n];
        const attn_cuda_box b = merged(o->box);
        if (!o->staged || !bounces(&b)) continue;
        s->bounce = attn_context_alloc(s->ctx, BOUNCE_BYTES);
        if (!s->bounce) return attn_fail(ATTN_OUT_OF_MEMORY, "no host memory to gather the rows of %s", o->name);
    }
    return ATTN_OK;
}

attn_status attn_cuda_staging_upload(attn_cuda_staging *s)
{
    ATTN_TRY(take_bounce(s));
    for (int n = 0; n < s->count; n++) {
        const attn_cuda_operand *o = &s->operands[n];
        if (o->staged && !o->held && (o->access & ATTN_CUDA_READS)) ATTN_TRY(copy(s, o, true));
    }
    for (int n = 0; n < s->count; n++)
        if (s->operands[n].staged) redirect(s, &s->operands[n]);
    return ATTN_OK;
}

attn_status attn_cuda_staging_download(attn_cuda_staging *s)
{
    ATTN_TRY(wait(s));
    for (int n = 0; n < s->count; n++) {
        const attn_cuda_operand *o = &s->operands[n];
        if (o->staged && (o->access & ATTN_CUDA_WRITES)) ATTN_TRY(copy(s, o, false));
    }
    return wait(s);
}
