/* SPDX-License-Identifier: Apache-2.0
 * Host tensors on a GPU, and who computes: what the suite's targets cuda:N/staged and cuda:N/mixed do not say. */
#include "calls_test.h"

enum { CPU = ATTN_BACKEND_CPU, CUDA = ATTN_BACKEND_CUDA, AUTO = ATTN_BACKEND_AUTO };

/* ---- views -------------------------------------------------------------------------------------------------------- */

enum { B = 2, HQ = 4, HKV = 2, SQ = 5, SK = 37, D = 16, ROOM = 1 << 15 };

struct arrays {
    float q[ROOM], kv[ROOM], out[ROOM], lse[ROOM], bias[ROOM];
};

static attn_problem problem_of(struct arrays *a)
{
    attn_problem p = ATTN_PROBLEM_INIT;
    p.q = attn_bhsd(a->q, ATTN_F32, B, HQ, SQ, D);
    p.k = attn_bhsd(a->kv, ATTN_F32, B, HKV, SK, D);
    p.v = attn_bhsd(a->kv + B * HKV * SK * D, ATTN_F32, B, HKV, SK, D);
    p.out = attn_bhsd(a->out, ATTN_F32, B, HQ, SQ, D);
    p.lse = attn_bhsd(a->lse, ATTN_F32, B, HQ, SQ, 1);
    p.mask = ATTN_CAUSAL;
    return p;
}

/* Lets an axis run the other way. */
static void flip(attn_tensor *t, int axis)
{
    t->data = (float *)t->data + (t->shape[axis] - 1) * t->stride[axis];
    t->stride[axis] = -t->stride[axis];
}

static void as_it_is(attn_problem *p) { (void)p; }

static void backwards(attn_problem *p)
{
    for (int axis = 0; axis < 3; axis++) {
        flip(&p->out, axis);
        flip(&p->lse, axis);
    }
}

static void broadcast(attn_problem *p)
{
    p->q.stride[1] = 0;
    p->k.stride[0] = p->v.stride[0] = 0;
    p->v.stride[2] = 0;
}

/* Rows that share elements with their neighbours, and heads with gaps between. */
static void overlapping(attn_problem *p)
{
    p->k.stride[2] = 1;
    p->q.stride[2] = 3;
    p->out.stride[2] = D + 3;
    p->out.stride[1] = 2 * SQ * (D + 3) + 1;
    p->out.stride[0] = HQ * p->out.stride[1];
    p->lse.stride[2] = 2;
    p->lse.stride[1] = 2 * SQ;
    p->lse.stride[0] = 2 * HQ * SQ + 5;
}

/* Heads next to each other in a row, one row far from the next: each is its own piece. */
static void packed_qkv(attn_problem *p)
{
    const int64_t row = (HQ + 2 * HKV) * D + 7;
    attn_tensor *const tensors[] = {&p->q, &p->k, &p->v, &p->out};
    for (int n = 0; n < 4; n++) {
        tensors[n]->stride[1] = D;
        tensors[n]->stride[2] = row;
        tensors[n]->stride[0] = row * SK;
    }
    p->v.data = (float *)p->k.data + HKV * D;
}

static void with_bias(attn_problem *p)
{
    p->bias = attn_bhsd(p->bias.data, ATTN_F32, 1, HQ, SQ, SK);
    p->bias.stride[3] = -3;
    p->bias.stride[2] = 1;
    p->bias.stride[1] = 3 * SK;
    p->bias.data = (float *)p->bias.data + 3 * (SK - 1);
}

/* v is the beginning of k's rows. */
static void latent(attn_problem *p)
{
    p->v = p->k;
    p->v.shape[3] = p->out.shape[3] = D / 2;
}

static void run_view(void (*change)(attn_problem *), attn_context *ctx, struct arrays *a, int staged)
{
    attn_plan plan = ATTN_PLAN_INIT;
    calls_fill(a->q, ROOM, 1);
    calls_fill(a->kv, ROOM, 2);
    calls_fill(a->bias, ROOM, 3);
    calls_fill(a->out, ROOM, 4); /* what must stay in the gaps */
    calls_fill(a->lse, ROOM, 5);
    attn_problem p = problem_of(a);
    p.bias.data = change == with_bias ? a->bias : NULL;
    change(&p);
    calls_succeed(attn_query(ctx, ATTN_OP_FORWARD, &p, NULL, NULL, &plan));
    assert_int_equal(plan.staged, staged);
    calls_succeed(attn_forward(ctx, &p, NULL));
}

