/* SPDX-License-Identifier: Apache-2.0
 * What lanes or threads do together: barriers, shuffles, matrices, mma. */
#include "banks.h"
#include "block.h"
#include "report.h"
#include "settings.h"
#include "shadow.h"

namespace emulator
{

static bool same(const Where &a, const Where &b)
{
    return a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

void block_barrier(Where where)
{
    Worker *w = worker;
    Fiber *me = self;
    if (w->at_barrier == 0) w->barrier_where = where;
    else if (!same(w->barrier_where, where)) {
        report("threads meet at different barriers, %s:%d and %s:%d", base_name(w->barrier_where.file),
               w->barrier_where.line, base_name(where.file), where.line);
        w->abandon();
    }
    me->warp->runnable &= ~(1u << me->lane);
    if (++w->at_barrier < w->threads) {
        me->waits = AT_BARRIER;
        me->where = where;
        w->leave(me);
        return;
    }
    w->counters.block_barriers++;
    w->at_barrier = 0;
    for (unsigned i = 0; i < w->warps; i++) {
        w->warp[i].runnable = w->warp[i].live;
        if (w->banks != nullptr) banks_finish_step(*w, i);
    }
    shadow_block_barrier(w->shadow, w->warps);
}

bool arrive(Fiber *me, Operation operation, uint32_t value, Where where)
{
    Warp *warp = me->warp;
    Exchange &exchange = warp->exchange;
    const uint32_t bit = 1u << me->lane;
    if (warp->live != ~0u) {
        report("%s:%d needs all 32 lanes, but of this warp there are 0x%08x", base_name(where.file), where.line,
               warp->live);
        worker->abandon();
    }
    if (exchange.arrived == 0) {
        exchange.operation = operation;
        exchange.where = where;
    } else if (exchange.operation != operation || !same(exchange.where, where)) {
        report("diverged warp: lanes 0x%08x %s %s:%d, this lane %s %s:%d", exchange.arrived,
               operation_name(exchange.operation), base_name(exchange.where.file), exchange.where.line,
               operation_name(operation), base_name(where.file), where.line);
        worker->abandon();
    }
    exchange.arrived |= bit;
    exchange.in[me->lane] = value;
    if (exchange.arrived != ~0u) {
        warp->runnable &= ~bit;
        me->waits = operation;
        me->where = where;
        worker->leave(me);
        return false;
    }
    exchange.arrived = 0;
    warp->runnable = ~0u;
    /* Results move aside, because the fastest lane may come to its next collective before the slowest resumes. It
     * cannot come to the one after that. */
    memcpy(exchange.out, exchange.in, sizeof exchange.out);
    if (worker->banks != nullptr) banks_finish_step(*worker, warp->index);
    return true;
}

void warp_barrier(Where where)
{
    Fiber *me = self;
    if (arrive(me, WARP_BARRIER, 0, where)) shadow_warp_barrier(worker->shadow, me->warp->index);
}

uint32_t shuffle(uint32_t value, unsigned source_lane, Where where)
{
    Fiber *me = self;
    if (arrive(me, SHUFFLE, value, where)) worker->counters.shuffles++;
    return me->warp->exchange.out[source_lane % LANES];
}

/* Each lane has read a row of a matrix, 8 lanes one matrix. */
void load_matrices(uint32_t *r, const void *row, uint4 values, bool transposed, Where where)
{
    Fiber *me = self;
    Exchange &exchange = me->warp->exchange;
    if (!worker->owns_shared(row)) {
        report("load_matrices reads %p, which is not shared memory, at %s:%d", row, base_name(where.file), where.line);
        worker->launch->illegal_address = true;
        worker->abandon();
    }
    exchange.rows_in[me->lane] = values;
    if (arrive(me, LOAD_MATRICES, transposed, where))
        memcpy(exchange.rows_out, exchange.rows_in, sizeof exchange.rows_out);
    const unsigned group = me->lane / 4, in_group = me->lane % 4;
    for (unsigned i = 0; i < 4; i++) {
        const uint4 *matrix = exchange.rows_out + 8 * i;
        if (!transposed) {
            memcpy(&r[i], reinterpret_cast<const char *>(&matrix[group]) + 4 * in_group, 4);
            continue;
        }
        uint16_t half[2];
        for (unsigned j = 0; j < 2; j++)
            memcpy(&half[j], reinterpret_cast<const char *>(&matrix[2 * in_group + j]) + 2 * group, 2);
        r[i] = half[0] | uint32_t(half[1]) << 16;
    }
}

uint32_t transpose_pairs(uint32_t value, Where where)
{
    Fiber *me = self;
    arrive(me, TRANSPOSE, value, where);
    const uint32_t *word = me->warp->exchange.out;
    const unsigned row = me->lane / 4, column = me->lane % 4 * 2, half = row % 2 * 16;
    return (word[4 * column + row / 2] >> half & 0xffffu) | (word[4 * column + 4 + row / 2] >> half & 0xffffu) << 16;
}

/* Computes what the lanes of a warp have posted; all must have posted the same instructions. */
static void compute_posted(Warp *warp, unsigned count)
{
    WarpMma mma;
    for (unsigned i = 0; i < count; i++) {
        const PostedMma &first = warp->queue[0][i];
        for (unsigned lane = 0; lane < LANES; lane++) {
            const PostedMma &posted = warp->queue[lane][i];
            if (!same(posted.where, first.where) || posted.form != first.form) {
                report("diverged warp: lane 0 mma %s:%d, lane %u mma %s:%d", base_name(first.where.file),
                       first.where.line, lane, base_name(posted.where.file), posted.where.line);
                worker->abandon();
            }
            mma.c[lane] = posted.c;
            memcpy(mma.a[lane], posted.a, sizeof posted.a);
            memcpy(mma.b[lane], posted.b, sizeof posted.b);
        }
        mma_compute(mma, first.form);
    }
    worker->counters.mma += count;
}

void mma_complete(Where where)
{
    Fiber *me = self;
    Warp *warp = me->warp;
    if (arrive(me, MMA, me->posted, where)) {
        for (unsigned lane = 0; lane < LANES; lane++)
            if (warp->exchange.out[lane] != me->posted) {
                report("diverged warp: lane %u issued %u mma, this lane %u, before %s:%d", lane,
                       warp->exchange.out[lane], me->posted, base_name(where.file), where.line);
                worker->abandon();
            }
        compute_posted(warp, me->posted);
    }
    me->posted = 0;
}

static void post(float *d, uint4 a, uint2 b, MmaForm form, Where where)
{
    Fiber *me = self;
    me->warp->queue[me->lane][me->posted++] = {d, {a.x, a.y, a.z, a.w}, {b.x, b.y}, form, where};
    if (me->posted == MAX_POSTED || settings.immediate != 0) mma_complete(where);
}

void mma_m8n8k4(MmaForm form, float *d, const uint32_t *a, uint2 b, Where where)
{
    post(d, {a[0], a[1], 0, 0}, b, form, where);
}

void mma_m16n8(MmaForm form, float *d, uint4 a, uint2 b, Where where) { post(d, a, b, form, where); }

} // namespace emulator
