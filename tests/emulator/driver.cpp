/* SPDX-License-Identifier: Apache-2.0
 * The stand-in driver: how calls begin and fail, devices, error texts, counts. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "device_memory.h"
#include "driver_state.h"
#include "emulator.h"
#include "settings.h"

/* The library asks for it before it takes kernels that no nvcc has compiled. */
extern "C" __attribute__((visibility("default"))) int attn_stand_in(void) { return 1; }

namespace emulator
{

/* Never destroyed: threads may call until the process ends. */
static std::mutex &driver_mutex()
{
    static std::mutex &only = *new std::mutex;
    return only;
}

DriverState &driver_state()
{
    static DriverState &only = *new DriverState();
    return only;
}

std::vector<CUcontext> &current_contexts()
{
    static thread_local std::vector<CUcontext> stack;
    return stack;
}

/* ---- Calls that are to fail -------------------------------------------------------------------------------------- */

struct FaultPlan {
    unsigned left;      /* calls until it strikes; 0: no plan */
    std::string symbol; /* empty: any */
    CUresult code;
};

static FaultPlan &fault_plan()
{
    static FaultPlan &only = *new FaultPlan();
    return only;
}

bool set_fault_plan(const char *text)
{
    char symbol[64] = "";
    unsigned n = 0;
    int code = CUDA_ERROR_OUT_OF_MEMORY, end = 0;
    const size_t length = strlen(text);
    const int read = isalpha(static_cast<unsigned char>(text[0]))
                         ? sscanf(text, "%63[A-Za-z0-9_]:%u%n:%d%n", symbol, &n, &end, &code, &end) - 1
                         : sscanf(text, "%u%n:%d%n", &n, &end, &code, &end);
    const bool good = length == 0 || (read >= 1 && size_t(end) == length);
    if (!good) return false;
    const std::lock_guard<std::mutex> lock(driver_mutex());
    fault_plan() = {n, symbol, code};
    return true;
}

/* The planned error of this call, or success. */
static CUresult planned_fault(const char *symbol)
{
    FaultPlan &plan = fault_plan();
    if (plan.left == 0 || (!plan.symbol.empty() && plan.symbol != symbol) || --plan.left > 0) return CUDA_SUCCESS;
    driver_state().faults++;
    return plan.code;
}

/* ---- How a call begins ------------------------------------------------------------------------------------------- */

Call::Call(const char *symbol, Needs needs) : lock(driver_mutex()), code(CUDA_SUCCESS)
{
    DriverState &state = driver_state();
    state.calls++;
    code = planned_fault(symbol);
    const bool has_context = !current_contexts().empty() && current_context()->references > 0;
    if (code >= CUDA_ERROR_ILLEGAL_ADDRESS && code <= CUDA_ERROR_LAUNCH_FAILED && needs == CONTEXT && has_context)
        current_context()->sticky = code; /* as on a GPU these end the context */
    if (code != CUDA_SUCCESS || needs == NOTHING) return;
    if (!state.is_initialised || state.process != getpid()) code = CUDA_ERROR_NOT_INITIALIZED;
    else if (needs == CONTEXT) code = has_context ? current_context()->sticky : CUDA_ERROR_INVALID_CONTEXT;
}

static void print_statistics()
{
    emulator_counts c;
    emulator_count(&c);
    const auto print = [](const char *name, uint64_t value) {
        fprintf(stderr, "emulator: %-14s %llu\n", name, static_cast<unsigned long long>(value));
    };
    print("calls", c.calls);
    print("launches", c.launches);
    print("switches", c.switches);
    print("mma", c.mma);
    print("shuffles", c.shuffles);
    print("block barriers", c.block_barriers);
    print("accesses", c.accesses);
    print("bytes not freed", c.device_bytes + c.host_bytes + c.lost_bytes);
}

void count_launch(const Counters &counters)
{
    const Lock lock(driver_mutex());
    driver_state().launches++;
    add_counters(driver_state().counters, counters);
}

static bool is_device(int device) { return device >= 0 && device < settings.devices; }

Pose pose()
{
    static const Pose known[] = {{60, 48 << 10, 56},   {61, 48 << 10, 20}, {70, 96 << 10, 80},  {75, 64 << 10, 40},
                                 {80, 163 << 10, 108}, {86, 99 << 10, 84}, {89, 99 << 10, 128}, {90, 227 << 10, 132}};
    Pose best = {settings.capability, 48 << 10, 16};
    for (const Pose &p : known)
        if (p.capability <= settings.capability) best = p;
    if (settings.multiprocessors > 0) best.multiprocessors = int(settings.multiprocessors);
    return best;
}

} // namespace emulator

