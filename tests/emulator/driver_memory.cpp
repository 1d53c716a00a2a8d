/* SPDX-License-Identifier: Apache-2.0
 * Memory and copies. */
#include "device_memory.h"
#include "driver_state.h"
#include "settings.h"

using namespace emulator;

EXPORT CUresult cuMemGetInfo_v2(size_t *unused, size_t *total)
{
    ENTER(cuMemGetInfo_v2, CONTEXT);
    *total = size_t(settings.memory);
    const size_t used = memory_device_bytes(current_context()->device);
    *unused = *total > used ? *total - used : 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    ENTER(cuMemAlloc_v2, CONTEXT);
    REQUIRE(bytes > 0, CUDA_ERROR_INVALID_VALUE);
    if (const CUresult code = forbid_capture()) return code;
    const CUcontext context = current_context();
    const size_t used = memory_device_bytes(context->device), limit = size_t(settings.memory);
    REQUIRE(used <= limit && bytes <= limit - used, CUDA_ERROR_OUT_OF_MEMORY);
    *address = memory_allocate(bytes, false, context->device, context);
    return *address != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Freeing waits for all work of the context, as the driver's does. */
static CUresult free_memory(Lock &lock, uint64_t address, bool is_host)
{
    Allocation found;
    if (address == 0) return CUDA_SUCCESS;
    REQUIRE(memory_find(address, &found) && found.start == address && found.is_host == is_host,
            CUDA_ERROR_INVALID_VALUE);
    if (const CUresult code = forbid_capture()) return code;
    stream_run_all(lock, current_context());
    memory_free(address, is_host);
    return current_context()->sticky;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr address)
{
    ENTER(cuMemFree_v2, CONTEXT);
    return free_memory(call.lock, address, false);
}

EXPORT CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned)
{
    ENTER(cuMemHostAlloc, CONTEXT);
    REQUIRE(bytes > 0, CUDA_ERROR_INVALID_VALUE);
    if (const CUresult code = forbid_capture()) return code;
    const CUcontext context = current_context();
    *address = reinterpret_cast<void *>(memory_allocate(bytes, true, context->device, context));
    return *address != nullptr ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuMemFreeHost(void *address)
{
    ENTER(cuMemFreeHost, CONTEXT);
    return free_memory(call.lock, reinterpret_cast<uint64_t>(address), true);
}

static bool is_device_range(CUdeviceptr address, size_t bytes)
{
    Allocation found;
    return bytes == 0 || (memory_find(address, &found) && !found.is_host && bytes <= found.bytes &&
                          address - found.start <= found.bytes - bytes);
}

/* All copies read and write when they run, also those of pageable memory, which a driver may do at once: the program
 * may not count on that. */
EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    ENTER(cuMemcpyHtoDAsync_v2, CONTEXT);
    REQUIRE(is_device_range(to, bytes), CUDA_ERROR_INVALID_VALUE);
    return enqueue(stream, [=] {
        memcpy(reinterpret_cast<void *>(to), from, bytes);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    ENTER(cuMemcpyDtoHAsync_v2, CONTEXT);
    REQUIRE(is_device_range(from, bytes), CUDA_ERROR_INVALID_VALUE);
    return enqueue(stream, [=] {
        memcpy(to, reinterpret_cast<const void *>(from), bytes);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    ENTER(cuMemcpyDtoDAsync_v2, CONTEXT);
    REQUIRE(is_device_range(to, bytes) && is_device_range(from, bytes), CUDA_ERROR_INVALID_VALUE);
    return enqueue(stream, [=] {
        memcpy(reinterpret_cast<void *>(to), reinterpret_cast<const void *>(from), bytes);
        return CUDA_SUCCESS;
    });
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t bytes, CUstream stream)
{
    ENTER(cuMemsetD8Async, CONTEXT);
    REQUIRE(is_device_range(address, bytes), CUDA_ERROR_INVALID_VALUE);
    return enqueue(stream, [=] {
        memset(reinterpret_cast<void *>(address), value, bytes);
        return CUDA_SUCCESS;
    });
}

static bool write_attribute(CUpointer_attribute attribute, void *value, const Allocation *a)
{
    const CUcontext context = a != nullptr ? static_cast<CUcontext>(const_cast<void *>(a->context)) : nullptr;
    const unsigned type = a == nullptr ? 0 : a->is_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE, managed = 0;
    const int ordinal = a != nullptr ? a->device : -2; /* what drivers answer for memory that is not theirs */
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: memcpy(value, &context, sizeof context); break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: memcpy(value, &type, sizeof type); break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: memcpy(value, &managed, sizeof managed); break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: memcpy(value, &ordinal, sizeof ordinal); break;
    default: return false;
    }
    return true;
}

/* Memory that the driver does not know is no error: context null, type 0. */
EXPORT CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **values,
                                       CUdeviceptr address)
{
    ENTER(cuPointerGetAttributes, INITIALISED);
    Allocation found;
    const bool known = memory_find(address, &found);
    for (unsigned i = 0; i < count; i++)
        REQUIRE(write_attribute(attributes[i], values[i], known ? &found : nullptr), CUDA_ERROR_INVALID_VALUE);
    return CUDA_SUCCESS;
}
