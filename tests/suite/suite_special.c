/* SPDX-License-Identifier: Apache-2.0
 * What is no single field: absent structs, structs of other sizes, small functions, a thread that never failed. */
#include "suite_case.h"

#include <pthread.h>
#include <string.h>

static const struct suite_case small = {.b = 1, .hq = 2, .hkv = 1, .sq = 3, .sk = 4, .d = 8};

static void absent_structs(struct suite_check *check, const void *arg)
{
    struct suite_built t;
    struct suite_case c = small;
    attn_context *ctx = check->target->ctx, *none = ctx;
    void *memory = &t;
    attn_plan plan = {.struct_size = sizeof plan};
    (void)arg;
    suite_settle(&c);
    if (!suite_expect(check, !suite_build(&t, &c), "no memory")) return;
    attn_problem p = suite_problem(&t, check->target);
    const struct {
        const char *what;
        attn_status status;
    } tries[] = {
        {"attn_forward without a context", attn_forward(NULL, &p, NULL)},
        {"attn_forward without a problem", attn_forward(ctx, NULL, NULL)},
        {"attn_backward without a context", attn_backward(NULL, &p, NULL, NULL)},
        {"attn_backward without grads", attn_backward(ctx, &p, NULL, NULL)},
        {"attn_query without a context", attn_query(NULL, ATTN_OP_FORWARD, &p, NULL, NULL, &plan)},
        {"attn_query without a problem", attn_query(ctx, ATTN_OP_FORWARD, NULL, NULL, NULL, &plan)},
        {"attn_query for an unknown op", attn_query(ctx, (attn_op)9, &p, NULL, NULL, &plan)},
        {"attn_query_append without append", attn_query_append(ctx, NULL, NULL, &plan)},
        {"attn_kv_append without append", attn_kv_append(ctx, NULL, NULL)},
        {"attn_kv_append without a context", attn_kv_append(NULL, NULL, NULL)},
        {"attn_merge without a context", attn_merge(NULL, 1, &p.out, &p.lse, &p.out, NULL, NULL)},
        {"attn_dropout_mask without keep", attn_dropout_mask(ctx, &p, NULL, NULL)},
        {"attn_create without out", attn_create(NULL, NULL)},
        {"attn_malloc without out", attn_malloc(ctx, check->target->index, 64, NULL)},
        {"attn_malloc without a context", attn_malloc(NULL, 0, 64, &memory)},
        {"attn_upload without memory", attn_upload(ctx, NULL, &p, 8, NULL)},
        {"attn_download without memory", attn_download(ctx, &p, NULL, 8, NULL)},
        {"attn_sync without a context", attn_sync(NULL, NULL)},
        {"attn_device_count without count", attn_device_count(NULL)},
        {"attn_device_get without info", attn_device_get(0, NULL)},
    };
    for (size_t n = 0; n < sizeof tries / sizeof *tries; n++)
        suite_expect(check, tries[n].status == ATTN_INVALID_ARGUMENT, "%s: \"%s\"", tries[n].what,
                     attn_status_string(tries[n].status));
    attn_config bad = {.struct_size = sizeof bad, .backend = 77};
    suite_expect(check, attn_create(&bad, &none) != ATTN_OK && none == NULL, "a failed attn_create leaves a context");
    suite_expect_status(check, attn_malloc(ctx, 1000, 64, &memory), ATTN_NO_DEVICE, "attn_malloc on device 1000");
    suite_expect_status(check, attn_query(ctx, ATTN_OP_FORWARD, &p, NULL, NULL, NULL), ATTN_OK,
                        "attn_query without a plan");
    attn_free(ctx, NULL);
    attn_destroy(NULL);
    suite_poison_outputs(&t);
    suite_expect_clean(check, &t);
    suite_unbuild(&t);
}

/* ---- sizes of structs ------------------------------------------------------------------------------------------- */

/* A caller of another version: more bytes than this library knows, zero or not; fewer than it knows. */
static void other_sizes(struct suite_check *check, const void *arg)
{
    struct suite_built t;
    struct suite_case c = small;
    struct {
        attn_problem p;
        unsigned char tail[64];
    } later;
    struct {
        attn_exec e;
        unsigned char tail[16];
    } exec;
    attn_context *ctx = check->target->ctx;
    (void)arg;
    suite_settle(&c);
    if (!suite_expect(check, !suite_build(&t, &c), "no memory")) return;
    memset(&later, 0, sizeof later);
    memset(&exec, 0, sizeof exec);
    later.p = suite_problem(&t, check->target);
    later.p.struct_size = sizeof later;
    exec.e.struct_size = sizeof exec;
    suite_expect_status(check, attn_forward(ctx, &later.p, &exec.e), ATTN_OK, "larger structs with tails of zeros");
    suite_poison_outputs(&t);
    exec.tail[15] = 1;
    suite_expect_status(check, attn_forward(ctx, &later.p, &exec.e), ATTN_INVALID_ARGUMENT,
                        "a larger attn_exec with something in its tail");
    exec.tail[15] = 0;
    later.tail[40] = 1;
    suite_expect_status(check, attn_forward(ctx, &later.p, &exec.e), ATTN_INVALID_ARGUMENT,
                        "a larger attn_problem with something in its tail");
    suite_expect(check, strstr(attn_last_error(), "struct_size") != NULL, "the text \"%s\" does not name struct_size",
                 attn_last_error());
    later.p.struct_size = offsetof(attn_problem, batch_origin);
    memset(&later.p.batch_origin, 0xee, sizeof later - offsetof(attn_problem, batch_origin));
    suite_expect_status(check, attn_forward(ctx, &later.p, NULL), ATTN_OK, "a smaller attn_problem");
    suite_poison_outputs(&t);
    suite_expect_clean(check, &t);
    suite_unbuild(&t);
}

