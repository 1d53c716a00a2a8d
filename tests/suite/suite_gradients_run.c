/* SPDX-License-Identifier: Apache-2.0
 * Tensors of a backward call, and the call in surroundings that show every access out of place. */
#include "suite_gradients.h"
#include "suite_format.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TENSOR_DOUT = 4, TENSOR_DLSE };

/* ---- building ---------------------------------------------------------------------------------------------------- */

static int add_dout(struct gradient_built *w)
{
    struct suite_built *t = &w->t;
    int own = t->c.layout == LAYOUT_HOSTILE ? LAYOUT_HOSTILE : t->c.layout == LAYOUT_BHSD ? LAYOUT_BHSD : LAYOUT_BSHD;
    const int64_t one[4] = {1, 1, 1, t->c.dv}, zero[4] = {0, 0, 0, 1};
    if (w->g.dout == DOUT_SHARED) {
        if (suite_add_view(t, &w->dout, t->c.out_type, one, LAYOUT_BHSD, 0)) return -1;
        memcpy(w->dout.t.shape, t->out.t.shape, sizeof w->dout.t.shape);
        memcpy(w->dout.t.stride, zero, sizeof zero);
        return 0;
    }
    if (w->g.dout == DOUT_TURNED) own = own == LAYOUT_BHSD ? LAYOUT_BSHD : LAYOUT_BHSD;
    return suite_add_view(t, &w->dout, t->c.out_type, t->out.t.shape, own, 0);
}

static int fill_incoming(struct gradient_built *w)
{
    struct suite_built *t = &w->t;
    int64_t dv = t->c.dv;
    struct suite_fill fill = {w->g.dout >= DOUT_ONES ? FILL_CONSTANT : FILL_NORMAL,
                              w->g.dout == DOUT_LARGE ? 30000.0f : 1.0f};
    float *x = malloc(sizeof *x * (size_t)(dv + 1));
    for (int64_t b = 0; x && b < t->c.b; b++) {
        const struct suite_sequence *s = &t->sequence[b];
        for (int64_t h = 0; h < t->c.hq; h++)
            for (int64_t i = 0; i < s->sq; i++) {
                int64_t row = s->row + h * s->sq + i;
                int shared = w->g.dout == DOUT_SHARED;
                suite_fill_row(fill, t->c.seed, TENSOR_DOUT, shared ? 0 : b, shared ? 0 : h, shared ? 0 : i, x, dv);
                suite_write_row(t, &w->dout, s->q_batch, h, s->q_row + i, x);
                suite_read_row(t, &w->dout, s->q_batch, h, s->q_row + i, w->dout_rows + row * dv);
                if (!w->dlse_rows) continue;
                suite_fill_row((struct suite_fill){FILL_NORMAL, 1}, t->c.seed, TENSOR_DLSE, b, h, i, x, 1);
                suite_write_row(t, &w->dlse, s->q_batch, h, s->q_row + i, x);
                w->dlse_rows[row] = (double)x[0];
            }
    }
    free(x);
    return x ? 0 : -1;
}

static int gradient_new(struct gradient *g, int64_t rows, int64_t cols)
{
    size_t n = (size_t)(rows * cols) + 1;
    g->rows = rows, g->cols = cols;
    g->truth = calloc(3 * n, sizeof *g->truth);
    g->naive = calloc(n, sizeof *g->naive);
    if (!g->truth || !g->naive) return -1;
    g->spread = g->truth + n;
    g->shift = g->truth + 2 * n;
    return 0;
}

