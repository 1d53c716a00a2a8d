/* SPDX-License-Identifier: Apache-2.0
 * Asynchronous copies from global to shared memory. The bytes arrive as late as they may, when their thread waits for
 * them; until then the destination is poison, so that who reads it too early, or still needs what was there, sees
 * wrong data. The source is read late too: on a GPU it must not change before the wait. */
#include "block.h"
#include "report.h"
#include "shadow.h"

#include <stdlib.h>

namespace emulator
{

static Copy &append(Copies &list)
{
    if (list.count == list.capacity) {
        const unsigned capacity = list.capacity != 0 ? 2 * list.capacity : 16;
        void *grown = realloc(list.copy, capacity * sizeof(Copy));
        if (grown == nullptr) {
            perror("emulator: realloc");
            abort();
        }
        list.copy = static_cast<Copy *>(grown);
        list.capacity = capacity;
    }
    return list.copy[list.count++];
}

static void issue(Copies &list, const Copy &asked, const char *name)
{
    if (!worker->owns_shared(asked.to) || (asked.wanted && worker->owns_shared(asked.from))) {
        report("%s from %p to %p is not from global to shared memory at %s:%d", name, asked.from, asked.to,
               base_name(asked.where.file), asked.where.line);
        worker->launch->illegal_address = true;
        worker->abandon();
    }
    for (unsigned i = 0; i < list.count; i++)
        if (list.copy[i].to == asked.to) {
            report("%s:%d and %s:%d copy to the same place, in any order", base_name(list.copy[i].where.file),
                   list.copy[i].where.line, base_name(asked.where.file), asked.where.line);
            worker->abandon();
        }
    append(list) = asked;
    shadow_copy_issued(asked);
}

static void arrive_late(const Copy &copy)
{
    shadow_copy_arrived(copy);
    if (copy.wanted) memcpy(copy.to, copy.from, copy.bytes);
    else memset(copy.to, 0, copy.bytes);
}

void copy_async(void *to, const void *from, size_t bytes, bool wanted, Where where)
{
    issue(self->copies, {to, from, bytes, wanted, __builtin_return_address(0), where, nullptr}, "copy_async");
}

/* The first `count` of those that are pending. */
static void complete(Fiber *me, unsigned count)
{
    Copies &list = me->copies;
    for (unsigned i = 0; i < count; i++) arrive_late(list.copy[i]);
    list.count -= count;
    memmove(list.copy, list.copy + count, list.count * sizeof *list.copy);
}

void copies_complete()
{
    if (self->copies.count != 0) complete(self, self->copies.count);
    self->groups = 0;
}

void close_copies()
{
    Fiber *me = self;
    if (me->groups == COPY_GROUPS) copies_complete_but(COPY_GROUPS - 1); /* they may arrive at any time */
    me->group_end[me->groups++] = me->copies.count;
}

void copies_complete_but(unsigned last)
{
    Fiber *me = self;
    if (me->groups <= last) return;
    const unsigned done = me->groups - last, count = me->group_end[done - 1];
    if (count != 0) complete(me, count);
    for (unsigned i = 0; i < last; i++) me->group_end[i] = me->group_end[done + i] - count;
    me->groups = last;
}

/* ---- Bulk copies ------------------------------------------------------------------------------------------------- */

/* What the 8 bytes of a gate hold. */
struct Gate {
    uint16_t sign;
    uint8_t expects, phase; /* expects: expect_bytes was called since the gate was passed */
    int32_t bytes;          /* expected that have not come */
};
enum : uint16_t { GATE_SIGN = 0x9a7e };
static_assert(sizeof(Gate) == 8, "as the instruction has it");

static Gate *gate_at(void *address, Where where)
{
    if (!worker->owns_shared(address) || (reinterpret_cast<uintptr_t>(address) & 7) != 0) {
        report("a gate at %p, which is not 8 bytes of shared memory, at %s:%d", address, base_name(where.file),
               where.line);
        worker->launch->illegal_address = true;
        worker->abandon();
    }
    return static_cast<Gate *>(address);
}

static Gate *open_gate_at(void *address, Where where)
{
    Gate *gate = gate_at(address, where);
    if (gate->sign == GATE_SIGN) return gate;
    report("a gate that was not opened, at %s:%d", base_name(where.file), where.line);
    worker->abandon();
}

void open_gate(void *address, Where where) { *gate_at(address, where) = {GATE_SIGN, 0, 0, 0}; }

void expect_bytes(void *address, uint32_t bytes, Where where)
{
    Gate *gate = open_gate_at(address, where);
    if (gate->expects != 0) {
        report("expect_bytes twice before the gate is passed, at %s:%d", base_name(where.file), where.line);
        worker->abandon();
    }
    gate->expects = 1;
    gate->bytes += int32_t(bytes);
}

void copy_bulk(void *to, const void *from, size_t bytes, void *address, Where where)
{
    const Gate *gate = open_gate_at(address, where);
    if (bytes == 0 || bytes % 16 != 0) {
        report("copy_bulk of %zu bytes, not a multiple of 16, at %s:%d", bytes, base_name(where.file), where.line);
        worker->abandon();
    }
    if (gate->expects == 0) { /* a GPU forgives this, unless the gate opens in between */
        report("copy_bulk at %s:%d of bytes that were not expected before", base_name(where.file), where.line);
        worker->abandon();
    }
    issue(self->bulk_copies, {to, from, bytes, true, __builtin_return_address(0), where, address}, "copy_bulk");
}

void pass_gate(void *address, unsigned phase, Where where)
{
    Fiber *me = self;
    Gate *gate = open_gate_at(address, where);
    Copies &list = me->bulk_copies;
    arrive(me, GATE, phase, where); /* all lanes have asked for theirs */
    unsigned kept = 0;
    for (unsigned i = 0; i < list.count; i++) {
        if (list.copy[i].gate != address) {
            list.copy[kept++] = list.copy[i];
            continue;
        }
        arrive_late(list.copy[i]);
        gate->bytes -= int32_t(list.copy[i].bytes);
    }
    list.count = kept;
    if (!arrive(me, GATE, phase, where)) return;
    if (gate->phase != phase || gate->expects == 0 || gate->bytes != 0) {
        report("pass_gate waits for ever at %s:%d: phase %u of the gate in phase %u, %d bytes to come%s",
               base_name(where.file), where.line, phase, gate->phase, gate->bytes,
               gate->expects != 0 ? "" : ", expect_bytes was not called");
        worker->abandon();
    }
    gate->phase ^= 1;
    gate->expects = 0;
    shadow_warp_barrier(worker->shadow, me->warp->index);
}

} // namespace emulator
