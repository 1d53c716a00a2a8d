/* SPDX-License-Identifier: Apache-2.0
 * Gradients of docs/semantics.md section 7 in float64. Four passes, each parallel over what it writes, so
 * that every sum has one owner and one order: rows (softmax statistics and D, recomputed, not taken from the
 * caller's rounded out and lse), dQ by row blocks, dK and dV by key blocks, dbias by its own rows. */
#include "../cpu/rows.h"
#include "ref.h"

typedef struct backward_call {
    const attn_job *job;
    ref_stat *stat; /* [batch axis][heads_q][rows of the tensor] */
    double *delta;  /* likewise: D */
    char *scratch;
    size_t scratch_bytes;
} backward_call;

static int64_t q_rows_total(const attn_job *job)
{
    return (job->q_span.offsets ? 1 : job->batch) * job->heads_q * job->q_span.room;
}

static int64_t row_index(const ref_place *w, int64_t r)
{
    return (w->seq.q_batch * w->job->heads_q + w->h) * w->job->q_span.room + w->seq.q_row + w->i + r;
}

static ref_tiles tiles_of(const backward_call *call, int32_t thread)
{
    return attn_ref_tiles_at(call->job, call->scratch + (size_t)thread * call->scratch_bytes);
}

static double incoming_lse(const ref_place *w, int64_t r)
{
    const attn_view *t = &w->job->dlse;
    if (!t->data) return 0.0;
    return (double)attn_load_float(t, attn_row_offset(t, w->seq.q_batch, w->h, w->seq.q_row + w->i + r));
}

/* Adds to what is there, or replaces it. */
static void write_row(const attn_job *job, const attn_view *t, int64_t batch, int64_t h, int64_t row, int64_t n,
                      const double *x, double factor)
{
    int64_t at = attn_row_offset(t, batch, h, row);
    for (int64_t d = 0; d < n; d++) {
        double old = job->accumulate ? (double)attn_load_float(t, at + d) : 0.0;
        attn_store_float(t, at + d, (float)(old + factor * x[d]));
    }
}

/* Rows of the room that are not used: gradient 0. */
static void write_padding(const attn_job *job, const attn_view *t, const attn_span *span, int64_t b, int64_t h,
                          int64_t n)
{
    int64_t base, room, first, used;
    attn_span_rows(span, b, &base, &room, &first, &used);
    for (int64_t row = base; row < base + room && !job->accumulate; row++) {
        if (row >= first && row < first + used) continue;
        int64_t at = attn_row_offset(t, span->offsets ? 0 : b, h, row);
        for (int64_t d = 0; d < n; d++) attn_store_float(t, at + d, 0.0f);
    }
}

/* P and dS of the loaded tile; z and slope stay valid. */
static void tile_gradients(const backward_call *call, const ref_place *w, ref_tiles *t)
{
    attn_ref_scores(w, t);
    attn_ref_dropout(w, t);
    memset(t->ds, 0, sizeof(double) * REF_ROWS * REF_KEYS);
    attn_ref_multiply(w->rows, REF_KEYS, t->dv, t->dout, t->dv, 1, t->vt, REF_KEYS, t->ds, REF_KEYS);
    for (int r = 0; r < w->rows; r++) {
        ref_stat stat = call->stat[row_index(w, r)];
        double rest = incoming_lse(w, r) - call->delta[row_index(w, r)];
        for (int j = 0; j < w->keys; j++) {
            int at = r * REF_KEYS + j;
            t->p[at] = attn_ref_probability(stat, t->s[at]);
            t->ds[at] = t->p[at] == 0.0 ? 0.0 : t->p[at] * (t->z[at] * t->ds[at] + rest);
        }
    }
}

/* dS to dT: through the softcap. */
static void through_softcap(const ref_place *w, ref_tiles *t)
{
    for (int r = 0; r < w->rows; r++)
        for (int j = 0; j < w->keys; j++) t->ds[r * REF_KEYS + j] *= t->slope[r * REF_KEYS + j];
}

