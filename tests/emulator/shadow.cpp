/* SPDX-License-Identifier: Apache-2.0
 * Order is kept per warp as in vector-clock race detectors: warp w knows clock[w][v], the first interval of warp v that
 * is not yet ordered before it. A block barrier joins all warps, a warp barrier only starts a new interval of its
 * warp; lanes of a warp are unordered between two of these, as they are on a GPU since sm_70. */
#include "shadow.h"

#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "banks.h"
#include "device_memory.h"
#include "emulator.h"
#include "report.h"

namespace emulator
{

#ifdef EMULATOR_CHECKED

enum { TOLD_LIMIT = 8 }; /* reports a block */

struct Access {
    uint32_t interval; /* of the warp */
    int32_t code;      /* relative to code_base */
    uint16_t thread;
    bool pending; /* a copy that was issued and has not arrived */
};

/* One byte of shared memory. Words would be cheaper, but neighbours may each write a byte of one. */
struct Cell {
    Access write, read, other_read; /* the last ones, reads by two threads */
};

struct Shadow {
    uint32_t clock[MAX_WARPS][MAX_WARPS];
    uint32_t base; /* intervals below it belong to earlier blocks, so that nothing needs clearing */
    std::pair<int32_t, int32_t> told[TOLD_LIMIT]; /* places whose conflict has been reported */
    unsigned told_count;
    Cell cell[SHARED_LIMIT];
};

static const char code_base = 0;

static int32_t code_of(const void *code) { return int32_t(static_cast<const char *>(code) - &code_base); }

Shadow *shadow_create() { return reinterpret_cast<Shadow *>(map_memory(sizeof(Shadow), PROT_READ | PROT_WRITE)); }

void shadow_start_block(Shadow *shadow)
{
    uint32_t latest = shadow->base;
    for (unsigned w = 0; w < MAX_WARPS; w++) latest = std::max(latest, shadow->clock[w][w]);
    shadow->base = latest + 1;
    for (auto &of_warp : shadow->clock)
        for (uint32_t &first : of_warp) first = shadow->base;
    shadow->told_count = 0; /* after a report no further block of its launch begins */
}

void shadow_block_barrier(Shadow *shadow, unsigned warps)
{
    uint32_t joined[MAX_WARPS];
    for (unsigned v = 0; v < warps; v++) joined[v] = ++shadow->clock[v][v];
    for (unsigned w = 0; w < warps; w++) memcpy(shadow->clock[w], joined, warps * sizeof joined[0]);
}

void shadow_warp_barrier(Shadow *shadow, unsigned warp) { shadow->clock[warp][warp]++; }

static bool unordered(const Shadow *shadow, const Access &earlier, unsigned thread)
{
    return earlier.interval >= shadow->base && earlier.thread != thread &&
           earlier.interval >= shadow->clock[thread / LANES][earlier.thread / LANES];
}

/* True the first time, for few different pairs of places. */
static bool tell(Shadow *shadow, int32_t earlier, int32_t code)
{
    const std::pair<int32_t, int32_t> places(earlier, code);
    std::pair<int32_t, int32_t> *end = shadow->told + shadow->told_count;
    if (shadow->told_count == TOLD_LIMIT || std::find(shadow->told, end, places) != end) return false;
    shadow->told[shadow->told_count++] = places;
    return true;
}

static void tell_race(Shadow *shadow, const char *what, const Access &earlier, int32_t code, size_t offset)
{
    if (!tell(shadow, earlier.code, code)) return;
    report("race at shared+%zu: %s at %s, unordered with thread %u at %s", offset, what,
           source_line(&code_base + code).c_str(), unsigned(earlier.thread),
           source_line(&code_base + earlier.code).c_str());
}

static void tell_pending(Shadow *shadow, const char *what, const Access &copy, int32_t code, size_t offset)
{
    if (!tell(shadow, copy.code, code)) return;
    report("%s of shared+%zu at %s, where the copy by thread %u at %s is not complete", what, offset,
           source_line(&code_base + code).c_str(), unsigned(copy.thread), source_line(&code_base + copy.code).c_str());
}

static void check_byte(Shadow *shadow, size_t offset, bool is_write, const Access &now)
{
    Cell &cell = shadow->cell[offset];
    if (unordered(shadow, cell.write, now.thread))
        tell_race(shadow, is_write ? "write after write" : "read after write", cell.write, now.code, offset);
    if (cell.write.pending && cell.write.interval >= shadow->base)
        tell_pending(shadow, is_write ? "write" : "read", cell.write, now.code, offset);
    if (is_write) {
        if (unordered(shadow, cell.read, now.thread))
            tell_race(shadow, "write after read", cell.read, now.code, offset);
        if (unordered(shadow, cell.other_read, now.thread))
            tell_race(shadow, "write after read", cell.other_read, now.code, offset);
        cell.write = now;
        return;
    }
    if (cell.write.interval < shadow->base && tell(shadow, 0, now.code))
        report("uninitialised read of shared+%zu at %s", offset, source_line(&code_base + now.code).c_str());
    if (cell.read.thread != now.thread) cell.other_read = cell.read;
    cell.read = now;
}

static void check_shared(Worker *w, size_t offset, size_t bytes, bool is_write, const void *code)
{
    Shadow *shadow = w->shadow;
    const unsigned thread = self->index, warp = thread / LANES;
    if (w->banks != nullptr) banks_note(*w, code, offset, bytes, is_write);
    const Access now = {shadow->clock[warp][warp], code_of(code), uint16_t(thread), false};
    for (size_t i = offset; i < offset + bytes; i++) check_byte(shadow, i, is_write, now);
}

struct Range {
    const char *low, *high;
};

/* Looks for the object that holds code_base. */
static int find_library(dl_phdr_info *info, size_t, void *found)
{
    Range range = {nullptr, nullptr};
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
        const char *start = reinterpret_cast<const char *>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
        const char *end = start + info->dlpi_phdr[i].p_memsz;
        range.low = range.low == nullptr ? start : std::min(range.low, start);
        range.high = std::max(range.high, end);
    }
    if (&code_base < range.low || &code_base >= range.high) return 0;
    *static_cast<Range *>(found) = range;
    return 1;
}