static void assert_close(const float *a, const float *b)
{
    for (int n = 0; n < ROOM; n++)
        if (!(a[n] - b[n] < 2e-5f && b[n] - a[n] < 2e-5f))
            fail_msg("element %d: %g and %g", n, (double)a[n], (double)b[n]);
}

/* The whole arrays, so that a gap that was written shows. */
static void views(void **state)
{
    void (*const changes[])(attn_problem *) = {as_it_is,   backwards, broadcast, overlapping,
                                               packed_qkv, with_bias, latent};
    struct arrays *cpu = malloc(sizeof *cpu), *gpu = malloc(sizeof *gpu);
    attn_context *host = calls_context(CPU, 0, NULL), *device = calls_context(CUDA, 0, NULL);
    (void)state;
    for (size_t n = 0; n < sizeof changes / sizeof *changes; n++) {
        run_view(changes[n], host, cpu, 0);
        run_view(changes[n], device, gpu, 1);
        assert_close(cpu->out, gpu->out);
        assert_close(cpu->lse, gpu->lse);
        assert_memory_equal(cpu->q, gpu->q, sizeof cpu->q);
        assert_memory_equal(cpu->kv, gpu->kv, sizeof cpu->kv);
    }
    attn_destroy(device);
    attn_destroy(host);
    free(cpu);
    free(gpu);
}

/* Parts and result run backwards, each along other axes; more parts than travel with a launch. */
static void merge_backwards(attn_context *ctx, struct arrays *a)
{
    enum { PARTS = 30, ROWS = 3 };
    attn_tensor out[PARTS], lse[PARTS];
    calls_fill(a->q, ROOM, 1);
    calls_fill(a->kv, ROOM, 2);
    calls_fill(a->out, ROOM, 3);
    calls_fill(a->lse, ROOM, 4);
    for (int n = 0; n < PARTS; n++) {
        out[n] = attn_bshd(a->q + n * 500, ATTN_F32, B, HQ, ROWS, D);
        lse[n] = attn_bhsd(a->kv + n * 50, ATTN_F32, B, HQ, ROWS, 1);
        flip(&out[n], n % 3);
        flip(&lse[n], (n + 1) % 3);
    }
    attn_tensor to = attn_bhsd(a->out, ATTN_F32, B, HQ, ROWS, D), to_lse = attn_bhsd(a->lse, ATTN_F32, B, HQ, ROWS, 1);
    to.stride[2] = D + 1;
    to.stride[1] = ROWS * (D + 1);
    to.stride[0] = HQ * to.stride[1];
    flip(&to, 1);
    calls_succeed(attn_merge(ctx, PARTS, out, lse, &to, &to_lse, NULL));
}

static void merges(void **state)
{
    struct arrays *cpu = malloc(sizeof *cpu), *gpu = malloc(sizeof *gpu);
    attn_context *host = calls_context(CPU, 0, NULL), *device = calls_context(CUDA, 0, NULL);
    (void)state;
    merge_backwards(host, cpu);
    merge_backwards(device, gpu);
    assert_close(cpu->out, gpu->out);
    assert_close(cpu->lse, gpu->lse);
    attn_destroy(device);
    attn_destroy(host);
    free(cpu);
    free(gpu);
}

/* ---- what a call costs ---------------------------------------------------------------------------------------------- */

/* v inside k is not copied a second time: 9 MiB of k, and nothing else of that size. */
static void latent_cache_is_copied_once(void **state)
{
    enum { KEYS = 4096, WIDE = 576, NARROW = 512 };
    float *kv = calloc((size_t)KEYS * WIDE, sizeof *kv), q[WIDE] = {1}, out[NARROW];
    attn_problem p = ATTN_PROBLEM_INIT;
    (void)state;
    attn_context *ctx = calls_context(CUDA, 0, NULL);
    p.q = attn_bhsd(q, ATTN_F32, 1, 1, 1, WIDE);
    p.k = p.v = attn_bhsd(kv, ATTN_F32, 1, 1, KEYS, WIDE);
    p.v.shape[3] = NARROW;
    p.out = attn_bhsd(out, ATTN_F32, 1, 1, 1, NARROW);
    for (int n = 0; n < KEYS; n++) kv[n * WIDE + 5] = 3;
    calls_succeed(attn_forward(ctx, &p, NULL));
    assert_true(out[5] > 2.999f && out[5] < 3.001f && out[6] == 0);
    assert_true(calls_counts().device_bytes <= 10 << 20);
    attn_destroy(ctx);
    assert_int_equal(calls_counts().device_bytes, 0);
    free(kv);
}

