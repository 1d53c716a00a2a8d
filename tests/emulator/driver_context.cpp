/* SPDX-License-Identifier: Apache-2.0
 * Contexts: the primary one of each device and, for tests, others. A destroyed context stays known, so that who still
 * uses it is told and not let into freed memory. */
#include "device_memory.h"
#include "driver_state.h"
#include "settings.h"

namespace emulator
{

CUcontext context_create(int device, bool is_primary)
{
    const CUcontext context = new CUctx_st{device, is_primary, 1, CUDA_SUCCESS, {}};
    context->streams.push_back(std::make_shared<Stream>(Stream{context, true, true, {}, false, 0, 0}));
    driver_state().contexts.push_back(context);
    return context;
}

/* Takes along all that belongs to the context. */
void context_destroy(Lock &lock, CUcontext context)
{
    stream_run_all(lock, context);
    DriverState &state = driver_state();
    state.lost_bytes += memory_free_all(context);
    for (const CUmodule module : std::vector<CUmodule>(state.modules)) {
        if (module->context != context) continue;
        for (const CUfunction function : module->functions) delete function;
        remove_from(state.modules, module);
        delete module;
    }
    for (const CUstream stream : std::vector<CUstream>(state.streams)) {
        if (stream->stream->context != context) continue;
        remove_from(state.streams, stream);
        delete stream;
    }
    for (const CUevent event : std::vector<CUevent>(state.events)) {
        if (event->context != context) continue;
        remove_from(state.events, event);
        delete event;
    }
    context->streams.resize(1);
    context->references = 0;
    context->sticky = CUDA_SUCCESS;
}

static CUcontext primary_of(CUdevice device)
{
    for (const CUcontext context : driver_state().contexts)
        if (context->is_primary && context->device == device) return context;
    return nullptr;
}

} // namespace emulator

using namespace emulator;

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    ENTER(cuDevicePrimaryCtxRetain, INITIALISED);
    REQUIRE(device >= 0 && device < settings.devices, CUDA_ERROR_INVALID_DEVICE);
    *context = primary_of(device);
    if (*context != nullptr) (*context)->references++;
    else *context = context_create(device, true);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    ENTER(cuDevicePrimaryCtxRelease_v2, INITIALISED);
    const CUcontext context = primary_of(device);
    REQUIRE(context != nullptr && context->references > 0, CUDA_ERROR_INVALID_CONTEXT);
    if (context->references > 1) context->references--;
    else context_destroy(call.lock, context);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    ENTER(cuCtxPushCurrent_v2, INITIALISED);
    REQUIRE(holds(driver_state().contexts, context) && context->references > 0, CUDA_ERROR_INVALID_CONTEXT);
    current_contexts().push_back(context);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    ENTER(cuCtxPopCurrent_v2, INITIALISED);
    REQUIRE(!current_contexts().empty(), CUDA_ERROR_INVALID_CONTEXT);
    if (context != nullptr) *context = current_context();
    current_contexts().pop_back();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    ENTER(cuCtxGetDevice, INITIALISED);
    REQUIRE(!current_contexts().empty(), CUDA_ERROR_INVALID_CONTEXT);
    *device = current_context()->device;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned, CUdevice device)
{
    ENTER(cuCtxCreate_v2, INITIALISED);
    REQUIRE(device >= 0 && device < settings.devices, CUDA_ERROR_INVALID_DEVICE);
    *context = context_create(device, false);
    current_contexts().push_back(*context);
    return CUDA_SUCCESS;
}

/* Leaves the calling thread's stack if it is on its top, as the driver's does. */
EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
    ENTER(cuCtxDestroy_v2, INITIALISED);
    REQUIRE(holds(driver_state().contexts, context) && !context->is_primary && context->references > 0,
            CUDA_ERROR_INVALID_CONTEXT);
    context_destroy(call.lock, context);
    if (!current_contexts().empty() && current_context() == context) current_contexts().pop_back();
    return CUDA_SUCCESS;
}
