/* SPDX-License-Identifier: Apache-2.0
 * Automatic choice between the CPU and a GPU, for calls with host tensors in a context for all devices. */
#include "calls_test.h"

#include "common/internal.h"

#include <dlfcn.h>
#include <sys/mman.h>

enum { CPU = ATTN_BACKEND_CPU, CUDA = ATTN_BACKEND_CUDA, AUTO = ATTN_BACKEND_AUTO };

/* ---- problems ------------------------------------------------------------------------------------------------------ */

typedef struct sizes {
    attn_dtype type;
    int64_t b, hq, hkv, sq, sk, d;
} sizes;

static const sizes tiny = {ATTN_F32, 1, 4, 4, 16, 16, 16};
static const sizes prefill = {ATTN_F32, 1, 32, 32, 2048, 2048, 128};
static const sizes decode = {ATTN_F16, 1, 32, 8, 1, 32768, 128};

/* Address space without memory: the call is only asked about. */
static char *space(size_t n)
{
    static char *all;
    const size_t each = (size_t)1 << 28;
    if (!all) all = mmap(NULL, 4 * each, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(all != MAP_FAILED);
    return all + n * each;
}

static attn_problem problem_of(const sizes *s)
{
    attn_problem p = ATTN_PROBLEM_INIT;
    p.q = attn_bhsd(space(0), s->type, s->b, s->hq, s->sq, s->d);
    p.k = attn_bhsd(space(1), s->type, s->b, s->hkv, s->sk, s->d);
    p.v = attn_bhsd(space(2), s->type, s->b, s->hkv, s->sk, s->d);
    p.out = attn_bhsd(space(3), s->type, s->b, s->hq, s->sq, s->d);
    return p;
}

/* ---- contexts with one thread, whose log is kept -------------------------------------------------------------------- */

static char log_text[4096];

static void keep_log(void *user, int level, const char *text)
{
    const size_t length = strlen(log_text);
    (void)user, (void)level;
    snprintf(log_text + length, sizeof log_text - length, "%s\n", text);
}

static attn_context *context(int32_t backend, const char *force)
{
    attn_config config = ATTN_CONFIG_INIT;
    attn_context *ctx = NULL;
    config.backend = backend;
    config.num_threads = 1;
    config.force = force;
    config.log = keep_log;
    log_text[0] = '\0';
    calls_succeed(attn_create(&config, &ctx));
    return ctx;
}

static attn_plan plan_of(attn_context *ctx, const attn_problem *p, const attn_exec *exec)
{
    attn_plan plan = ATTN_PLAN_INIT;
    calls_succeed(attn_query(ctx, ATTN_OP_FORWARD, p, NULL, exec, &plan));
    return plan;
}

static void assert_text(const char *text, const char *part)
{
    if (!strstr(text, part)) fail_msg("\"%s\" has no \"%s\"", text, part);
}

static void assert_figure(double value, double expected)
{
    if (!(value >= 0.999 * expected && value <= 1.001 * expected)) fail_msg("%.9g, expected %.9g", value, expected);
}

/* ---- before anybody has started the driver -------------------------------------------------------------------------- */

static const char *library;

static int is_loaded(void)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    if (handle) dlclose(handle);
    return handle != NULL;
}

static void the_driver_is_started_for_large_problems_only(void **state)
{
    static float q[4 * 16 * 16];
    const sizes middle = {ATTN_F32, 1, 4, 4, 512, 512, 64}; /* a few ms: worth asking a driver that runs */
    attn_problem p = problem_of(&tiny), m = problem_of(&middle), large = problem_of(&prefill);
    (void)state;
    attn_context *ctx = context(AUTO, NULL);
    p.q.data = p.k.data = p.v.data = q;
    p.out.data = calloc(4 * 16 * 16, sizeof(float));
    calls_succeed(attn_forward(ctx, &p, NULL));
    if (strcmp(plan_of(ctx, &m, NULL).isa, "scalar") != 0) assert_int_equal(plan_of(ctx, &m, NULL).backend, CPU);
    assert_true(plan_of(ctx, &p, NULL).estimated_seconds <= 0);
    attn_context *cpu = context(CPU, NULL);
    assert_true(plan_of(cpu, &large, NULL).estimated_seconds <= 0);
    attn_destroy(cpu);
    cpu = context(AUTO, "stage=never");
    assert_true(plan_of(cpu, &large, NULL).estimated_seconds <= 0);
    attn_destroy(cpu);
    assert_false(is_loaded());
    assert_true(plan_of(ctx, &large, NULL).estimated_seconds > 0);
    assert_true(is_loaded());
    assert_text(log_text, ""); /* of the last context */
    free(p.out.data);
    attn_destroy(ctx);
}

