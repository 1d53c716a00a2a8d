/* SPDX-License-Identifier: Apache-2.0
 * Workspaces and allocations. That a workspace of exactly the queried size is enough, whatever it holds, is part of
 * every case of the suite (suite_runner.c). */
#include "suite_case.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a context whose allocator counts, or refuses --------------------------------------------------------------- */

struct counter {
    atomic_int calls, live;
    int refuse;
};

static void *counted_alloc(void *user, size_t bytes, size_t align)
{
    struct counter *counter = user;
    atomic_fetch_add(&counter->calls, 1);
    void *p = counter->refuse ? NULL : aligned_alloc(align, (bytes + align - 1) / align * align);
    if (p) atomic_fetch_add(&counter->live, 1);
    return p;
}

static void counted_release(void *user, void *p)
{
    struct counter *counter = user;
    atomic_fetch_sub(&counter->live, 1);
    free(p);
}

static attn_context *counted_context(struct suite_check *check, struct counter *counter)
{
    attn_config config = ATTN_CONFIG_INIT;
    attn_context *ctx = NULL;
    config.backend = check->target->backend;
    config.device = check->target->ordinal;
    config.num_threads = 2;
    config.alloc = counted_alloc;
    config.release = counted_release;
    config.user = counter;
    if (check->target->force[0]) config.force = check->target->force;
    suite_expect_status(check, attn_create(&config, &ctx), ATTN_OK, "attn_create");
    return ctx;
}

static struct suite_case decode_case(void) /* one with partial results in its workspace */
{
    struct suite_case c = {.q_type = ATTN_F32, .b = 2, .hq = 4, .hkv = 2, .sq = 2, .sk = 3000, .d = 32, .seed = 21};
    suite_settle(&c);
    return c;
}

/* ---- workspace -------------------------------------------------------------------------------------------------- */

static size_t workspace_of(struct suite_check *check, const attn_problem *p)
{
    attn_plan plan = ATTN_PLAN_INIT;
    suite_expect_status(check, attn_query(check->target->ctx, ATTN_OP_FORWARD, p, NULL, NULL, &plan), ATTN_OK,
                        "attn_query");
    return plan.workspace_bytes;
}

static void too_small(struct suite_check *check, const void *arg)
{
    struct suite_built t;
    struct suite_case c = decode_case();
    (void)arg;
    if (!suite_expect(check, !suite_build(&t, &c), "no memory")) return;
    attn_problem p = suite_problem(&t, check->target);
    attn_exec exec = ATTN_EXEC_INIT;
    size_t bytes = workspace_of(check, &p);
    exec.flags = ATTN_EXEC_WAIT;
    exec.workspace_bytes = bytes - 1;
    if (suite_expect(check, bytes > 0, "a workspace of 0 bytes") &&
        suite_expect_status(check, attn_malloc(check->target->ctx, check->target->index, bytes, &exec.workspace),
                            ATTN_OK, "attn_malloc")) {
        suite_expect_status(check, attn_forward(check->target->ctx, &p, &exec), ATTN_WORKSPACE_TOO_SMALL,
                            "attn_forward");
        suite_expect(check, strstr(attn_last_error(), "workspace_bytes") != NULL, "the text is \"%s\"",
                     attn_last_error());
        suite_fetch_outputs(check, &t);
        suite_expect_clean(check, &t);
        attn_free(check->target->ctx, exec.workspace);
    }
    suite_unbuild(&t);
}

/* The same size for every content of the length arrays, so that one workspace serves a growing cache. */
static void not_by_lengths(struct suite_check *check, const void *arg)
{
    static const int32_t few[] = {1, 7}, many[] = {3000, 2999};
    size_t bytes[2];
    (void)arg;
    for (int n = 0; n < 2; n++) {
        struct suite_built t;
        struct suite_case c = decode_case();
        c.k_lengths = LENGTHS_USED;
        c.k_used = n ? many : few;
        suite_settle(&c);
        if (!suite_expect(check, !suite_build(&t, &c), "no memory")) return;
        attn_problem p = suite_problem(&t, check->target);
        p.kv_len.max = 3000; /* the tensors' room may follow the lengths; this does not */
        bytes[n] = workspace_of(check, &p);
        if (p.k.shape[2] < 3000) bytes[n] = 0; /* then the two are no pair */
        suite_unbuild(&t);
    }
    if (bytes[0] && bytes[1])
        suite_expect(check, bytes[0] == bytes[1], "%zu bytes for short sequences, %zu for long ones", bytes[0],
                     bytes[1]);
}

