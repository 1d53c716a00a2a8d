/* SPDX-License-Identifier: Apache-2.0
 * Every detector: a kernel with the planted mistake is reported, with its line, and a right one is not. */
#include "emulator_test.h"

#include <stdlib.h>

/* What must be said of a planted mistake; null where that build cannot see it. */
static const struct {
    const char *kernel;
    const char *fault; /* the comment that marks the line in emulator_planted.cu; null if no line is told */
    const char *checked, *fast;
    CUresult code;
} planted[] = {
    {"wrong_barrier", "no barrier", "race at shared+", NULL, CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_warp_barrier", "no warp barrier", "race at shared+", NULL, CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_shared_cell", "two writers", "write after write", NULL, CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_bytes", "a neighbour's byte", "race at shared+78", NULL, CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_shuffle", "half a warp", "no thread can go on: 64 threads (first 0) wait at shuffle",
     "no thread can go on: 64 threads (first 0) wait at shuffle", CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_two_sided_shuffle", "one side", "diverged warp", "diverged warp", CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_skipped_barrier", "skipped", "96 threads (first 0) wait at block_barrier",
     "96 threads (first 0) wait at block_barrier", CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_two_barriers", "another barrier", "meet at different barriers", "meet at different barriers",
     CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_mma_count", "one lane has more", "lane 5 issued 2 mma", "lane 5 issued 2 mma", CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_mma_end", NULL, "ends without mma_complete", "ends without mma_complete", CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_shared_size", "thread 127 writes beyond", "shared memory overrun: write of 4 bytes at shared+512 of 512",
     "shared memory overrun", CUDA_ERROR_ILLEGAL_ADDRESS},
    {"wrong_shared_start", "thread 0 reads before", "shared memory overrun: read of 4 bytes at shared-4 of 512", NULL,
     CUDA_ERROR_ILLEGAL_ADDRESS},
    {"wrong_initialised", "77 was never written", "uninitialised read of shared+308", NULL, CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_global_write", "thread 127 writes beyond", "illegal address: write of 4 bytes", "illegal address",
     CUDA_ERROR_ILLEGAL_ADDRESS},
    {"wrong_global_read", "thread 127 reads beyond", "illegal address: read of 4 bytes", "illegal address",
     CUDA_ERROR_ILLEGAL_ADDRESS},
    {"wrong_pointer", "in is the host's", "which is not device memory", NULL, CUDA_ERROR_ILLEGAL_ADDRESS},
    {"wrong_vector", "odd lanes are misaligned", "misaligned address", "misaligned address",
     CUDA_ERROR_ILLEGAL_ADDRESS},
    {"wrong_plain_vector", "odd lanes are misaligned again", "misaligned address", NULL, CUDA_ERROR_ILLEGAL_ADDRESS},
    {"wrong_register_array", "index", "array index 4 out of bounds", NULL, CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_matrices_order", "no barrier before", "race at shared+", NULL, CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_matrices_sides", "two instructions", "diverged warp", "diverged warp", CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_matrices_half", "two matrices", "16 threads (first 0) wait at load_matrices",
     "16 threads (first 0) wait at load_matrices", CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_matrices_row", "odd rows are misaligned", "misaligned address", "misaligned address",
     CUDA_ERROR_ILLEGAL_ADDRESS},
    {"wrong_matrices_size", "row 31 is beyond", "shared memory overrun: read of 16 bytes at shared+512 of 512",
     "shared memory overrun", CUDA_ERROR_ILLEGAL_ADDRESS},
    {"wrong_matrices_unset", "words of 9 are not set", "uninitialised read of shared+36", NULL,
     CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_matrices_global", "not shared", "which is not shared memory", "which is not shared memory",
     CUDA_ERROR_ILLEGAL_ADDRESS},
    {"wrong_copy_wait", "not there yet", "is not complete", NULL, CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_copy_own", "one's own is not there either", "is not complete", NULL, CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_copy_group", "the later group is not there", "is not complete", NULL, CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_copy_over", "the copy comes later", "is not complete", NULL, CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_copy_barrier", "others read at once", "race at shared+", NULL, CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_copy_late", "waits behind the barrier", "shared+", NULL, CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_copy_reuse", "others still read", "race at shared+", NULL, CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_copy_end", "never waits", "ends without copies_complete", "ends without copies_complete",
     CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_copy_twice", "which of the two", "copy to the same place", "copy to the same place",
     CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_copy_to", "misaligned in shared memory", "misaligned address", "misaligned address",
     CUDA_ERROR_ILLEGAL_ADDRESS},
    {"wrong_copy_from", "misaligned in global memory", "misaligned address", "misaligned address",
     CUDA_ERROR_ILLEGAL_ADDRESS},
    {"wrong_copy_global", "to global memory", "not from global to shared memory", "not from global to shared memory",
     CUDA_ERROR_ILLEGAL_ADDRESS},
    {"wrong_copy_source", "thread 31 reads beyond", "illegal address: read of 16 bytes", "illegal address",
     CUDA_ERROR_ILLEGAL_ADDRESS},
    {"wrong_copy_size", "thread 31 writes beyond", "shared memory overrun: write of 16 bytes at shared+512 of 512",
     "shared memory overrun", CUDA_ERROR_ILLEGAL_ADDRESS},
    {"wrong_bulk_wait", "the gate was not passed", "is not complete", NULL, CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_bulk_bytes", "more is expected", "16 bytes to come", "16 bytes to come", CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_bulk_phase", "the other phase", "waits for ever", "waits for ever", CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_bulk_gate", "never opened", "not opened", "not opened", CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_bulk_reuse", "others still read what it overwrites", "race at shared+", NULL, CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_bulk_size", "not a multiple of 16", "not a multiple of 16", "not a multiple of 16",
     CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_bulk_from", "its source is misaligned", "misaligned address", "misaligned address",
     CUDA_ERROR_ILLEGAL_ADDRESS},
    {"wrong_bulk_end", "nobody passes", "ends without pass_gate", "ends without pass_gate", CUDA_ERROR_LAUNCH_FAILED},
    {"wrong_null", "null", "illegal address", "illegal address", CUDA_ERROR_ILLEGAL_ADDRESS},
};
static const char *const right[] = {"right_barrier", "right_warp_barrier", "right_bytes",   "right_initialised",
                                    "right_global",  "right_vector",       "right_scalars", "right_matrices",
                                    "right_copy",    "right_bulk"};