using namespace emulator;

EXPORT CUresult cuInit(unsigned flags)
{
    ENTER(cuInit, NOTHING);
    DriverState &state = driver_state();
    REQUIRE(flags == 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(emulator_usable() && settings.devices > 0, CUDA_ERROR_NO_DEVICE);
    REQUIRE(!state.is_initialised || state.process == getpid(), CUDA_ERROR_NOT_INITIALIZED);
    if (!state.is_initialised && settings.statistics != 0) atexit(print_statistics);
    state.is_initialised = true;
    state.process = getpid();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
    ENTER(cuDriverGetVersion, NOTHING);
    *version = 12080;
    return CUDA_SUCCESS;
}

static const struct {
    int code;
    const char *name;
} values[] = {
#define VALUE(name, number) {number, #name},
#include "cuda/driver_values.h"
#undef VALUE
};

EXPORT CUresult cuGetErrorName(CUresult code, const char **text)
{
    ENTER(cuGetErrorName, NOTHING);
    *text = nullptr;
    for (const auto &value : values) /* attributes stand in the same list */
        if (value.code == code && strncmp(value.name, "CUDA_", 5) == 0) *text = value.name;
    return *text != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorString(CUresult code, const char **text)
{
    ENTER(cuGetErrorString, NOTHING);
    *text = nullptr;
    for (const auto &value : values)
        if (value.code == code && strncmp(value.name, "CUDA_", 5) == 0) *text = "as the emulator has it";
    return *text != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
    ENTER(cuDeviceGetCount, INITIALISED);
    *count = int(settings.devices);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    ENTER(cuDeviceGet, INITIALISED);
    REQUIRE(is_device(ordinal), CUDA_ERROR_INVALID_DEVICE);
    *device = ordinal;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int bytes, CUdevice device)
{
    ENTER(cuDeviceGetName, INITIALISED);
    REQUIRE(is_device(device), CUDA_ERROR_INVALID_DEVICE);
    snprintf(name, size_t(bytes), "emulated sm_%ld", settings.capability.load());
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    ENTER(cuDeviceTotalMem_v2, INITIALISED);
    REQUIRE(is_device(device), CUDA_ERROR_INVALID_DEVICE);
    *bytes = size_t(settings.memory);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    ENTER(cuDeviceGetAttribute, INITIALISED);
    REQUIRE(is_device(device), CUDA_ERROR_INVALID_DEVICE);
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = LANES; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = pose().multiprocessors; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = int(settings.capability / 10); break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = int(settings.capability % 10); break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = pose().shared_optin; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

EXPORT int emulator_usable(void)
{
#ifdef __x86_64__ /* what the kernels are compiled for */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return 1;
#endif
}

EXPORT void emulator_count(struct emulator_counts *counts)
{
    const Lock lock(driver_mutex());
    const DriverState &state = driver_state();
    *counts = {};
    counts->calls = state.calls;
    counts->launches = state.launches;
    counts->faults = state.faults;
    counts->switches = state.counters.switches;
    counts->mma = state.counters.mma;
    counts->shuffles = state.counters.shuffles;
    counts->block_barriers = state.counters.block_barriers;
    counts->accesses = state.counters.accesses;
    for (int device = 0; device < settings.devices; device++) counts->device_bytes += memory_device_bytes(device);
    counts->host_bytes = memory_host_bytes();
    counts->modules = state.modules.size();
    counts->streams = state.streams.size();
    counts->events = state.events.size();
    for (const CUcontext context : state.contexts) counts->contexts += context->references > 0;
    counts->lost_bytes = state.lost_bytes;
}