/* Constants and tables of this library may be read. */
static bool in_library(const void *address)
{
    static const Range range = [] {
        Range found = {nullptr, nullptr};
        dl_iterate_phdr(find_library, &found);
        return found;
    }();
    return address >= range.low && address < range.high;
}

[[noreturn]] static void fail_access(const char *what, const void *address, size_t bytes, bool is_write,
                                     const char *why, const void *code)
{
    report("%s: %s of %zu bytes at %p%s at %s", what, is_write ? "write" : "read", bytes, address, why,
           source_line(code).c_str());
    worker->launch->illegal_address = true;
    worker->abandon();
}

void shadow_check(const void *address, size_t bytes, bool is_write, const void *code)
{
    Worker *w = worker;
    const Fiber *me = self;
    if (me == nullptr || bytes == 0) return; /* registration of kernels has no fiber */
    const char *at = static_cast<const char *>(address);
    if (size_t(at - me->stack) < STACK_BYTES) return;
    w->counters.accesses++;
    if (w->owns_shared(address)) {
        const ptrdiff_t offset = at - w->shared;
        if (offset >= 0 && size_t(offset) + bytes <= w->launch->shared_bytes)
            return check_shared(w, size_t(offset), bytes, is_write, code);
        report("shared memory overrun: %s of %zu bytes at shared%+td of %u at %s", is_write ? "write" : "read", bytes,
               offset, w->launch->shared_bytes, source_line(code).c_str());
        w->launch->illegal_address = true;
        w->abandon();
    }
    if (!is_write && size_t(at - w->launch->parameter.data()) < w->launch->parameter.size()) return;
    if (memory_reachable(address, bytes, w->launch->device)) return;
    const bool in_arena = memory_in_arena(address);
    if (!is_write && !in_arena && in_library(address)) return;
    fail_access("illegal address", address, bytes, is_write,
                in_arena ? ", which no allocation of the device holds," : ", which is not device memory,", code);
}

static void check_vector(const void *address, size_t bytes, size_t alignment, bool is_write, const void *code)
{
    if ((reinterpret_cast<uintptr_t>(address) & (alignment - 1)) != 0)
        fail_access("misaligned address", address, bytes, is_write, "", code);
    shadow_check(address, bytes, is_write, code);
}

void load_checked(void *to, const void *from, size_t bytes)
{
    check_vector(from, bytes, bytes, false, __builtin_return_address(0));
    memcpy(to, from, bytes);
}

void store_checked(void *to, const void *from, size_t bytes)
{
    check_vector(to, bytes, bytes, true, __builtin_return_address(0));
    memcpy(to, from, bytes);
}

void shadow_copy_issued(const Copy &copy)
{
    if (copy.wanted) check_vector(copy.from, copy.bytes, copy.alignment(), false, copy.code);
    check_vector(copy.to, copy.bytes, copy.alignment(), true, copy.code);
    Cell *cell = worker->shadow->cell + (static_cast<char *>(copy.to) - worker->shared);
    for (size_t i = 0; i < copy.bytes; i++) cell[i].write.pending = true;
    memset(copy.to, 0xff, copy.bytes);
}

void shadow_copy_arrived(const Copy &copy)
{
    Shadow *shadow = worker->shadow;
    const unsigned thread = self->index, warp = thread / LANES;
    const size_t offset = size_t(static_cast<char *>(copy.to) - worker->shared);
    const Access now = {shadow->clock[warp][warp], code_of(copy.code), uint16_t(thread), false};
    for (size_t i = offset; i < offset + copy.bytes; i++) {
        shadow->cell[i].write.pending = false;
        check_byte(shadow, i, true, now);
    }
}

#else

Shadow *shadow_create() { return nullptr; }
void shadow_start_block(Shadow *) {}
void shadow_block_barrier(Shadow *, unsigned) {}
void shadow_warp_barrier(Shadow *, unsigned) {}

void misaligned(const void *address, size_t bytes, Where where)
{
    report("misaligned address: access of %zu bytes at %p at %s:%d", bytes, address, base_name(where.file), where.line);
    worker->launch->illegal_address = true;
    worker->abandon();
}

void shadow_copy_issued(const Copy &copy)
{
    const void *const from = copy.wanted ? copy.from : copy.to;
    for (const void *address : {from, static_cast<const void *>(copy.to)})
        if ((reinterpret_cast<uintptr_t>(address) & (copy.alignment() - 1)) != 0)
            misaligned(address, copy.bytes, copy.where);
}

void shadow_copy_arrived(const Copy &) {}

#endif
} // namespace emulator

extern "C" __attribute__((visibility("default"))) int emulator_checked(void)
{
#ifdef EMULATOR_CHECKED
    return 1;
#else
    return 0;
#endif
}
