/* SPDX-License-Identifier: Apache-2.0
 * The ring that copies of host tensors go through: every byte arrives, nothing between is written, and it is there once. */
#include "calls_test.h"

#include <pthread.h>

enum { MIB = 1 << 20, RING_BYTES = 8 * MIB, HEADS = 3, USED = 1 };

/* ---- a cache that goes there and back ------------------------------------------------------------------------------- */

/* One key is appended by lengths in GPU memory, so the cache goes to the GPU whole, and back. */
struct cache {
    const char *name;
    int64_t rows, size, row_gap, head_gap; /* in elements */
    int flipped;                           /* bit n: axis n runs backwards */
};

static const struct cache caches[] = {
    {"tiny", 3, 8, 0, 0, 0},
    {"one run of 600 KiB", 1600, 32, 0, 0, 0},
    {"rows that pieces cut", 1500, 48, 1, 5, 0},
    {"larger than the ring", 16000, 48, 7, 0, 0},
    {"backwards", 2000, 48, 3, 1, 2 + 4},
    {"elements", 40000, 1, 1, 9, 4},
    {"heads of 100 KiB", 800, 32, 0, 11, 2},
    {"heads of 3 MiB", 24576, 32, 0, 3, 0},
    {"one run of 9 MiB", 24576, 32, 0, 0, 4},
};
enum { CACHES = sizeof caches / sizeof *caches };

static int64_t row_stride(const struct cache *c) { return c->size + c->row_gap; }
static int64_t head_stride(const struct cache *c) { return c->rows * row_stride(c) + c->head_gap; }
static size_t cache_bytes(const struct cache *c) { return (size_t)(HEADS * head_stride(c)) * sizeof(float); }

static attn_tensor view_of(const struct cache *c, float *data)
{
    attn_tensor t = attn_bhsd(data, ATTN_F32, 1, HEADS, c->rows, c->size);
    t.stride[1] = head_stride(c);
    t.stride[2] = row_stride(c);
    for (int axis = 1; axis <= 2; axis++) {
        if (!(c->flipped >> axis & 1)) continue;
        t.data = (float *)t.data + (t.shape[axis] - 1) * t.stride[axis];
        t.stride[axis] = -t.stride[axis];
    }
    return t;
}

/* Appends to `data`, and to `expected` as it has to be. */
static attn_status append(attn_context *ctx, const struct cache *c, float *data, float *expected, const int32_t *used,
                          void *stream)
{
    float fresh[HEADS * 64];
    attn_append a = ATTN_APPEND_INIT;
    attn_exec exec = ATTN_EXEC_INIT;
    exec.stream = stream;
    calls_fill(fresh, HEADS * (size_t)c->size, 7);
    a.k_new = attn_bhsd(fresh, ATTN_F32, 1, HEADS, 1, c->size);
    a.k_cache = view_of(c, data);
    a.cache_len.used = used;
    const attn_tensor t = view_of(c, expected);
    for (int64_t h = 0; h < HEADS; h++)
        memcpy((float *)t.data + h * t.stride[1] + USED * t.stride[2], fresh + h * c->size,
               (size_t)c->size * sizeof(float));
    return attn_kv_append(ctx, &a, &exec);
}

static float *numbers(size_t bytes)
{
    float *x = malloc(bytes);
    calls_fill(x, bytes / sizeof *x, 3);
    return x;
}

static void assert_same(const struct cache *c, const float *data, const float *expected)
{
    const size_t count = cache_bytes(c) / sizeof *data;
    for (size_t n = 0; n < count; n++)
        if (memcmp(data + n, expected + n, sizeof *data))
            fail_msg("%s: element %zu of %zu is %g, not %g", c->name, n, count, (double)data[n], (double)expected[n]);
}

static int32_t *used_on_gpu(attn_context *ctx)
{
    const int32_t used = USED;
    return calls_device_copy(ctx, 1, &used, sizeof used);
}

