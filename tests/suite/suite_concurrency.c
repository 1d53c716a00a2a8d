/* SPDX-License-Identifier: Apache-2.0
 * Threads, nesting, fork: the same answer to the bit, whoever calls. OpenMP regions round a call are in
 * tests/unit/test_team.c; this file knows only the public header. */
#include "suite_case.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CALLERS = 8, ROUNDS = 5 };

static struct suite_case shared_case(void)
{
    struct suite_case c = {.q_type = ATTN_F16,
                           .b = 2,
                           .hq = 4,
                           .hkv = 2,
                           .sq = 40,
                           .sk = 90,
                           .d = 64,
                           .mask = ATTN_CAUSAL,
                           .sink = 1,
                           .threads = 2,
                           .seed = 11};
    suite_settle(&c);
    return c;
}

/* ---- many callers, one context ---------------------------------------------------------------------------------- */

struct caller {
    struct suite_check check; /* of its own: suite_expect is not for several threads */
    pthread_t thread;
    attn_context *ctx;
    const struct suite_result *expected;
    struct suite_built *shape;
};

static void *call(void *arg)
{
    struct caller *me = arg;
    for (int round = 0; round < ROUNDS && !me->check.failed; round++) {
        struct suite_built t;
        struct suite_result x = {0};
        struct suite_case c = shared_case();
        if (!suite_expect(&me->check, !suite_build(&t, &c), "no memory")) break;
        if (suite_forward(&me->check, &t, me->ctx, &x)) suite_same(&me->check, me->shape, me->expected, &x, "a caller");
        suite_result_free(&x);
        suite_unbuild(&t);
    }
    return NULL;
}

static void call_together(struct suite_check *check, struct suite_built *t, const struct suite_result *expected)
{
    struct caller caller[CALLERS];
    attn_context *ctx = suite_context(check->target, 2, NULL);
    if (!suite_expect(check, ctx != NULL, "no context: %s", attn_last_error())) return;
    int started = 0;
    for (; started < CALLERS; started++) {
        caller[started] = (struct caller){.check = *check, .ctx = ctx, .expected = expected, .shape = t};
        if (pthread_create(&caller[started].thread, NULL, call, &caller[started])) break;
    }
    suite_expect(check, started == CALLERS, "only %d threads could be started", started);
    for (int n = 0; n < started; n++) {
        pthread_join(caller[n].thread, NULL);
        suite_expect(check, !caller[n].check.failed, "caller %d: %s", n, caller[n].check.text);
    }
    attn_destroy(ctx);
}

static void fork_and_call(struct suite_check *check, struct suite_built *t, const struct suite_result *expected);

/* Runs the shared problem alone, then hands it to `then`. */
static void with_expected(struct suite_check *check,
                          void (*then)(struct suite_check *, struct suite_built *, const struct suite_result *))
{
    struct suite_built t;
    struct suite_result expected = {0};
    struct suite_case c = shared_case();
    if (!suite_expect(check, !suite_build(&t, &c), "no memory")) return;
    if (suite_forward(check, &t, NULL, &expected)) then(check, &t, &expected);
    suite_result_free(&expected);
    suite_unbuild(&t);
}

static void one_context(struct suite_check *check, const void *arg)
{
    (void)arg;
    with_expected(check, call_together);
}

/* ---- contexts that come and go ---------------------------------------------------------------------------------- */

static void *come_and_go(void *arg)
{
    struct suite_check *check = arg;
    for (int n = 0; n < 20; n++) {
        attn_context *ctx = suite_context(check->target, 1 + n % 3, NULL);
        if (!suite_expect(check, ctx != NULL, "no context: %s", attn_last_error())) break;
        attn_destroy(ctx);
    }
    return NULL;
}

static void contexts(struct suite_check *check, const void *arg)
{
    struct suite_check own[CALLERS];
    pthread_t thread[CALLERS];
    int started = 0;
    (void)arg;
    for (; started < CALLERS; started++) {
        own[started] = *check;
        if (pthread_create(&thread[started], NULL, come_and_go, &own[started])) break;
    }
    for (int n = 0; n < started; n++) {
        pthread_join(thread[n], NULL);
        suite_expect(check, !own[n].failed, "thread %d: %s", n, own[n].text);
    }
}

/* ---- fork ------------------------------------------------------------------------------------------------------- */

enum { CHILD_GOOD = 0, CHILD_WRONG = 1, CHILD_SECONDS = 60 };

static int child(const struct suite_check *parent, struct suite_built *shape, const struct suite_result *expected)
{
    struct suite_check check = *parent;
    struct suite_built t;
    struct suite_result x = {0};
    struct suite_case c = shared_case();
    alarm(CHILD_SECONDS); /* a child that waits for threads it has not inherited would wait for ever */
    suite_note_running(NULL, NULL);
    if (suite_build(&t, &c)) return CHILD_WRONG;
    if (suite_forward(&check, &t, check.target->ctx, &x)) suite_same(&check, shape, expected, &x, "the child");
    return check.failed ? CHILD_WRONG : CHILD_GOOD;
}

static void fork_and_call(struct suite_check *check, struct suite_built *t, const struct suite_result *expected)
{
    int status = 0;
    pid_t pid = fork();
    if (!suite_expect(check, pid >= 0, "fork failed")) return;
    if (pid == 0) _exit(child(check, t, expected));
    waitpid(pid, &status, 0);
    suite_expect(check, WIFEXITED(status) && WEXITSTATUS(status) == CHILD_GOOD, "a child made by fork: %s",
                 WIFSIGNALED(status) ? "hung or crashed" : "other results than its parent");
    struct suite_result x = {0};
    suite_poison_outputs(t);
    if (suite_forward(check, t, NULL, &x)) suite_same(check, t, expected, &x, "the parent after its fork");
    suite_result_free(&x);
}

static void forked(struct suite_check *check, const void *arg)
{
    (void)arg;
    if (check->target->backend == ATTN_BACKEND_CUDA) {
        suite_skip(check, "a CUDA driver does not survive fork()");
        return;
    }
    with_expected(check, fork_and_call);
}

void suite_run_concurrency(struct suite *s)
{
    suite_each(s, 1, "concurrency/one-context-eight-threads", one_context, NULL);
    suite_each(s, 1, "concurrency/contexts-come-and-go", contexts, NULL);
    suite_each(s, 1, "concurrency/fork", forked, NULL);
}
