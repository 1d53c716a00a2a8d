/* SPDX-License-Identifier: Apache-2.0
 * The host side of the CUDA backend against fake_driver.c, whose path is the one argument: devices, contexts, memory,
 * streams, workspaces, errors. */
#include "unit.h"

#include "cuda/state.h"
#include "fake_driver.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static struct fake *fake;

/* In place of the library's own: GPU 0 is 7.0, GPU 1 8.0. */
const attn_cuda_image attn_cuda_images[] = {
    {"good", 70, "good"},   {"good", 80, "bad"},   {"newer", 75, "good"}, {"newer", 90, "good"},
    {"ptx", 70, "new ptx"}, {"without", 0, "bad"}, {NULL, 0, NULL},
};

static attn_context *context(int32_t backend, int32_t device)
{
    attn_config config = ATTN_CONFIG_INIT;
    attn_context *ctx = NULL;
    config.backend = backend;
    config.device = device;
    if (attn_create(&config, &ctx) != ATTN_OK) fail_msg("%s", attn_last_error());
    return ctx;
}

static void expect(attn_status status, attn_status expected, const char *text)
{
    if (status != expected || !strstr(attn_last_error(), text))
        fail_msg("status %d, \"%s\"; expected %d, \"...%s...\"", status, attn_last_error(), expected, text);
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
    attn_destroy(context(ATTN_BACKEND_AUTO, 0));
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
    assert_int_equal(info.units, 80);
    assert_int_equal(info.ordinal, 0);
    assert_int_equal(attn_device_get(2, &info), ATTN_OK);
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

/* Calls that compute say what is missing, whatever the tensors' memory; nothing of it is read by the host. */
static void computing(void **state)
{
    enum { UNREADABLE = 64 };
    char *nowhere = (char *)UNREADABLE;
    (void)state;
    attn_context *ctx = context(ATTN_BACKEND_CUDA, 0);
    attn_problem p = ATTN_PROBLEM_INIT;
    p.q = attn_bhsd(nowhere, ATTN_F16, 1, 1, 1, 64);
    p.k = p.v = p.out = p.q;
    expect(attn_forward(ctx, &p, NULL), ATTN_UNSUPPORTED, "forward: the cuda backend has no kernels");
    expect(attn_query(ctx, ATTN_OP_FORWARD, &p, NULL, NULL, NULL), ATTN_UNSUPPORTED, "forward");
    attn_tensor keep = attn_bhsd(nowhere, ATTN_BOOL, 1, 1, 1, 1), lse = attn_bhsd(nowhere, ATTN_F32, 1, 1, 1, 1);
    expect(attn_dropout_mask(ctx, &p, &keep, NULL), ATTN_UNSUPPORTED, "dropout_mask: the cuda backend");
    expect(attn_merge(ctx, 1, &p.out, &lse, &p.out, NULL, NULL), ATTN_UNSUPPORTED, "merge: the cuda backend");
    p.lse = lse;
    attn_grads g = ATTN_GRADS_INIT;
    g.dout = p.out;
    expect(attn_backward(ctx, &p, &g, NULL), ATTN_UNSUPPORTED, "backward: the cuda backend has no kernels");
    attn_append a = ATTN_APPEND_INIT;
    int32_t used = 0;
    a.k_new = a.k_cache = a.v_new = a.v_cache = p.k;
    a.cache_len.used = &used;
    expect(attn_kv_append(ctx, &a, NULL), ATTN_UNSUPPORTED, "append: the cuda backend");
    p.mask = 1u << 30;
    expect(attn_forward(ctx, &p, NULL), ATTN_INVALID_ARGUMENT, "mask");
    attn_destroy(ctx);
    ctx = context(ATTN_BACKEND_AUTO, 0);
    attn_exec exec = ATTN_EXEC_INIT;
    exec.device = 3;
    p.mask = 0;
    expect(attn_forward(ctx, &p, &exec), ATTN_UNSUPPORTED, "forward: the cuda backend has no kernels");
    exec.device = 4;
    expect(attn_forward(ctx, &p, &exec), ATTN_NO_DEVICE, "exec.device");
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
    expect(attn_forward(ctx, &p, NULL), ATTN_UNSUPPORTED, "forward");
    attn_free(ctx, gpu);
    attn_destroy(ctx);
}

static void images(void **state)
{
    static const attn_cuda_image list[] = {{"f", 70, "a"}, {"f", 75, "b"}, {"f", 80, "c"}, {"g", 80, "d"},
                                           {"g", 0, "e"},  {"f", 90, "f"}, {NULL, 0, NULL}};
    (void)state;
    assert_int_equal(attn_cuda_choose_image(list, "f", 61), -1);
    assert_int_equal(attn_cuda_choose_image(list, "f", 70), 0);
    assert_int_equal(attn_cuda_choose_image(list, "f", 86), 2);
    assert_int_equal(attn_cuda_choose_image(list, "f", 120), 5);
    assert_int_equal(attn_cuda_choose_image(list, "g", 75), 4);
    assert_int_equal(attn_cuda_choose_image(list, "h", 80), -1);
}

static void kernels(void **state)
{
    static const struct {
        const char *module, *kernel;
        size_t shared_bytes;
        attn_status status;
        const char *text;
    } rows[] = {
        {"absent", "kernel", 0, ATTN_UNSUPPORTED,
         "GPU 0 (Fake V100) has compute capability 7.0, and the library no code of absent for it: built for none"},
        {"newer", "kernel", 0, ATTN_UNSUPPORTED, "7.0, and the library no code of newer for it: built for sm_75 sm_90"},
        {"ptx", "kernel", 0, ATTN_UNSUPPORTED, "built for sm_70; cuModuleLoadData: CUDA error 222"},
        {"without", "kernel", 0, ATTN_UNSUPPORTED, "it was built without nvcc"},
        {"good", "other", 0, ATTN_INTERNAL, "cuModuleGetFunction: CUDA error 500"},
        {"good", "kernel", 98305, ATTN_UNSUPPORTED, "kernel needs 98305 bytes of shared memory, a block of GPU 0"},
    };
    const struct {
        uint64_t first;
        char rest[40];
    } parameters = {0x123456789abcdef, ""};
    CUfunction function = NULL;
    attn_cuda_device *d;
    (void)state;
    assert_int_equal(attn_cuda_find(0, &d), ATTN_OK);
    assert_int_equal(attn_cuda_enter(d), ATTN_OK);
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++)
        expect(attn_cuda_kernel(d, rows[n].module, rows[n].kernel, rows[n].shared_bytes, &function), rows[n].status,
               rows[n].text);
    for (unsigned shared_bytes = 0; shared_bytes <= 98304; shared_bytes += 49152) {
        assert_int_equal(attn_cuda_kernel(d, "good", "kernel", shared_bytes, &function), ATTN_OK);
        const attn_cuda_launch launch = {function, 10, 128, shared_bytes, &parameters, sizeof parameters};
        assert_int_equal(attn_cuda_run(d, &launch, NULL), ATTN_OK);
        assert_int_equal(fake->threads, 1280);
        assert_true(fake->parameter == parameters.first && fake->parameter_bytes == sizeof parameters);
        fake->threads = 0;
    }
    assert_int_equal(fake->loads, 1);
    attn_cuda_leave(d, ATTN_OK);
    assert_int_equal(attn_cuda_find(1, &d), ATTN_OK);
    assert_int_equal(attn_cuda_enter(d), ATTN_OK);
    expect(attn_cuda_kernel(d, "good", "kernel", 0, &function), ATTN_DEVICE_ERROR, "cuModuleLoadData: CUDA error 200");
    attn_cuda_leave(d, ATTN_OK);
    assert_int_equal(fake->depth, 0);
}

