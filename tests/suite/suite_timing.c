/* SPDX-License-Identifier: Apache-2.0
 * Times of a few standard shapes for the report, none of which takes more than a third of a second; `attn bench` is for
 * measuring. Smaller problems go first, and where they take too long the others are left out. */
#include "suite_core.h"
#include "suite_format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const struct suite_shape shapes[SUITE_SHAPES] = {
    {"prefill", ATTN_F16, 1, 8, 8, 1024, 1024, 64}, {"prefill", ATTN_F16, 1, 8, 8, 1024, 1024, 128},
    {"prefill", ATTN_F32, 1, 8, 8, 1024, 1024, 64}, {"prefill", ATTN_F32, 1, 8, 8, 1024, 1024, 128},
    {"decode", ATTN_F16, 1, 32, 8, 1, 4096, 128},
};

enum { PIECE = 1 << 14, BATCH_MAX = 200, BATCHES = 20, SHORTLY = 5 };
#define BATCH 0.01  /* seconds of calls between two waits */
#define BUDGET 0.1  /* seconds of measuring */
#define LONGEST 0.2 /* seconds that one call may be expected to take */

double suite_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double suite_shape_flops(const struct suite_shape *p) { return 4.0 * p->b * p->hq * p->sq * p->sk * p->d; }

double suite_shape_bytes(const struct suite_shape *p)
{
    return 2.0 * p->b * p->hkv * p->sk * (double)attn_dtype_bytes((attn_dtype)p->dtype, p->d);
}

/* A problem on its target, with all that it takes. */
struct timed {
    attn_context *ctx;
    int32_t index;
    attn_problem p;
    attn_exec exec;
    attn_plan plan;
    void *block[5];
    int blocks;
};

static attn_status take(struct timed *w, size_t bytes, void **block)
{
    attn_status status = attn_malloc(w->ctx, w->index, bytes, block);
    if (status == ATTN_OK) w->block[w->blocks++] = *block;
    return status;
}

/* The same few numbers again and again. */
static attn_status fill(struct timed *w, void *to, int32_t dtype, size_t bytes)
{
    float *x = malloc(PIECE * sizeof *x);
    unsigned char *encoded = malloc(PIECE * sizeof *x);
    attn_status status = x && encoded ? ATTN_OK : ATTN_OUT_OF_MEMORY;
    size_t piece = attn_dtype_bytes((attn_dtype)dtype, PIECE);
    struct suite_random r = suite_random_of(31, bytes);
    for (int n = 0; n < PIECE && status == ATTN_OK; n++) x[n] = suite_normal(&r);
    if (status == ATTN_OK) suite_encode(dtype, encoded, x, PIECE, 1);
    for (size_t done = 0; done < bytes && status == ATTN_OK; done += piece)
        status =
            attn_upload(w->ctx, (unsigned char *)to + done, encoded, bytes - done < piece ? bytes - done : piece, NULL);
    free(x);
    free(encoded);
    return status;
}

static attn_status add_tensor(struct timed *w, attn_tensor *tensor, int32_t dtype, int64_t b, int64_t h, int64_t s,
                              int64_t d)
{
    void *data;
    size_t bytes = attn_dtype_bytes((attn_dtype)dtype, b * h * s * d);
    attn_status status = take(w, bytes, &data);
    if (status != ATTN_OK) return status;
    *tensor = attn_bhsd(data, (attn_dtype)dtype, b, h, s, d);
    return fill(w, data, dtype, bytes);
}

static attn_status open_shape(struct timed *w, const struct suite_target *target, const struct suite_shape *s)
{
    *w = (struct timed){.ctx = target->ctx, .index = target->index, .p = ATTN_PROBLEM_INIT};
    w->exec = (attn_exec)ATTN_EXEC_INIT;
    w->plan = (attn_plan)ATTN_PLAN_INIT;
    attn_status status = add_tensor(w, &w->p.q, s->dtype, s->b, s->hq, s->sq, s->d);
    if (status == ATTN_OK) status = add_tensor(w, &w->p.k, s->dtype, s->b, s->hkv, s->sk, s->d);
    if (status == ATTN_OK) status = add_tensor(w, &w->p.v, s->dtype, s->b, s->hkv, s->sk, s->d);
    if (status == ATTN_OK) status = add_tensor(w, &w->p.out, s->dtype, s->b, s->hq, s->sq, s->d);
    if (status == ATTN_OK) status = attn_query(w->ctx, ATTN_OP_FORWARD, &w->p, NULL, NULL, &w->plan);
    w->exec.workspace_bytes = w->plan.workspace_bytes;
    return status == ATTN_OK ? take(w, w->plan.workspace_bytes, &w->exec.workspace) : status;
}

