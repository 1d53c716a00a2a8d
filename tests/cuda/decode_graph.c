/* SPDX-License-Identifier: Apache-2.0
 * decode_graph [DRIVER]: one CUDA graph that appends a token to paged caches and attends to them serves growing lengths. Lengths and page tables lie in the
 * GPU's memory and change between replays; nothing is captured again. Each replay must give the bits of a call without a
 * graph, the last one what the CPU gives. Runs on a GPU and on the emulator alike; 77: there is none. */
#include "attn/attn.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { B = 3, HQ = 8, HKV = 2, D = 128, PAGE = 16, PAGES = 40, POOL = B * PAGES, STEPS = 20, SKIP = 77 };
/* One crosses a page, one a piece of 256 keys, one nothing. */
static const int32_t first_length[B] = {14, 250, 300};

/* Values of the driver's ABI. */
enum { NON_BLOCKING = 1, CAPTURE_GLOBAL = 0 };

static struct {
    int (*context_push)(void *context);
    int (*context_pop)(void **context);
    int (*device_get)(int *device, int ordinal);
    int (*primary_retain)(void **context, int device);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_synchronize)(void *stream);
    int (*capture_begin)(void *stream, int mode);
    int (*capture_end)(void *stream, void **graph);
    int (*instantiate)(void **executable, void *graph, unsigned long long flags);
    int (*launch)(void *executable, void *stream);
    int (*graph_destroy)(void *graph);
    int (*executable_destroy)(void *executable);
    int (*stream_destroy)(void *stream);
} driver;
static const char *const symbols[] = {"cuCtxPushCurrent_v2",
                                      "cuCtxPopCurrent_v2",
                                      "cuDeviceGet",
                                      "cuDevicePrimaryCtxRetain",
                                      "cuStreamCreate",
                                      "cuStreamSynchronize",
                                      "cuStreamBeginCapture_v2",
                                      "cuStreamEndCapture",
                                      "cuGraphInstantiateWithFlags",
                                      "cuGraphLaunch",
                                      "cuGraphDestroy",
                                      "cuGraphExecDestroy",
                                      "cuStreamDestroy_v2"};
enum { SYMBOLS = sizeof symbols / sizeof *symbols };
_Static_assert(sizeof driver == SYMBOLS * sizeof(void *), "one pointer a symbol");

static void fail(const char *what, const char *text)
{
    fprintf(stderr, "decode_graph: %s: %s\n", what, text);
    exit(1);
}

static void must(attn_status status, const char *what)
{
    if (status != ATTN_OK) fail(what, attn_last_error());
}

static void cuda(int code, const char *what)
{
    char text[32];
    snprintf(text, sizeof text, "CUDA error %d", code);
    if (code) fail(what, text);
}

static void load(const char *name)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    for (int n = 0; n < SYMBOLS; n++) {
        void *address = library ? dlsym(library, symbols[n]) : NULL;
        if (!address) {
            printf("SKIP: decode_graph: %s has no %s\n", name, symbols[n]);
            exit(SKIP);
        }
        memcpy((char *)&driver + (size_t)n * sizeof address, &address, sizeof address);
    }
}

/* Halves of -1 to 1 in steps of 1/512, which are exact. */
static uint16_t half_of(int n)
{
    const int size = n < 0 ? -n : n;
    int exponent = 9;
    if (!size) return 0;
    while (size >> exponent == 0) exponent--;
    return (uint16_t)((n < 0) << 15 | (exponent - 9 + 15) << 10 | ((size << (10 - exponent)) & 0x3ff));
}

static void fill(uint16_t *x, int count)
{
    static unsigned state = 1;
    for (int n = 0; n < count; n++) {
        state = state * 1664525u + 1013904223u;
        x[n] = half_of((int)(state >> 22) - 512);
    }
}

static double value_of(uint16_t h)
{
    const double size = h >> 10 & 31 ? ldexp(1024 + (h & 1023), (h >> 10 & 31) - 25) : ldexp(h & 1023, -24);
    return h >> 15 ? -size : size;
}

static uint16_t q[B * HQ * D], token[2][B * HKV * D], prompt[2][B * HKV * PAGES * PAGE * D];
static uint16_t replayed[B * HQ * D], called[B * HQ * D], by_cpu[B * HQ * D];
static int32_t table[B][PAGES], length[B], grown[B];

static void *on_gpu(attn_context *ctx, size_t bytes)
{
    void *memory;
    must(attn_malloc(ctx, 1, bytes, &memory), "attn_malloc");
    return memory;
}

