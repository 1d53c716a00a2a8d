/* SPDX-License-Identifier: Apache-2.0 */
#include "emulator_test.h"

#include <dlfcn.h>
#include <stdlib.h>

struct test_driver driver;

static void *library;
static CUmodule module;

static const char *const symbols[] = {
#define DRIVER(member, symbol, parameters) #symbol,
#include "cuda/driver_table.h"
#undef DRIVER
    "cuCtxCreate_v2",
    "cuCtxDestroy_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "emulator_set",
    "emulator_checked",
    "emulator_usable",
    "emulator_reports",
    "emulator_count",
    "emulator_banks",
};

_Static_assert(sizeof(driver) == sizeof(symbols), "one member a symbol");

void *test_symbol(const char *name) { return dlsym(library, name); }

void test_open(int argc, char **argv)
{
    library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (library == NULL) {
        fprintf(stderr, "usage: %s libcuda_emulator.so (%s)\n", argv[0], argc > 1 ? dlerror() : "no argument");
        exit(2);
    }
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        void *address = test_symbol(symbols[i]);
        if (address == NULL) {
            fprintf(stderr, "%s lacks %s\n", argv[1], symbols[i]);
            exit(1);
        }
        /* ISO C has no conversion from void * to a function pointer. */
        memcpy((char *)&driver + i * sizeof address, &address, sizeof address);
    }
    if (!driver.usable()) {
        printf("SKIP: the emulator's kernels need AVX2 and FMA\n");
        exit(UNIT_SKIPPED);
    }
    if (driver.init(0) != CUDA_SUCCESS) {
        fprintf(stderr, "cuInit failed\n");
        exit(1);
    }
}

int test_begin(void **state)
{
    CUcontext context;
    (void)state;
    module = NULL;
    driver.set("fail", "");
    driver.reports(NULL, 0);
    if (driver.primary_retain(&context, 0) != CUDA_SUCCESS) return 1;
    return driver.context_push(context) != CUDA_SUCCESS;
}

int test_end(void **state)
{
    CUcontext context;
    (void)state;
    if (driver.context_pop(&context) != CUDA_SUCCESS) return 1;
    return driver.primary_release(0) != CUDA_SUCCESS; /* with all that is left in it */
}

CUdeviceptr test_allocate(size_t bytes)
{
    CUdeviceptr address;
    assert_success(driver.memory_allocate(&address, bytes));
    return address;
}

CUdeviceptr test_upload(const void *from, size_t bytes)
{
    const CUdeviceptr address = test_allocate(bytes);
    assert_success(driver.upload(address, from, bytes, NULL));
    assert_success(driver.stream_synchronize(NULL));
    return address;
}

void test_download(void *to, CUdeviceptr from, size_t bytes)
{
    assert_success(driver.download(to, from, bytes, NULL));
    assert_success(driver.stream_synchronize(NULL));
}

CUfunction test_function(const char *name)
{
    CUfunction function;
    if (module == NULL) assert_success(driver.module_load(&module, "emulated tests"));
    assert_success(driver.module_function(&function, module, name));
    return function;
}

void test_launch(const char *kernel, unsigned blocks, unsigned threads, unsigned shared_bytes, CUstream stream,
                 const void *params, size_t bytes)
{
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)(uintptr_t)params, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    const CUfunction function = test_function(kernel);
    assert_success(driver.launch(function, blocks, 1, 1, threads, 1, 1, shared_bytes, stream, NULL, extra));
}

void test_words(const char *kernel, unsigned blocks, unsigned threads, unsigned shared_bytes, CUstream stream,
                CUdeviceptr in, CUdeviceptr out, int count)
{
    const struct word_params p = {test_pointer(in), test_pointer(out), count};
    test_launch(kernel, blocks, threads, shared_bytes, stream, &p, sizeof p);
}
