/* SPDX-License-Identifier: Apache-2.0
 * Every call of the driver can be made to fail, and then fails without doing anything. */
#include "emulator_test.h"

/* ---- Failing calls ----------------------------------------------------------------------------------------------- */

enum {
#define DRIVER(member, symbol, parameters) CALL_##member,
#include "cuda/driver_table.h"
#undef DRIVER
    CALLS
};
static const char *const symbols[] = {
#define DRIVER(member, symbol, parameters) #symbol,
#include "cuda/driver_table.h"
#undef DRIVER
};

struct step {
    int call; /* the one that failed; CALLS if none */
    CUresult code;
};

static int called[CALLS];

#define STEP(member, arguments)                                              \
  do {                                                                       \
    const CUresult result = driver.member arguments;                         \
    called[CALL_##member]++;                                                 \
    if (result != CUDA_SUCCESS) return (struct step){CALL_##member, result}; \
  } while (0)

/* Every entry point once; the rest is not done after one that fails. */
static struct step devices(void)
{
    const char *text;
    char name[64];
    int value;
    size_t bytes;
    STEP(init, (0));
    STEP(driver_version, (&value));
    STEP(error_name, (CUDA_ERROR_OUT_OF_MEMORY, &text));
    STEP(error_string, (CUDA_ERROR_OUT_OF_MEMORY, &text));
    STEP(device_count, (&value));
    STEP(device_get, (&value, 0));
    STEP(device_name, (name, sizeof name, 0));
    STEP(device_memory, (&bytes, 0));
    STEP(device_attribute, (&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0));
    return (struct step){CALLS, CUDA_SUCCESS};
}

static struct step work(void)
{
    CUmodule module;
    CUfunction function;
    CUdeviceptr memory;
    CUevent event;
    void *host;
    int value;
    STEP(module_load, (&module, "emulated tests"));
    STEP(module_function, (&function, module, "probe_fill"));
    STEP(function_set, (function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024));
    STEP(function_get, (&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, function));
    STEP(memory_allocate, (&memory, 512));
    STEP(host_allocate, (&host, 512, 0));
    STEP(memory_set, (memory, 0, 512, NULL));
    STEP(upload, (memory, host, 512, NULL));
    struct word_params p = {NULL, test_pointer(memory), 1};
    void *params[] = {&p};
    STEP(launch, (function, 1, 1, 1, 128, 1, 1, 1024, NULL, params, NULL));
    STEP(download, (host, memory, 512, NULL));
    STEP(event_create, (&event, CU_EVENT_DISABLE_TIMING));
    STEP(event_record, (event, NULL));
    STEP(stream_wait, (NULL, event, 0));
    STEP(event_synchronize, (event));
    STEP(event_query, (event));
    STEP(event_destroy, (event));
    STEP(stream_synchronize, (NULL));
    STEP(host_free, (host));
    STEP(memory_free, (memory));
    STEP(module_unload, (module));
    return (struct step){CALLS, CUDA_SUCCESS};
}

static struct step contexts(void)
{
    CUcontext context;
    CUdevice device;
    CUstreamCaptureStatus status;
    CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    unsigned type;
    void *values[] = {&type};
    size_t unused, total;
    STEP(primary_retain, (&context, 0));
    STEP(context_push, (context));
    STEP(context_device, (&device));
    STEP(memory_info, (&unused, &total));
    STEP(pointer_attributes, (1, &attribute, values, 0));
    STEP(stream_context, (NULL, &context));
    STEP(stream_capturing, (NULL, &status));
    const struct step inner = work();
    if (inner.call != CALLS) return inner;
    STEP(context_pop, (&context));
    STEP(primary_release, (0));
    return inner;
}

/* Leaves no context behind, however far it came. */
static struct step scenario(void)
{
    CUcontext context;
    struct step step = devices();
    if (step.call == CALLS) step = contexts();
    driver.set("fail", "");
    while (driver.context_pop(&context) == CUDA_SUCCESS) {}
    while (driver.primary_release(0) == CUDA_SUCCESS) {}
    return step;
}

static void every_call_can_fail(void **state)
{
    (void)state;
    memset(called, 0, sizeof called);
    struct step step = scenario();
    assert_int_equal(step.call, CALLS);
    for (int call = 0; call < CALLS; call++) assert_int_equal(called[call], 1);
    for (int call = 0; call < CALLS; call++)
        for (int i = 0; i < 2; i++) {
            const CUresult code = i == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_LAUNCH_FAILED;
            char plan[96];
            snprintf(plan, sizeof plan, i == 0 ? "%s:1" : "%s:1:%d", symbols[call], code);
            assert_int_equal(driver.set("fail", plan), 0);
            step = scenario();
            assert_int_equal(step.call, call);
            assert_int_equal(step.code, code);
        }
    assert_int_equal(scenario().call, CALLS); /* and nothing of that stays */
}

static void the_nth_call_fails(void **state)
{
    (void)state;
    CUdeviceptr a;
    int count;
    assert_success(test_begin(state));
    driver.set("fail", "cuMemAlloc_v2:3:2");
    assert_success(driver.memory_allocate(&a, 4));
    assert_success(driver.device_count(&count));
    assert_success(driver.memory_allocate(&a, 4));
    assert_int_equal(driver.memory_allocate(&a, 4), CUDA_ERROR_OUT_OF_MEMORY);
    assert_success(driver.memory_allocate(&a, 4));
    driver.set("fail", "2:209");
    assert_success(driver.device_count(&count));
    assert_int_equal(driver.memory_allocate(&a, 4), CUDA_ERROR_NO_BINARY_FOR_GPU);
    assert_success(driver.memory_allocate(&a, 4));
    /* An error that ends the context stays. */
    driver.set("fail", "cuStreamSynchronize:1:700");
    assert_int_equal(driver.stream_synchronize(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(driver.memory_free(a), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_success(test_end(state));
    assert_int_equal(driver.set("fail", "x:y"), -1);
    assert_int_equal(driver.set("fail", "1:2:3"), -1);
    assert_int_equal(driver.set("nonsense", "1"), -1);
    assert_int_equal(driver.set("devices", "two"), -1);
    assert_int_equal(driver.set("capability", "70"), -1);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_can_fail),
        cmocka_unit_test(the_nth_call_fails),
    };
    test_open(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