static void put(attn_context *ctx, void *to, const void *from, size_t bytes)
{
    must(attn_upload(ctx, to, from, bytes, NULL), "attn_upload");
}

/* The table as it is at a length: pages that no token has yet are said to be page 0. */
static void put_state(attn_context *ctx, void *gpu_length, void *gpu_grown, void *gpu_table)
{
    int32_t known[B][PAGES] = {{0}};
    for (int b = 0; b < B; b++) {
        grown[b] = length[b] + 1;
        for (int n = 0; n * PAGE < grown[b]; n++) known[b][n] = table[b][n];
    }
    put(ctx, gpu_length, length, sizeof length);
    put(ctx, gpu_grown, grown, sizeof grown);
    put(ctx, gpu_table, known, sizeof known);
}

static int run(attn_context *ctx, attn_context *cpu, void *stream, attn_dtype type)
{
    const size_t pool_bytes = attn_dtype_bytes(type, (int64_t)POOL * HKV * PAGE * D);
    void *k = on_gpu(ctx, pool_bytes), *v = on_gpu(ctx, pool_bytes), *gpu_q = on_gpu(ctx, sizeof q);
    void *k_new = on_gpu(ctx, sizeof prompt[0]), *v_new = on_gpu(ctx, sizeof prompt[1]),
         *out = on_gpu(ctx, sizeof replayed);
    void *gpu_length = on_gpu(ctx, sizeof length), *gpu_grown = on_gpu(ctx, sizeof grown),
         *gpu_table = on_gpu(ctx, sizeof table);
    for (int b = 0; b < B; b++) /* pages in no order */
        for (int n = 0; n < PAGES; n++) table[b][n] = (int32_t)((n * B + b) * 7 % POOL);

    /* The prompts. */
    attn_append a = ATTN_APPEND_INIT;
    a.k_cache = attn_bhsd(k, type, POOL, HKV, PAGE, D);
    a.v_cache = attn_bhsd(v, type, POOL, HKV, PAGE, D);
    a.page_table = gpu_table;
    a.page_table_pages = PAGES;
    a.cache_len.used = gpu_length;
    a.cache_len.max = PAGES * PAGE;
    a.k_new = attn_bhsd(k_new, ATTN_F16, B, HKV, PAGES * PAGE, D);
    a.v_new = attn_bhsd(v_new, ATTN_F16, B, HKV, PAGES * PAGE, D);
    a.new_len.used = gpu_grown;
    fill(prompt[0], B * HKV * PAGES * PAGE * D);
    fill(prompt[1], B * HKV * PAGES * PAGE * D);
    memset(length, 0, sizeof length);
    put(ctx, gpu_length, length, sizeof length);
    put(ctx, gpu_grown, first_length, sizeof first_length);
    put(ctx, gpu_table, table, sizeof table);
    put(ctx, k_new, prompt[0], sizeof prompt[0]);
    put(ctx, v_new, prompt[1], sizeof prompt[1]);
    must(attn_kv_append(ctx, &a, NULL), "attn_kv_append of the prompts");
    must(attn_sync(ctx, NULL), "attn_sync");
    memcpy(length, first_length, sizeof length);

    /* One token more, and attention to all: captured once. */
    a.k_new = attn_bhsd(k_new, ATTN_F16, B, HKV, 1, D);
    a.v_new = attn_bhsd(v_new, ATTN_F16, B, HKV, 1, D);
    a.new_len = (attn_lengths){0};
    attn_problem p = ATTN_PROBLEM_INIT;
    p.q = attn_bhsd(gpu_q, ATTN_F16, B, HQ, 1, D);
    p.k = a.k_cache;
    p.v = a.v_cache;
    p.out = attn_bhsd(out, ATTN_F16, B, HQ, 1, D);
    p.page_table = gpu_table;
    p.page_table_pages = PAGES;
    p.kv_len.used = gpu_grown;
    p.mask = ATTN_CAUSAL;
    attn_plan plan = ATTN_PLAN_INIT;
    must(attn_query(ctx, ATTN_OP_FORWARD, &p, NULL, NULL, &plan), "attn_query");
    attn_exec exec = ATTN_EXEC_INIT;
    exec.workspace_bytes = plan.workspace_bytes;
    exec.workspace = on_gpu(ctx, plan.workspace_bytes ? plan.workspace_bytes : 64);
    put_state(ctx, gpu_length, gpu_grown, gpu_table);
    attn_exec warm = exec; /* loads the code, which a capture may not */
    warm.flags |= ATTN_EXEC_WAIT;
    must(attn_forward(ctx, &p, &warm), "attn_forward");
    exec.stream = stream;
    void *graph, *executable;
    cuda(driver.capture_begin(stream, CAPTURE_GLOBAL), "cuStreamBeginCapture");
    must(attn_kv_append(ctx, &a, &exec), "attn_kv_append in a capture");
    must(attn_forward(ctx, &p, &exec), "attn_forward in a capture");
    cuda(driver.capture_end(stream, &graph), "cuStreamEndCapture");
    cuda(driver.instantiate(&executable, graph, 0), "cuGraphInstantiate");

    int wrong = 0;
    for (int step = 0; step < STEPS; step++) {
        fill(q, B * HQ * D);
        fill(token[0], B * HKV * D);
        fill(token[1], B * HKV * D);
        put(ctx, gpu_q, q, sizeof q);
        put(ctx, k_new, token[0], sizeof token[0]);
        put(ctx, v_new, token[1], sizeof token[1]);
        put_state(ctx, gpu_length, gpu_grown, gpu_table);
        cuda(driver.launch(executable, stream), "cuGraphLaunch");
        cuda(driver.stream_synchronize(stream), "cuStreamSynchronize");
        must(attn_download(ctx, replayed, out, sizeof replayed, NULL), "attn_download");
        must(attn_forward(ctx, &p, &warm), "attn_forward");
        must(attn_download(ctx, called, out, sizeof called, NULL), "attn_download");
        if (memcmp(replayed, called, sizeof called) != 0) {
            printf("step %d: a replay has other bits than a call\n", step);
            wrong++;
        }
        memcpy(length, grown, sizeof length);
    }

    /* The last one by the CPU, over the caches as the graph has left them. */
    char *host_k = malloc(pool_bytes), *host_v = malloc(pool_bytes);
    if (!host_k || !host_v) fail("malloc", "no memory");
    must(attn_download(ctx, host_k, k, pool_bytes, NULL), "attn_download");
    must(attn_download(ctx, host_v, v, pool_bytes, NULL), "attn_download");
    attn_problem host = p;
    host.q.data = q, host.k.data = host_k, host.v.data = host_v, host.out.data = by_cpu;
    host.page_table = table[0], host.kv_len.used = grown;
    must(attn_forward(cpu, &host, NULL), "attn_forward of the CPU");
    double worst = 0;
    for (int n = 0; n < B * HQ * D; n++) worst = fmax(worst, fabs(value_of(replayed[n]) - value_of(by_cpu[n])));
    if (!(worst < 2e-3)) wrong++;
    printf("%s: %d replays of one graph, lengths %d to %d, %d to %d, %d to %d; %.2g from the CPU's\n", plan.kernel,
           STEPS, first_length[0], grown[0], first_length[1], grown[1], first_length[2], grown[2], worst);
    driver.executable_destroy(executable);
    driver.graph_destroy(graph);
    void *const all[] = {k, v, gpu_q, k_new, v_new, out, gpu_length, gpu_grown, gpu_table, exec.workspace};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++) attn_free(ctx, all[n]);
    free(host_k);
    free(host_v);
    return wrong;
}

