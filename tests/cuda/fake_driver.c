/* SPDX-License-Identifier: Apache-2.0
 * A driver without a GPU behind it, for tests of the host side alone: it keeps books of contexts, memory, streams and
 * events, "GPU" memory is the host's, copies happen at once, a launch is noted and nothing runs. A module's image is a
 * text that says how loading it ends: "good", "bad", "new ptx". What a process gets:
 *   FAKE_GPUS=n        GPUs (2)                 FAKE_VERSION=n  driver version (11080)
 *   FAKE_FAIL=symbol:n that call answers n           FAKE_STANDS_IN=n attn_stand_in() (1)
 * FAKE_LACKS, when compiled, leaves out one entry point. Tests steer the rest through struct fake of fake_driver.h. */
#include "fake_driver.h"
#include <stdlib.h>
#include <string.h>

#pragma GCC diagnostic ignored "-Wunused-parameter"

enum { UNUSED = CUDA_ERROR_INVALID_VALUE }; /* of what the library does not call yet */

#define EXPORT __attribute__((visibility("default")))

struct CUctx_st {
    int device;
};

struct CUevent_st {
    CUstream stream; /* recorded last */
    int used;
};

enum { GPUS = 8, RANGES = 1024, EVENTS = 1024, DEPTH = 16, MEMORY = 1 << 28 };

EXPORT struct fake fake = {.fail_at = -1};
static struct CUctx_st primary[GPUS];
static struct {
    char *address;
    size_t bytes;
    int device;
} ranges[RANGES];
static struct CUevent_st events[EVENTS]; /* lost ones are the test's business, not a leak checker's */
static CUcontext stack[DEPTH];

static int number(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

EXPORT int attn_stand_in(void);
EXPORT int attn_stand_in(void) { return number("FAKE_STANDS_IN", 1); }

/* Counts the call and says what it must answer. */
static CUresult enter(const char *symbol)
{
    const char *fail = getenv("FAKE_FAIL");
    size_t length = strlen(symbol);
    if (fail && !strncmp(fail, symbol, length) && fail[length] == ':') return atoi(fail + length + 1);
    return fake.calls++ == fake.fail_at ? fake.fail_code : CUDA_SUCCESS;
}

#define ENTER                                \
  do {                                       \
    CUresult code_ = enter(__func__);        \
    if (code_ != CUDA_SUCCESS) return code_; \
  } while (0)
#define ENTER_CONTEXT \
  ENTER;              \
  if (!fake.depth) return CUDA_ERROR_INVALID_CONTEXT

#define DRIVER(member, symbol, parameters) EXPORT CUresult symbol parameters;
#include "cuda/driver_table.h"
#undef DRIVER

CUresult cuInit(unsigned flags)
{
    ENTER;
    fake.inits++;
    return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
    ENTER;
    *version = number("FAKE_VERSION", 11080);
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult code, const char **text)
{
    *text = NULL;
    switch (code) {
#define VALUE(name, value) \
  case value: *text = #name; return CUDA_SUCCESS;
        VALUE(CUDA_ERROR_OUT_OF_MEMORY, 2)
        VALUE(CUDA_ERROR_NO_DEVICE, 100)
        VALUE(CUDA_ERROR_ILLEGAL_ADDRESS, 700)
#undef VALUE
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuGetErrorString(CUresult code, const char **text)
{
    *text = code == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "a text";
    return CUDA_SUCCESS;
}

/* ---- devices and contexts ------------------------------------------------------------------------ */

CUresult cuDeviceGetCount(int *count)
{
    ENTER;
    if (!fake.inits) return CUDA_ERROR_NOT_INITIALIZED;
    *count = number("FAKE_GPUS", 2);
    return CUDA_SUCCESS;
}

/* Handles are not ordinals. */
CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    ENTER;
    *device = 40 + ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int bytes, CUdevice device)
{
    ENTER;
    strncpy(name, device == 40 ? "Fake V100" : "Fake A100", (size_t)bytes);
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    ENTER;
    *bytes = MEMORY;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    ENTER;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = device == 40 ? 7 : 8; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = device == 40 ? 80 : 108; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 98304; return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    ENTER;
    fake.retained++;
    primary[device - 40].device = device - 40;
    *context = &primary[device - 40];
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { return UNUSED; }

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    ENTER;
    if (!context || fake.depth == DEPTH) return CUDA_ERROR_INVALID_CONTEXT;
    stack[fake.depth++] = context;
    return CUDA_SUCCESS;
}

/* Never fails, because the library may not look. */
CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    if (!fake.depth) return CUDA_ERROR_INVALID_CONTEXT;
    *context = stack[--fake.depth];
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    ENTER_CONTEXT;
    *device = 40 + stack[fake.depth - 1]->device;
    return CUDA_SUCCESS;
}

/* ---- code --------------------------------------------------------------------------------------------- */

struct CUfunc_st {
    int shared_bytes;
};
static struct CUfunc_st the_function = {48 << 10};

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    static char loaded;
    ENTER_CONTEXT;
    if (!strcmp(image, "bad")) return CUDA_ERROR_INVALID_IMAGE;
    if (!strcmp(image, "new ptx")) return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    fake.loads++;
    *module = (CUmodule)(void *)&loaded;
    return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) { return UNUSED; }

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    ENTER_CONTEXT;
    if (strcmp(name, "kernel")) return CUDA_ERROR_NOT_FOUND;
    *function = &the_function;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    ENTER_CONTEXT;
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value > 98304) return CUDA_ERROR_INVALID_VALUE;
    function->shared_bytes = value;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) { return UNUSED; }

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters,
                        void **extra)
{
    ENTER_CONTEXT;
    if (parameters || !extra || grid_y * grid_z * block_y * block_z != 1 || !grid_x || block_x > 1024 ||
        shared_bytes > (unsigned)function->shared_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) memcpy(&fake.parameter, extra[1], sizeof fake.parameter);
        if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) memcpy(&fake.parameter_bytes, extra[1], sizeof(size_t));
    }
    fake.threads = grid_x * block_x;
    return CUDA_SUCCESS;
}