/* Each cache twice, so that slots hold what the call before has left. */
static void try_caches(attn_context *ctx, int is_pinned)
{
    int32_t *used = used_on_gpu(ctx);
    for (int n = 0; n < 2 * CACHES; n++) {
        const struct cache *c = &caches[n / 2];
        const size_t bytes = cache_bytes(c);
        float *data = NULL, *expected = numbers(bytes);
        if (is_pinned) assert_success(driver.host_allocate((void **)&data, bytes, 0));
        else data = malloc(bytes);
        memcpy(data, expected, bytes);
        calls_succeed(append(ctx, c, data, expected, used, NULL));
        assert_same(c, data, expected);
        if (is_pinned) assert_success(driver.host_free(data));
        else free(data);
        free(expected);
    }
    attn_free(ctx, used);
}

static void with_one_thread(void **state)
{
    (void)state;
    attn_context *ctx = calls_context(ATTN_BACKEND_CUDA, 0, "threads=1");
    try_caches(ctx, 0);
    attn_destroy(ctx);
}

/* Then also long runs go through the ring. */
static void with_a_team(void **state)
{
    (void)state;
    attn_context *ctx = calls_context(ATTN_BACKEND_CUDA, 0, "threads=3");
    try_caches(ctx, 0);
    attn_destroy(ctx);
}

static void from_pinned_memory(void **state)
{
    (void)state;
    attn_context *ctx = calls_context(ATTN_BACKEND_CUDA, 0, "threads=3");
    try_caches(ctx, 1);
    attn_destroy(ctx);
}

/* ---- what it costs -------------------------------------------------------------------------------------------------- */

enum { TOKENS = 512, SIZE = 32, TENSOR = TOKENS * SIZE }; /* 64 KiB */

static void forward(attn_context *ctx, float *data, int64_t tokens)
{
    attn_problem p = ATTN_PROBLEM_INIT;
    p.q = attn_bhsd(data, ATTN_F32, 1, 1, tokens, SIZE);
    p.k = attn_bhsd(data + TENSOR, ATTN_F32, 1, 1, tokens, SIZE);
    p.v = attn_bhsd(data + 2 * TENSOR, ATTN_F32, 1, 1, tokens, SIZE);
    p.out = attn_bhsd(data + 3 * TENSOR, ATTN_F32, 1, 1, tokens, SIZE);
    calls_succeed(attn_forward(ctx, &p, NULL));
}

/* Made by the first call that needs it, kept for the next, freed with the context; pinned arrays of some size need none. */
static void made_once(void **state)
{
    float *data;
    (void)state;
    assert_success(driver.host_allocate((void **)&data, 4 * TENSOR * sizeof *data, 0));
    calls_fill(data, 4 * TENSOR, 1);
    const struct emulator_counts before = calls_counts();
    attn_context *ctx = calls_context(ATTN_BACKEND_CUDA, 0, NULL);
    forward(ctx, data, TOKENS);
    assert_int_equal(calls_counts().host_bytes, before.host_bytes);
    for (int n = 0; n < 3; n++) {
        forward(ctx, data, 2);
        assert_int_equal(calls_counts().host_bytes, before.host_bytes + RING_BYTES);
    }
    attn_destroy(ctx);
    assert_int_equal(calls_counts().host_bytes, before.host_bytes);
    assert_int_equal(calls_counts().events, before.events);
    assert_success(driver.host_free(data));
}

/* q, k and v of a small call share a slot. */
static void small_calls_copy_once(void **state)
{
    static const char *const second[] = {"cuMemcpyHtoDAsync_v2:2", "cuMemcpyDtoHAsync_v2:2"};
    float *data = numbers(4 * TENSOR * sizeof *data);
    (void)state;
    attn_context *ctx = calls_context(ATTN_BACKEND_CUDA, 0, NULL);
    for (int n = 0; n < 2; n++) {
        driver.set("fail", second[n]);
        forward(ctx, data, 2);
        driver.set("fail", "");
    }
    attn_destroy(ctx);
    free(data);
}

