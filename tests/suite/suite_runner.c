/* SPDX-License-Identifier: Apache-2.0
 * One forward call on one target, in surroundings that show every access out of place, and the course of a case. */
#include "suite_case.h"
#include "suite_format.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- looking at outputs ----------------------------------------------------------------------------------------- */

void suite_poison_row(struct suite_built *t, const struct suite_view *view, int64_t b, int64_t h, int64_t s)
{
    memset(suite_row(t, view, b, h, s), SUITE_POISON, attn_dtype_bytes((attn_dtype)view->t.dtype, view->t.shape[3]));
}

/* Padding rows of q: exactly O = 0 and LSE = -inf. */
static void collect_padding(struct suite_check *check, struct suite_built *t, int64_t b, struct suite_view *out,
                            struct suite_view *lse, double *x)
{
    const struct suite_sequence *s = &t->sequence[b];
    for (int64_t h = 0; h < t->c.hq; h++)
        for (int64_t r = s->q_room_row; r < s->q_room_row + s->q_room; r++) {
            if (r >= s->q_row && r < s->q_row + s->sq) continue;
            suite_read_row(t, out, s->q_batch, h, r, x);
            for (int64_t d = 0; d < t->c.dv; d++)
                suite_expect(check, x[d] == 0, "padding row %lld of sequence %lld, head %lld: out[%lld] is %g, not 0",
                             (long long)r, (long long)b, (long long)h, (long long)d, x[d]);
            suite_poison_row(t, out, s->q_batch, h, r);
            if (!lse) continue;
            suite_read_row(t, lse, s->q_batch, h, r, x);
            suite_expect(check, x[0] == -INFINITY, "padding row %lld of sequence %lld, head %lld: lse is %g, not -inf",
                         (long long)r, (long long)b, (long long)h, x[0]);
            suite_poison_row(t, lse, s->q_batch, h, r);
        }
}

int suite_collect(struct suite_check *check, struct suite_built *t, struct suite_view *out, struct suite_view *lse,
                  struct suite_result *result)
{
    double *x = malloc(sizeof *x * (size_t)(t->c.dv + 1));
    if (!suite_expect(check, x && !suite_result_new(result, t, lse != NULL), "no memory")) {
        free(x);
        return 0;
    }
    int64_t dv = t->c.dv;
    for (int64_t b = 0; b < t->c.b; b++) {
        const struct suite_sequence *s = &t->sequence[b];
        for (int64_t h = 0; h < t->c.hq; h++)
            for (int64_t i = 0; i < s->sq; i++) {
                int64_t row = s->row + h * s->sq + i;
                suite_read_row(t, out, s->q_batch, h, s->q_row + i, x);
                for (int64_t d = 0; d < dv; d++) result->out[row * dv + d] = (float)x[d];
                suite_poison_row(t, out, s->q_batch, h, s->q_row + i);
                if (!lse) continue;
                suite_read_row(t, lse, s->q_batch, h, s->q_row + i, x);
                result->lse[row] = (float)x[0];
                suite_poison_row(t, lse, s->q_batch, h, s->q_row + i);
            }
        if (dv) collect_padding(check, t, b, out, lse, x);
    }
    free(x);
    return 1;
}

static int all_poison(const struct suite_buffer *b)
{
    for (size_t n = 0; n < b->bytes; n++)
        if (b->data[n] != SUITE_POISON) return 0;
    return 1;
}

void suite_expect_clean(struct suite_check *check, struct suite_built *t)
{
    for (int n = 0; n < t->buffers; n++) {
        suite_expect(check, suite_buffer_intact(&t->buffer[n]), "%s: bytes around it were written",
                     t->output[n] ? "an output" : "an input");
        if (t->output[n])
            suite_expect(check, all_poison(&t->buffer[n]), "bytes of an output that belong to no row were written");
    }
    suite_expect(check, suite_inputs_hash(t) == t->input_hash, "an input was written");
}

/* ---- the call --------------------------------------------------------------------------------------------------- */

void suite_fetch_outputs(struct suite_check *check, struct suite_built *t)
{
    for (int n = 0; n < t->buffers; n++)
        if (t->buffer[n].mirror_target == check->target && t->buffer[n].mirror)
            suite_expect(check, suite_buffer_fetch(&t->buffer[n], check->target),
                         "device memory around a tensor was written");
}

