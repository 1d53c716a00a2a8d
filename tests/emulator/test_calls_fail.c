/* SPDX-License-Identifier: Apache-2.0
 * Each call of the driver that the library's calls make fails once: a status and the name of what failed, outputs as they
 * were where that is promised, nothing lost, and the next call as if nothing had been. */
#include "calls_test.h"

enum { B = 1, HQ = 4, HKV = 2, SQ = 3, SK = 2100, D = 32, PARTS = 26, NEW = 2, ROOM = 1 << 18 };

/* What one operation needs, in host memory and a GPU's. */
struct world {
    float q[ROOM], kv[ROOM], out[ROOM];
    float *gpu_q, *gpu_kv, *gpu_out; /* the same, for calls on device tensors */
    int32_t used;
};

typedef attn_status operation(attn_context *ctx, struct world *w);

static attn_problem problem_on(float *q, float *kv, float *out)
{
    attn_problem p = ATTN_PROBLEM_INIT;
    p.q = attn_bhsd(q, ATTN_F32, B, HQ, SQ, D);
    p.k = attn_bhsd(kv, ATTN_F32, B, HKV, SK / 2, D);
    p.v = attn_bhsd(kv + ROOM / 2, ATTN_F32, B, HKV, SK / 2, D);
    p.out = attn_bhsd(out, ATTN_F32, B, HQ, SQ, D);
    return p;
}

/* In pieces that a second launch folds. */
static attn_status forward(attn_context *ctx, struct world *w)
{
    attn_problem p = problem_on(w->gpu_q, w->gpu_kv, w->gpu_out);
    return attn_forward(ctx, &p, NULL);
}

/* Outputs with gaps, so that rows are gathered and scattered; padding, so that there is a third launch. */
static attn_status forward_staged(attn_context *ctx, struct world *w)
{
    attn_problem p = problem_on(w->q, w->kv, w->out);
    p.out.stride[2] = D + 1;
    p.out.stride[1] = SQ * (D + 1);
    p.q_len.used = &w->used;
    return attn_forward(ctx, &p, NULL);
}

static attn_status append_staged(attn_context *ctx, struct world *w)
{
    attn_append a = ATTN_APPEND_INIT;
    a.k_new = attn_bhsd(w->q, ATTN_F32, B, HKV, NEW, D);
    a.v_new = attn_bhsd(w->kv, ATTN_F32, B, HKV, NEW, D);
    a.k_cache = attn_bhsd(w->out, ATTN_F32, B, HKV, 9, D);
    a.v_cache = attn_bhsd(w->out + ROOM / 2, ATTN_F32, B, HKV, 9, D);
    a.cache_len.used = &w->used;
    return attn_kv_append(ctx, &a, NULL);
}

/* So much in short runs that slots of the ring serve more than once. */
static attn_status forward_in_pieces(attn_context *ctx, struct world *w)
{
    attn_problem p = problem_on(w->q, w->kv, w->out);
    attn_tensor *const tensors[] = {&p.k, &p.v};
    for (int n = 0; n < 2; n++) {
        tensors[n]->stride[2] = D + 1;
        tensors[n]->stride[1] = SK / 2 * (D + 1);
    }
    return attn_forward(ctx, &p, NULL);
}

/* Lengths in GPU memory: the caches make the whole way, there and back. */
static attn_status append_in_pieces(attn_context *ctx, struct world *w)
{
    enum { ROWS = 1900 };
    attn_append a = ATTN_APPEND_INIT;
    attn_tensor *const caches[] = {&a.k_cache, &a.v_cache};
    a.k_new = attn_bhsd(w->q, ATTN_F32, B, HKV, NEW, D);
    a.v_new = attn_bhsd(w->kv, ATTN_F32, B, HKV, NEW, D);
    for (int n = 0; n < 2; n++) {
        *caches[n] = attn_bhsd(w->out + n * ROOM / 2, ATTN_F32, B, HKV, ROWS, D);
        caches[n]->stride[2] = D + 1;
        caches[n]->stride[1] = ROWS * (D + 1);
    }
    a.cache_len.used = (const int32_t *)(const void *)(w->gpu_q + ROOM - 1);
    return attn_kv_append(ctx, &a, NULL);
}

static attn_status merge(attn_context *ctx, struct world *w)
{
    attn_tensor out[PARTS], lse[PARTS], to = attn_bhsd(w->gpu_out, ATTN_F32, B, HQ, SQ, D);
    for (int n = 0; n < PARTS; n++) {
        out[n] = attn_bhsd(w->gpu_q + 1000 * n, ATTN_F32, B, HQ, SQ, D);
        lse[n] = attn_bhsd(w->gpu_kv + 1000 * n, ATTN_F32, B, HQ, SQ, 1);
    }
    return attn_merge(ctx, PARTS, out, lse, &to, NULL, NULL);
}

