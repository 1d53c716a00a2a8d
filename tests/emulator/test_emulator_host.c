/* SPDX-License-Identifier: Apache-2.0
 * The host process: device memory is not its own, launches of its threads run side by side, a child has no driver. */
#include "emulator_test.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static void fill(CUdeviceptr out, int value, CUstream stream)
{
    test_words("probe_fill", 1, 128, 0, stream, 0, out, value);
}

static CUstream stream_of(unsigned flags)
{
    CUstream stream;
    assert_success(driver.stream_create(&stream, flags));
    return stream;
}

/* ---- Memory that is the device's alone --------------------------------------------------------------------------- */

/* Whether a child process survives reading there. */
static int readable(CUdeviceptr address)
{
    int status = 0;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        if (freopen("/dev/null", "w", stderr) == NULL) _exit(2);
        const volatile uint32_t *at = test_pointer(address);
        _exit(*at == 0 ? 0 : 1);
    }
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void device_memory_is_not_the_hosts(void **state)
{
    (void)state;
    void *host;
    const CUdeviceptr memory = test_allocate(512);
    assert_success(driver.host_allocate(&host, 512, 0));
    memset(host, 0, 512);
    assert_success(driver.memory_set(memory, 0, 512, NULL));
    assert_false(readable(memory));
    assert_success(driver.stream_synchronize(NULL)); /* it was accessible meanwhile */
    assert_false(readable(memory));
    assert_true(readable((CUdeviceptr)(uintptr_t)host));
    /* Kernels reach both. */
    fill((CUdeviceptr)(uintptr_t)host, 3, NULL);
    assert_success(driver.stream_synchronize(NULL));
    assert_int_equal(*(uint32_t *)host, 3);
    assert_success(driver.host_free(host));
}

/* A driver does not survive fork(). */
static void forked_children_have_no_driver(void **state)
{
    (void)state;
    int status = 0, count;
    const pid_t child = fork();
    if (child == 0)
        _exit(driver.device_count(&count) == CUDA_ERROR_NOT_INITIALIZED && driver.init(0) == CUDA_ERROR_NOT_INITIALIZED
                  ? 0
                  : 1);
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ---- Host threads ------------------------------------------------------------------------------------------------ */

struct host_thread {
    CUcontext context;
    CUfunction function;
    CUstream stream;
    CUdeviceptr out;
    int index, wrong;
};

static void launch_from(const struct host_thread *t, unsigned threads, int count, CUdeviceptr in)
{
    struct word_params p = {test_pointer(in), test_pointer(t->out), count};
    void *params[] = {&p};
    driver.launch(t->function, 1, 1, 1, threads, 1, 1, 0, t->stream, params, NULL);
}

/* cmocka's assertions are for the main thread; this one counts. */
static void *run_many(void *argument)
{
    struct host_thread *t = argument;
    uint32_t got[128];
    CUcontext context;
    t->wrong += driver.context_push(t->context) != CUDA_SUCCESS;
    for (int i = 0; i < 50; i++) {
        launch_from(t, 128, 1000 * t->index + i, 0);
        driver.download(got, t->out, sizeof got, t->stream);
        t->wrong += driver.stream_synchronize(t->stream) != CUDA_SUCCESS;
        for (int j = 0; j < 128; j++) t->wrong += got[j] != (uint32_t)(1000 * t->index + i);
    }
    t->wrong += driver.context_pop(&context) != CUDA_SUCCESS;
    return NULL;
}

static void *run_meeting(void *argument)
{
    struct host_thread *t = argument;
    CUcontext context;
    t->wrong += driver.context_push(t->context) != CUDA_SUCCESS;
    launch_from(t, 1, t->index, 0);
    t->wrong += driver.stream_synchronize(t->stream) != CUDA_SUCCESS;
    t->wrong += driver.context_pop(&context) != CUDA_SUCCESS;
    return NULL;
}

static void run_threads(int n, const char *kernel, CUdeviceptr shared_out, void *(*body)(void *))
{
    struct host_thread threads[4];
    pthread_t id[4];
    CUcontext context;
    assert_success(driver.stream_context(NULL, &context));
    for (int i = 0; i < n; i++) {
        const CUdeviceptr out = shared_out != 0 ? shared_out : test_allocate(512);
        threads[i] = (struct host_thread){context, test_function(kernel), stream_of(NON_BLOCKING), out, i, 0};
    }
    for (int i = 0; i < n; i++) assert_int_equal(pthread_create(&id[i], NULL, body, &threads[i]), 0);
    for (int i = 0; i < n; i++) {
        pthread_join(id[i], NULL);
        assert_int_equal(threads[i].wrong, 0);
    }
}

static void threads_launch_at_once(void **state)
{
    (void)state;
    run_threads(4, "probe_fill", 0, run_many);
    /* Each of two kernels ends only when the other runs too. */
    const CUdeviceptr flags = test_allocate(512);
    assert_success(driver.memory_set(flags, 0, 512, NULL));
    assert_success(driver.stream_synchronize(NULL));
    driver.set("threads", "2");
    run_threads(2, "probe_meet", flags, run_meeting);
    driver.set("threads", "0");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(device_memory_is_not_the_hosts, test_begin, test_end),
        cmocka_unit_test_setup_teardown(forked_children_have_no_driver, test_begin, test_end),
        cmocka_unit_test_setup_teardown(threads_launch_at_once, test_begin, test_end),
    };
    test_open(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