/* ---- pass 1: statistics and D of every row --------------------------------------------------- */

static void run_rows(void *arg, int64_t task, int32_t thread)
{
    const backward_call *call = arg;
    ref_place w;
    ref_stat stat[REF_ROWS];
    if (!attn_ref_row_place(call->job, task, &w)) return;
    ref_tiles t = tiles_of(call, thread);
    attn_ref_statistics(&w, &t, stat);
    attn_ref_output(&w, &t, stat);
    for (int r = 0; r < w.rows; r++) {
        double delta = 0.0;
        for (int64_t d = 0; d < t.dv; d++) delta += t.dout[r * t.dv + d] * t.o[r * t.dv + d];
        call->stat[row_index(&w, r)] = stat[r];
        call->delta[row_index(&w, r)] = delta;
    }
}

/* ---- pass 2: dQ ------------------------------------------------------------------------------ */

static void run_dq(void *arg, int64_t task, int32_t thread)
{
    const backward_call *call = arg;
    const attn_job *job = call->job;
    ref_place w;
    if (!attn_ref_row_place(job, task, &w)) return;
    ref_tiles t = tiles_of(call, thread);
    attn_ref_load_queries(&w, &t);
    memset(t.o, 0, sizeof(double) * (size_t)(REF_ROWS * t.d));
    for (w.j = 0; w.j < w.seq.k_len; w.j += REF_KEYS) {
        w.keys = (int)attn_min(REF_KEYS, w.seq.k_len - w.j);
        if (!attn_ref_visible(&w)) continue;
        attn_ref_load_keys(&w, &t);
        tile_gradients(call, &w, &t);
        through_softcap(&w, &t);
        attn_ref_multiply(w.rows, t.d, w.keys, t.ds, REF_KEYS, 1, t.k, t.d, t.o, t.d);
    }
    for (int r = 0; r < w.rows; r++)
        write_row(job, &job->dq, w.seq.q_batch, w.h, w.seq.q_row + w.i + r, job->head_dim, t.o + r * t.d,
                  (double)job->scale);
}

static void run_dq_padding(void *arg, int64_t task, int32_t thread)
{
    (void)thread;
    const attn_job *job = ((const backward_call *)arg)->job;
    write_padding(job, &job->dq, &job->q_span, task / job->heads_q, task % job->heads_q, job->head_dim);
}

/* ---- pass 3: dK and dV ----------------------------------------------------------------------- */

static int64_t key_blocks(const attn_job *job)
{
    return attn_ceil_div(attn_min(job->kv_span.room, job->max_k), REF_KEYS);
}

/* All rows of one query head against the tile of keys at w->j. */
static void add_head(const backward_call *call, ref_place *w, ref_tiles *t)
{
    for (w->i = 0; w->i < w->seq.q_len; w->i += REF_ROWS) {
        w->rows = (int)attn_min(REF_ROWS, w->seq.q_len - w->i);
        if (!attn_ref_visible(w)) continue;
        attn_ref_load_queries(w, t);
        tile_gradients(call, w, t);
        for (int r = 0; r < w->rows; r++)
            for (int j = 0; j < w->keys; j++) t->p[r * REF_KEYS + j] *= t->z[r * REF_KEYS + j];
        attn_ref_multiply(w->keys, t->dv, w->rows, t->p, 1, REF_KEYS, t->dout, t->dv, t->o2, t->dv);
        through_softcap(w, t);
        attn_ref_multiply(w->keys, t->d, w->rows, t->ds, 1, REF_KEYS, t->q, t->d, t->o, t->d);
    }
}