/* Of a struct that is written, as much as the caller knows. */
static void other_sizes_written(struct suite_check *check, const void *arg)
{
    struct suite_built t;
    struct suite_case c = small;
    attn_plan plan;
    struct {
        attn_device_info info;
        unsigned char tail[32];
    } later;
    const unsigned char *bytes = (const unsigned char *)&plan;
    (void)arg;
    suite_settle(&c);
    if (!suite_expect(check, !suite_build(&t, &c), "no memory")) return;
    attn_problem p = suite_problem(&t, check->target);
    memset(&plan, 0xee, sizeof plan);
    plan.struct_size = 0;
    suite_expect_status(check, attn_query(check->target->ctx, ATTN_OP_FORWARD, &p, NULL, NULL, &plan),
                        ATTN_INVALID_ARGUMENT, "plan.struct_size 0");
    plan.struct_size = offsetof(attn_plan, kernel);
    suite_expect_status(check, attn_query(check->target->ctx, ATTN_OP_FORWARD, &p, NULL, NULL, &plan), ATTN_OK,
                        "a smaller attn_plan");
    for (size_t n = offsetof(attn_plan, kernel); n < sizeof plan; n++)
        suite_expect(check, bytes[n] == 0xee, "a smaller attn_plan was written beyond its end");
    suite_expect(check, plan.struct_size == offsetof(attn_plan, kernel), "attn_query changed plan.struct_size");
    memset(&later, 0xee, sizeof later);
    later.info.struct_size = sizeof later;
    suite_expect_status(check, attn_device_get(0, &later.info), ATTN_OK, "a larger attn_device_info");
    suite_expect(check,
                 later.info.backend == ATTN_BACKEND_CPU && later.info.units > 0 && later.info.memory_bytes > 0 &&
                     later.info.name[0] && later.info.arch[0],
                 "device 0 is not a described CPU");
    suite_expect_status(check, attn_device_get(-1, &later.info), ATTN_INVALID_ARGUMENT, "attn_device_get(-1)");
    suite_expect_status(check, attn_device_get(1000, &later.info), ATTN_INVALID_ARGUMENT, "attn_device_get(1000)");
    suite_unbuild(&t);
}

/* ---- small functions -------------------------------------------------------------------------------------------- */

static void names_and_sizes(struct suite_check *check, const void *arg)
{
    static const struct {
        attn_dtype dtype;
        const char *name;
        size_t of_64, of_1;
    } types[] = {{ATTN_F32, "f32", 256, 4},  {ATTN_F16, "f16", 128, 2},        {ATTN_BF16, "bf16", 128, 2},
                 {ATTN_BOOL, "bool", 64, 1}, {ATTN_F8_E4M3, "f8_e4m3", 64, 1}, {ATTN_F8_E5M2, "f8_e5m2", 64, 1},
                 {ATTN_I8, "i8", 64, 1},     {ATTN_Q8_0, "q8_0", 68, 34},      {ATTN_Q4_0, "q4_0", 36, 18},
                 {(attn_dtype)0, "?", 0, 0}, {(attn_dtype)77, "?", 0, 0}};
    float x[4];
    attn_tensor a = attn_bhsd(x, ATTN_F16, 2, 3, 5, 7), b = attn_bshd(x, ATTN_F32, 2, 3, 5, 7);
    (void)arg;
    for (size_t n = 0; n < sizeof types / sizeof *types; n++) {
        suite_expect(check, !strcmp(attn_dtype_name(types[n].dtype), types[n].name), "attn_dtype_name(%d)",
                     (int)types[n].dtype);
        suite_expect(check,
                     attn_dtype_bytes(types[n].dtype, 64) == types[n].of_64 &&
                         attn_dtype_bytes(types[n].dtype, 1) == types[n].of_1 &&
                         attn_dtype_bytes(types[n].dtype, 0) == 0 && attn_dtype_bytes(types[n].dtype, -1) == 0,
                     "attn_dtype_bytes of %s", types[n].name);
    }
    for (int n = -2; n < 20; n++) {
        const char *text = attn_status_string((attn_status)n);
        suite_expect(check, text && *text, "attn_status_string(%d) is empty", n);
    }
    suite_expect(check, !strcmp(attn_status_string(ATTN_INVALID_ARGUMENT), "invalid argument"),
                 "the name of INVALID_ARGUMENT");
    suite_expect(check,
                 a.data == x && a.dtype == ATTN_F16 && a.stride[0] == 105 && a.stride[1] == 35 && a.stride[2] == 7 &&
                     a.stride[3] == 1 && a.shape[1] == 3 && a.shape[2] == 5 && !a.flags && !a.scale,
                 "attn_bhsd");
    suite_expect(check,
                 b.stride[0] == 105 && b.stride[1] == 7 && b.stride[2] == 21 && b.stride[3] == 1 && b.shape[1] == 3 &&
                     b.shape[2] == 5,
                 "attn_bshd");
    suite_expect(check, attn_version() == (ATTN_VERSION_MAJOR << 16 | ATTN_VERSION_MINOR << 8 | ATTN_VERSION_PATCH),
                 "attn_version");
    suite_expect(check, attn_build_info() && *attn_build_info() && !strchr(attn_build_info(), '\n'),
                 "attn_build_info is no line");
}