/* ---- without pinned memory ------------------------------------------------------------------------------------------ */

static char log_text[4096];

static void keep_log(void *user, int level, const char *text)
{
    const size_t length = strlen(log_text);
    (void)user;
    if (level <= 1) snprintf(log_text + length, sizeof log_text - length, "%s\n", text);
}

static void ordinary_memory_stands_in(void **state)
{
    attn_config config = ATTN_CONFIG_INIT;
    attn_context *ctx;
    (void)state;
    config.backend = ATTN_BACKEND_CUDA;
    config.log = keep_log;
    config.force = "threads=3";
    log_text[0] = '\0';
    calls_succeed(attn_create(&config, &ctx));
    const uint64_t before = calls_counts().host_bytes;
    driver.set("fail", "cuMemHostAlloc:1");
    try_caches(ctx, 0);
    driver.set("fail", "");
    assert_non_null(strstr(log_text, "GPU 0: no pinned memory, host tensors are copied more slowly: cuMemHostAlloc: "
                                     "CUDA_ERROR_OUT_OF_MEMORY"));
    assert_int_equal(calls_counts().host_bytes, before); /* it is not asked for again */
    attn_destroy(ctx);
}

/* ---- threads -------------------------------------------------------------------------------------------------------- */

enum { WORKERS = 4, CALLS = 6 };

struct worker {
    pthread_t thread;
    attn_context *ctx;
    const int32_t *used;
    CUstream stream;
    int number, wrong;
};

/* Memory of its own for each call, and no assertions: they are the main thread's. */
static void *work(void *arg)
{
    struct worker *w = arg;
    for (int n = 0; n < CALLS; n++) {
        const struct cache *c = &caches[2 + (w->number + n) % 3];
        const size_t bytes = cache_bytes(c);
        float *data = numbers(bytes), *expected = numbers(bytes);
        w->wrong += append(w->ctx, c, data, expected, w->used, w->stream) != ATTN_OK || memcmp(data, expected, bytes);
        free(data);
        free(expected);
    }
    return NULL;
}

static void calls_at_the_same_time(void **state)
{
    struct worker workers[WORKERS];
    (void)state;
    const uint64_t before = calls_counts().host_bytes;
    attn_context *ctx = calls_context(ATTN_BACKEND_CUDA, 0, "threads=2");
    int32_t *used = used_on_gpu(ctx);
    for (int n = 0; n < WORKERS; n++) {
        workers[n] = (struct worker){.ctx = ctx, .used = used, .number = n};
        if (n) assert_success(driver.stream_create(&workers[n].stream, NON_BLOCKING));
        assert_int_equal(pthread_create(&workers[n].thread, NULL, work, &workers[n]), 0);
    }
    for (int n = 0; n < WORKERS; n++) {
        pthread_join(workers[n].thread, NULL);
        assert_int_equal(workers[n].wrong, 0);
        if (n) assert_success(driver.stream_destroy(workers[n].stream));
    }
    assert_true(calls_counts().host_bytes <= before + WORKERS * RING_BYTES);
    attn_free(ctx, used);
    attn_destroy(ctx);
    assert_int_equal(calls_counts().host_bytes, before);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(with_one_thread, test_begin, test_end),
        cmocka_unit_test_setup_teardown(with_a_team, test_begin, test_end),
        cmocka_unit_test_setup_teardown(from_pinned_memory, test_begin, test_end),
        cmocka_unit_test_setup_teardown(made_once, test_begin, test_end),
        cmocka_unit_test_setup_teardown(small_calls_copy_once, test_begin, test_end),
        cmocka_unit_test_setup_teardown(ordinary_memory_stands_in, test_begin, test_end),
        cmocka_unit_test_setup_teardown(calls_at_the_same_time, test_begin, test_end),
    };
    calls_open(argc, argv);
    return cmocka_run_group_tests_name("the ring", tests, NULL, NULL);
}