/* ---- the model's choice --------------------------------------------------------------------------------------------- */

/* The figures that the model has for a problem on the emulated GPU, a V100 whose clock is not told. */
static void figures(const attn_problem *p, const char *level, const char *family, double blocks, double *cpu,
                    double *gpu)
{
    attn_job job;
    attn_work work;
    const attn_gpu_rates rates = {family, 70, 80, 0, blocks};
    calls_succeed(attn_validate_problem(p, true, &job));
    attn_cost_work(&job, &work);
    *cpu = attn_cost_cpu(attn_cost_level(level, &job), 1, 1, &work);
    *gpu = attn_cost_gpu(&rates, &work);
}

static void the_sooner_one_is_chosen(void **state)
{
    static const struct {
        const sizes *of;
        attn_dtype type;
        uint32_t mask;
        const char *family;
    } cases[] = {{&prefill, ATTN_F32, 0, "simt"},
                 {&prefill, ATTN_F32, ATTN_CAUSAL, "simt"},
                 {&prefill, ATTN_F16, 0, "sm70"},
                 {&decode, ATTN_F16, 0, "sm70"}};
    char text[120];
    (void)state;
    attn_context *ctx = context(AUTO, NULL), *host = context(CPU, NULL);
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        sizes s = *cases[n].of;
        double cpu, gpu;
        s.type = cases[n].type;
        attn_problem p = problem_of(&s);
        p.mask = cases[n].mask;
        figures(&p, plan_of(host, &p, NULL).isa, cases[n].family, 1000, &cpu, &gpu);
        attn_plan plan = plan_of(ctx, &p, NULL);
        assert_int_equal(plan.backend, gpu < cpu ? CUDA : CPU);
        assert_figure(plan.cpu_seconds, cpu);
        if (s.sq > 1) assert_figure(plan.gpu_seconds, gpu); /* few blocks are another matter */
        assert_figure(plan.estimated_seconds, plan.backend == CUDA ? plan.gpu_seconds : cpu);
        assert_int_equal(plan.staged, plan.backend == CUDA);
        snprintf(text, sizeof text, "; CPU %s, GPU %s with copies", attn_cost_text(cpu).text,
                 attn_cost_text(plan.gpu_seconds).text);
        assert_text(plan.reason, text);
        if (s.sq > 1) assert_int_equal(plan.device, 1); /* a core is 10 times slower than the copies alone */
        else assert_int_equal(plan.device, 0);          /* each byte is read once, so copying is all the work */
    }
    attn_destroy(host);
    attn_destroy(ctx);
}

static void small_problems_have_no_figures(void **state)
{
    attn_problem p = problem_of(&tiny);
    static float memory[4][4 * 16 * 16];
    attn_exec exec = ATTN_EXEC_INIT;
    (void)state;
    attn_context *ctx = context(AUTO, NULL);
    p.q.data = memory[0], p.k.data = memory[1], p.v.data = memory[2], p.out.data = memory[3];
    attn_plan plan = plan_of(ctx, &p, NULL);
    assert_int_equal(plan.backend, CPU);
    assert_true(plan.estimated_seconds <= 0 && plan.cpu_seconds <= 0 && plan.gpu_seconds <= 0);
    /* Choosing asks the driver nothing: as many calls as where the CPU is named. */
    uint64_t begin = calls_counts().calls;
    calls_succeed(attn_forward(ctx, &p, NULL));
    const uint64_t free_calls = calls_counts().calls - begin;
    exec.device = 1;
    begin = calls_counts().calls;
    calls_succeed(attn_forward(ctx, &p, &exec));
    assert_int_equal(free_calls, calls_counts().calls - begin);
    attn_destroy(ctx);
    ctx = context(CPU, NULL);
    begin = calls_counts().calls;
    calls_succeed(attn_forward(ctx, &p, NULL));
    assert_int_equal(calls_counts().calls, begin);
    attn_destroy(ctx);
}

