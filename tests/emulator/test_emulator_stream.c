/* SPDX-License-Identifier: Apache-2.0
 * Streams and events: nothing is done before somebody waits for it, and then exactly what the waiting needs. */
#include "emulator_test.h"

static uint32_t word; /* where a download goes */

static void fill(CUdeviceptr out, int value, CUstream stream)
{
    test_words("probe_fill", 1, 128, 0, stream, 0, out, value);
}

static void download(CUdeviceptr from, CUstream stream)
{
    assert_success(driver.download(&word, from, sizeof word, stream));
}

static CUstream stream_of(unsigned flags)
{
    CUstream stream;
    assert_success(driver.stream_create(&stream, flags));
    return stream;
}

static CUevent event_on(CUstream stream)
{
    CUevent event;
    assert_success(driver.event_create(&event, CU_EVENT_DISABLE_TIMING));
    assert_success(driver.event_record(event, stream));
    return event;
}

/* ---- Laziness ---------------------------------------------------------------------------------------------------- */

static void nothing_before_synchronise(void **state)
{
    (void)state;
    const CUstream streams[] = {NULL, stream_of(0), stream_of(NON_BLOCKING)};
    for (int i = 0; i < 3; i++) {
        const CUdeviceptr out = test_allocate(512);
        word = 1;
        fill(out, 40 + i, streams[i]);
        download(out, streams[i]);
        assert_int_equal(word, 1);
        assert_success(driver.stream_synchronize(streams[i]));
        assert_int_equal(word, 40 + i);
    }
}

/* An upload reads its source when it runs: who changes it before has lost. */
static void uploads_read_late(void **state)
{
    (void)state;
    uint32_t source = 5;
    const CUdeviceptr to = test_allocate(4);
    assert_success(driver.upload(to, &source, 4, NULL));
    source = 6;
    assert_success(driver.stream_synchronize(NULL));
    test_download(&word, to, 4);
    assert_int_equal(word, 6);
}

static void memory_is_set(void **state)
{
    (void)state;
    const CUdeviceptr to = test_allocate(8);
    uint32_t got[2];
    test_download(got, to, 8); /* nobody has written it */
    assert_int_equal(got[0], 0xffffffff);
    assert_success(driver.memory_set(to, 0xab, 3, NULL));
    test_download(got, to, 8);
    assert_int_equal(got[0], 0xffababab);
    assert_int_equal(got[1], 0xffffffff);
}

/* Freeing waits for the work that is queued, as the driver's does. */
static void freeing_waits(void **state)
{
    (void)state;
    const CUdeviceptr out = test_allocate(512);
    word = 1;
    fill(out, 9, NULL);
    download(out, NULL);
    assert_success(driver.memory_free(out));
    assert_int_equal(word, 9);
}

/* ---- Order between streams --------------------------------------------------------------------------------------- */

static void only_an_event_orders(void **state)
{
    (void)state;
    const CUstream a = stream_of(NON_BLOCKING), b = stream_of(NON_BLOCKING);
    const CUdeviceptr out = test_allocate(512);
    assert_success(driver.memory_set(out, 0, 512, a));
    assert_success(driver.stream_synchronize(a));

    fill(out, 1, a); /* nothing tells b to wait for it */
    download(out, b);
    assert_success(driver.stream_synchronize(b));
    assert_int_equal(word, 0);
    assert_success(driver.stream_synchronize(a));

    fill(out, 2, a);
    const CUevent event = event_on(a);
    fill(out, 3, a); /* comes after the event and need not be done */
    assert_success(driver.stream_wait(b, event, 0));
    download(out, b);
    assert_success(driver.stream_synchronize(b));
    assert_int_equal(word, 2);
    download(out, a);
    assert_success(driver.stream_synchronize(a));
    assert_int_equal(word, 3);
}

/* A wait is for what was recorded when it was called. */
static void waits_are_for_the_record_before(void **state)
{
    (void)state;
    const CUstream a = stream_of(NON_BLOCKING), b = stream_of(NON_BLOCKING);
    const CUdeviceptr out = test_allocate(512);
    fill(out, 1, a);
    const CUevent event = event_on(a);
    assert_success(driver.stream_wait(b, event, 0));
    fill(out, 2, a);
    assert_success(driver.event_record(event, a));
    download(out, b);
    assert_success(driver.stream_synchronize(b));
    assert_int_equal(word, 1);
    assert_success(driver.event_synchronize(event));
    test_download(&word, out, 4);
    assert_int_equal(word, 2);
}

static void event_queries_make_progress(void **state)
{
    (void)state;
    const CUstream a = stream_of(NON_BLOCKING);
    const CUdeviceptr out = test_allocate(512);
    CUevent never;
    assert_success(driver.event_create(&never, 0));
    assert_success(driver.event_query(never)); /* nothing recorded: done */
    fill(out, 1, a);
    download(out, a);
    const CUevent event = event_on(a);
    word = 0;
    assert_int_equal(driver.event_query(event), CUDA_ERROR_NOT_READY); /* runs the fill */
    assert_int_equal(word, 0);
    assert_int_equal(driver.event_query(event), CUDA_ERROR_NOT_READY); /* runs the download */
    assert_int_equal(word, 1);
    assert_int_equal(driver.event_query(event), CUDA_ERROR_NOT_READY); /* comes to the event */
    assert_success(driver.event_query(event));
    assert_success(driver.event_destroy(event));
    assert_int_equal(driver.event_query(event), CUDA_ERROR_INVALID_HANDLE);
}