/* Of a cache of 32 MiB the four keys in use: the others are in nobody's way. */
static void unused_keys_stay(void **state)
{
    enum { ROOM_FOR = 1 << 16, WIDE = 64 };
    float *k = malloc((size_t)ROOM_FOR * WIDE * 4), *v = malloc((size_t)ROOM_FOR * WIDE * 4), q[WIDE] = {0}, out[WIDE];
    int32_t used = 3, start = 1;
    attn_problem p = ATTN_PROBLEM_INIT;
    (void)state;
    attn_context *ctx = calls_context(CUDA, 0, NULL);
    p.q = attn_bhsd(q, ATTN_F32, 1, 1, 1, WIDE);
    p.k = attn_bhsd(k, ATTN_F32, 1, 1, ROOM_FOR, WIDE);
    p.v = attn_bhsd(v, ATTN_F32, 1, 1, ROOM_FOR, WIDE);
    p.out = attn_bhsd(out, ATTN_F32, 1, 1, 1, WIDE);
    p.kv_len.used = &used;
    p.kv_len.start = &start;
    for (int n = 0; n < 4 * WIDE; n++) k[n] = 0, v[n] = (float)(n / WIDE); /* so the mean of 1, 2 and 3 comes out */
    calls_succeed(attn_forward(ctx, &p, NULL));
    for (int d = 0; d < WIDE; d++) assert_true(out[d] > 1.999f && out[d] < 2.001f);
    assert_true(calls_counts().device_bytes <= 2 << 20);
    attn_destroy(ctx);
    free(k);
    free(v);
}

/* A step of decoding with a cache of 64 MiB and tables of 16 MiB copies its rows only. */
static void appending_copies_new_rows(void **state)
{
    enum { ROWS = 1 << 16, HEADS = 2, SIZE = 64, POSITIONS = 1 << 16 };
    const size_t cache_bytes = (size_t)HEADS * ROWS * SIZE * 4;
    float *k = malloc(cache_bytes), *v = malloc(cache_bytes), *angles = malloc((size_t)POSITIONS * 32 * 4);
    float k_new[HEADS * SIZE], v_new[HEADS * SIZE];
    int32_t used = ROWS - 2;
    attn_append a = ATTN_APPEND_INIT;
    attn_rope rope = ATTN_ROPE_INIT;
    (void)state;
    attn_context *ctx = calls_context(CUDA, 0, NULL);
    memset(k, 0x11, cache_bytes);
    memset(v, 0x11, cache_bytes);
    for (int n = 0; n < POSITIONS * 32; n++) angles[n] = n / 32 == used ? 2.0f : 0.0f;
    calls_fill(k_new, HEADS * SIZE, 1);
    calls_fill(v_new, HEADS * SIZE, 2);
    a.k_new = attn_bhsd(k_new, ATTN_F32, 1, HEADS, 1, SIZE);
    a.v_new = attn_bhsd(v_new, ATTN_F32, 1, HEADS, 1, SIZE);
    a.k_cache = attn_bhsd(k, ATTN_F32, 1, HEADS, ROWS, SIZE);
    a.v_cache = attn_bhsd(v, ATTN_F32, 1, HEADS, ROWS, SIZE);
    a.cache_len.used = &used;
    rope.cos = angles;
    rope.sin = angles + 32; /* of the position before: 0 */
    rope.rotary_dim = SIZE;
    rope.max_pos = POSITIONS - 1;
    a.rope = &rope;
    calls_succeed(attn_kv_append(ctx, &a, NULL));
    assert_true(calls_counts().device_bytes <= 1 << 20);
    for (int h = 0; h < HEADS; h++) {
        float *row = k + (size_t)(h * ROWS + used) * SIZE, *v_row = v + (size_t)(h * ROWS + used) * SIZE;
        for (int d = 0; d < SIZE; d++) assert_true(row[d] == 2 * k_new[h * SIZE + d]);
        assert_memory_equal(v_row, v_new + h * SIZE, SIZE * 4);
        memset(row, 0x11, SIZE * 4);
        memset(v_row, 0x11, SIZE * 4);
    }
    for (size_t n = 0; n < cache_bytes; n++)
        if (((char *)k)[n] != 0x11 || ((char *)v)[n] != 0x11) fail_msg("byte %zu of a cache was written", n);
    attn_destroy(ctx);
    free(k);
    free(v);
    free(angles);
}

/* ---- what is refused ------------------------------------------------------------------------------------------------ */