static attn_cuda_workspace *take(attn_context *ctx, attn_cuda_device *d, CUstream stream, size_t bytes)
{
    attn_cuda_workspace *w = NULL;
    if (attn_cuda_workspace_take(ctx, d, stream, bytes, &w) != ATTN_OK) fail_msg("%s", attn_last_error());
    return w;
}

static void workspaces(void **state)
{
    enum { MIB = 1 << 20 };
    struct CUstream_st a = {0}, b = {0};
    attn_cuda_device *d;
    (void)state;
    attn_context *ctx = context(ATTN_BACKEND_CUDA, 0);
    assert_int_equal(attn_cuda_open(ctx, 0, &d), ATTN_OK);
    attn_cuda_workspace *one = take(ctx, d, &a, 1000), *two = take(ctx, d, &a, 1000), *again, *unused;
    assert_ptr_not_equal(one, two); /* two threads may use one stream */
    attn_cuda_workspace_give(ctx, two);
    attn_cuda_workspace_give(ctx, one);
    a.busy = 1;
    again = take(ctx, d, &a, 2000); /* in stream order there is nothing to wait for */
    assert_true(again == one || again == two);
    attn_cuda_workspace_give(ctx, again);
    assert_int_equal(fake->allocations, 2);
    again = take(ctx, d, &b, 1000); /* a's is unfinished, so b gets its own */
    assert_int_equal(fake->allocations, 3);
    attn_cuda_workspace_give(ctx, again);
    a.busy = 0;
    again = take(ctx, d, &b, MIB); /* finished ones serve anybody; b's own first */
    assert_int_equal(fake->allocations, 3);
    assert_int_equal(fake->joins, 0);
    attn_cuda_workspace_give(ctx, again);
    a.busy = 1;
    again = take(ctx, d, &a, 200 * MIB); /* a larger one replaces one of the stream */
    assert_int_equal(fake->allocations, 3);
    attn_cuda_workspace_give(ctx, again);
    a.busy = 1;
    unused = take(ctx, d, &b, 150 * MIB); /* memory is short: behind a's event */
    assert_ptr_equal(unused, again);
    assert_int_equal(fake->joins, 1);
    attn_cuda_workspace *none;
    expect(attn_cuda_workspace_take(ctx, d, &a, 100 * MIB, &none), ATTN_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY");
    expect(attn_cuda_workspace_take(ctx, d, &a, (size_t)1 << 40, &none), ATTN_OUT_OF_MEMORY, "workspace");
    attn_cuda_workspace_give(ctx, unused);
    attn_cuda_leave(d, ATTN_OK);
    attn_destroy(ctx);
    assert_int_equal(fake->allocations, 0);
    assert_int_equal(fake->events, 0);
    assert_int_equal(fake->depth, 0);
}

static int use_everything(void)
{
    char bytes[16] = {0};
    void *gpu = NULL;
    attn_cuda_device *d;
    attn_cuda_workspace *w;
    struct CUstream_st stream = {0};
    attn_exec exec = ATTN_EXEC_INIT;
    attn_context *ctx = context(ATTN_BACKEND_CUDA, 0);
    attn_status status = attn_malloc(ctx, 1, 64, &gpu);
    exec.stream = &stream;
    if (status == ATTN_OK) status = attn_upload(ctx, gpu, bytes, sizeof bytes, &exec);
    if (status == ATTN_OK) status = attn_download(ctx, bytes, gpu, sizeof bytes, NULL);
    if (status == ATTN_OK) status = attn_sync(ctx, &exec);
    if (status == ATTN_OK && (status = attn_cuda_open(ctx, 0, &d)) == ATTN_OK) {
        for (int n = 0; n < 2 && status == ATTN_OK; n++) {
            status = attn_cuda_workspace_take(ctx, d, &stream, (size_t)1 << (n ? 21 : 10), &w);
            if (status == ATTN_OK) attn_cuda_workspace_give(ctx, w);
        }
        attn_cuda_leave(d, ATTN_OK);
    }
    if (status != ATTN_OK && !strstr(attn_last_error(), "CUDA_ERROR_ILLEGAL_ADDRESS (a text)"))
        fail_msg("another text: %s", attn_last_error());
    attn_free(ctx, gpu);
    attn_destroy(ctx);
    assert_int_equal(fake->depth, 0);
    return status != ATTN_OK;
}

/* Each driver call in turn fails once: the first error's text comes out, no thread keeps a context, and nothing is lost
 * but what a failing free loses. */
static void each_call_fails(void **state)
{
    int calls = fake->calls, failures = 0;
    (void)state;
    assert_int_equal(use_everything(), 0);
    calls = fake->calls - calls;
    for (int n = 0; n < calls; n++) {
        int lost = fake->allocations + fake->events;
        fake->fail_code = CUDA_ERROR_ILLEGAL_ADDRESS;
        fake->fail_at = fake->calls + n;
        failures += use_everything();
        fake->fail_at = -1;
        assert_in_range(fake->allocations + fake->events - lost, 0, 4);
    }
    assert_true(failures > calls / 2);
    fake->allocations = fake->events = 0;
}

static void error_texts(void **state)
{
    static const struct {
        CUresult code;
        attn_status status;
        const char *text;
    } rows[] = {
        {2, ATTN_OUT_OF_MEMORY, "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (out of memory)"},
        {100, ATTN_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
        {101, ATTN_NO_DEVICE, "cuMemAlloc_v2: CUDA error 101"},
        {209, ATTN_UNSUPPORTED, ""},
        {222, ATTN_UNSUPPORTED, ""},
        {500, ATTN_INTERNAL, ""},
        {700, ATTN_DEVICE_ERROR, "CUDA_ERROR_ILLEGAL_ADDRESS"},
        {719, ATTN_DEVICE_ERROR, ""},
        {900, ATTN_UNSUPPORTED, ""},
        {12345, ATTN_DEVICE_ERROR, "cuMemAlloc_v2: CUDA error 12345"},
    };
    const attn_cuda_driver *driver;
    (void)state;
    assert_int_equal(attn_cuda_load(&driver), ATTN_OK);
    assert_int_equal(attn_cuda_check(driver, "cuInit", CUDA_SUCCESS), ATTN_OK);
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++)
        expect(attn_cuda_check(driver, attn_cuda_symbols.memory_allocate, rows[n].code), rows[n].status, rows[n].text);
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
    if (argc != 2) return 2;
    setenv("ATTN_CUDA_DRIVER", argv[1], 1);
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    fake = library ? dlsym(library, "fake") : NULL;
    if (!fake) {
        printf("%s\n", dlerror());
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cpu_contexts_leave_the_driver_alone),
        cmocka_unit_test(devices),
        cmocka_unit_test(memory),
        cmocka_unit_test(streams),
        cmocka_unit_test(computing),
        cmocka_unit_test(device_lengths_are_not_read),
        cmocka_unit_test(images),
        cmocka_unit_test(kernels),
        cmocka_unit_test(workspaces),
        cmocka_unit_test(each_call_fails),
        cmocka_unit_test(error_texts),
        cmocka_unit_test(children_of_fork),
    };
    return cmocka_run_group_tests_name("CUDA host side", tests, NULL, NULL);
}