/* Stream 0 comes after all that was queued in blocking streams, and before what they are given next. */
static void stream_0_orders_blocking_streams(void **state)
{
    (void)state;
    const CUstream a = stream_of(0), b = stream_of(0), free_stream = stream_of(NON_BLOCKING);
    const CUdeviceptr out = test_allocate(512), other = test_allocate(512);
    assert_success(driver.memory_set(other, 0, 512, NULL));
    assert_success(driver.stream_synchronize(NULL));
    fill(out, 1, a);
    fill(other, 1, free_stream);
    download(out, NULL);
    fill(out, 2, a);
    assert_success(driver.stream_synchronize(NULL));
    assert_int_equal(word, 1);

    fill(out, 3, NULL);
    download(out, b);
    assert_success(driver.stream_synchronize(b));
    assert_int_equal(word, 3);

    download(other, NULL); /* the non-blocking stream stays out of it */
    assert_success(driver.stream_synchronize(NULL));
    assert_int_equal(word, 0);

    fill(out, 4, a); /* waiting for stream 0 is waiting for what it would wait for */
    download(out, a);
    assert_success(driver.stream_synchronize(NULL));
    assert_int_equal(word, 4);
}

static void destroyed_streams_finish(void **state)
{
    (void)state;
    const CUstream a = stream_of(0);
    const CUdeviceptr out = test_allocate(512);
    fill(out, 8, a);
    download(out, a);
    assert_success(driver.stream_destroy(a));
    assert_int_equal(word, 8);
    assert_int_equal(driver.stream_synchronize(a), CUDA_ERROR_INVALID_HANDLE);
}

/* ---- Captures ---------------------------------------------------------------------------------------------------- */

static void graphs_replay(void **state)
{
    (void)state;
    const CUstream a = stream_of(NON_BLOCKING);
    uint32_t source = 5;
    const CUdeviceptr in = test_allocate(512), out = test_allocate(512);
    CUstreamCaptureStatus status;
    void *graph, *executable;
    test_function("probe_increment");
    assert_success(driver.memory_set(in, 0, 512, NULL));
    assert_success(driver.stream_synchronize(NULL));
    assert_success(driver.capture_begin(a, 0));
    assert_success(driver.stream_capturing(a, &status));
    assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    assert_success(driver.upload(in, &source, 4, a));
    test_words("probe_increment", 1, 32, 0, a, in, out, 0);
    assert_success(driver.capture_end(a, &graph));
    assert_success(driver.stream_capturing(a, &status));
    assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_NONE);
    assert_success(driver.graph_instantiate(&executable, graph, 0));
    assert_success(driver.graph_destroy(graph));
    for (uint32_t i = 10; i < 13; i++) {
        source = i; /* host memory is read at each replay */
        assert_success(driver.graph_launch(executable, a));
        download(out, a);
        assert_success(driver.stream_synchronize(a));
        assert_int_equal(word, i + 1);
    }
    assert_success(driver.graph_free(executable));
}

/* What must not happen in a capture says so, and ends it. */
static void captures_are_invalidated(void **state)
{
    (void)state;
    const CUstream a = stream_of(NON_BLOCKING);
    const CUdeviceptr out = test_allocate(512);
    CUdeviceptr more;
    void *graph;
    for (int i = 0; i < 3; i++) {
        assert_success(driver.capture_begin(a, 0));
        const CUresult code = i == 0   ? driver.memory_allocate(&more, 4)
                              : i == 1 ? driver.stream_synchronize(a)
                                       : driver.memory_free(out);
        assert_int_equal(code, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        assert_int_equal(driver.memory_set(out, 0, 4, a), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        assert_int_equal(driver.capture_end(a, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        assert_null(graph);
    }
    assert_int_equal(driver.capture_begin(NULL, 0), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

/* Stream 0 would have to wait for a blocking stream, which it cannot during a capture. */
static void stream_0_and_captures(void **state)
{
    (void)state;
    const CUstream a = stream_of(NON_BLOCKING), b = stream_of(0);
    const CUdeviceptr out = test_allocate(512);
    CUstreamCaptureStatus status;
    void *graph;
    assert_success(driver.capture_begin(a, 0));
    assert_success(driver.stream_capturing(NULL, &status));
    assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_NONE);
    assert_success(driver.memory_set(out, 0, 4, NULL));
    assert_success(driver.capture_end(a, &graph));
    assert_success(driver.graph_destroy(graph));
    assert_success(driver.capture_begin(b, 0));
    assert_int_equal(driver.stream_capturing(NULL, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    assert_int_equal(driver.memory_set(out, 0, 4, NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    assert_int_equal(driver.capture_end(b, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nothing_before_synchronise, test_begin, test_end),
        cmocka_unit_test_setup_teardown(uploads_read_late, test_begin, test_end),
        cmocka_unit_test_setup_teardown(memory_is_set, test_begin, test_end),
        cmocka_unit_test_setup_teardown(freeing_waits, test_begin, test_end),
        cmocka_unit_test_setup_teardown(only_an_event_orders, test_begin, test_end),
        cmocka_unit_test_setup_teardown(waits_are_for_the_record_before, test_begin, test_end),
        cmocka_unit_test_setup_teardown(event_queries_make_progress, test_begin, test_end),
        cmocka_unit_test_setup_teardown(stream_0_orders_blocking_streams, test_begin, test_end),
        cmocka_unit_test_setup_teardown(destroyed_streams_finish, test_begin, test_end),
        cmocka_unit_test_setup_teardown(graphs_replay, test_begin, test_end),
        cmocka_unit_test_setup_teardown(captures_are_invalidated, test_begin, test_end),
        cmocka_unit_test_setup_teardown(stream_0_and_captures, test_begin, test_end),
    };
    test_open(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