static void refusals(void **state)
{
    static struct arrays a;
    attn_exec exec = ATTN_EXEC_INIT;
    (void)state;
    attn_context *ctx = calls_context(CUDA, 0, "stage=never");
    attn_problem p = problem_of(&a);
    attn_tensor keep = attn_bhsd(a.bias, ATTN_BOOL, B, HQ, SQ, SK);
    calls_expect(attn_forward(ctx, &p, NULL), ATTN_UNSUPPORTED, "q: host memory, GPU 0 computes, and stage=never");
    calls_expect(attn_query(ctx, ATTN_OP_FORWARD, &p, NULL, NULL, NULL), ATTN_UNSUPPORTED, "q: host memory");
    calls_expect(attn_merge(ctx, 1, &p.out, &p.lse, &p.out, NULL, NULL), ATTN_UNSUPPORTED, "out_parts[0]: host memory");
    calls_expect(attn_dropout_mask(ctx, &p, &keep, NULL), ATTN_UNSUPPORTED, "keep: host memory");
    p.q.data = calls_device_copy(ctx, 1, a.q, sizeof a.q);
    calls_expect(attn_forward(ctx, &p, NULL), ATTN_UNSUPPORTED, "k: host memory");
    attn_free(ctx, p.q.data);
    attn_destroy(ctx);
    ctx = calls_context(CUDA, 0, NULL);
    p = problem_of(&a);
    p.num_splits = 2; /* so that it needs a workspace */
    p.k.shape[2] = p.v.shape[2] = 2 * SK;
    p.k.shape[1] = p.v.shape[1] = 1;
    exec.workspace = a.bias;
    exec.workspace_bytes = sizeof a.bias;
    while ((uintptr_t)exec.workspace % 64) exec.workspace = (char *)exec.workspace + 4, exec.workspace_bytes -= 4;
    calls_expect(attn_forward(ctx, &p, &exec), ATTN_INVALID_ARGUMENT, "exec.workspace: host memory");
    attn_destroy(ctx);
}

static void capture(void **state)
{
    static struct arrays a;
    attn_exec exec = ATTN_EXEC_INIT;
    CUcontext context;
    CUstream stream;
    void *graph;
    (void)state;
    attn_context *ctx = calls_context(CUDA, 0, NULL);
    attn_problem p = problem_of(&a);
    assert_success(driver.primary_retain(&context, 0));
    assert_success(driver.context_push(context));
    assert_success(driver.stream_create(&stream, NON_BLOCKING));
    exec.stream = stream;
    memset(a.out, 0x22, sizeof a.out);
    assert_success(driver.capture_begin(stream, 0));
    calls_expect(attn_forward(ctx, &p, &exec), ATTN_UNSUPPORTED, "q: host memory, while exec.stream captures a graph");
    assert_success(driver.capture_end(stream, &graph));
    assert_success(driver.graph_destroy(graph));
    for (size_t n = 0; n < sizeof a.out; n++) assert_int_equal(((char *)a.out)[n], 0x22);
    calls_succeed(attn_forward(ctx, &p, &exec)); /* which waits: what was queued before has run, too */
    assert_true(a.out[0] == 0);
    assert_success(driver.stream_destroy(stream));
    assert_success(driver.context_pop(&context));
    assert_success(driver.primary_release(0));
    attn_destroy(ctx);
}

/* ---- who computes --------------------------------------------------------------------------------------------------- */

static attn_plan plan_of(attn_context *ctx, const attn_problem *p, int32_t device)
{
    attn_plan plan = ATTN_PLAN_INIT;
    attn_exec exec = ATTN_EXEC_INIT;
    exec.device = device;
    calls_succeed(attn_query(ctx, ATTN_OP_FORWARD, p, NULL, &exec, &plan));
    return plan;
}

