/* SPDX-License-Identifier: Apache-2.0
 * The driver around the kernels: what it poses as, contexts, limits, names. */
#include "emulator_test.h"

#include <stdlib.h>

/* ---- Poses ------------------------------------------------------------------------------------------------------- */

static int attribute_of(CUdevice_attribute attribute)
{
    int value;
    assert_success(driver.device_attribute(&value, attribute, 0));
    return value;
}

/* A fat binary with one entry: the header, machine code or PTX, for a capability. */
static void make_fatbin(uint64_t *image, unsigned kind, unsigned capability)
{
    memset(image, 0, 96);
    image[0] = 0xba55ed50u | 1ull << 32 | 16ull << 48; /* magic, version, bytes of the header */
    image[1] = 80;                                     /* bytes after it */
    image[2] = kind | 64ull << 32;
    image[3] = 16; /* bytes of the code */
    image[5] = (uint64_t)capability << 32;
    memcpy(image + 10, ".text.probe_fill", 16);
}

static CUresult load(unsigned kind, unsigned capability)
{
    uint64_t image[13] = {0};
    CUmodule module;
    CUfunction function;
    make_fatbin(image, kind, capability);
    const CUresult code = driver.module_load(&module, image);
    if (code == CUDA_SUCCESS) {
        assert_int_equal(driver.module_function(&function, module, "probe_nothing"), CUDA_ERROR_NOT_FOUND);
        assert_success(driver.module_unload(module));
    }
    return code;
}

static void poses(void **state)
{
    static const struct {
        const char *capability, *name;
        int major, minor, shared, multiprocessors;
        CUresult machine_code_70, ptx_70; /* of loading it */
    } devices_known[] = {
        {"7.0", "emulated sm_70", 7, 0, 98304, 80, CUDA_SUCCESS, CUDA_SUCCESS},
        {"6.1", "emulated sm_61", 6, 1, 49152, 20, CUDA_ERROR_NO_BINARY_FOR_GPU, CUDA_ERROR_NO_BINARY_FOR_GPU},
        {"7.5", "emulated sm_75", 7, 5, 65536, 40, CUDA_SUCCESS, CUDA_SUCCESS},
        {"9.0", "emulated sm_90", 9, 0, 232448, 132, CUDA_ERROR_NO_BINARY_FOR_GPU, CUDA_SUCCESS},
    };
    char name[64];
    (void)state;
    assert_int_equal(attribute_of(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR), 7); /* by default */
    for (size_t i = 0; i < sizeof devices_known / sizeof devices_known[0]; i++) {
        driver.set("capability", devices_known[i].capability);
        assert_success(driver.device_name(name, sizeof name, 0));
        assert_string_equal(name, devices_known[i].name);
        assert_int_equal(attribute_of(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR), devices_known[i].major);
        assert_int_equal(attribute_of(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR), devices_known[i].minor);
        assert_int_equal(attribute_of(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN), devices_known[i].shared);
        assert_int_equal(attribute_of(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), devices_known[i].multiprocessors);
        const CUfunction f = test_function("probe_barrier");
        const CUfunction_attribute shared = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        assert_success(driver.function_set(f, shared, devices_known[i].shared));
        assert_int_equal(driver.function_set(f, shared, devices_known[i].shared + 1), CUDA_ERROR_INVALID_VALUE);
        assert_int_equal(load(2, 70), devices_known[i].machine_code_70);
        assert_int_equal(load(1, 70), devices_known[i].ptx_70);
    }
    driver.set("capability", "7.0");
    CUmodule module;
    assert_int_equal(driver.module_load(&module, "not a fat binary"), CUDA_ERROR_INVALID_IMAGE);
}