static attn_status merge_staged(attn_context *ctx, struct world *w)
{
    attn_tensor out[PARTS], lse[PARTS], to = attn_bhsd(w->out, ATTN_F32, B, HQ, SQ, D);
    for (int n = 0; n < PARTS; n++) {
        out[n] = attn_bhsd(w->q + 1000 * n, ATTN_F32, B, HQ, SQ, D);
        lse[n] = attn_bhsd(w->kv + 1000 * n, ATTN_F32, B, HQ, SQ, 1);
    }
    return attn_merge(ctx, PARTS, out, lse, &to, NULL, NULL);
}

static attn_status mask_staged(attn_context *ctx, struct world *w)
{
    attn_problem p = problem_on(w->q, w->kv, w->out);
    attn_tensor keep = attn_bhsd(w->out, ATTN_BOOL, B, HQ, SQ, SK / 2);
    p.dropout = 0.25f;
    return attn_dropout_mask(ctx, &p, &keep, NULL);
}

/* Index arrays that are read back to be checked. */
static attn_status checked(attn_context *ctx, struct world *w)
{
    attn_problem p = problem_on(w->gpu_q, w->gpu_kv, w->gpu_out);
    p.kv_len.used = (const int32_t *)(const void *)(w->gpu_q + ROOM - 1);
    return attn_forward(ctx, &p, NULL);
}

static const struct {
    const char *name;
    operation *run;
} operations[] = {{"forward", forward},
                  {"forward, staged", forward_staged},
                  {"forward, in pieces", forward_in_pieces},
                  {"append, staged", append_staged},
                  {"append, in pieces", append_in_pieces},
                  {"merge", merge},
                  {"merge, staged", merge_staged},
                  {"mask, staged", mask_staged},
                  {"forward, indices checked", checked}};
enum { OPERATIONS = sizeof operations / sizeof *operations };

static const char *const symbols[] = {
#define DRIVER(member, symbol, parameters) #symbol,
#include "cuda/driver_table.h"
#undef DRIVER
};
enum { SYMBOLS = sizeof symbols / sizeof *symbols };

static int is_one_of(const char *symbol, const char *const *list, size_t count)
{
    for (size_t n = 0; n < count; n++)
        if (!strcmp(symbol, list[n])) return 1;
    return 0;
}

/* A failure of these has no consequence that a caller could see, or only the one that was planted: who cannot free has a
 * leak, who cannot pop keeps a context. */
static int is_silent(const char *symbol)
{
    static const char *const silent[] = {"cuCtxPopCurrent_v2", "cuMemFree_v2",   "cuMemFreeHost",
                                         "cuEventDestroy_v2",  "cuGetErrorName", "cuGetErrorString"};
    return is_one_of(symbol, silent, sizeof silent / sizeof *silent);
}

/* Calls whose failure costs time only: whether another stream's work is done, the note of where this one's ends, a
 * workspace, which is asked for again once others have been given back, and pinned memory, for which ordinary stands in. */
static int is_harmless(const char *symbol)
{
    static const char *const harmless[] = {"cuEventQuery", "cuEventRecord", "cuEventCreate", "cuMemAlloc_v2",
                                           "cuMemHostAlloc"};
    return is_one_of(symbol, harmless, sizeof harmless / sizeof *harmless);
}

static void poison(attn_context *ctx, struct world *w)
{
    memset(w->out, 0x3c, sizeof w->out);
    calls_succeed(attn_upload(ctx, w->gpu_out, w->out, sizeof w->out, NULL));
}

static int outputs_are(attn_context *ctx, const struct world *w, const float *host, const float *gpu)
{
    static float now[ROOM];
    calls_succeed(attn_download(ctx, now, w->gpu_out, sizeof now, NULL));
    return !memcmp(w->out, host, sizeof w->out) && !memcmp(now, gpu, sizeof now);
}

/* 0: the driver was not called so often. */
static int fail_once(attn_context *memory, struct world *w, int n, const char *symbol, unsigned at, const float *host,
                     const float *gpu)
{
    static float untouched[ROOM];
    char plan[96], text[600];
    memset(untouched, 0x3c, sizeof untouched);
    poison(memory, w);
    const struct emulator_counts before = calls_counts();
    attn_context *ctx = calls_context(ATTN_BACKEND_CUDA, ATTN_CFG_CHECK_INDICES, NULL);
    snprintf(plan, sizeof plan, "%s:%u", symbol, at);
    assert_int_equal(driver.set("fail", plan), 0);
    attn_status status = operations[n].run(ctx, w);
    snprintf(text, sizeof text, "%s, %s: status %d, \"%s\"", operations[n].name, plan, status, attn_last_error());
    const int failed = calls_counts().faults != before.faults;
    driver.set("fail", "");
    if (failed && !is_harmless(symbol) && (status == ATTN_OK || strncmp(attn_last_error(), symbol, strlen(symbol))))
        fail_msg("%s", text);
    if (status != ATTN_OK && status != ATTN_DEVICE_ERROR && !outputs_are(memory, w, untouched, untouched))
        fail_msg("%s: an output was written", text);
    if (status == ATTN_OK && !outputs_are(memory, w, host, gpu)) fail_msg("%s: a wrong result", text);
    poison(memory, w);
    if (operations[n].run(ctx, w) != ATTN_OK) fail_msg("%s; then \"%s\"", text, attn_last_error());
    if (!outputs_are(memory, w, host, gpu)) fail_msg("%s; then another result", text);
    attn_destroy(ctx);
    const struct emulator_counts after = calls_counts();
    if (after.device_bytes != before.device_bytes || after.host_bytes != before.host_bytes ||
        after.events != before.events)
        fail_msg("%s: a leak", text);
    return failed;
}