/* Likewise of backward, where packed sequences may be cut otherwise without a bound being given. */
static void not_by_offsets(struct suite_check *check, const void *arg)
{
    static char somewhere[64]; /* never looked at: only asked about */
    static const int32_t even[] = {0, 1000, 2000, 3000}, uneven[] = {0, 1, 2999, 3000};
    attn_problem p = ATTN_PROBLEM_INIT;
    attn_grads g = ATTN_GRADS_INIT;
    attn_plan plan[2] = {ATTN_PLAN_INIT, ATTN_PLAN_INIT};
    (void)arg;
    if (!check->target->host) {
        suite_skip(check, "asks about memory that is not there");
        return;
    }
    p.q = p.k = p.v = p.out = g.dout = g.dq = g.dk = g.dv = attn_bhsd(somewhere, ATTN_F32, 1, 4, 3000, 64);
    p.lse = attn_bhsd(somewhere, ATTN_F32, 1, 4, 3000, 1);
    p.q_len.count = p.kv_len.count = 3;
    for (int n = 0; n < 2; n++) {
        p.q_len.offsets = p.kv_len.offsets = n ? uneven : even;
        attn_status status = attn_query(check->target->ctx, ATTN_OP_BACKWARD, &p, &g, NULL, &plan[n]);
        if (status == ATTN_UNSUPPORTED) {
            suite_skip(check, attn_last_error());
            return;
        }
        suite_expect_status(check, status, ATTN_OK, "attn_query");
    }
    suite_expect(check, plan[0].workspace_bytes == plan[1].workspace_bytes, "%zu and %zu bytes for the same sizes",
                 plan[0].workspace_bytes, plan[1].workspace_bytes);
    suite_expect(check, plan[0].workspace_bytes <= (size_t)64 << 20, "a workspace of %zu bytes",
                 plan[0].workspace_bytes);
}

/* A bound above the room that there is: the call must keep to what the query said of it. */
static void bound_above_room(struct suite_check *check, const void *arg)
{
    enum { B = 4, H = 4, SK = 17, D = 16, GUARD = 1 << 16 };
    static float q[B * H * 2 * D], k[B * H * SK * D], out[B * H * 2 * D];
    static const int32_t used[B] = {17, 3, 17, 9};
    attn_problem p = ATTN_PROBLEM_INIT;
    attn_plan plan = ATTN_PLAN_INIT;
    (void)arg;
    if (!check->target->host) {
        suite_skip(check, "guards host memory");
        return;
    }
    p.q = attn_bhsd(q, ATTN_F32, B, H, 2, D);
    p.k = p.v = attn_bhsd(k, ATTN_F32, B, H, SK, D);
    p.out = attn_bhsd(out, ATTN_F32, B, H, 2, D);
    p.kv_len.used = used;
    p.kv_len.count = B;
    p.kv_len.max = 1 << 20;
    attn_config config = ATTN_CONFIG_INIT;
    attn_context *ctx = NULL;
    config.backend = check->target->backend;
    config.num_threads = 4;
    config.force = check->target->force[0] ? check->target->force : NULL;
    suite_expect_status(check, attn_create(&config, &ctx), ATTN_OK, "attn_create");
    if (!ctx) return;
    suite_expect_status(check, attn_query(ctx, ATTN_OP_FORWARD, &p, NULL, NULL, &plan), ATTN_OK, "attn_query");
    const size_t whole = (plan.workspace_bytes + 63) / 64 * 64 + GUARD;
    unsigned char *room = aligned_alloc(64, whole);
    if (suite_expect(check, room != NULL, "out of memory")) {
        attn_exec exec = ATTN_EXEC_INIT;
        size_t beyond = 0;
        memset(room, 0x5a, whole);
        exec.workspace = room;
        exec.workspace_bytes = plan.workspace_bytes;
        suite_expect_status(check, attn_forward(ctx, &p, &exec), ATTN_OK, "attn_forward");
        for (size_t n = plan.workspace_bytes; n < whole; n++) beyond += room[n] != 0x5a;
        suite_expect(check, beyond == 0, "%zu bytes behind the workspace were written", beyond);
    }
    free(room);
    attn_destroy(ctx);
}

