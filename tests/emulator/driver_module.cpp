/* SPDX-License-Identifier: Apache-2.0
 * Modules, functions, launches. */
#include "driver_state.h"
#include "fatbin.h"
#include "pool.h"
#include "report.h"
#include "settings.h"

using namespace emulator;

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    ENTER(cuModuleLoadData, CONTEXT);
    const FatbinFit fit = fatbin_fit(image, settings.capability);
    REQUIRE(fit != FATBIN_INVALID, CUDA_ERROR_INVALID_IMAGE);
    REQUIRE(fit != FATBIN_NO_CODE, CUDA_ERROR_NO_BINARY_FOR_GPU);
    *module = new CUmod_st{image, current_context(), {}};
    driver_state().modules.push_back(*module);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleUnload(CUmodule module)
{
    ENTER(cuModuleUnload, CONTEXT);
    REQUIRE(holds(driver_state().modules, module), CUDA_ERROR_INVALID_HANDLE);
    stream_run_all(call.lock, module->context);
    remove_from(driver_state().modules, module);
    for (const CUfunction function : module->functions) delete function;
    delete module;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    ENTER(cuModuleGetFunction, CONTEXT);
    REQUIRE(holds(driver_state().modules, module), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(fatbin_has_kernel(module->image, name), CUDA_ERROR_NOT_FOUND);
    const Kernel *kernel = find_kernel(name);
    if (kernel == nullptr) {
        report("kernel %s is not compiled into the emulator", name);
        return CUDA_ERROR_NOT_FOUND;
    }
    for (const CUfunction known : module->functions)
        if (known->kernel == kernel) {
            *function = known;
            return CUDA_SUCCESS;
        }
    *function = new CUfunc_st{kernel, module, 48 << 10};
    module->functions.push_back(*function);
    return CUDA_SUCCESS;
}

static bool is_function(CUfunction function)
{
    for (const CUmodule module : driver_state().modules)
        if (holds(module->functions, function)) return true;
    return false;
}

EXPORT CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    ENTER(cuFuncSetAttribute, CONTEXT);
    REQUIRE(is_function(function), CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value >= 0 && value <= pose().shared_optin,
            CUDA_ERROR_INVALID_VALUE);
    function->shared_limit = value;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
    ENTER(cuFuncGetAttribute, CONTEXT);
    REQUIRE(is_function(function), CUDA_ERROR_INVALID_HANDLE);
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = int(function->kernel->maximum_threads); break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = function->shared_limit; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 0; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* The parameter struct out of either form of arguments; null if its size, where given, is wrong. */
static const char *find_parameter(const Kernel *kernel, void **parameters, void **extra)
{
    if (parameters != nullptr) return static_cast<const char *>(parameters[0]);
    const char *buffer = nullptr;
    size_t bytes = 0;
    for (; extra != nullptr && *extra != CU_LAUNCH_PARAM_END; extra += 2)
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = static_cast<const char *>(extra[1]);
        else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *static_cast<size_t *>(extra[1]);
    return bytes == kernel->parameter_bytes ? buffer : nullptr;
}

struct Shape {
    unsigned blocks, threads, shared_bytes;
    int device;
};

/* As on a GPU, whatever goes wrong here is told by a later call, for the rest of the context's life. */
static CUresult run_kernel(const Kernel *kernel, const std::vector<char> &parameter, const Shape &shape)
{
    Launch launch;
    launch.kernel = kernel;
    launch.parameter = parameter;
    launch.blocks = shape.blocks;
    launch.threads = shape.threads;
    launch.shared_bytes = shape.shared_bytes;
    launch.device = shape.device;
    pool_run(launch);
    count_launch(launch.counters);
    if (!launch.failed) return CUDA_SUCCESS;
    return launch.illegal_address ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_ERROR_LAUNCH_FAILED;
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                               unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,
                               void **parameters, void **extra)
{
    ENTER(cuLaunchKernel, CONTEXT);
    const StreamPointer target = stream_of(stream);
    REQUIRE(is_function(function) && target != nullptr, CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(function->module->context == target->context, CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(grid_x > 0 && grid_x <= 0x7fffffff && block_x > 0, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(grid_y == 1 && grid_z == 1 && block_y == 1 && block_z == 1, CUDA_ERROR_INVALID_VALUE); /* device.cuh */
    REQUIRE(block_x <= function->kernel->maximum_threads, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    REQUIRE(int(shared_bytes) <= function->shared_limit, CUDA_ERROR_INVALID_VALUE);
    const Kernel *kernel = function->kernel;
    const char *parameter = find_parameter(kernel, parameters, extra);
    REQUIRE(parameter != nullptr, CUDA_ERROR_INVALID_VALUE);
    const std::vector<char> copy(parameter, parameter + kernel->parameter_bytes);
    const Shape shape = {grid_x, block_x, shared_bytes, target->context->device};
    return enqueue(stream, [=] { return run_kernel(kernel, copy, shape); });
}
