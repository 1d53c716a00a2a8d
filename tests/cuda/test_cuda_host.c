/* SPDX-License-Identifier: Apache-2.0
 * The CUDA backend as the API shows it, against fake_driver.c, whose path is the one argument: devices, contexts, memory,
 * streams, forks. */
#include "cuda_unit.h"

#include <sys/wait.h>
#include <unistd.h>

/* Host tensors, in a process that has the driver's library (by find_fake) and has not started it. */
static void forward_on(int32_t backend)
{
    float x[4] = {1, 2, 3, 4}, y[4] = {0};
    attn_problem p = ATTN_PROBLEM_INIT;
    attn_context *ctx = context(backend, 0);
    p.q = p.k = p.v = attn_bhsd(x, ATTN_F32, 1, 1, 1, 4);
    p.out = attn_bhsd(y, ATTN_F32, 1, 1, 1, 4);
    assert_int_equal(attn_forward(ctx, &p, NULL), ATTN_OK);
    assert_memory_equal(x, y, sizeof x);
    attn_destroy(ctx);
}

/* First, before anything else has loaded the driver. */
static void cpu_contexts_leave_the_driver_alone(void **state)
{
    char here[64] = "x", there[64];
    void *memory;
    (void)state;
    attn_context *ctx = context(ATTN_BACKEND_CPU, 0);
    assert_int_equal(attn_malloc(ctx, 0, 64, &memory), ATTN_OK);
    assert_int_equal(attn_upload(ctx, memory, here, 64, NULL), ATTN_OK);
    assert_int_equal(attn_download(ctx, there, memory, 64, NULL), ATTN_OK);
    assert_int_equal(attn_sync(ctx, NULL), ATTN_OK);
    attn_free(ctx, memory);
    assert_int_equal(attn_malloc(ctx, 1, 64, &memory), ATTN_NO_DEVICE);
    attn_destroy(ctx);
    attn_destroy(context(ATTN_BACKEND_REFERENCE, 0));
    forward_on(ATTN_BACKEND_CPU);
    forward_on(ATTN_BACKEND_AUTO);
    assert_int_equal(fake->inits, 0);
}

static void devices(void **state)
{
    int32_t count;
    attn_device_info info = {.struct_size = sizeof info};
    attn_config config = ATTN_CONFIG_INIT;
    attn_context *ctx;
    (void)state;
    assert_int_equal(attn_device_count(&count), ATTN_OK);
    assert_int_equal(count, 3);
    assert_int_equal(attn_device_get(1, &info), ATTN_OK);
    assert_string_equal(info.name, "Fake V100");
    assert_string_equal(info.arch, "sm_70");
    assert_string_equal(info.driver, "CUDA 11.8");
    assert_int_equal(info.units, 80);
    assert_int_equal(info.ordinal, 0);
    info.struct_size = offsetof(attn_device_info, driver); /* of a program older than this field */
    info.driver[0] = 'x';
    assert_int_equal(attn_device_get(2, &info), ATTN_OK);
    assert_int_equal(info.driver[0], 'x');
    assert_string_equal(info.arch, "sm_80");
    assert_int_equal(info.ordinal, 1);
    assert_int_equal(attn_device_get(3, &info), ATTN_INVALID_ARGUMENT);
    config.backend = ATTN_BACKEND_CUDA;
    config.device = 2;
    expect(attn_create(&config, &ctx), ATTN_NO_DEVICE, "config.device: 2, but there are 2 GPUs");
    attn_destroy(context(ATTN_BACKEND_CUDA, 1));
    assert_int_equal(fake->inits, 1);
    assert_int_equal(fake->retained, 0); /* nothing has used a GPU */
}

