/* SPDX-License-Identifier: Apache-2.0
 * Parts of the CUDA host side that the API does not show yet, against fake_driver.c, whose path is the one argument:
 * modules, launches, workspaces, every driver call failing. */
#include "cuda_unit.h"

/* In place of the library's own: GPU 0 is 7.0, GPU 1 8.0. */
const attn_cuda_image attn_cuda_images[] = {
    {"good", 70, 11, false, "good"},  {"good", 80, 11, false, "bad"},   {"newer", 75, 11, false, "good"},
    {"newer", 90, 11, false, "good"}, {"ptx", 70, 11, true, "new ptx"}, {"without", 0, 0, false, "bad"},
    {NULL, 0, 0, false, NULL},
};

static void images(void **state)
{
    static const attn_cuda_image list[] = {
        {"f", 70, 11, false, "a"}, {"f", 75, 11, false, "b"}, {"f", 80, 11, false, "c"}, {"g", 80, 11, false, "d"},
        {"g", 0, 0, false, "e"},   {"f", 90, 12, true, "f"},  {NULL, 0, 0, false, NULL}};
    (void)state;
    assert_int_equal(attn_cuda_choose_image(list, "f", 61, 12, false), -1);
    assert_int_equal(attn_cuda_choose_image(list, "f", 70, 12, false), 0);
    assert_int_equal(attn_cuda_choose_image(list, "f", 86, 12, false), 2);
    assert_int_equal(attn_cuda_choose_image(list, "f", 120, 12, false), 5);
    assert_int_equal(attn_cuda_choose_image(list, "f", 90, 11, false), -1); /* needs a newer driver; 80 has no PTX */
    assert_int_equal(attn_cuda_choose_image(list, "f", 89, 11, false), 2);
    assert_int_equal(attn_cuda_choose_image(list, "g", 75, 12, true), 4);
    assert_int_equal(attn_cuda_choose_image(list, "g", 75, 12, false), -1);
    assert_int_equal(attn_cuda_choose_image(list, "f", 70, 12, true), 0);
    assert_int_equal(attn_cuda_choose_image(list, "f", 90, 11, true), 5);
    assert_int_equal(attn_cuda_choose_image(list, "h", 80, 12, false), -1);
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
        {"without", "kernel", 0, ATTN_UNSUPPORTED, "built for none; it was built without an nvcc that compiles it"},
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

int main(int argc, char **argv)
{
    setenv("FAKE_STANDS_IN", "0", 1);
    if (!find_fake(argc, argv)) return 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(images),          cmocka_unit_test(kernels),     cmocka_unit_test(workspaces),
        cmocka_unit_test(each_call_fails), cmocka_unit_test(error_texts),
    };
    return cmocka_run_group_tests_name("CUDA host side, inside", tests, NULL, NULL);
}