static int add_gradients(struct gradient_built *w)
{
    struct suite_built *t = &w->t;
    const struct suite_view *const of[DBIAS + 1] = {&t->q, &t->k, &t->v, &t->bias};
    int64_t keys = t->c.hkv * w->key_row[t->c.b];
    int own = t->c.layout == LAYOUT_HOSTILE ? LAYOUT_HOSTILE : t->c.layout == LAYOUT_BSHD ? LAYOUT_BSHD : LAYOUT_BHSD;
    int has_dbias = t->bias.buffer >= 0 && t->bias.t.dtype != ATTN_BOOL;
    const int64_t *bias = t->bias.t.shape;
    for (int64_t b = 0; b <= t->c.b; b++) w->key_row[b] *= t->c.hkv;
    w->view[DBIAS].buffer = w->dsink = -1;
    for (int n = DQ; n <= DV + has_dbias; n++)
        if (suite_add_view(t, &w->view[n], w->g.type, of[n]->t.shape,
                           n == DBIAS && own == LAYOUT_BSHD ? LAYOUT_BHSD : own, 1))
            return -1;
    if (t->sink >= 0) {
        w->dsink = suite_add_buffer(t, sizeof(float) * (size_t)t->c.hq, sizeof(float), 1);
        if (w->dsink < 0 || gradient_new(&w->gradient[DSINK], t->c.hq, 1)) return -1;
    }
    if (has_dbias && gradient_new(&w->gradient[DBIAS], bias[0] * bias[1] * bias[2], bias[3])) return -1;
    return gradient_new(&w->gradient[DQ], t->rows, t->c.d) || gradient_new(&w->gradient[DK], keys, t->c.d) ||
           gradient_new(&w->gradient[DV], keys, t->c.dv);
}

int gradient_build(struct gradient_built *w, const struct gradient_case *g)
{
    struct suite_case c = g->c;
    struct suite_built *t = &w->t;
    memset(w, 0, sizeof *w);
    c.page = 0, c.no_lse = 0;
    suite_settle(&c);
    w->g = *g;
    if (!w->g.type) w->g.type = ATTN_F32;
    w->dlse.buffer = w->dlse.scale_buffer = -1;
    if (suite_build(t, &c)) return -1;
    w->key_row = calloc((size_t)c.b + 1, sizeof *w->key_row);
    w->dout_rows = calloc((size_t)(t->rows * c.dv) + 1, sizeof *w->dout_rows);
    if (g->dlse) w->dlse_rows = calloc((size_t)t->rows + 1, sizeof *w->dlse_rows);
    int failed = !w->key_row || !w->dout_rows || (g->dlse && !w->dlse_rows);
    for (int64_t b = 0; !failed && b < c.b; b++) w->key_row[b + 1] = w->key_row[b] + t->sequence[b].sk;
    if (failed || add_dout(w) || (g->dlse && suite_add_view(t, &w->dlse, ATTN_F32, t->lse.t.shape, LAYOUT_BSHD, 0)) ||
        fill_incoming(w) || add_gradients(w)) {
        gradient_unbuild(w);
        return -1;
    }
    t->input_hash = suite_inputs_hash(t);
    return 0;
}

void gradient_unbuild(struct gradient_built *w)
{
    for (int n = 0; n < GRADIENTS; n++) {
        free(w->gradient[n].truth);
        free(w->gradient[n].naive);
    }
    free(w->dout_rows);
    free(w->dlse_rows);
    free(w->key_row);
    suite_unbuild(&w->t);
    memset(w, 0, sizeof *w);
}

void gradient_result_free(struct gradient_result *result)
{
    for (int n = 0; n < GRADIENTS; n++) free(result->x[n]);
    memset(result, 0, sizeof *result);
}

/* ---- rows of gradients ------------------------------------------------------------------------------------------- */

/* function gets each row of a gradient that the library owns; index -1: padding. */
struct visit {
    struct suite_check *check;
    struct gradient_built *w;
    int which, accumulate;
    double *row, *x;
};
typedef void visitor(struct visit *v, int64_t batch, int64_t head, int64_t row, int64_t index);

static void visit_keys(struct visit *v, visitor *function)
{
    struct suite_built *t = &v->w->t;
    const int32_t *offsets = t->k_offsets < 0 ? NULL : (const int32_t *)(void *)t->buffer[t->k_offsets].data;
    for (int64_t b = 0; b < t->c.b; b++) {
        const struct suite_sequence *s = &t->sequence[b];
        int64_t first = offsets ? offsets[b] : 0, end = offsets ? offsets[b + 1] : t->k.t.shape[2];
        for (int64_t h = 0; h < t->c.hkv; h++)
            for (int64_t r = first; r < end; r++) {
                int used = r >= s->k_row && r < s->k_row + s->sk;
                function(v, s->k_batch, h, r, used ? v->w->key_row[b] + h * s->sk + r - s->k_row : -1);
            }
    }
}