/* ---- memory ------------------------------------------------------------------------------------------- */

static int find_range(CUdeviceptr address)
{
    for (int n = 0; n < RANGES; n++)
        if (ranges[n].address && (uintptr_t)ranges[n].address <= address &&
            address < (uintptr_t)ranges[n].address + ranges[n].bytes)
            return n;
    return -1;
}

CUresult cuMemGetInfo_v2(size_t *unused, size_t *total) { return UNUSED; }

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    ENTER_CONTEXT;
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > MEMORY - fake.bytes) return CUDA_ERROR_OUT_OF_MEMORY;
    for (int n = 0; n < RANGES; n++) {
        if (ranges[n].address) continue;
        ranges[n].address = aligned_alloc(256, (bytes + 255) / 256 * 256);
        ranges[n].bytes = bytes;
        ranges[n].device = stack[fake.depth - 1]->device;
        fake.bytes += bytes;
        fake.allocations++;
        *address = (uintptr_t)ranges[n].address;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
    ENTER_CONTEXT;
    int n = find_range(address);
    if (n < 0 || (uintptr_t)ranges[n].address != address) return CUDA_ERROR_INVALID_VALUE;
    free(ranges[n].address);
    ranges[n].address = NULL;
    fake.bytes -= ranges[n].bytes;
    fake.allocations--;
    return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    ENTER_CONTEXT;
    if (find_range(to) < 0 || (stream && stream->capturing)) return CUDA_ERROR_INVALID_VALUE;
    memcpy((void *)(uintptr_t)to, from, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    ENTER_CONTEXT;
    if (find_range(from) < 0 || (stream && stream->capturing)) return CUDA_ERROR_INVALID_VALUE;
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t bytes, CUstream stream) { return UNUSED; }

CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned flags) { return UNUSED; }

CUresult cuMemFreeHost(void *address) { return UNUSED; }

/* Needs no context. Of memory that it does not know it says nothing and is content, as the real one. */
CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **values, CUdeviceptr address)
{
    ENTER;
    int range = find_range(address);
    for (unsigned n = 0; n < count; n++) {
        int value = 0;
        if (attributes[n] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE && range >= 0) value = CU_MEMORYTYPE_DEVICE;
        if (attributes[n] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) value = range < 0 ? -2 : ranges[range].device;
        memcpy(values[n], &value, sizeof value);
    }
    return CUDA_SUCCESS;
}

/* ---- streams and events -------------------------------------------------------------------------------- */

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    static struct CUctx_st other; /* such as cuCtxCreate makes */
    ENTER;
    if (!stream) return CUDA_ERROR_INVALID_HANDLE;
    other.device = stream->device;
    *context = stream->foreign ? &other : &primary[stream->device];
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    ENTER_CONTEXT;
    *status = stream && stream->capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    ENTER_CONTEXT;
    if (event->stream && event->stream != stream && event->stream->busy) fake.joins++;
    return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream)
{
    ENTER_CONTEXT;
    fake.synchronized++;
    if (stream) stream->busy = 0;
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    ENTER_CONTEXT;
    if (flags != CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_VALUE;
    int n = 0;
    while (n < EVENTS && events[n].used) n++;
    if (n == EVENTS) return CUDA_ERROR_OUT_OF_MEMORY;
    events[n] = (struct CUevent_st){NULL, 1};
    *event = &events[n];
    fake.events++;
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event)
{
    ENTER_CONTEXT;
    event->used = 0;
    fake.events--;
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    ENTER_CONTEXT;
    event->stream = stream;
    return CUDA_SUCCESS;
}

#ifndef FAKE_LACKS
CUresult cuEventQuery(CUevent event)
{
    ENTER_CONTEXT;
    return event->stream && event->stream->busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
#endif

CUresult cuEventSynchronize(CUevent event)
{
    ENTER_CONTEXT;
    if (event->stream) event->stream->busy = 0;
    return CUDA_SUCCESS;
}