static void choices_are_forced(void **state)
{
    static const char *const cpu_words[] = {"backend=cpu", "stage=never", "isa=scalar"};
    attn_problem p = problem_of(&prefill);
    attn_exec exec = ATTN_EXEC_INIT;
    (void)state;
    for (size_t n = 0; n < sizeof cpu_words / sizeof *cpu_words; n++) {
        attn_context *ctx = context(AUTO, cpu_words[n]);
        attn_plan plan = plan_of(ctx, &p, NULL);
        assert_int_equal(plan.backend, CPU);
        assert_true(plan.estimated_seconds <= 0);
        attn_destroy(ctx);
    }
    attn_context *ctx = context(AUTO, NULL);
    exec.device = 1;
    assert_int_equal(plan_of(ctx, &p, &exec).backend, CPU);
    assert_true(plan_of(ctx, &p, &exec).estimated_seconds <= 0);
    exec.device = 2;
    assert_int_equal(plan_of(ctx, &p, &exec).backend, CUDA);
    p = problem_of(&tiny);
    assert_int_equal(plan_of(ctx, &p, &exec).backend, CUDA);
    exec.device = 0;
    exec.stream = (void *)(uintptr_t)1; /* a stream says nothing about host tensors */
    p = problem_of(&prefill);
    assert_int_equal(plan_of(ctx, &p, &exec).backend, CPU);
    attn_destroy(ctx);
    ctx = context(AUTO, "backend=cuda");
    p = problem_of(&tiny);
    assert_int_equal(plan_of(ctx, &p, NULL).backend, CUDA);
    attn_destroy(ctx);
}

/* Beyond the GPU's memory of 1 GiB. */
static void what_does_not_fit_stays(void **state)
{
    sizes s = prefill;
    (void)state;
    s.sq = s.sk = 1 << 14; /* 268 MB each */
    attn_problem p = problem_of(&s);
    attn_context *ctx = context(AUTO, NULL);
    attn_plan plan = plan_of(ctx, &p, NULL);
    assert_int_equal(plan.backend, CPU);
    assert_text(plan.reason, " s, it does not fit into GPU 0");
    assert_true(plan.cpu_seconds > 0 && plan.gpu_seconds <= 0);
    attn_destroy(ctx);
}

/* ---- calls ---------------------------------------------------------------------------------------------------------- */

enum { HEADS = 2, TOKENS = 640, SIZE = 64, COUNT = HEADS * TOKENS * SIZE };

static float *q, *kv, *out, *expected;

static attn_problem real_problem(float *to)
{
    attn_problem p = ATTN_PROBLEM_INIT;
    p.q = attn_bhsd(q, ATTN_F32, 1, HEADS, TOKENS, SIZE);
    p.k = attn_bhsd(kv, ATTN_F32, 1, HEADS, TOKENS, SIZE);
    p.v = attn_bhsd(kv + COUNT, ATTN_F32, 1, HEADS, TOKENS, SIZE);
    p.out = attn_bhsd(to, ATTN_F32, 1, HEADS, TOKENS, SIZE);
    return p;
}

static int set_up(void **state)
{
    (void)state;
    q = malloc(COUNT * sizeof *q);
    kv = malloc(2 * COUNT * sizeof *kv);
    out = malloc(COUNT * sizeof *out);
    expected = malloc(COUNT * sizeof *expected);
    calls_fill(q, COUNT, 1);
    calls_fill(kv, 2 * COUNT, 2);
    attn_context *ctx = context(CPU, NULL);
    attn_problem p = real_problem(expected);
    calls_succeed(attn_forward(ctx, &p, NULL));
    attn_destroy(ctx);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(q);
    free(kv);
    free(out);
    free(expected);
    return 0;
}

static void assert_right(void)
{
    for (int n = 0; n < COUNT; n++)
        if (!(out[n] - expected[n] < 2e-5f && expected[n] - out[n] < 2e-5f))
            fail_msg("element %d: %g and %g", n, (double)out[n], (double)expected[n]);
}

static void forward(attn_context *ctx, const attn_exec *exec)
{
    attn_problem p = real_problem(out);
    memset(out, 0xff, COUNT * sizeof *out);
    calls_succeed(attn_forward(ctx, &p, exec));
    assert_right();
}

static void the_call_does_what_the_query_says(void **state)
{
    attn_problem p = real_problem(out);
    attn_exec exec = ATTN_EXEC_INIT;
    (void)state;
    attn_context *ctx = context(AUTO, NULL);
    assert_int_equal(plan_of(ctx, &p, NULL).backend, CUDA);
    uint64_t launches = calls_counts().launches;
    forward(ctx, NULL);
    assert_true(calls_counts().launches > launches);
    assert_text(log_text, "GPU 0 (emulated sm_70): first use by this context");
    /* A workspace of the host's is of no use there, and left alone. */
    exec.workspace = aligned_alloc(64, 64);
    exec.workspace_bytes = 64;
    memset(exec.workspace, 0x33, 64);
    launches = calls_counts().launches;
    forward(ctx, &exec);
    assert_true(calls_counts().launches > launches);
    for (int n = 0; n < 64; n++) assert_int_equal(((char *)exec.workspace)[n], 0x33);
    free(exec.workspace);
    /* Nor a GPU's where the CPU computes. */
    exec.workspace_bytes = 1 << 16;
    calls_succeed(attn_malloc(ctx, 1, exec.workspace_bytes, &exec.workspace));
    p.q.shape[2] = p.out.shape[2] = 1;
    assert_int_equal(plan_of(ctx, &p, &exec).backend, CPU);
    calls_succeed(attn_forward(ctx, &p, &exec));
    attn_free(ctx, exec.workspace);
    attn_destroy(ctx);
}