static void visit_queries(struct visit *v, visitor *function)
{
    const struct suite_built *t = &v->w->t;
    for (int64_t b = 0; b < t->c.b; b++) {
        const struct suite_sequence *s = &t->sequence[b];
        for (int64_t h = 0; h < t->c.hq; h++)
            for (int64_t r = s->q_room_row; r < s->q_room_row + s->q_room; r++) {
                int used = r >= s->q_row && r < s->q_row + s->sq;
                function(v, s->q_batch, h, r, used ? s->row + h * s->sq + r - s->q_row : -1);
            }
    }
}

static void visit_rows(struct visit *v, visitor *function)
{
    const int64_t *shape = v->w->view[v->which].t.shape;
    if (v->which == DQ) visit_queries(v, function);
    else if (v->which < DBIAS) visit_keys(v, function);
    else
        for (int64_t n = 0; n < v->w->gradient[DBIAS].rows; n++)
            function(v, n / shape[2] / shape[1], n / shape[2] % shape[1], n % shape[2], n);
}

float gradient_old(int64_t d) { return 0.25f * (float)(d * 5 % 17 - 8); }

static void write_old(struct visit *v, int64_t batch, int64_t head, int64_t row, int64_t index)
{
    struct suite_view *view = &v->w->view[v->which];
    float *x = (float *)(void *)v->row;
    (void)index;
    for (int64_t d = 0; d < view->t.shape[3]; d++) x[d] = gradient_old(d);
    if (view->t.shape[3]) suite_write_row(&v->w->t, view, batch, head, row, x);
}

/* Padding is 0, or as it was. */
static void take_row(struct visit *v, int64_t batch, int64_t head, int64_t row, int64_t index)
{
    struct suite_view *view = &v->w->view[v->which];
    int64_t n = view->t.shape[3];
    if (!n) return;
    suite_read_row(&v->w->t, view, batch, head, row, v->row);
    suite_poison_row(&v->w->t, view, batch, head, row);
    if (index >= 0) memcpy(v->x + index * n, v->row, sizeof *v->x * (size_t)n);
    for (int64_t d = 0; index < 0 && d < n; d++)
        suite_expect(v->check, v->row[d] == (v->accumulate ? (double)gradient_old(d) : 0),
                     "%s, padding row %lld of batch %lld, head %lld: column %lld is %g", gradient_name(v->which),
                     (long long)row, (long long)batch, (long long)head, (long long)d, v->row[d]);
}

