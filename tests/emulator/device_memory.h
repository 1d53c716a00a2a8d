/* SPDX-License-Identifier: Apache-2.0
 * Device memory: an address range of its own, a guard page after each allocation, addresses never reused, and no
 * access but through a MemoryWindow. Memory of cuMemHostAlloc is kept here too; it is always accessible. */
#ifndef ATTN_EMULATOR_DEVICE_MEMORY_H
#define ATTN_EMULATOR_DEVICE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

namespace emulator
{

struct Allocation {
    uint64_t start;
    size_t bytes;
    bool is_host;
    int device;
    const void *context;
};

/* 0 if there is no memory. */
uint64_t memory_allocate(size_t bytes, bool is_host, int device, const void *context);
bool memory_free(uint64_t start, bool is_host);
bool memory_find(uint64_t address, Allocation *found); /* `address` may lie inside */
/* Frees what a context owns; returns how many bytes of the device that was. */
size_t memory_free_all(const void *context);
size_t memory_device_bytes(int device);
size_t memory_host_bytes();

/* Whether a kernel on `device` may access these bytes. */
bool memory_reachable(const void *address, size_t bytes, int device);
bool memory_in_arena(const void *address);

/* While one exists, device memory is accessible to the whole process: the processor knows no finer way. */
struct MemoryWindow {
    MemoryWindow();
    ~MemoryWindow();
    MemoryWindow(const MemoryWindow &) = delete;
    MemoryWindow &operator=(const MemoryWindow &) = delete;
};

} // namespace emulator
#endif
