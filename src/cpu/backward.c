/* SPDX-License-Identifier: Apache-2.0
 * Schedules a backward call. A chain is one kv head of one sequence, with all query heads of its group; its steps are blocks
 * of keys, each against all row blocks that see one of them. dK and dV are a step's own. dQ of a row block is summed over
 * the chain's steps, in key order whoever takes them: a counter for each row block says whose turn it is, and a step waits for
 * the one before it, row block by row block, so that the threads of one chain run one behind the other. Steps are handed
 * out so that every wait is for one that some thread has begun. So five products suffice, no sum has two orders,
 * and one head keeps all threads busy.
 *
 * A chain's dQ is summed in float32 in the workspace and written by its last step. Chains are handed out in sets of as
 * many as there are threads; two sets have slots there, unless all chains have room in no more.
 *
 * Workspace: of each sequence where its rows start; LSE and dLSE - D of each row; counters; slots; scratch of each
 * thread. Nothing of the size Sq Sk. */
#include "backward.h"
#include <sched.h>

enum {
    DQ_LANES = 16, /* strides of dQ */
    ROW_PARTS = 8  /* of a chain, in phase 1: one may be all there is */
};

/* ---- sizes ----------------------------------------------------------------------------------- */

static size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

typedef struct layout {
    double bytes;
    size_t starts, rows, counters, dq; /* bytes of each part */
    int64_t slots, slot_rows;          /* 0: every chain has room */
    size_t scratch;                    /* of a thread */
} layout;

/* By the sizes of the problem alone. Doubles, because sizes may be anything until the sum is known to fit. */
static layout layout_of(const attn_job *job, const attn_cpu_level *level, int32_t threads)
{
    const bool packed = job->q_span.offsets != NULL; /* what they hold may change: one sequence may have all rows */
    const int64_t most_q = packed ? job->q_span.room : attn_min(job->q_span.room, job->max_q);
    const double chains = (double)job->batch * (double)job->heads_kv;
    const double rows = (double)job->heads_q * (packed ? 1.0 : (double)job->batch) * (double)most_q;
    layout l = {.slots = 2 * (int64_t)threads, .slot_rows = most_q * job->group};
    double dq_rows = (double)l.slots * (double)l.slot_rows;
    if (dq_rows >= rows) {
        l.slots = l.slot_rows = 0;
        dq_rows = rows;
    }
    const double starts = (double)job->batch * sizeof(attn_cpu_start), stats = rows * sizeof(float);
    const double counters = (rows / level->back_rows + 2.0 * chains) * sizeof(atomic_int);
    const double dq = job->dq.data ? dq_rows * (double)attn_round_up(job->head_dim, DQ_LANES) * sizeof(float) : 0.0;
    l.bytes = starts + 2.0 * stats + counters + dq;
    if (l.bytes > 7e13) return l;
    l.starts = aligned((size_t)starts);
    l.rows = aligned((size_t)stats);
    l.counters = aligned((size_t)counters);
    l.dq = aligned((size_t)dq);
    l.scratch = aligned(level->back_scratch_bytes(job) + attn_cpu_bias_scratch_bytes(level, job));
    return l;
}

/* Nothing to sum: all gradients are 0. */
static bool is_nothing(const attn_job *job) { return attn_job_is_empty(job) || !job->group; }

/* Pairs times columns of a thread: some 0.1 ms. All threads of 16 cores took 0.43 ms for a quarter of it. */
enum { THREAD_WORK = 1 << 21 };

attn_status attn_cpu_plan_backward(const attn_context *ctx, const attn_job *job, attn_plan *plan)
{
    const attn_cpu_level *level = attn_cpu_choose_level(&ctx->force, "backward");
    const double products = (double)job->batch * (double)job->heads_q * (double)job->max_q * (double)job->max_k;
    const double worth = products * (double)(job->head_dim + job->head_dim_v) / THREAD_WORK;
    if (!ctx->force.threads && worth < plan->threads) plan->threads = (int32_t)attn_max(1, (int64_t)worth);
    if (!is_nothing(job)) { /* whatever max_q and max_k say of threads today */
        const layout l = layout_of(job, level, ctx->threads);
        if (l.bytes > 7e13)
            return attn_fail(ATTN_OUT_OF_MEMORY, "this problem needs a workspace of %.3g bytes", l.bytes);
        plan->workspace_bytes = l.starts + 2 * l.rows + l.counters + l.dq + (size_t)ctx->threads * l.scratch;
    }
    attn_cpu_name_plan(ctx, "backward", job, level, plan);
    return ATTN_OK;
}