/* The line of the kernel's source that has the comment; 0 if none. */
static int line_of(const char *kernel, const char *fault)
{
    FILE *file = fopen(PLANTED_SOURCE, "r");
    char text[256], begin[96], mark[96];
    int line = 0, found = 0, in_kernel = 0;
    assert_non_null(file);
    snprintf(begin, sizeof begin, "KERNEL(%s,", kernel);
    snprintf(mark, sizeof mark, "/* fault: %s */", fault);
    while (fgets(text, sizeof text, file) != NULL) {
        line++;
        if (strncmp(text, "KERNEL(", 7) == 0) in_kernel = strncmp(text, begin, strlen(begin)) == 0;
        if (in_kernel && strstr(text, mark) != NULL) found = line;
    }
    fclose(file);
    return found;
}

/* Runs with 512 bytes of each kind of memory; returns what the driver says. */
static CUresult run(const char *kernel, char *reports, size_t bytes)
{
    uint32_t host[129] = {0};
    const int is_vector = strstr(kernel, "vector") != NULL;
    const CUdeviceptr in = test_allocate(is_vector ? 1024 : 512), out = test_allocate(512);
    assert_success(driver.memory_set(in, 0, is_vector ? 1024 : 512, NULL));
    const CUdeviceptr from = strcmp(kernel, "wrong_pointer") == 0 ? (CUdeviceptr)(uintptr_t)host : in;
    int threads;
    assert_success(driver.function_get(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, test_function(kernel)));
    test_words(kernel, 1, (unsigned)threads, 512, NULL, from, strcmp(kernel, "wrong_null") == 0 ? 0 : out, 1);
    const CUresult code = driver.stream_synchronize(NULL);
    driver.reports(reports, bytes);
    return code;
}