/* No Sq x Sk: a long prefill needs no more than tiles for each thread. */
static void bounded(struct suite_check *check, const void *arg)
{
    static char somewhere[64]; /* never looked at: only asked about */
    attn_problem p = ATTN_PROBLEM_INIT;
    const int64_t s = 65536, d = 64;
    (void)arg;
    if (!check->target->host) {
        suite_skip(check, "asks about memory that is not there");
        return;
    }
    p.q = attn_bhsd(somewhere, ATTN_F16, 1, 8, s, d);
    p.k = p.v = p.out = p.q;
    attn_context *ctx = suite_context(check->target, 2, NULL);
    attn_plan plan = ATTN_PLAN_INIT;
    if (!suite_expect(check, ctx != NULL, "no context")) return;
    suite_expect_status(check, attn_query(ctx, ATTN_OP_FORWARD, &p, NULL, NULL, &plan), ATTN_OK, "attn_query");
    suite_expect(check, plan.workspace_bytes <= (size_t)8 << 20, "a workspace of %zu bytes for 2 threads",
                 plan.workspace_bytes);
    attn_destroy(ctx);
}

/* ---- allocations ------------------------------------------------------------------------------------------------ */

static void none_with_workspace(struct suite_check *check, const void *arg)
{
    struct counter counter = {0};
    struct suite_built t;
    struct suite_result x = {0};
    struct suite_case c = decode_case();
    (void)arg;
    attn_context *ctx = counted_context(check, &counter);
    if (!ctx || !suite_expect(check, !suite_build(&t, &c), "no memory")) return;
    int before = counter.calls;
    suite_forward(check, &t, ctx, &x); /* with a workspace of its own */
    if (!check->target->staged)
        suite_expect(check, counter.calls == before, "%d allocations in spite of a workspace", counter.calls - before);
    attn_problem p = suite_problem(&t, check->target);
    suite_expect_status(check, attn_forward(ctx, &p, NULL), ATTN_OK, "attn_forward without a workspace");
    suite_result_free(&x);
    suite_unbuild(&t);
    attn_destroy(ctx);
    suite_expect(check, counter.live == 0, "%d blocks were not released", counter.live);
}

/* On the CPU, calls that need little memory. */
static void none_for_small(struct suite_check *check, const void *arg)
{
    const struct suite_case cases[] = {
        {.q_type = ATTN_F32, .b = 1, .hq = 1, .hkv = 1, .sq = 16, .sk = 16, .d = 16, .seed = 22},
        {.q_type = ATTN_F32, .b = 1, .hq = 8, .hkv = 8, .sq = 1, .sk = 64, .d = 64, .seed = 23},
        {.q_type = ATTN_F16, .b = 2, .hq = 4, .hkv = 2, .sq = 3, .sk = 40, .d = 32, .mask = ATTN_CAUSAL, .seed = 24},
    };
    (void)arg;
    for (size_t n = 0; n < sizeof cases / sizeof *cases && check->target->backend == ATTN_BACKEND_CPU; n++) {
        struct counter counter = {0};
        struct suite_built t;
        struct suite_case c = cases[n];
        suite_settle(&c);
        attn_context *ctx = counted_context(check, &counter);
        if (!ctx || !suite_expect(check, !suite_build(&t, &c), "no memory")) return;
        attn_problem p = suite_problem(&t, check->target);
        const int before = counter.calls;
        suite_expect_status(check, attn_forward(ctx, &p, NULL), ATTN_OK, "attn_forward");
        suite_expect(check, counter.calls == before, "case %zu: %d allocations", n, counter.calls - before);
        suite_unbuild(&t);
        attn_destroy(ctx);
    }
}