static void devices_are_chosen_by_tensors(void **state)
{
    static struct arrays a;
    static float host_out[ROOM];
    attn_exec exec = ATTN_EXEC_INIT;
    (void)state;
    attn_context *ctx = calls_context(AUTO, 0, NULL);
    calls_fill(a.q, ROOM, 1);
    calls_fill(a.kv, ROOM, 2);
    attn_problem p = problem_of(&a);
    attn_plan plan = plan_of(ctx, &p, 0);
    assert_int_equal(plan.backend, CPU);
    calls_succeed(attn_forward(ctx, &p, NULL));
    memcpy(host_out, a.out, sizeof host_out);
    plan = plan_of(ctx, &p, 3);
    assert_int_equal(plan.backend, CUDA);
    assert_int_equal(plan.device, 2);
    assert_int_equal(plan.staged, 1);
    assert_non_null(strstr(plan.reason, "staged on GPU 1"));
    float *gpu_kv = calls_device_copy(ctx, 2, a.kv, sizeof a.kv);
    p.k.data = gpu_kv;
    plan = plan_of(ctx, &p, 0);
    assert_int_equal(plan.device, 2);
    assert_int_equal(plan.staged, 1);
    memset(a.out, 0, sizeof a.out);
    calls_succeed(attn_forward(ctx, &p, NULL));
    assert_close(a.out, host_out);
    exec.device = 1;
    calls_expect(attn_forward(ctx, &p, &exec), ATTN_UNSUPPORTED,
                 "k: memory of GPU 1, but exec.device says that the CPU");
    exec.device = 2;
    calls_expect(attn_forward(ctx, &p, &exec), ATTN_INVALID_ARGUMENT, "k: memory of GPU 1, but GPU 0 computes");
    p.q.data = calls_device_copy(ctx, 1, a.q, sizeof a.q);
    calls_expect(attn_forward(ctx, &p, NULL), ATTN_INVALID_ARGUMENT, "k: memory of GPU 1, but GPU 0 computes");
    attn_free(ctx, p.q.data);
    attn_free(ctx, gpu_kv);
    attn_destroy(ctx);
    assert_int_equal(calls_counts().device_bytes, 0);
}

/* The same for the other calls: nothing of a GPU's is followed by the CPU. */
static void other_calls_go_where_tensors_are(void **state)
{
    static struct arrays a;
    static unsigned char kept[2][ROOM];
    int32_t used[B] = {3, 4};
    attn_append call = ATTN_APPEND_INIT;
    attn_plan plan = ATTN_PLAN_INIT;
    (void)state;
    attn_context *ctx = calls_context(AUTO, 0, NULL);
    calls_fill(a.q, ROOM, 1);
    calls_fill(a.kv, ROOM, 2);
    attn_problem p = problem_of(&a);
    p.dropout = 0.5f;
    attn_tensor keep = attn_bhsd(kept[0], ATTN_BOOL, B, HQ, SQ, SK);
    calls_succeed(attn_dropout_mask(ctx, &p, &keep, NULL));
    float *gpu = calls_device_copy(ctx, 1, a.kv, sizeof a.kv);
    keep.data = gpu;
    calls_succeed(attn_dropout_mask(ctx, &p, &keep, NULL));
    calls_succeed(attn_download(ctx, kept[1], gpu, (size_t)B * HQ * SQ * SK, NULL));
    assert_memory_equal(kept[0], kept[1], (size_t)B * HQ * SQ * SK);
    call.k_new = attn_bhsd(a.q, ATTN_F32, B, HKV, 2, D);
    call.k_cache = attn_bhsd(gpu, ATTN_F32, B, HKV, SK, D);
    call.cache_len.used = used;
    calls_succeed(attn_query_append(ctx, &call, NULL, &plan));
    assert_int_equal(plan.backend, CUDA);
    assert_int_equal(plan.staged, 1);
    calls_succeed(attn_kv_append(ctx, &call, NULL));
    calls_succeed(attn_download(ctx, a.out, gpu, sizeof a.out, NULL));
    assert_memory_equal(a.out + 3 * D, a.q, 2 * D * sizeof(float));
    attn_tensor parts = attn_bhsd(gpu, ATTN_F32, B, HKV, 1, D), lse = attn_bhsd(a.lse, ATTN_F32, B, HKV, 1, 1);
    attn_tensor merged = attn_bhsd(a.bias, ATTN_F32, B, HKV, 1, D);
    calls_succeed(attn_query_merge(ctx, 1, &parts, &lse, &merged, NULL, NULL, &plan));
    assert_int_equal(plan.backend, CUDA);
    calls_succeed(attn_merge(ctx, 1, &parts, &lse, &merged, NULL, NULL));
    assert_memory_equal(a.bias, a.out, (size_t)B * HKV * D * sizeof(float));
    attn_free(ctx, gpu);
    attn_destroy(ctx);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(views),
        cmocka_unit_test(merges),
        cmocka_unit_test(latent_cache_is_copied_once),
        cmocka_unit_test(unused_keys_stay),
        cmocka_unit_test(appending_copies_new_rows),
        cmocka_unit_test(refusals),
        cmocka_unit_test(capture),
        cmocka_unit_test(devices_are_chosen_by_tensors),
        cmocka_unit_test(other_calls_go_where_tensors_are),
    };
    setenv("EMULATOR_DEVICES", "2", 1);
    calls_open(argc, argv);
    return cmocka_run_group_tests_name("staging", tests, NULL, NULL);
}