/* There and back on every device, from contexts for it and for all; other memory stays the host's. */
static void memory(void **state)
{
    char sent[100], received[100];
    void *gpu, *host;
    (void)state;
    for (int n = 0; n < 100; n++) sent[n] = (char)n;
    for (int32_t device = 0; device < 4; device++) {
        attn_context *ctx = device < 2 ? context(ATTN_BACKEND_CUDA, device) : context(ATTN_BACKEND_AUTO, 0);
        int32_t index = 1 + device % 2;
        assert_int_equal(attn_malloc(ctx, index, sizeof sent, &gpu), ATTN_OK);
        assert_int_equal(attn_malloc(ctx, 0, sizeof sent, &host), ATTN_OK);
        assert_int_equal(fake->allocations, 1);
        memset(received, 0, sizeof received);
        assert_int_equal(attn_upload(ctx, gpu, sent, sizeof sent, NULL), ATTN_OK);
        assert_int_equal(attn_download(ctx, received, gpu, sizeof sent, NULL), ATTN_OK);
        assert_memory_equal(sent, received, sizeof sent);
        assert_int_equal(attn_upload(ctx, host, sent, sizeof sent, NULL), ATTN_OK);
        assert_memory_equal(sent, host, sizeof sent);
        expect(attn_upload(ctx, host, gpu, 1, NULL), ATTN_INVALID_ARGUMENT, "src: memory of a GPU");
        expect(attn_download(ctx, gpu, gpu, 1, NULL), ATTN_INVALID_ARGUMENT, "dst: memory of a GPU");
        attn_exec exec = ATTN_EXEC_INIT;
        exec.device = 2 - device % 2 + 1;
        attn_status status = attn_upload(ctx, gpu, sent, 1, &exec);
        expect(status, device < 2 ? ATTN_NO_DEVICE : ATTN_INVALID_ARGUMENT, "exec.device");
        if (device < 2) expect(attn_malloc(ctx, 2 - device, 8, &gpu), ATTN_NO_DEVICE, "was made for GPU");
        else attn_free(ctx, gpu);
        attn_free(ctx, host);
        assert_int_equal(attn_sync(ctx, NULL), ATTN_OK);
        assert_int_equal(attn_malloc(ctx, index, 0, &gpu), ATTN_OK);
        attn_free(ctx, gpu);
        assert_int_equal(attn_malloc(ctx, index, SIZE_MAX, &gpu), ATTN_OUT_OF_MEMORY);
        attn_destroy(ctx);
        assert_int_equal(fake->depth, 0);
        fake->allocations = 0; /* the first two contexts lost theirs */
    }
    assert_int_equal(fake->retained, 2); /* once each, whatever the number of contexts */
}

static void streams(void **state)
{
    struct CUstream_st own = {0}, foreign = {.foreign = 1}, other = {.device = 1}, capturing = {.capturing = 1};
    char byte = 1;
    void *gpu;
    (void)state;
    attn_context *ctx = context(ATTN_BACKEND_AUTO, 0);
    assert_int_equal(attn_malloc(ctx, 1, 64, &gpu), ATTN_OK);
    attn_exec exec = ATTN_EXEC_INIT;
    exec.stream = &own;
    int before = fake->synchronized;
    assert_int_equal(attn_upload(ctx, gpu, &byte, 1, &exec), ATTN_OK);
    assert_int_equal(fake->synchronized, before);
    exec.flags = ATTN_EXEC_WAIT;
    assert_int_equal(attn_upload(ctx, gpu, &byte, 1, &exec), ATTN_OK);
    assert_int_equal(fake->synchronized, before + 1);
    assert_int_equal(attn_sync(ctx, &exec), ATTN_OK);
    assert_int_equal(fake->synchronized, before + 2);
    exec.stream = &foreign;
    expect(attn_upload(ctx, gpu, &byte, 1, &exec), ATTN_INVALID_ARGUMENT, "exec.stream");
    expect(attn_sync(ctx, &exec), ATTN_INVALID_ARGUMENT, "exec.stream");
    exec.stream = &other;
    expect(attn_download(ctx, &byte, gpu, 1, &exec), ATTN_INVALID_ARGUMENT, "exec.stream");
    assert_int_equal(attn_sync(ctx, &exec), ATTN_OK);
    exec.stream = &capturing;
    expect(attn_upload(ctx, gpu, &byte, 1, &exec), ATTN_UNSUPPORTED, "exec.stream captures a graph");
    expect(attn_sync(ctx, &exec), ATTN_UNSUPPORTED, "exec.stream captures a graph");
    attn_free(ctx, gpu);
    attn_destroy(ctx);
    assert_int_equal(fake->allocations, 0);
    assert_int_equal(fake->depth, 0);
}