/* 1: the plan is there and right. */
static int query(struct suite_check *check, attn_context *ctx, const attn_problem *p, attn_plan *plan)
{
    attn_status status = attn_query(ctx, ATTN_OP_FORWARD, p, NULL, NULL, plan);
    if (status == ATTN_UNSUPPORTED &&
        check->target->backend == ATTN_BACKEND_CUDA) { /* a GPU may say so, the CPU refuses nothing */
        suite_skip(check, attn_last_error());
        return 0;
    }
    if (!suite_expect_status(check, status, ATTN_OK, "attn_query")) return 0;
    if (!suite_expect_plan(check, "forward", p, plan)) return 0;
    for (int n = 0; n < 4; n++)
        if (!p->out.shape[n]) return 1; /* of nothing nothing is copied */
    return suite_expect_staged(check, plan);
}

int suite_forward_problem(struct suite_check *check, struct suite_built *t, attn_context *ctx, const attn_problem *p,
                          struct suite_view *out, struct suite_result *result)
{
    attn_plan plan = {.struct_size = sizeof plan};
    struct suite_buffer workspace;
    attn_exec exec = {.struct_size = sizeof exec, .flags = ATTN_EXEC_WAIT};
    if (!query(check, ctx, p, &plan)) return 0;
    if (!suite_expect(check, !suite_buffer_new(&workspace, plan.workspace_bytes, 64), "no memory")) return 0;
    exec.workspace = suite_workspace_place(&workspace, check->target);
    exec.workspace_bytes = plan.workspace_bytes;
    int done = suite_expect_status(check, attn_forward(ctx, p, &exec), ATTN_OK, "attn_forward");
    suite_expect(check, suite_buffer_fetch(&workspace, check->target) && suite_buffer_intact(&workspace),
                 "bytes around the workspace were written");
    suite_buffer_free(&workspace);
    suite_fetch_outputs(check, t);
    if (done) done = suite_collect(check, t, out, p->lse.data ? &t->lse : NULL, result);
    suite_expect_clean(check, t);
    return done;
}

int suite_forward(struct suite_check *check, struct suite_built *t, attn_context *ctx, struct suite_result *result)
{
    attn_context *own = !ctx && t->c.threads ? suite_context(check->target, t->c.threads, NULL) : NULL;
    memset(result, 0, sizeof *result);
    suite_poison_outputs(t);
    attn_problem p = suite_problem(t, check->target);
    int done = suite_forward_problem(check, t, own ? own : ctx ? ctx : check->target->ctx, &p, &t->out, result);
    attn_destroy(own);
    return done;
}

/* ---- the case --------------------------------------------------------------------------------------------------- */

struct forward_case {
    struct suite_built *t;
    struct suite_truth truth;
    struct suite_result naive, reference;
    struct suite_check judge; /* what was wrong with the reference */
    suite_more *more;
};

static void run_reference(struct suite *s, struct forward_case *w)
{
    w->judge = (struct suite_check){.suite = s, .target = &s->reference};
    suite_poison_outputs(w->t);
    attn_problem p = suite_problem(w->t, &s->reference);
    p.out = suite_view_tensor(w->t, &w->t->wide, &s->reference);
    p.lse = suite_view_tensor(w->t, &w->t->lse, &s->reference);
    if (suite_forward_problem(&w->judge, w->t, s->reference.ctx, &p, &w->t->wide, &w->reference))
        suite_judge_reference(&w->judge, w->t, &w->truth, &w->reference);
}

/* Where the reference is no target, its failures show under the first one. */
static void forward_on_target(struct suite_check *check, const void *arg)
{
    struct forward_case *w = (struct forward_case *)(uintptr_t)arg;
    int is_reference = check->target->backend == ATTN_BACKEND_REFERENCE;
    if (check->target == &check->suite->target[0])
        suite_expect(check, !w->judge.failed, "%s%s", is_reference ? "" : "reference: ", w->judge.text);
    if (is_reference) {
        if (w->more && !w->judge.failed) w->more(check, w->t, &w->reference);
        return;
    }
    struct suite_result result;
    if (!suite_forward(check, w->t, NULL, &result)) return;
    suite_judge(check, w->t, &w->truth, &w->naive, &result);
    if (w->more) w->more(check, w->t, &result);
    suite_result_free(&result);
}

void suite_forward_case(struct suite *s, int quick, const char *name, const struct suite_case *given, suite_more *more)
{
    struct suite_built t;
    struct suite_case c = *given;
    struct forward_case w = {.t = &t, .more = more};
    if (!suite_selected(s, quick, name)) return;
    suite_settle(&c);
    suite_note_running(&s->reference, name);
    int built = !suite_build(&t, &c);
    if (built && !suite_truth_compute(&w.truth, &t) && !suite_naive_compute(&w.naive, &t)) run_reference(s, &w);
    else suite_expect(&w.judge, 0, "no memory to build the case");
    suite_on_targets(s, name, built ? forward_on_target : suite_no_memory, &w);
    if (!built) return;
    suite_result_free(&w.naive);
    suite_result_free(&w.reference);
    suite_truth_free(&w.truth);
    suite_unbuild(&t);
}