/* ---- chains ---------------------------------------------------------------------------------- */

static int64_t step_keys(const backward_call *call, const attn_sequence *s)
{
    const attn_cpu_level *level = call->level;
    return s->q_len * call->job->group <= level->few_rows ? level->few_keys : level->back_keys;
}

static int64_t step_count(const backward_call *call, int64_t index)
{
    const attn_sequence s = attn_sequence_of(call->job, call->start[index / call->job->heads_kv].b);
    return attn_ceil_div(s.k_len, step_keys(call, &s));
}

chain attn_cpu_chain(const backward_call *call, int64_t index)
{
    const attn_job *job = call->job;
    const attn_cpu_start *start = &call->start[index / job->heads_kv];
    const int64_t hkv = index % job->heads_kv;
    chain c = {.start = start};
    c.block = (attn_cpu_block){.job = job, .b = start->b, .hkv = hkv, .dropout_key = call->dropout_key};
    c.block.seq = attn_sequence_of(job, start->b);
    c.block.key_end = c.block.seq.k_len;
    c.step_keys = step_keys(call, &c.block.seq);
    c.rows = c.block.seq.q_len * job->group;
    c.index = start->row + hkv * c.rows;
    c.row_block = start->row_block + hkv * attn_ceil_div(c.rows, call->level->back_rows);
    return c;
}

static attn_cpu_block rows_at(const backward_call *call, const chain *c, int64_t row)
{
    attn_cpu_block w = c->block;
    w.row = row;
    w.rows = (int)attn_min(call->level->back_rows, c->rows - row);
    return w;
}

/* ---- rows out -------------------------------------------------------------------------------- */

/* A row of n sums of a gradient; ACCUMULATE adds them to what is there. */
static void write_row(const backward_call *call, const attn_view *t, int64_t batch, int64_t h, int64_t row, int64_t n,
                      float *x, float factor)
{
    const int64_t at = attn_row_offset(t, batch, h, row);
    if (call->job->accumulate) {
        for (int64_t d = 0; d < n; d++) x[d] = x[d] * factor + attn_load_float(t, at + d);
        factor = 1.0f;
    }
    call->level->store_row(t, at, n, x, factor, 1.0f);
}

/* ---- phase 1: LSE and dLSE - D of rows ------------------------------------------------------- */

static void run_rows(void *arg, int64_t task, int32_t thread)
{
    const backward_call *call = arg;
    const attn_job *job = call->job;
    const chain c = attn_cpu_chain(call, task / ROW_PARTS);
    const int64_t step = call->level->back_rows;
    for (int64_t row = task % ROW_PARTS * step; row < c.rows; row += ROW_PARTS * step) {
        const attn_cpu_block w = rows_at(call, &c, row);
        float *rest = call->rest + c.index + row, *lse = call->lse + c.index + row;
        call->level->deltas(&w, scratch_of(call, thread), rest);
        for (int r = 0; r < w.rows; r++) {
            const int64_t h = attn_block_head(&w, r), at = w.seq.q_row + attn_block_query(&w, r);
            lse[r] = attn_load_float(&job->lse, attn_row_offset(&job->lse, w.seq.q_batch, h, at));
            if (lse[r] == -INFINITY) lse[r] = INFINITY;
            rest[r] = -rest[r];
            if (job->dlse.data)
                rest[r] += attn_load_float(&job->dlse, attn_row_offset(&job->dlse, w.seq.q_batch, h, at));
        }
    }
}

/* ---- phase 2: dQ, dK, dV --------------------------------------------------------------------- */

/* The next step in the order set, block of keys, chain of the set. False: there is none. A lock, because a step takes far
 * longer than this. */
static bool next_step(backward_call *call, int64_t *chain_index, int64_t *step)
{
    hand_out *n = &call->next;
    bool found = false;
    while (atomic_flag_test_and_set_explicit(&n->taken, memory_order_acquire)) sched_yield();
    while (n->first < call->chains && !found) {
        const int64_t end = attn_min(n->first + call->set, call->chains);
        for (; n->chain < end && !found; n->chain++) {
            found = n->step < step_count(call, n->chain);
            *chain_index = n->chain;
            *step = n->step;
        }
        n->any = n->any || found;
        if (found) break;
        if (n->any) {
            n->step++;
        } else {
            n->first = end;
            n->step = 0;
        }
        n->chain = n->first;
        n->any = false;
    }
    atomic_flag_clear_explicit(&n->taken, memory_order_release);
    return found;
}