/* `setting` of the emulator makes the next call fail. */
static void assert_falls_back(const char *setting, const char *value, const char *symbol)
{
    attn_problem p = real_problem(out);
    attn_context *ctx = context(AUTO, NULL);
    assert_int_equal(plan_of(ctx, &p, NULL).backend, CUDA);
    assert_int_equal(driver.set(setting, value), 0);
    forward(ctx, NULL);
    assert_text(log_text, "GPU 0 has failed and is not chosen any more, the CPU computes: ");
    assert_text(log_text, symbol);
    const attn_plan plan = plan_of(ctx, &p, NULL);
    assert_int_equal(plan.backend, CPU);
    assert_text(plan.reason, ", GPU 0 has failed before");
    const uint64_t launches = calls_counts().launches;
    forward(ctx, NULL);
    assert_int_equal(calls_counts().launches, launches);
    attn_destroy(ctx);
}

static void a_gpu_that_fails_is_replaced(void **state)
{
    (void)state;
    assert_falls_back("memory", "1000000", "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY"); /* others have the rest */
    driver.set("memory", "1073741824");
    assert_falls_back("fail", "cuCtxPushCurrent_v2:1:201", "cuCtxPushCurrent_v2: ");
    assert_falls_back("fail", "cuMemcpyHtoDAsync_v2:2:1", "cuMemcpyHtoDAsync_v2: ");
    assert_falls_back("fail", "cuLaunchKernel:1:1", "cuLaunchKernel: ");
    assert_falls_back("fail", "cuMemcpyDtoHAsync_v2:1:1", "cuMemcpyDtoHAsync_v2: ");
    driver.set("fail", "");
    assert_int_equal(calls_counts().device_bytes, 0);
}

/* Who names the GPU is told what it says. */
static void a_forced_gpu_is_not_replaced(void **state)
{
    attn_problem p = real_problem(out);
    attn_exec exec = ATTN_EXEC_INIT;
    (void)state;
    attn_context *ctx = context(AUTO, NULL), *cuda = context(CUDA, NULL);
    exec.device = 2;
    driver.set("memory", "1000000");
    calls_expect(attn_forward(ctx, &p, &exec), ATTN_OUT_OF_MEMORY, "cuMemAlloc_v2: ");
    calls_expect(attn_forward(cuda, &p, NULL), ATTN_OUT_OF_MEMORY, "cuMemAlloc_v2: ");
    driver.set("memory", "1073741824");
    assert_int_equal(plan_of(ctx, &p, NULL).backend, CUDA); /* that was nobody's choice */
    attn_destroy(cuda);
    attn_destroy(ctx);
}

/* The last test: the device stays lost. */
static void a_lost_gpu_is_replaced(void **state)
{
    (void)state;
    assert_falls_back("fail", "cuLaunchKernel:1:719", "cuLaunchKernel: CUDA_ERROR_LAUNCH_FAILED");
    driver.set("fail", "");
    attn_context *ctx = context(AUTO, NULL);
    forward(ctx, NULL); /* of another context, which has yet to find out */
    assert_text(log_text, "GPU 0 has failed");
    attn_destroy(ctx);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest before[] = {cmocka_unit_test(the_driver_is_started_for_large_problems_only)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_sooner_one_is_chosen),
        cmocka_unit_test(small_problems_have_no_figures),
        cmocka_unit_test(choices_are_forced),
        cmocka_unit_test(what_does_not_fit_stays),
        cmocka_unit_test(the_call_does_what_the_query_says),
        cmocka_unit_test(a_gpu_that_fails_is_replaced),
        cmocka_unit_test(a_forced_gpu_is_not_replaced),
        cmocka_unit_test(a_lost_gpu_is_replaced),
    };
    library = argc > 1 ? argv[1] : "";
    setenv("ATTN_CUDA_DRIVER", library, 1);
    const int failed = cmocka_run_group_tests_name("choice, before the driver", before, NULL, NULL);
    calls_open(argc, argv);
    return failed + cmocka_run_group_tests_name("choice", tests, set_up, tear_down);
}