static void device_counts(void **state)
{
    int count;
    CUdevice device;
    CUcontext context;
    (void)state;
    driver.set("devices", "2");
    assert_success(driver.device_count(&count));
    assert_int_equal(count, 2);
    assert_success(driver.device_get(&device, 1));
    assert_int_equal(driver.device_get(&device, 2), CUDA_ERROR_INVALID_DEVICE);
    /* Memory of one device is no other's. */
    const CUdeviceptr first = test_allocate(512);
    assert_success(driver.primary_retain(&context, 1));
    assert_success(driver.context_push(context));
    assert_success(driver.context_device(&device));
    assert_int_equal(device, 1);
    if (driver.checked()) {
        CUmodule module;
        CUfunction function;
        struct word_params p = {NULL, test_pointer(first), 1};
        void *params[] = {&p};
        assert_success(driver.module_load(&module, "emulated tests"));
        assert_success(driver.module_function(&function, module, "probe_fill"));
        assert_success(driver.launch(function, 1, 1, 1, 128, 1, 1, 0, NULL, params, NULL));
        assert_int_equal(driver.stream_synchronize(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    assert_success(driver.context_pop(&context));
    assert_success(driver.primary_release(1));
    assert_success(driver.stream_synchronize(NULL)); /* this context is well */
    driver.set("devices", "0");
    assert_int_equal(driver.init(0), CUDA_ERROR_NO_DEVICE);
    driver.set("devices", "1");
}

static void memory_is_limited(void **state)
{
    size_t unused, total;
    CUdeviceptr a, b;
    (void)state;
    driver.set("memory", "1000");
    assert_success(driver.memory_allocate(&a, 600));
    assert_success(driver.memory_info(&unused, &total));
    assert_int_equal(total, 1000);
    assert_int_equal(unused, 400);
    assert_int_equal(driver.memory_allocate(&b, 401), CUDA_ERROR_OUT_OF_MEMORY);
    assert_success(driver.memory_allocate(&b, 400));
    assert_success(driver.memory_free(a));
    assert_int_equal(driver.memory_free(a), CUDA_ERROR_INVALID_VALUE);
    assert_success(driver.memory_allocate(&a, 600));
    assert_int_equal(driver.memory_allocate(&b, 0), CUDA_ERROR_INVALID_VALUE);
    driver.set("memory", "1073741824");
}

/* ---- Contexts and handles ---------------------------------------------------------------------------------------- */

static void contexts_own_what_they_made(void **state)
{
    CUcontext primary, foreign, of_stream;
    CUstream stream;
    CUevent event;
    struct emulator_counts before, after;
    (void)state;
    driver.count(&before);
    assert_success(driver.stream_context(NULL, &primary));
    const CUfunction function = test_function("probe_fill");
    const CUdeviceptr out = test_allocate(512);
    assert_success(driver.context_create(&foreign, 0, 0));
    assert_success(driver.stream_create(&stream, 0));
    assert_success(driver.stream_context(stream, &of_stream));
    assert_ptr_equal(of_stream, foreign);
    assert_success(driver.event_create(&event, 0));
    assert_int_equal(driver.event_record(event, stream), CUDA_SUCCESS);
    CUdeviceptr lost;
    assert_success(driver.memory_allocate(&lost, 100));

    /* A kernel of one context does not run on a stream of another, whichever is current. */
    struct word_params p = {NULL, test_pointer(out), 1};
    void *params[] = {&p};
    assert_int_equal(driver.launch(function, 1, 1, 1, 128, 1, 1, 0, stream, params, NULL), CUDA_ERROR_INVALID_HANDLE);
    assert_success(driver.context_push(primary));
    assert_int_equal(driver.launch(function, 1, 1, 1, 128, 1, 1, 0, stream, params, NULL), CUDA_ERROR_INVALID_HANDLE);
    assert_int_equal(driver.event_record(event, NULL), CUDA_ERROR_INVALID_HANDLE);
    assert_success(driver.launch(function, 1, 1, 1, 128, 1, 1, 0, NULL, params, NULL));
    CUcontext popped;
    assert_success(driver.context_pop(&popped));
    assert_ptr_equal(popped, primary);

    assert_success(driver.context_destroy(foreign));
    assert_int_equal(driver.context_push(foreign), CUDA_ERROR_INVALID_CONTEXT);
    assert_int_equal(driver.stream_synchronize(stream), CUDA_ERROR_INVALID_HANDLE);
    driver.count(&after);
    assert_int_equal(after.lost_bytes - before.lost_bytes, 100);
    assert_int_equal(after.device_bytes - before.device_bytes, 512);
    assert_int_equal(after.contexts, before.contexts);
    assert_int_equal(after.streams, before.streams);
    assert_int_equal(after.events, before.events);
}

static void no_context_no_work(void **state)
{
    CUcontext context;
    CUdeviceptr address;
    (void)state;
    assert_success(driver.context_pop(&context));
    assert_int_equal(driver.memory_allocate(&address, 4), CUDA_ERROR_INVALID_CONTEXT);
    assert_int_equal(driver.context_pop(&context), CUDA_ERROR_INVALID_CONTEXT);
    assert_success(driver.context_push(context));
}

static void launches_are_checked(void **state)
{
    (void)state;
    const CUfunction f = test_function("probe_barrier");
    const CUdeviceptr out = test_allocate(1024);
    struct word_params p = {NULL, test_pointer(out), 0};
    size_t bytes = sizeof p - 1;
    void *params[] = {&p};
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &p, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
    int value;
    assert_success(driver.function_get(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, f));
    assert_int_equal(value, 256);
    const CUresult invalid = CUDA_ERROR_INVALID_VALUE;
    assert_int_equal(driver.launch(f, 0, 1, 1, 256, 1, 1, 0, NULL, params, NULL), invalid);
    assert_int_equal(driver.launch(f, 1, 1, 1, 0, 1, 1, 0, NULL, params, NULL), invalid);
    assert_int_equal(driver.launch(f, 1, 2, 1, 256, 1, 1, 0, NULL, params, NULL), invalid);
    assert_int_equal(driver.launch(f, 1, 1, 1, 256, 1, 1, 0, NULL, NULL, extra), invalid); /* another size */
    assert_int_equal(driver.launch(f, 1, 1, 1, 256, 1, 1, 48 * 1024 + 1, NULL, params, NULL), invalid);
    assert_int_equal(driver.launch(f, 1, 1, 1, 288, 1, 1, 0, NULL, params, NULL), CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    assert_success(driver.function_set(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 98304));
    assert_int_equal(driver.launch(f, 1, 1, 1, 256, 1, 1, 98305, NULL, params, NULL), invalid);
    assert_int_equal(driver.launch(f, 1, 1, 1, 256, 1, 1, 0, (CUstream)&p, params, NULL), CUDA_ERROR_INVALID_HANDLE);
}

static void pointers_have_attributes(void **state)
{
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                        CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    CUcontext context, current;
    unsigned type, managed;
    int ordinal;
    void *values[] = {&context, &type, &managed, &ordinal}, *host;
    (void)state;
    assert_success(driver.stream_context(NULL, &current));
    assert_success(driver.host_allocate(&host, 100, 0));
    const CUdeviceptr first = test_allocate(100);
    const struct {
        CUdeviceptr address;
        CUcontext context;
        unsigned type;
        int ordinal;
    } cases[] = {
        {first, current, CU_MEMORYTYPE_DEVICE, 0},
        {first + 99, current, CU_MEMORYTYPE_DEVICE, 0},
        {first + 100, NULL, 0, -2},
        {(CUdeviceptr)(uintptr_t)host, current, CU_MEMORYTYPE_HOST, 0},
        {(CUdeviceptr)(uintptr_t)&context, NULL, 0, -2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        managed = 7;
        assert_success(driver.pointer_attributes(4, attributes, values, cases[i].address));
        assert_ptr_equal(context, cases[i].context);
        assert_int_equal(type, cases[i].type);
        assert_int_equal(managed, 0);
        assert_int_equal(ordinal, cases[i].ordinal);
    }
    assert_success(driver.host_free(host));
}

/* Copies stay inside allocations. */
static void ranges_are_checked(void **state)
{
    char bytes[101] = {0};
    (void)state;
    const CUdeviceptr a = test_allocate(100);
    assert_success(driver.upload(a, bytes, 100, NULL));
    assert_int_equal(driver.upload(a, bytes, 101, NULL), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(driver.download(bytes, a + 1, 100, NULL), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(driver.memory_set(a + 50, 0, 51, NULL), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(driver.memory_free(a + 1), CUDA_ERROR_INVALID_VALUE);
    assert_success(driver.download(bytes, a + 99, 1, NULL));
    assert_success(driver.stream_synchronize(NULL)); /* before the array goes */
}

/* ---- Names ------------------------------------------------------------------------------------------------------- */

static const char *const symbols[] = {
#define DRIVER(member, symbol, parameters) #symbol,
#include "cuda/driver_table.h"
#undef DRIVER
};

/* dlsym() of a name without its suffix finds the call of CUDA 3 in a real driver, and must find nothing here. */
static void only_suffixed_names(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s", symbols[i]);
        assert_non_null(test_symbol(name));
        char *suffix = strstr(name, "_v2");
        if (suffix != NULL) *suffix = 0;
        else strcat(name, "_v2");
        assert_null(test_symbol(name));
    }
    assert_null(test_symbol("cuCtxCreate"));
    assert_null(test_symbol("cuStreamDestroy"));
}

static void errors_have_names(void **state)
{
    const char *text;
    (void)state;
    assert_success(driver.error_name(CUDA_ERROR_INVALID_VALUE, &text)); /* 1 is also the number of attributes */
    assert_string_equal(text, "CUDA_ERROR_INVALID_VALUE");
    assert_success(driver.error_name(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
    assert_string_equal(text, "CUDA_ERROR_ILLEGAL_ADDRESS");
    assert_int_equal(driver.error_name(12345, &text), CUDA_ERROR_INVALID_VALUE);
    assert_null(text);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(poses, test_begin, test_end),
        cmocka_unit_test_setup_teardown(device_counts, test_begin, test_end),
        cmocka_unit_test_setup_teardown(memory_is_limited, test_begin, test_end),
        cmocka_unit_test_setup_teardown(contexts_own_what_they_made, test_begin, test_end),
        cmocka_unit_test_setup_teardown(no_context_no_work, test_begin, test_end),
        cmocka_unit_test_setup_teardown(launches_are_checked, test_begin, test_end),
        cmocka_unit_test_setup_teardown(pointers_have_attributes, test_begin, test_end),
        cmocka_unit_test_setup_teardown(ranges_are_checked, test_begin, test_end),
        cmocka_unit_test(only_suffixed_names),
        cmocka_unit_test(errors_have_names),
    };
    test_open(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