static void run_dkv(void *arg, int64_t task, int32_t thread)
{
    const backward_call *call = arg;
    const attn_job *job = call->job;
    int64_t blocks = key_blocks(job), hkv = task / blocks % job->heads_kv;
    ref_place w = {
        .job = job, .b = task / blocks / job->heads_kv, .h = hkv * job->group, .j = task % blocks * REF_KEYS};
    w.seq = attn_sequence_of(job, w.b);
    w.keys = (int)attn_min(REF_KEYS, w.seq.k_len - w.j);
    w.dropout_key = attn_job_dropout_key(job);
    if (w.keys <= 0) return;
    ref_tiles t = tiles_of(call, thread);
    memset(t.o, 0, sizeof(double) * (size_t)(REF_KEYS * t.d));
    memset(t.o2, 0, sizeof(double) * (size_t)(REF_KEYS * t.dv));
    if (job->group && w.seq.q_len) attn_ref_load_keys(&w, &t);
    for (int64_t g = 0; g < job->group; g++, w.h++) add_head(call, &w, &t);
    for (int j = 0; j < w.keys; j++) {
        int64_t row = w.seq.k_row + w.j + j;
        if (job->dk.data)
            write_row(job, &job->dk, w.seq.k_batch, hkv, row, job->head_dim, t.o + j * t.d, (double)job->scale);
        if (job->dv.data) write_row(job, &job->dv, w.seq.k_batch, hkv, row, job->head_dim_v, t.o2 + j * t.dv, 1.0);
    }
}

static void run_dkv_padding(void *arg, int64_t task, int32_t thread)
{
    (void)thread;
    const attn_job *job = ((const backward_call *)arg)->job;
    int64_t b = task / job->heads_kv, h = task % job->heads_kv;
    if (job->dk.data) write_padding(job, &job->dk, &job->kv_span, b, h, job->head_dim);
    if (job->dv.data) write_padding(job, &job->dv, &job->kv_span, b, h, job->head_dim_v);
}

/* ---- pass 4: dbias --------------------------------------------------------------------------- */

/* Adds the tile's dS to a row block of dbias in t->o2, [rows or 1][keys or 1]. */
static void add_dbias(const ref_place *w, const ref_tiles *t)
{
    bool rows = w->job->bias_shape[2] > 1, keys = w->job->bias_shape[3] > 1;
    for (int r = 0; r < w->rows; r++)
        for (int j = 0; j < w->keys; j++) t->o2[(rows ? r : 0) * REF_KEYS + (keys ? j : 0)] += t->ds[r * REF_KEYS + j];
}

/* One tile of dbias elements (a row block, or everything where rows broadcast; likewise keys): sums over every
 * (batch, head, row block, key block) that it stands for. */
typedef struct dbias_tile {
    int64_t b, h, i, j; /* of dbias; i and j in elements */
} dbias_tile;

static void sum_dbias(const backward_call *call, const dbias_tile *e, int64_t b, int64_t h, ref_tiles *t)
{
    const attn_job *job = call->job;
    ref_place w = {.job = job, .b = b, .h = h, .seq = attn_sequence_of(job, b)};
    w.dropout_key = attn_job_dropout_key(job);
    bool all_rows = job->bias_shape[2] == 1, all_keys = job->bias_shape[3] == 1;
    int64_t i_end = all_rows ? w.seq.q_len : attn_min(e->i + REF_ROWS, w.seq.q_len);
    int64_t j_end = all_keys ? w.seq.k_len : attn_min(e->j + REF_KEYS, w.seq.k_len);
    for (w.i = e->i; w.i < i_end; w.i += REF_ROWS) {
        w.rows = (int)attn_min(REF_ROWS, i_end - w.i);
        attn_ref_load_queries(&w, t);
        for (w.j = e->j; w.j < j_end; w.j += REF_KEYS) {
            w.keys = (int)attn_min(REF_KEYS, j_end - w.j);
            if (!attn_ref_visible(&w)) continue;
            attn_ref_load_keys(&w, t);
            tile_gradients(call, &w, t);
            add_dbias(&w, t);
        }
    }
}