/* Until *counter is `count`. What is waited for runs, or its thread is about to; on a crowded machine that thread needs
 * this core. */
static void wait_for(atomic_int *counter, int count)
{
    for (int spins = 0; atomic_load_explicit(counter, memory_order_acquire) != count; spins++)
        if (spins >= 64) sched_yield();
}

/* Adds the tile's dQ when it is this step's turn, and writes the rows in the last one. */
static void add_queries(const backward_call *call, const chain *c, const attn_cpu_block *w, int64_t index,
                        void *scratch)
{
    const attn_job *job = call->job;
    attn_cpu_block all = *w;
    int64_t first, end, keys = c->step_keys, step = w->key / keys;
    all.key = 0;
    all.key_end = w->seq.k_len;
    attn_block_band(&all, &first, &end);
    atomic_int *turn = &call->turn[c->row_block + w->row / call->level->back_rows];
    const int order = (int)(step - first / keys);
    const int64_t base = call->slots ? index % call->slots * call->slot_rows : c->index;
    float *dq = call->dq + (base + w->row) * call->dq_stride;
    wait_for(turn, order);
    call->level->add_queries(w, scratch, order == 0, dq, call->dq_stride);
    for (int r = 0; r < w->rows && step == (end - 1) / keys; r++)
        write_row(call, &job->dq, w->seq.q_batch, attn_block_head(w, r), w->seq.q_row + attn_block_query(w, r),
                  job->head_dim, dq + r * call->dq_stride, job->scale);
    atomic_store_explicit(turn, order + 1, memory_order_release);
}

/* The step's tiles against the rows of w. */
static void run_tiles(const backward_call *call, const chain *c, const attn_cpu_block *w, void *scratch, float *raw)
{
    const attn_cpu_level *level = call->level;
    attn_cpu_block tile = *w;
    for (; tile.key < w->key_end; tile.key += level->back_keys) {
        int64_t first, end;
        tile.key_end = attn_min(tile.key + level->back_keys, w->key_end);
        attn_block_band(&tile, &first, &end);
        if (first >= end) continue;
        level->tile_gradients(&tile, scratch, call->lse + c->index + w->row, call->rest + c->index + w->row, raw);
        if (raw) attn_cpu_bias_write(call, &tile, raw);
        level->add_keys(&tile, scratch);
    }
}

static void run_step(const backward_call *call, int64_t index, int64_t step, int32_t thread)
{
    const attn_job *job = call->job;
    const attn_cpu_level *level = call->level;
    const chain c = attn_cpu_chain(call, index);
    void *scratch = scratch_of(call, thread);
    float *raw = job->dbias.data && call->whole_bias ? attn_cpu_bias_raw(call, thread) : NULL;
    attn_cpu_key_sums sums;
    attn_cpu_block w = c.block;
    int64_t first = 0, end = 0;
    w.key = step * c.step_keys;
    w.key_end = attn_min(w.key + c.step_keys, w.seq.k_len);
    level->load_keys(&w, scratch, &sums);
    if (job->dq.data && call->slots && index >= call->slots)
        wait_for(&call->done[index - call->slots], (int)step_count(call, index - call->slots));
    for (w.row = 0; w.row < c.rows; w.row += level->back_rows) {
        w.rows = (int)attn_min(level->back_rows, c.rows - w.row);
        attn_block_band(&w, &first, &end);
        if (first >= end) continue;
        run_tiles(call, &c, &w, scratch, raw);
        if (job->dq.data) add_queries(call, &c, &w, index, scratch);
    }
    for (int64_t j = w.key; j < w.key_end; j++) {
        const int64_t row = w.seq.k_row + j, n = j - w.key;
        if (sums.dk && job->dk.data)
            write_row(call, &job->dk, w.seq.k_batch, w.hkv, row, job->head_dim, sums.dk + n * sums.dk_stride,
                      job->scale);
        if (sums.dv && job->dv.data)
            write_row(call, &job->dv, w.seq.k_batch, w.hkv, row, job->head_dim_v, sums.dv + n * sums.dv_stride, 1.0f);
        if (sums.dk || (j >= first && j < end)) continue;
        if (job->dk.data) attn_cpu_clear_row(job, &job->dk, w.seq.k_batch, w.hkv, row, job->head_dim);
        if (job->dv.data) attn_cpu_clear_row(job, &job->dv, w.seq.k_batch, w.hkv, row, job->head_dim_v);
    }
    atomic_fetch_add_explicit(&call->done[index], 1, memory_order_release);
}