/* The first time, as modules stay. */
static int fail_to_load(attn_context *ctx, struct world *w, int n)
{
    const uint64_t before = calls_counts().faults;
    driver.set("fail", "cuModuleLoadData:1");
    attn_status status = operations[n].run(ctx, w);
    driver.set("fail", "");
    if (calls_counts().faults == before) return 0;
    calls_expect(status, ATTN_OUT_OF_MEMORY, "cuModuleLoadData: CUDA_ERROR_OUT_OF_MEMORY");
    return 1;
}

static struct world *new_world(attn_context *ctx)
{
    struct world *w = calloc(1, sizeof *w);
    calls_fill(w->q, ROOM, 1);
    calls_fill(w->kv, ROOM, 2);
    w->used = 2;
    memcpy(w->q + ROOM - 1, &w->used, sizeof w->used);
    w->gpu_q = calls_device_copy(ctx, 1, w->q, sizeof w->q);
    w->gpu_kv = calls_device_copy(ctx, 1, w->kv, sizeof w->kv);
    w->gpu_out = calls_device_copy(ctx, 1, w->out, sizeof w->out);
    return w;
}

static void free_world(attn_context *ctx, struct world *w)
{
    attn_free(ctx, w->gpu_q);
    attn_free(ctx, w->gpu_kv);
    attn_free(ctx, w->gpu_out);
    free(w);
}

static void every_driver_call_fails_once(void **state)
{
    static float host[ROOM], gpu[ROOM];
    int faults = 0;
    (void)state;
    attn_context *ctx = calls_context(ATTN_BACKEND_CUDA, 0, NULL);
    struct world *w = new_world(ctx);
    for (int n = 0; n < OPERATIONS; n++) {
        faults += fail_to_load(ctx, w, n);
        poison(ctx, w);
        calls_succeed(operations[n].run(ctx, w));
        memcpy(host, w->out, sizeof host);
        calls_succeed(attn_download(ctx, gpu, w->gpu_out, sizeof gpu, NULL));
        for (int symbol = 0; symbol < SYMBOLS; symbol++)
            for (unsigned at = 1; !is_silent(symbols[symbol]); at++, faults++)
                if (!fail_once(ctx, w, n, symbols[symbol], at, host, gpu)) break;
    }
    print_message("%d failures\n", faults);
    assert_true(faults > 100);
    free_world(ctx, w);
    attn_destroy(ctx);
    assert_int_equal(calls_counts().device_bytes, 0);
}

/* No memory at all, however often it is asked for. */
static void a_full_gpu(void **state)
{
    static float untouched[ROOM];
    char bytes[32];
    (void)state;
    attn_context *ctx = calls_context(ATTN_BACKEND_CUDA, ATTN_CFG_CHECK_INDICES, NULL);
    struct world *w = new_world(ctx);
    memset(untouched, 0x3c, sizeof untouched);
    snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)calls_counts().device_bytes);
    for (int n = 0; n < OPERATIONS; n++) {
        attn_context *own = calls_context(ATTN_BACKEND_CUDA, ATTN_CFG_CHECK_INDICES, NULL);
        poison(ctx, w);
        driver.set("memory", bytes);
        calls_expect(operations[n].run(own, w), ATTN_OUT_OF_MEMORY, "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY");
        driver.set("memory", "1073741824");
        assert_true(outputs_are(ctx, w, untouched, untouched));
        calls_succeed(operations[n].run(own, w));
        attn_destroy(own);
    }
    free_world(ctx, w);
    attn_destroy(ctx);
}

/* Last, because nothing works afterwards: an error that ends the device's context stays, and every call says so. */
static void a_lost_context_stays_lost(void **state)
{
    (void)state;
    attn_context *ctx = calls_context(ATTN_BACKEND_CUDA, 0, NULL);
    struct world *w = new_world(ctx);
    driver.set("fail", "cuLaunchKernel:1:719");
    calls_expect(forward_staged(ctx, w), ATTN_DEVICE_ERROR, "cuLaunchKernel: CUDA_ERROR_LAUNCH_FAILED");
    for (int n = 0; n < OPERATIONS; n++) calls_expect(operations[n].run(ctx, w), ATTN_DEVICE_ERROR, "LAUNCH_FAILED");
    free_world(ctx, w);
    attn_destroy(ctx);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_driver_call_fails_once),
        cmocka_unit_test(a_full_gpu),
        cmocka_unit_test(a_lost_context_stays_lost),
    };
    calls_open(argc, argv);
    return cmocka_run_group_tests_name("failing driver calls", tests, NULL, NULL);
}
