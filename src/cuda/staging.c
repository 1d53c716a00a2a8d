/* SPDX-License-Identifier: Apache-2.0 */
#include "staging.h"

enum { READS = ATTN_CUDA_READS, WRITES = ATTN_CUDA_WRITES };

enum {
    COPY_ALIGN = 256,
    DIRECT_BYTES = 64 << 10, /* runs of this length and more are worth a driver call each */
    /* An array of this size is worth waking a team. Below, or without one, the driver's own way for long runs of ordinary
     * memory, which is such a ring with one thread, is as fast as ours. */
    TEAM_BYTES = 8 << 20,
    TEAM_THREADS = 2,
    PART_BYTES =
        512 << 10, /* of a piece, for one thread: four fill most buses, and on a busy machine each may be late */
    PIECE_BYTES = 128 << 10, /* through the ring at once, and more where there are more than PIECES of them */
    PIECES = 8,
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

/* ---- what is the host's ----------------------------------------------------------------------- */

/* Both ends; what lies between them is nobody else's. */
static attn_status is_pinned(const attn_cuda_box *b, bool *answer)
{
    attn_cuda_kind first, last;
    int32_t unused;
    const char *end = b->low + b->run;
    for (int n = 0; n < b->axes; n++) end += b->step[n] * (b->count[n] - 1);
    ATTN_TRY(attn_cuda_locate(b->low, &first, &unused));
    ATTN_TRY(attn_cuda_locate(end - 1, &last, &unused));
    *answer = first == ATTN_CUDA_PINNED && last == ATTN_CUDA_PINNED;
    return ATTN_OK;
}

static attn_status find(attn_cuda_operand *o)
{
    char *data;
    attn_cuda_kind kind;
    int32_t owner;
    memcpy(&data, o->field, sizeof data);
    if (!data || is_empty(o)) return ATTN_OK;
    ATTN_TRY(attn_cuda_locate(data, &kind, &owner));
    if (owner >= 0) return ATTN_OK;
    o->box = box_of(o, data);
    o->held = is_held(o);
    o->staged = true;
    return kind == ATTN_CUDA_PINNED ? is_pinned(&o->box, &o->is_pinned) : ATTN_OK;
}

attn_status attn_cuda_staging_find(attn_cuda_staging *s, const char **first)
{
    *first = NULL;
    for (int n = 0; n < s->count; n++) {
        ATTN_TRY(find(&s->operands[n]));
        if (s->operands[n].staged && !*first) *first = s->operands[n].name;
    }
    return ATTN_OK;
}

/* ---- layout ---------------------------------------------------------------------------------- */

static bool has_copy(const attn_cuda_operand *o) { return o->staged && !o->held; }

/* Which arrays go without the ring; whether any needs it. `team`: threads that copy faster than the driver's one. */
static bool choose_ways(const attn_cuda_staging *s, bool team)
{
    bool needed = false;
    for (int n = 0; n < s->count; n++) {
        attn_cuda_operand *o = &s->operands[n];
        if (!has_copy(o)) continue;
        const bool faster = team && !o->is_pinned && o->bytes >= TEAM_BYTES;
        o->is_direct = merged(o->box).run >= DIRECT_BYTES && !faster;
        needed = needed || !o->is_direct;
    }
    return needed;
}

static attn_status place(const attn_cuda_staging *s, bool direct, int access, size_t *end)
{
    for (int n = 0; n < s->count; n++) {
        attn_cuda_operand *o = &s->operands[n];
        if (!has_copy(o) || o->is_direct != direct || !(o->access == access || direct)) continue;
        o->offset = *end;
        if (__builtin_add_overflow(*end, (o->bytes + COPY_ALIGN - 1) / COPY_ALIGN * COPY_ALIGN, end))
            return attn_fail(ATTN_OUT_OF_MEMORY, "host tensors take more memory than there is");
    }
    return ATTN_OK;
}

/* In this order there is one range that goes there and one that comes back. */
static attn_status place_all(attn_cuda_staging *s, size_t *end)
{
    ATTN_TRY(place(s, true, 0, end));
    s->there.from = *end;
    ATTN_TRY(place(s, false, READS, end));
    s->back.from = *end;
    ATTN_TRY(place(s, false, READS | WRITES, end));
    s->there.to = *end;
    ATTN_TRY(place(s, false, WRITES, end));
    s->back.to = *end;
    return ATTN_OK;
}

attn_status attn_cuda_staging_layout(attn_cuda_staging *s, size_t *bytes)
{
    *bytes = 0;
    for (int n = 0; n < s->count; n++)
        if (has_copy(&s->operands[n])) ATTN_TRY(bytes_of(&s->operands[n], &s->operands[n].bytes));
    if (choose_ways(s, s->ctx->threads >= TEAM_THREADS)) {
        ATTN_TRY(attn_cuda_ring_take(s->ctx, s->device, &s->ring));
        if (!s->ring->is_pinned) choose_ways(s, false);
    }
    ATTN_TRY(place_all(s, bytes));
    for (int n = 0; n < s->count; n++) {
        attn_cuda_operand *o = &s->operands[n];
        if (o->held) o->offset = o->holder->offset + (size_t)(o->box.low - o->holder->box.low);
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

/* ---- runs ------------------------------------------------------------------------------------ */

typedef struct walk {
    char *at;
    int64_t index[4];
} walk;

static walk walk_from(const attn_cuda_box *b, size_t run)
{
    walk w = {.at = b->low};
    for (int n = 0; n < b->axes; n++) {
        w.index[n] = (int64_t)(run % (size_t)b->count[n]);
        w.at += b->step[n] * w.index[n];
        run /= (size_t)b->count[n];
    }
    return w;
}

static void next_run(const attn_cuda_box *b, walk *w)
{
    for (int n = 0; n < b->axes; n++) {
        w->at += b->step[n];
        if (++w->index[n] < b->count[n]) return;
        w->at -= b->step[n] * b->count[n];
        w->index[n] = 0;
    }
}

/* Bytes [from, to) of the copy. */
static void move_runs(const attn_cuda_box *b, size_t from, size_t to, char *slot, bool upload)
{
    size_t skipped = from % b->run;
    for (walk w = walk_from(b, from / b->run); from < to; next_run(b, &w), skipped = 0) {
        const size_t left = b->run - skipped, bytes = left < to - from ? left : to - from;
        if (upload) memcpy(slot, w.at + skipped, bytes);
        else memcpy(w.at + skipped, slot, bytes);
        slot += bytes;
        from += bytes;
    }
}

/* ---- the ring -------------------------------------------------------------------------------- */

typedef struct piece {
    const attn_cuda_staging *staging;
    bool upload;
    attn_cuda_range range;
    int slot;
    char *memory; /* the slot's */
} piece;

static size_t piece_bytes(attn_cuda_range whole)
{
    const int64_t share = attn_round_up(attn_ceil_div((int64_t)(whole.to - whole.from), PIECES), COPY_ALIGN);
    return (size_t)attn_max(PIECE_BYTES, attn_min(share, ATTN_CUDA_SLOT_BYTES));
}

static size_t piece_count(attn_cuda_range whole)
{
    const size_t bytes = piece_bytes(whole);
    return (whole.to - whole.from + bytes - 1) / bytes;
}

static piece piece_of(const attn_cuda_staging *s, bool upload, size_t n)
{
    const attn_cuda_range whole = upload ? s->there : s->back;
    const size_t bytes = piece_bytes(whole), from = whole.from + n * bytes;
    piece p = {.staging = s, .upload = upload, .slot = (int)(n % ATTN_CUDA_SLOTS)};
    p.range = (attn_cuda_range){from, bytes < whole.to - from ? from + bytes : whole.to};
    p.memory = s->ring->memory + (size_t)p.slot * ATTN_CUDA_SLOT_BYTES;
    return p;
}

static void move_part(void *arg, int64_t part, int32_t thread)
{
    const piece *p = arg;
    const size_t begin = p->range.from + (size_t)part * PART_BYTES;
    const size_t end = PART_BYTES < p->range.to - begin ? begin + PART_BYTES : p->range.to;
    (void)thread;
    for (int n = 0; n < p->staging->count; n++) {
        const attn_cuda_operand *o = &p->staging->operands[n];
        if (!has_copy(o) || o->is_direct || !(o->access & (p->upload ? READS : WRITES))) continue;
        const size_t from = begin > o->offset ? begin : o->offset;
        const size_t to = end < o->offset + o->bytes ? end : o->offset + o->bytes;
        if (from >= to) continue;
        const attn_cuda_box b = merged(o->box);
        move_runs(&b, from - o->offset, to - o->offset, p->memory + (from - p->range.from), p->upload);
    }
}

/* Between the host's arrays and the slot. */
static void move(piece *p)
{
    const attn_cuda_range whole = p->upload ? p->staging->there : p->staging->back;
    const bool team = whole.to - whole.from >= TEAM_BYTES;
    const int64_t parts = attn_ceil_div((int64_t)(p->range.to - p->range.from), PART_BYTES);
    attn_cpu_parallel(p->staging->ctx, team ? p->staging->ctx->threads : 1, parts, move_part, p);
}

static attn_status copy_run(const attn_cuda_staging *s, char *host, CUdeviceptr device, size_t bytes, bool upload)
{
    const attn_cuda_driver *driver = s->device->driver;
    return upload ? ATTN_CUDA_CALL(driver, upload, device, host, bytes, s->stream)
                  : ATTN_CUDA_CALL(driver, download, host, device, bytes, s->stream);
}

/* Between the slot and the GPU. */
static attn_status queue(const piece *p)
{
    const attn_cuda_staging *s = p->staging;
    ATTN_TRY(copy_run(s, p->memory, s->copies + p->range.from, p->range.to - p->range.from, p->upload));
    return ATTN_CUDA_CALL(s->device->driver, event_record, s->ring->done[p->slot], s->stream);
}

static attn_status wait_for_slot(const piece *p)
{
    const attn_cuda_staging *s = p->staging;
    return ATTN_CUDA_CALL(s->device->driver, event_synchronize, s->ring->done[p->slot]);
}

static attn_status send(const attn_cuda_staging *s)
{
    const size_t count = piece_count(s->there);
    for (size_t n = 0; n < count; n++) {
        piece p = piece_of(s, true, n);
        if (n >= ATTN_CUDA_SLOTS) ATTN_TRY(wait_for_slot(&p));
        move(&p);
        ATTN_TRY(queue(&p));
    }
    return ATTN_OK;
}

/* The copies wait on the stream for the computation, and for those there, from the same slots. */
static attn_status receive(const attn_cuda_staging *s)
{
    const size_t count = piece_count(s->back);
    for (size_t n = 0, queued = 0; n < count; n++) {
        for (; queued < count && queued < n + ATTN_CUDA_SLOTS; queued++) {
            const piece next = piece_of(s, false, queued);
            ATTN_TRY(queue(&next));
        }
        piece p = piece_of(s, false, n);
        ATTN_TRY(wait_for_slot(&p));
        move(&p);
    }
    return ATTN_OK;
}

/* ---- the call -------------------------------------------------------------------------------- */

static attn_status copy_directly(const attn_cuda_staging *s, bool upload)
{
    for (int n = 0; n < s->count; n++) {
        const attn_cuda_operand *o = &s->operands[n];
        if (!has_copy(o) || !o->is_direct || !(o->access & (upload ? READS : WRITES))) continue;
        const attn_cuda_box b = merged(o->box);
        walk w = walk_from(&b, 0);
        for (size_t at = 0; at < o->bytes; at += b.run, next_run(&b, &w))
            ATTN_TRY(copy_run(s, w.at, s->copies + o->offset + at, b.run, upload));
    }
    return ATTN_OK;
}

/* First what the GPU copies by itself. */
attn_status attn_cuda_staging_upload(attn_cuda_staging *s)
{
    ATTN_TRY(copy_directly(s, true));
    ATTN_TRY(send(s));
    for (int n = 0; n < s->count; n++)
        if (s->operands[n].staged) redirect(s, &s->operands[n]);
    return ATTN_OK;
}

attn_status attn_cuda_staging_download(attn_cuda_staging *s)
{
    ATTN_TRY(copy_directly(s, false));
    ATTN_TRY(receive(s));
    return ATTN_CUDA_CALL(s->device->driver, stream_synchronize, s->stream);
}