static void close_shape(struct timed *w)
{
    while (w->blocks) attn_free(w->ctx, w->block[--w->blocks]);
}

/* Seconds of a call among `calls` that are waited for together. */
static attn_status time_calls(struct timed *w, int calls, double *seconds)
{
    double start = suite_now();
    attn_status status = ATTN_OK;
    for (int n = 0; n < calls && status == ATTN_OK; n++) status = attn_forward(w->ctx, &w->p, &w->exec);
    if (status == ATTN_OK) status = attn_sync(w->ctx, NULL);
    *seconds = (suite_now() - start) / calls;
    return status;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median, after a call that warms up and one that tells how many fill a batch. */
static attn_status time_well(struct timed *w, double *seconds)
{
    double times[BATCHES], one, spent = 0;
    int count = 0;
    attn_status status = time_calls(w, 1, &one);
    if (status == ATTN_OK) status = time_calls(w, 1, &one);
    int calls = one * BATCH_MAX <= BATCH ? BATCH_MAX : one >= BATCH ? 1 : (int)(BATCH / one);
    while (status == ATTN_OK && count < BATCHES && (!count || spent < BUDGET)) {
        status = time_calls(w, calls, &times[count]);
        spent += times[count++] * calls;
    }
    if (status != ATTN_OK) return status;
    qsort(times, (size_t)count, sizeof *times, compare);
    *seconds = times[count / 2];
    return ATTN_OK;
}

/* The least of a few calls, for a machine that does other things too; the first of them only warms up. */
static attn_status time_shortly(struct timed *w, double *seconds)
{
    double one = 0, spent = 0;
    attn_status status = time_calls(w, 1, seconds);
    for (int n = 0; n < SHORTLY && status == ATTN_OK && spent < BUDGET; n++, spent += one) {
        status = time_calls(w, 1, &one);
        if (!n || one < *seconds) *seconds = one;
    }
    return status;
}

/* A part of the shape: 0 one kv head and a sixteenth of the tokens, 1 a quarter of the tokens, 2 all of it. */
static struct suite_shape part_of(const struct suite_shape *whole, int step)
{
    struct suite_shape p = *whole;
    int divisor = step == 0 ? 16 : step == 1 ? 4 : 1;
    p.sq = p.sq / divisor ? p.sq / divisor : 1;
    p.sk = p.sk / divisor;
    if (step == 0) p.hq /= p.hkv, p.hkv = 1;
    return p;
}

static void time_shape(const struct suite_target *target, struct suite_timing *timing)
{
    for (int step = 0; step < 3; step++) {
        struct timed w;
        struct suite_shape part = part_of(timing->shape, step), next = part_of(timing->shape, step + 1);
        double seconds = 0, larger = suite_shape_flops(&next) / suite_shape_flops(&part);
        attn_status status = open_shape(&w, target, &part);
        if (status == ATTN_OK) status = step < 2 ? time_shortly(&w, &seconds) : time_well(&w, &seconds);
        snprintf(timing->kernel, sizeof timing->kernel, "%s", w.plan.kernel);
        if (status != ATTN_OK)
            snprintf(timing->text, sizeof timing->text, "%s: %s", attn_status_string(status), attn_last_error());
        close_shape(&w);
        if (status != ATTN_OK) return;
        /* One head is served by one core or multiprocessor, so the next step may be as many times faster. */
        if (step < 2 && seconds * larger > (step ? LONGEST : 4 * LONGEST)) {
            snprintf(timing->text, sizeof timing->text, "too slow: (%d,%d,%d,%d,%d,%d) takes %.3g ms", part.b, part.hq,
                     part.hkv, part.sq, part.sk, part.d, 1e3 * seconds);
            return;
        }
        if (step == 2) timing->seconds = seconds;
    }
}

void suite_time(struct suite *s)
{
    for (int t = 0; t < s->targets; t++)
        for (int n = 0; n < SUITE_SHAPES; n++) {
            struct suite_timing *timing = &s->timing[s->timing_count++];
            *timing = (struct suite_timing){.target = t, .shape = &shapes[n]};
            time_shape(&s->target[t], timing);
        }
}