static void run_dbias(void *arg, int64_t task, int32_t thread)
{
    const backward_call *call = arg;
    const attn_job *job = call->job;
    const int64_t *shape = job->bias_shape;
    int64_t i_blocks = attn_ceil_div(shape[2], REF_ROWS), j_blocks = attn_ceil_div(shape[3], REF_KEYS);
    dbias_tile e = {.j = task % j_blocks * REF_KEYS, .i = task / j_blocks % i_blocks * REF_ROWS};
    e.h = task / j_blocks / i_blocks % shape[1];
    e.b = task / j_blocks / i_blocks / shape[1];
    ref_tiles t = tiles_of(call, thread);
    memset(t.o2, 0, sizeof(double) * REF_ROWS * REF_KEYS);
    for (int64_t b = shape[0] > 1 ? e.b : 0; b < (shape[0] > 1 ? e.b + 1 : job->batch); b++)
        for (int64_t h = shape[1] > 1 ? e.h : 0; h < (shape[1] > 1 ? e.h + 1 : job->heads_q); h++)
            sum_dbias(call, &e, b, h, &t);
    int64_t rows = attn_min(REF_ROWS, shape[2] - e.i), keys = attn_min(REF_KEYS, shape[3] - e.j);
    for (int64_t r = 0; r < rows; r++) {
        attn_view shifted = job->dbias; /* write_row starts at column 0 */
        shifted.data = attn_element(&job->dbias, e.j);
        write_row(job, &shifted, e.b, e.h, e.i + r, keys, t.o2 + r * REF_KEYS, 1.0);
    }
}

/* ---- dsink ----------------------------------------------------------------------------------- */

static void run_dsink(void *arg, int64_t h, int32_t thread)
{
    (void)thread;
    const backward_call *call = arg;
    const attn_job *job = call->job;
    double sum = 0.0;
    for (int64_t b = 0; b < job->batch; b++) {
        ref_place w = {.job = job, .b = b, .h = h, .seq = attn_sequence_of(job, b)};
        for (int64_t i = 0; i < w.seq.q_len; i++) {
            double p = attn_ref_probability(call->stat[row_index(&w, i)], (double)job->sink[h]);
            if (p != 0.0) sum += p * (incoming_lse(&w, i) - call->delta[row_index(&w, i)]);
        }
    }
    job->dsink[h] = (float)((job->accumulate ? (double)job->dsink[h] : 0.0) + sum);
}

attn_status attn_ref_backward(const attn_context *ctx, const attn_job *job, const attn_plan *plan,
                              const attn_exec *exec)
{
    void *workspace = exec->workspace;
    (void)plan;
    backward_call call = {.job = job, .stat = workspace, .scratch_bytes = attn_ref_tiles_bytes(job)};
    call.delta = (double *)call.stat + 2 * attn_round_up(q_rows_total(job), 8);
    call.scratch = (char *)(call.delta + attn_round_up(q_rows_total(job), 8));
    const int64_t *bias = job->bias_shape;
    attn_cpu_parallel(ctx, ctx->threads, attn_ref_row_tasks(job), run_rows, &call);
    if (job->dq.data && job->q_span.room) {
        attn_cpu_parallel(ctx, ctx->threads, attn_ref_row_tasks(job), run_dq, &call);
        attn_cpu_parallel(ctx, ctx->threads, job->batch * job->heads_q, run_dq_padding, &call);
    }
    if ((job->dk.data || job->dv.data) && job->kv_span.room) {
        attn_cpu_parallel(ctx, ctx->threads, job->batch * job->heads_kv * key_blocks(job), run_dkv, &call);
        attn_cpu_parallel(ctx, ctx->threads, job->batch * job->heads_kv, run_dkv_padding, &call);
    }
    if (job->dbias.data)
        attn_cpu_parallel(ctx, ctx->threads,
                          bias[0] * bias[1] * attn_ceil_div(bias[2], REF_ROWS) * attn_ceil_div(bias[3], REF_KEYS),
                          run_dbias, &call);
    if (job->dsink) attn_cpu_parallel(ctx, ctx->threads, job->heads_q, run_dsink, &call);
    return ATTN_OK;
}