static int each_gradient(struct suite_check *check, struct gradient_built *w, const struct gradient_call *call,
                         struct gradient_result *result)
{
    struct suite_built *t = &w->t;
    struct visit v = {.check = check, .w = w, .accumulate = (call->flags & ATTN_GRAD_ACCUMULATE) != 0};
    v.row = malloc(sizeof *v.row * (size_t)(t->c.d + t->c.dv + t->k_axis + 1));
    int failed = !v.row;
    for (v.which = DQ; !failed && v.which < GRADIENTS; v.which++) {
        const struct gradient *g = &w->gradient[v.which];
        if (!g->truth || (call->absent & 1u << v.which)) continue;
        if (result) v.x = result->x[v.which] = calloc((size_t)(g->rows * g->cols) + 1, sizeof *v.x);
        if (result && !v.x) failed = 1;
        else if (v.which <= DBIAS) visit_rows(&v, result ? take_row : write_old);
        else {
            float *dsink = (float *)(void *)t->buffer[w->dsink].data;
            for (int64_t h = 0; h < t->c.hq; h++)
                if (result) v.x[h] = (double)dsink[h];
                else dsink[h] = gradient_old(0);
            if (result) memset(dsink, SUITE_POISON, sizeof *dsink * (size_t)t->c.hq);
        }
    }
    free(v.row);
    return suite_expect(check, !failed, "no memory");
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

/* What is not asked for goes to the device too: what is there afterwards is looked at. */
static attn_grads place_grads(struct gradient_built *w, const struct gradient_call *call,
                              const struct suite_target *target)
{
    struct suite_built *t = &w->t;
    attn_grads g = {.struct_size = sizeof g, .flags = call->flags};
    attn_tensor *const to[DBIAS + 1] = {&g.dq, &g.dk, &g.dv, &g.dbias};
    g.dout = suite_view_tensor(t, &w->dout, target);
    g.dlse = suite_view_tensor(t, &w->dlse, target);
    for (int n = DQ; n <= DBIAS; n++) {
        const attn_tensor placed = suite_view_tensor(t, &w->view[n], target);
        if (!(call->absent & 1u << n)) *to[n] = placed;
    }
    if (w->dsink >= 0) {
        void *placed = suite_buffer_place(&t->buffer[w->dsink], target);
        if (!(call->absent & 1u << DSINK)) g.dsink = placed;
    }
    return g;
}

/* A refusal says why, the call says the same, and nothing was written. */
static void expect_refusal(struct suite_check *check, struct gradient_built *w, attn_context *ctx,
                           const attn_problem *p, const attn_grads *g)
{
    char text[sizeof check->text];
    strncpy(text, attn_last_error(), sizeof text - 1);
    text[sizeof text - 1] = 0;
    suite_expect(check, check->target->backend != ATTN_BACKEND_REFERENCE, "the reference refuses: %s", text);
    suite_expect(check, text[0] != 0, "UNSUPPORTED without a text");
    suite_expect_status(check, attn_backward(ctx, p, g, NULL), ATTN_UNSUPPORTED, "attn_backward after such a query");
    suite_expect(check, !strcmp(text, attn_last_error()), "attn_query says \"%s\", attn_backward \"%s\"", text,
                 attn_last_error());
    suite_fetch_outputs(check, &w->t);
    suite_expect_clean(check, &w->t);
    suite_skip(check, text);
}

/* Gradients on top of a forward whose out and lse are inputs now. */
static int backward(struct suite_check *check, struct gradient_built *w, const struct gradient_call *call,
                    attn_context *ctx, size_t workspace_bytes, struct gradient_result *result)
{
    struct suite_built *t = &w->t;
    struct suite_buffer workspace;
    attn_exec exec = {.struct_size = sizeof exec, .flags = ATTN_EXEC_WAIT};
    if ((call->flags & ATTN_GRAD_ACCUMULATE) && !each_gradient(check, w, call, NULL)) return 0;
    attn_problem p = suite_problem(t, check->target);
    attn_grads g = place_grads(w, call, check->target);
    if (!suite_expect(check, !suite_buffer_new(&workspace, workspace_bytes, 64), "no memory")) return 0;
    exec.workspace = suite_workspace_place(&workspace, check->target);
    exec.workspace_bytes = workspace_bytes;
    int done = suite_expect_status(check, attn_backward(ctx, &p, &g, &exec), ATTN_OK, "attn_backward");
    suite_expect(check, suite_buffer_fetch(&workspace, check->target) && suite_buffer_intact(&workspace),
                 "bytes around the workspace were written");
    suite_buffer_free(&workspace);
    suite_fetch_outputs(check, t);
    if (done) done = each_gradient(check, w, call, result);
    suite_expect_clean(check, t);
    return done;
}

int gradient_run(struct suite_check *check, struct gradient_built *w, const struct gradient_call *call,
                 struct gradient_result *result)
{
    struct suite_built *t = &w->t;
    attn_context *own = !call->ctx && t->c.threads ? suite_context(check->target, t->c.threads, NULL) : NULL;
    attn_context *ctx = own ? own : call->ctx ? call->ctx : check->target->ctx;
    attn_plan plan = {.struct_size = sizeof plan};
    attn_exec wait = {.struct_size = sizeof wait, .flags = ATTN_EXEC_WAIT};
    int done = 0;
    memset(result, 0, sizeof *result);
    suite_poison_outputs(t);
    attn_problem p = suite_problem(t, check->target);
    attn_grads g = place_grads(w, call, check->target);
    attn_status status = attn_query(ctx, ATTN_OP_BACKWARD, &p, &g, NULL, &plan);
    if (status == ATTN_UNSUPPORTED) {
        expect_refusal(check, w, ctx, &p, &g);
    } else if (suite_expect_status(check, status, ATTN_OK, "attn_query") &&
               suite_expect_plan(check, "backward", &p, &plan) &&
               suite_expect_status(check, attn_forward(ctx, &p, &wait), ATTN_OK, "attn_forward")) {
        uint64_t inputs = t->input_hash;
        suite_fetch_outputs(check, t);
        t->output[t->out.buffer] = t->output[t->lse.buffer] = 0;
        t->input_hash = suite_inputs_hash(t);
        done = backward(check, w, call, ctx, plan.workspace_bytes, result);
        t->output[t->out.buffer] = t->output[t->lse.buffer] = 1;
        t->input_hash = inputs;
    }
    attn_destroy(own);
    return done && !check->failed;
}