int main(int argc, char **argv)
{
    static const attn_dtype types[] = {ATTN_F16, ATTN_Q8_0, ATTN_F8_E4M3};
    const char *name = argc > 1 ? argv[1] : "libcuda.so.1";
    setenv("ATTN_CUDA_DRIVER", name, 1);
    attn_config config = ATTN_CONFIG_INIT;
    attn_context *ctx, *cpu;
    config.backend = ATTN_BACKEND_CUDA;
    if (attn_create(&config, &ctx) != ATTN_OK) {
        printf("SKIP: decode_graph: %s\n", attn_last_error());
        return SKIP;
    }
    config.backend = ATTN_BACKEND_CPU;
    must(attn_create(&config, &cpu), "attn_create");
    load(name);
    int device, wrong = 0;
    void *context, *stream;
    cuda(driver.device_get(&device, 0), "cuDeviceGet");
    cuda(driver.primary_retain(&context, device), "cuDevicePrimaryCtxRetain");
    cuda(driver.context_push(context), "cuCtxPushCurrent");
    cuda(driver.stream_create(&stream, NON_BLOCKING), "cuStreamCreate");
    for (size_t n = 0; n < sizeof types / sizeof *types; n++) wrong += run(ctx, cpu, stream, types[n]);
    driver.stream_destroy(stream);
    driver.context_pop(&context);
    attn_destroy(cpu);
    attn_destroy(ctx);
    return wrong != 0;
}
