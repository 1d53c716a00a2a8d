/* SPDX-License-Identifier: Apache-2.0 */
#include "device_memory.h"

#include <string.h>
#include <sys/mman.h>

#include <atomic>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "block.h"

namespace emulator
{

static const size_t arena_bytes = size_t(1) << 40; /* of addresses: enough for a process's life */
static char *const arena = map_memory(arena_bytes, PROT_NONE);
static const size_t alignment = 256; /* as cuMemAlloc's */

static std::map<uint64_t, Allocation> allocations; /* by start; guarded by `mutex`, as all below */
static size_t next_page, host_bytes;
static std::map<int, size_t> device_bytes;
static unsigned windows;
static std::shared_mutex mutex;
static std::atomic<unsigned> generation{1}; /* of `allocations`, for caches */

static size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

/* The pages of an allocation: [start of the page, end), which is where its guard page begins. */
static void protect(const Allocation &a, int protection)
{
    const uint64_t first = a.start / PAGE * PAGE;
    mprotect(reinterpret_cast<void *>(first), round_up(a.start + a.bytes, PAGE) - first, protection);
}

static int device_protection() { return windows > 0 ? PROT_READ | PROT_WRITE : PROT_NONE; }

uint64_t memory_allocate(size_t bytes, bool is_host, int device, const void *context)
{
    const std::lock_guard<std::shared_mutex> lock(mutex);
    const size_t padded = round_up(bytes, alignment), pages = round_up(padded, PAGE);
    if (pages + PAGE > arena_bytes - next_page) return 0;
    char *first = arena + next_page;
    if (mprotect(first, pages, PROT_READ | PROT_WRITE) != 0) return 0;
    next_page += pages + PAGE;
    memset(first, 0xff, pages); /* NaN: what is read before it is written shows */
    const Allocation a = {reinterpret_cast<uint64_t>(first) + pages - padded, bytes, is_host, device, context};
    allocations[a.start] = a;
    (is_host ? host_bytes : device_bytes[device]) += bytes;
    generation++;
    if (!is_host) protect(a, device_protection());
    return a.start;
}

static void release(const Allocation &a)
{
    const uint64_t first = a.start / PAGE * PAGE;
    madvise(reinterpret_cast<void *>(first), round_up(a.start + a.bytes, PAGE) - first, MADV_DONTNEED);
    protect(a, PROT_NONE);
    (a.is_host ? host_bytes : device_bytes[a.device]) -= a.bytes;
    generation++;
}

bool memory_free(uint64_t start, bool is_host)
{
    const std::lock_guard<std::shared_mutex> lock(mutex);
    const auto found = allocations.find(start);
    if (found == allocations.end() || found->second.is_host != is_host) return false;
    release(found->second);
    allocations.erase(found);
    return true;
}

size_t memory_free_all(const void *context)
{
    const std::lock_guard<std::shared_mutex> lock(mutex);
    size_t freed = 0;
    for (auto a = allocations.begin(); a != allocations.end();) {
        if (a->second.context != context) {
            ++a;
            continue;
        }
        freed += a->second.is_host ? 0 : a->second.bytes;
        release(a->second);
        a = allocations.erase(a);
    }
    return freed;
}

bool memory_find(uint64_t address, Allocation *found)
{
    const std::shared_lock<std::shared_mutex> lock(mutex);
    auto after = allocations.upper_bound(address);
    if (after == allocations.begin()) return false;
    const Allocation &a = (--after)->second;
    if (address - a.start >= a.bytes) return false;
    *found = a;
    return true;
}

size_t memory_device_bytes(int device)
{
    const std::shared_lock<std::shared_mutex> lock(mutex);
    const auto found = device_bytes.find(device);
    return found != device_bytes.end() ? found->second : 0;
}

size_t memory_host_bytes()
{
    const std::shared_lock<std::shared_mutex> lock(mutex);
    return host_bytes;
}

bool memory_in_arena(const void *address) { return size_t(static_cast<const char *>(address) - arena) < arena_bytes; }

/* Kernels go back and forth between a few arrays, so the last ones are remembered. */
bool memory_reachable(const void *address, size_t bytes, int device)
{
    enum { REMEMBERED = 8 };
    static thread_local Allocation last[REMEMBERED];
    static thread_local unsigned next, known_generation;
    if (known_generation != generation) {
        memset(last, 0, sizeof last);
        known_generation = generation;
    }
    const uint64_t at = reinterpret_cast<uint64_t>(address);
    const auto holds = [=](const Allocation &a) {
        return at - a.start < a.bytes && bytes <= a.bytes - (at - a.start) && (a.is_host || a.device == device);
    };
    for (const Allocation &a : last)
        if (holds(a)) return true;
    Allocation found;
    if (!memory_find(at, &found) || !holds(found)) return false;
    last[next++ % REMEMBERED] = found;
    return true;
}

static void open_or_close(int change)
{
    const std::lock_guard<std::shared_mutex> lock(mutex);
    const int before = device_protection();
    windows += unsigned(change);
    if (device_protection() == before) return;
    for (const auto &entry : allocations)
        if (!entry.second.is_host) protect(entry.second, device_protection());
}

MemoryWindow::MemoryWindow() { open_or_close(1); }
MemoryWindow::~MemoryWindow() { open_or_close(-1); }

} // namespace emulator
