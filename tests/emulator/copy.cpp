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

static Copy &append(Fiber *me)
{
    if (me->copies == me->copy_capacity) {
        const unsigned capacity = me->copy_capacity != 0 ? 2 * me->copy_capacity : 16;
        void *grown = realloc(me->copy, capacity * sizeof(Copy));
        if (grown == nullptr) {
            perror("emulator: realloc");
            abort();
        }
        me->copy = static_cast<Copy *>(grown);
        me->copy_capacity = capacity;
    }
    return me->copy[me->copies++];
}

void copy_async(void *to, const void *from, size_t bytes, bool wanted, Where where)
{
    Fiber *me = self;
    if (!worker->owns_shared(to) || (wanted && worker->owns_shared(from))) {
        report("copy_async from %p to %p is not from global to shared memory at %s:%d", from, to, base_name(where.file),
               where.line);
        worker->launch->illegal_address = true;
        worker->abandon();
    }
    for (unsigned i = 0; i < me->copies; i++)
        if (me->copy[i].to == to) {
            report("%s:%d and %s:%d copy to the same place, in any order", base_name(me->copy[i].where.file),
                   me->copy[i].where.line, base_name(where.file), where.line);
            worker->abandon();
        }
    Copy &copy = append(me);
    copy = {to, from, bytes, wanted, __builtin_return_address(0), where};
    shadow_copy_issued(copy);
}

/* The first `count` of those that are pending. */
static void complete(Fiber *me, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        const Copy &copy = me->copy[i];
        shadow_copy_arrived(copy);
        if (copy.wanted) memcpy(copy.to, copy.from, copy.bytes);
        else memset(copy.to, 0, copy.bytes);
    }
    me->copies -= count;
    memmove(me->copy, me->copy + count, me->copies * sizeof *me->copy);
}

void copies_complete()
{
    if (self->copies != 0) complete(self, self->copies);
    self->groups = 0;
}

void close_copies()
{
    Fiber *me = self;
    if (me->groups == COPY_GROUPS) copies_complete_but(COPY_GROUPS - 1); /* they may arrive at any time */
    me->group_end[me->groups++] = me->copies;
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

} // namespace emulator