static void run_steps(void *arg, int64_t task, int32_t thread)
{
    int64_t index, step;
    (void)task;
    while (next_step(arg, &index, &step)) run_step(arg, index, step, thread);
}

/* ---- phase 4, phase 3 being dbias: dsink; then backward_padding.c ------------------------------------------------- */

static void run_sink(void *arg, int64_t h, int32_t thread)
{
    (void)thread;
    const backward_call *call = arg;
    const attn_job *job = call->job;
    const double sink = (double)job->sink[h];
    double sum = 0.0;
    for (int64_t b = 0; b < job->batch; b++) {
        const chain c = attn_cpu_chain(call, chain_index(call, b, h / job->group));
        for (int64_t row = h % job->group; row < c.rows; row += job->group) {
            const double p = exp(sink - (double)call->lse[c.index + row]);
            if (p != 0.0) sum += p * (double)call->rest[c.index + row];
        }
    }
    job->dsink[h] = (float)((job->accumulate ? (double)job->dsink[h] : 0.0) + sum);
}

/* ---- the call -------------------------------------------------------------------------------- */

static void place_sequences(backward_call *call)
{
    const attn_job *job = call->job;
    int64_t row = 0, row_block = 0;
    attn_cpu_order_sequences(job, call->start);
    for (int64_t n = 0; n < job->batch; n++) {
        const int64_t rows = attn_sequence_of(job, call->start[n].b).q_len * job->group;
        call->start[n].row = row;
        call->start[n].row_block = row_block;
        row += rows * job->heads_kv;
        row_block += attn_ceil_div(rows, call->level->back_rows) * job->heads_kv;
    }
    call->done = call->turn + row_block;
    for (int64_t n = 0; n < row_block + call->chains; n++) atomic_init(&call->turn[n], 0);
}

attn_status attn_cpu_backward(const attn_context *ctx, const attn_job *job, const attn_plan *plan,
                              const attn_exec *exec)
{
    if (is_nothing(job)) {
        attn_cpu_clear_gradients(job);
        return ATTN_OK;
    }
    const attn_cpu_level *level = attn_cpu_find_level(plan->isa);
    const layout l = layout_of(job, level, plan->threads);
    char *next = exec->workspace;
    backward_call call = {
        .job = job,
        .level = level,
        .dropout_key = job->has_dropout ? attn_job_dropout_key(job) : 0,
        .chains = job->batch * job->heads_kv,
        .set = plan->threads,
        .slots = l.slots,
        .slot_rows = l.slot_rows,
        .dq_stride = attn_round_up(job->head_dim, DQ_LANES),
        .scratch_bytes = l.scratch,
        .whole_bias = job->dbias.data && attn_cpu_bias_is_whole(job),
    };
    atomic_flag_clear(&call.next.taken);
    call.start = (attn_cpu_start *)(void *)next;
    call.lse = (float *)(void *)(next += l.starts);
    call.rest = (float *)(void *)(next += l.rows);
    call.turn = (atomic_int *)(void *)(next += l.rows);
    call.dq = (float *)(void *)(next += l.counters);
    call.scratch = next + l.dq;
    place_sequences(&call);

    const int64_t *bias = job->bias_shape;
    attn_cpu_parallel(ctx, plan->threads, call.chains * ROW_PARTS, run_rows, &call);
    if (call.whole_bias && !job->accumulate)
        attn_cpu_parallel(ctx, plan->threads, bias[0] * bias[1], attn_cpu_bias_clear, &call);
    if (job->dq.data || job->dk.data || job->dv.data || call.whole_bias)
        attn_cpu_parallel(ctx, plan->threads, plan->threads, run_steps, &call);
    if (job->dbias.data && !call.whole_bias)
        attn_cpu_parallel(ctx, plan->threads, attn_cpu_bias_tiles(&call), attn_cpu_bias_sum, &call);
    if (job->dsink) attn_cpu_parallel(ctx, plan->threads, job->heads_q, run_sink, &call);
    if (job->dq.data) attn_cpu_parallel(ctx, plan->threads, call.chains, attn_cpu_query_padding, &call);
    if (job->kv_span.used || job->kv_span.start)
        attn_cpu_parallel(ctx, plan->threads, call.chains, attn_cpu_key_padding, &call);
    return ATTN_OK;
}