/* addr2line of binutils 2.40 does not find who calls what clang 14 has inlined; the fast build needs it for faults in
 * primitives. */
static int line_is_lost(const char *reports)
{
#ifdef __clang__
    return !driver.checked() && strstr(reports, " at ?") != NULL;
#else
    (void)reports;
    return 0;
#endif
}

static void check_planted(size_t i)
{
    char reports[8192], place[128];
    const char *expected = driver.checked() ? planted[i].checked : planted[i].fast;
    if (expected == NULL) return;
    const CUresult code = run(planted[i].kernel, reports, sizeof reports);
    if (code != planted[i].code) fail_msg("%s gives %d and says \"%s\"", planted[i].kernel, code, reports);
    if (strstr(reports, expected) == NULL || strstr(reports, planted[i].kernel) == NULL)
        fail_msg("%s: \"%s\" is not in \"%s\"", planted[i].kernel, expected, reports);
    if (planted[i].fault != NULL && !line_is_lost(reports)) {
        const int line = line_of(planted[i].kernel, planted[i].fault);
        assert_true(line > 0);
        snprintf(place, sizeof place, "emulator_planted.cu:%d", line);
        if (strstr(reports, place) == NULL) fail_msg("%s: %s is not in \"%s\"", planted[i].kernel, place, reports);
    }
    /* Told for the rest of the context's life, by all calls. */
    CUdeviceptr address;
    assert_int_equal(driver.memory_allocate(&address, 4), planted[i].code);
    assert_int_equal(driver.stream_synchronize(NULL), planted[i].code);
}

static void mistakes_are_reported(void **state)
{
    for (size_t i = 0; i < sizeof planted / sizeof planted[0]; i++) {
        check_planted(i);
        assert_int_equal(test_end(state), 0); /* the next one in a fresh context */
        assert_int_equal(test_begin(state), 0);
    }
}

/* In random schedules too: it is the order of barriers that is checked, not of what happened to run first. */
static void mistakes_are_reported_in_any_order(void **state)
{
    driver.set("seed", "3");
    for (size_t i = 0; i < sizeof planted / sizeof planted[0]; i++) {
        char reports[8192];
        const char *expected = driver.checked() ? planted[i].checked : planted[i].fast;
        if (expected == NULL || planted[i].code != CUDA_ERROR_LAUNCH_FAILED) continue;
        assert_int_equal(run(planted[i].kernel, reports, sizeof reports), CUDA_ERROR_LAUNCH_FAILED);
        assert_int_equal(test_end(state), 0);
        assert_int_equal(test_begin(state), 0);
    }
    driver.set("seed", "0");
}

static void right_kernels_are_not(void **state)
{
    (void)state;
    for (int seed = 0; seed < 3; seed++) {
        driver.set("seed", seed == 0 ? "0" : seed == 1 ? "1" : "2");
        for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
            char reports[8192];
            assert_int_equal(run(right[i], reports, sizeof reports), CUDA_SUCCESS);
            assert_string_equal(reports, "");
        }
    }
    driver.set("seed", "0");
}

/* What a copy has not brought is poison, in the fast build too, whether the thread itself reads it or another. */
static void early_reads_are_poison(void **state)
{
    (void)state;
    static const char *const kernels[] = {"wrong_copy_wait", "wrong_copy_own", "wrong_bulk_wait"};
    if (driver.checked()) return; /* which reports them */
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
        uint32_t out[32];
        const CUdeviceptr from = test_allocate(512), to = test_allocate(sizeof out);
        assert_success(driver.memory_set(from, 0, 512, NULL));
        test_words(kernels[k], 1, 32, 512, NULL, from, to, 0);
        test_download(out, to, sizeof out);
        for (int i = 0; i < 32; i++) assert_int_equal(out[i], UINT32_MAX);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(mistakes_are_reported, test_begin, test_end),
        cmocka_unit_test_setup_teardown(mistakes_are_reported_in_any_order, test_begin, test_end),
        cmocka_unit_test_setup_teardown(right_kernels_are_not, test_begin, test_end),
        cmocka_unit_test_setup_teardown(early_reads_are_poison, test_begin, test_end),
    };
    test_open(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