/* Where no host tensor may be staged, calls name the first; nothing of it is read. */
static void computing(void **state)
{
    enum { UNREADABLE = 64 };
    char *nowhere = (char *)UNREADABLE;
    (void)state;
    setenv("ATTN_FORCE", "stage=never", 1);
    attn_context *ctx = context(ATTN_BACKEND_CUDA, 0);
    attn_problem p = ATTN_PROBLEM_INIT;
    p.q = attn_bhsd(nowhere, ATTN_F16, 1, 1, 1, 64);
    p.k = p.v = p.out = p.q;
    expect(attn_forward(ctx, &p, NULL), ATTN_UNSUPPORTED, "q: host memory");
    expect(attn_query(ctx, ATTN_OP_FORWARD, &p, NULL, NULL, NULL), ATTN_UNSUPPORTED, "q: host memory");
    attn_tensor keep = attn_bhsd(nowhere, ATTN_BOOL, 1, 1, 1, 1), lse = attn_bhsd(nowhere, ATTN_F32, 1, 1, 1, 1);
    expect(attn_dropout_mask(ctx, &p, &keep, NULL), ATTN_UNSUPPORTED, "keep: host memory");
    expect(attn_merge(ctx, 1, &p.out, &lse, &p.out, NULL, NULL), ATTN_UNSUPPORTED, "out_parts[0]: host memory");
    p.lse = lse;
    attn_grads g = ATTN_GRADS_INIT;
    g.dout = p.out;
    expect(attn_backward(ctx, &p, &g, NULL), ATTN_UNSUPPORTED, "q: host memory");
    attn_append a = ATTN_APPEND_INIT;
    int32_t used = 0;
    a.k_new = a.k_cache = a.v_new = a.v_cache = p.k;
    a.cache_len.used = &used;
    expect(attn_kv_append(ctx, &a, NULL), ATTN_UNSUPPORTED, "k_new: host memory");
    p.mask = 1u << 30;
    expect(attn_forward(ctx, &p, NULL), ATTN_INVALID_ARGUMENT, "mask");
    attn_destroy(ctx);
    ctx = context(ATTN_BACKEND_AUTO, 0);
    attn_exec exec = ATTN_EXEC_INIT;
    exec.device = 3;
    p.mask = 0;
    expect(attn_forward(ctx, &p, &exec), ATTN_UNSUPPORTED, "q: host memory");
    exec.device = 4;
    expect(attn_forward(ctx, &p, &exec), ATTN_NO_DEVICE, "exec.device");
    attn_destroy(ctx);
    unsetenv("ATTN_FORCE");
    /* Backward of host tensors is the CPU's where the device is free. */
    attn_plan plan = ATTN_PLAN_INIT;
    ctx = context(ATTN_BACKEND_AUTO, 0);
    assert_int_equal(attn_query(ctx, ATTN_OP_BACKWARD, &p, &g, NULL, &plan), ATTN_OK);
    assert_int_equal(plan.backend, ATTN_BACKEND_CPU);
    assert_memory_equal(plan.kernel, "backward_", 9);
    attn_destroy(ctx);
}

/* Length arrays in a GPU's memory are taken on trust. */
static void device_lengths_are_not_read(void **state)
{
    int32_t wrong[2] = {-5, 1000};
    void *gpu;
    (void)state;
    attn_context *ctx = context(ATTN_BACKEND_CUDA, 0);
    assert_int_equal(attn_malloc(ctx, 1, 4096, &gpu), ATTN_OK);
    assert_int_equal(attn_upload(ctx, gpu, wrong, sizeof wrong, NULL), ATTN_OK);
    attn_problem p = ATTN_PROBLEM_INIT;
    p.q = attn_bhsd(gpu, ATTN_F16, 2, 1, 1, 64);
    p.k = p.v = p.out = p.q;
    p.kv_len.used = gpu;
    assert_int_equal(attn_query(ctx, ATTN_OP_FORWARD, &p, NULL, NULL, NULL), ATTN_OK);
    attn_free(ctx, gpu);
    attn_destroy(ctx);
}

static void children_of_fork(void **state)
{
    attn_config config = ATTN_CONFIG_INIT;
    attn_context *ctx;
    int status = 0;
    (void)state;
    config.backend = ATTN_BACKEND_CUDA;
    pid_t child = fork();
    if (child == 0) {
        int good = attn_create(&config, &ctx) == ATTN_NO_DEVICE && strstr(attn_last_error(), "fork");
        good = good && attn_create(NULL, &ctx) == ATTN_OK;
        _exit(good ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int main(int argc, char **argv)
{
    if (!find_fake(argc, argv)) return 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cpu_contexts_leave_the_driver_alone),
        cmocka_unit_test(devices),
        cmocka_unit_test(memory),
        cmocka_unit_test(streams),
        cmocka_unit_test(computing),
        cmocka_unit_test(device_lengths_are_not_read),
        cmocka_unit_test(children_of_fork),
    };
    return cmocka_run_group_tests_name("CUDA host side", tests, NULL, NULL);
}