static void *first_error(void *arg)
{
    struct suite_check *check = arg;
    suite_expect(check, attn_last_error() && !*attn_last_error(), "a new thread has an error text");
    attn_forward(NULL, NULL, NULL);
    suite_expect(check, *attn_last_error(), "a failed call leaves no text");
    return NULL;
}

/* The text of an error belongs to its thread. */
static void errors_of_a_thread(struct suite_check *check, const void *arg)
{
    pthread_t thread;
    (void)arg;
    attn_device_get(-5, NULL);
    if (suite_expect(check, !pthread_create(&thread, NULL, first_error, check), "no thread"))
        pthread_join(thread, NULL);
}

/* Memory of the device: alignment, there and back. */
static void device_memory(struct suite_check *check, const void *arg)
{
    unsigned char sent[1000], received[1000] = {0};
    void *memory = NULL;
    attn_context *ctx = check->target->ctx;
    (void)arg;
    for (int n = 0; n < 1000; n++) sent[n] = (unsigned char)suite_mix((uint64_t)n);
    if (!suite_expect_status(check, attn_malloc(ctx, check->target->index, sizeof sent, &memory), ATTN_OK,
                             "attn_malloc"))
        return;
    suite_expect(check, (uintptr_t)memory % 64 == 0, "attn_malloc gives memory that is not aligned to 64 bytes");
    suite_expect_status(check, attn_upload(ctx, memory, sent, sizeof sent, NULL), ATTN_OK, "attn_upload");
    suite_expect_status(check, attn_download(ctx, received, memory, sizeof received, NULL), ATTN_OK, "attn_download");
    suite_expect_status(check, attn_sync(ctx, NULL), ATTN_OK, "attn_sync");
    suite_expect(check, !memcmp(sent, received, sizeof sent), "what comes back is not what went there");
    attn_free(ctx, memory);
    suite_expect_status(check, attn_malloc(ctx, check->target->index, 0, &memory), ATTN_OK, "attn_malloc of 0 bytes");
    attn_free(ctx, memory);
    suite_expect_status(check, attn_malloc(ctx, check->target->index, SIZE_MAX, &memory), ATTN_OUT_OF_MEMORY,
                        "attn_malloc of SIZE_MAX bytes");
}

/* Dense tensors have no length arrays that could be compared with max one by one. */
static void max_below_dense(struct suite_check *check, const void *arg)
{
    struct suite_built t;
    struct suite_case c = {.b = 2, .hq = 2, .hkv = 1, .sq = 4, .sk = 4096, .d = 16, .seed = 31};
    (void)arg;
    suite_settle(&c);
    if (!suite_expect(check, !suite_build(&t, &c), "no memory")) return;
    attn_problem p = suite_problem(&t, check->target);
    p.kv_len.max = 64;
    suite_expect_status(check, attn_forward(check->target->ctx, &p, NULL), ATTN_INVALID_ARGUMENT,
                        "kv_len.max 64 of 4096");
    suite_expect(check, strstr(attn_last_error(), "kv_len.max") != NULL, "the text is \"%s\"", attn_last_error());
    p.kv_len.max = 0;
    p.q_len.max = 3;
    suite_expect_status(check, attn_forward(check->target->ctx, &p, NULL), ATTN_INVALID_ARGUMENT, "q_len.max 3 of 4");
    suite_fetch_outputs(check, &t);
    suite_expect_clean(check, &t);
    suite_unbuild(&t);
}

void suite_arguments_special(struct suite *s)
{
    suite_each(s, 1, "arguments/max-below-dense", max_below_dense, NULL);
    suite_each(s, 1, "arguments/absent-structs", absent_structs, NULL);
    suite_each(s, 1, "arguments/other-sizes", other_sizes, NULL);
    suite_each(s, 1, "arguments/other-sizes-written", other_sizes_written, NULL);
    suite_once(s, 1, "arguments/names-and-sizes", names_and_sizes, NULL);
    suite_once(s, 1, "arguments/errors-of-a-thread", errors_of_a_thread, NULL);
    suite_each(s, 1, "arguments/device-memory", device_memory, NULL);
}