static void refused(struct suite_check *check, const void *arg)
{
    struct counter counter = {0}, empty = {.refuse = 1};
    struct suite_built t;
    struct suite_case c = decode_case();
    c.b = 8, c.sq = 16; /* partial results of 0.2 MB: no small call */
    suite_settle(&c);
    attn_config config = ATTN_CONFIG_INIT;
    attn_context *none = (attn_context *)&counter;
    (void)arg;
    config.backend = check->target->backend;
    config.alloc = counted_alloc;
    config.release = counted_release;
    config.user = &empty;
    suite_expect_status(check, attn_create(&config, &none), ATTN_OUT_OF_MEMORY, "attn_create without memory");
    suite_expect(check, none == NULL, "a failed attn_create leaves a pointer");
    attn_context *ctx = counted_context(check, &counter);
    if (!ctx || !suite_expect(check, !suite_build(&t, &c), "no memory")) return;
    attn_problem p = suite_problem(&t, check->target);
    counter.refuse = 1;
    if (workspace_of(check, &p) > 0 && check->target->host)
        suite_expect_status(check, attn_forward(ctx, &p, NULL), ATTN_OUT_OF_MEMORY, "attn_forward without memory");
    suite_expect_clean(check, &t);
    suite_unbuild(&t);
    attn_destroy(ctx);
}

/* ---- resident memory -------------------------------------------------------------------------------------------- */

/* A line "NAME: n kB" of /proc/self/status; 0 if it is not there. */
static long status_kib(const char *name)
{
    char line[256];
    long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, name, strlen(name))) sscanf(line + strlen(name), ": %ld", &kib);
    if (file) fclose(file);
    return kib;
}

/* Starts the peak (VmHWM) anew. */
static int reset_peak(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "w");
    if (!file) return 0;
    int good = fputs("5", file) >= 0;
    return fclose(file) == 0 && good;
}

/* What one call adds to the process's peak, tensors being there before: its scores would be 64 MiB. */
static void resident(struct suite_check *check, const void *arg)
{
    enum { S = 4096, D = 16, LIMIT_KIB = 16 << 10 };
    float *all = malloc(sizeof *all * 4 * S * D);
    attn_problem p = ATTN_PROBLEM_INIT;
    (void)arg;
    if (!check->target->host || check->target->staged || !reset_peak() || !status_kib("VmHWM")) {
        suite_skip(check,
                   check->target->host ? "the kernel does not tell a process's peak memory" : "host memory only");
        free(all);
        return;
    }
    if (!suite_expect(check, all != NULL, "no memory")) return;
    for (int n = 0; n < 4 * S * D; n++) all[n] = (float)(suite_mix((uint64_t)n) & 255) / 256;
    p.q = attn_bhsd(all, ATTN_F32, 1, 1, S, D);
    p.k = attn_bhsd(all + S * D, ATTN_F32, 1, 1, S, D);
    p.v = attn_bhsd(all + 2 * S * D, ATTN_F32, 1, 1, S, D);
    p.out = attn_bhsd(all + 3 * S * D, ATTN_F32, 1, 1, S, D);
    p.mask = ATTN_CAUSAL;
    reset_peak();
    long before = status_kib("VmRSS");
    suite_expect_status(check, attn_forward(check->target->ctx, &p, NULL), ATTN_OK, "attn_forward");
    long more = status_kib("VmHWM") - before;
    suite_expect(check, more <= LIMIT_KIB, "the call took %ld KiB besides its tensors", more);
    free(all);
}

void suite_run_memory(struct suite *s)
{
    suite_each(s, 1, "memory/workspace-too-small", too_small, NULL);
    suite_each(s, 1, "memory/workspace-not-by-lengths", not_by_lengths, NULL);
    suite_each(s, 1, "memory/workspace-not-by-offsets", not_by_offsets, NULL);
    suite_each(s, 1, "memory/workspace-bounded", bounded, NULL);
    suite_each(s, 1, "memory/workspace-bound-above-room", bound_above_room, NULL);
    suite_each(s, 1, "memory/no-allocation-with-workspace", none_with_workspace, NULL);
    suite_each(s, 1, "memory/no-allocation-of-small-calls", none_for_small, NULL);
    suite_each(s, 1, "memory/allocation-refused", refused, NULL);
    suite_each(s, 0, "memory/resident", resident, NULL);
}
