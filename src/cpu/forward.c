/* SPDX-License-Identifier: Apache-2.0
 * Schedules a forward call: cuts it into blocks of query rows x key pieces, lets threads compute them in any
 * order, folds pieces in key order, and writes rows. docs/semantics.md section 8 says why the cut may depend
 * on nothing but the sequence itself.
 *
 * Workspace: per thread the level's scratch; per sequence where its tasks and partial results start; with several NUMA
 * nodes which of them each kv head of a sequence is dealt to; and, only for sequences cut into pieces, partial results
 * [kv head][row][piece][Dv + 2] in float32. */
#include "level.h"
#include "nodes.h"
#include "rows.h"

enum {
    DECODE_ROWS = 16, /* up to this Sq the keys are cut, so that a few queries can keep many threads busy */
    CHUNK = 1024      /* keys of a piece then: 40 us of work and more, 8 bytes of partial result a key at Dv = 128 */
};

typedef struct forward_call {
    const attn_job *job;
    const attn_cpu_level *level;
    uint64_t dropout_key;
    int task_rows;         /* most rows of a block */
    attn_cpu_start *start; /* [batch] */
    attn_cpu_unit *unit;   /* [batch][heads_kv], where tasks are dealt to nodes */
    float *partials;
    char *scratch;
    size_t scratch_bytes; /* of a thread */
} forward_call;

/* ---- the cut --------------------------------------------------------------------------------- */

/* Keys of a piece of a sequence; no piece is empty unless the sequence is. */
static int64_t piece_keys(const attn_job *job, int key_step, int64_t q_len, int64_t k_len)
{
    if (job->num_splits) return attn_max(key_step, attn_round_up(attn_ceil_div(k_len, job->num_splits), key_step));
    return q_len <= DECODE_ROWS ? CHUNK : attn_max(k_len, 1);
}

static int64_t piece_count(const attn_job *job, int key_step, int64_t q_len, int64_t k_len)
{
    return attn_max(1, attn_ceil_div(k_len, piece_keys(job, key_step, q_len, k_len)));
}

/* Rows of each block of a sequence but the last: as equal as row_step allows. */
static int64_t block_rows(const attn_cpu_level *level, int task_rows, int64_t rows)
{
    if (rows <= task_rows) return task_rows;
    int64_t blocks = attn_ceil_div(rows, task_rows);
    return attn_max(level->row_step, attn_round_up(attn_ceil_div(rows, blocks), level->row_step));
}

static int64_t block_count(const attn_cpu_level *level, int task_rows, int64_t rows)
{
    return attn_ceil_div(rows, block_rows(level, task_rows, rows));
}

/* Most rows that a block of this problem can have. */
static int row_bound(const attn_context *ctx, const attn_cpu_level *level, const attn_job *job)
{
    int most = level->task_rows(job, ctx->l2_bytes);
    return (int)attn_min(most, attn_max(1, attn_span_most(&job->q_span, job->max_q) * job->group));
}

/* Partial results that any lengths within these sizes can need, without reading length arrays. A double,
 * because the sizes may be anything and only what fits in memory, far below 2^53, has to be exact. */
static double partial_bound(const attn_job *job, int key_step)
{
    int64_t q_room = job->q_span.room, k_room = job->kv_span.room;
    if (!job->kv_span.offsets) k_room = attn_min(k_room, job->max_k);
    if (!job->q_span.offsets) q_room = attn_min(q_room, job->max_q);
    double heads = (double)job->heads_q, batch = (double)job->batch;
    if (job->num_splits) {
        int64_t pieces = attn_min(job->num_splits, attn_ceil_div(k_room, key_step));
        if (pieces <= 1) return 0.0;
        return heads * (job->q_span.offsets ? 1.0 : batch) * (double)q_room * (double)pieces;
    }
    bool lengths = job->q_span.offsets || job->q_span.used || job->q_span.start;
    if (k_room <= CHUNK || (!lengths && q_room > DECODE_ROWS)) return 0.0;
    double pieces =
        job->kv_span.offsets ? (double)(k_room / CHUNK) + batch : batch * (double)attn_ceil_div(k_room, CHUNK);
    return heads * (double)attn_min(q_room, DECODE_ROWS) * pieces;
}

static int64_t partial_floats(const attn_job *job) { return job->head_dim_v + 2; /* m, l, O */ }

/* Lists of tasks by node, if the team can be on several. */
static bool has_lists(const attn_context *ctx) { return ctx->nodes.count > 1 && !ctx->force.numa_never; }

static double unit_bytes(const attn_context *ctx, const attn_job *job)
{
    return has_lists(ctx) ? (double)job->batch * (double)job->heads_kv * sizeof(attn_cpu_unit) : 0.0;
}

static size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

/* Whether sequences of these sizes together are worth waking other threads. */
static bool is_small(const attn_job *job, int64_t most_q, int64_t most_k)
{
    double products = (double)job->batch * (double)job->heads_q * (double)most_q * (double)most_k;
    return products * (double)(job->head_dim + job->head_dim_v) < ATTN_CPU_SMALL;
}

attn_status attn_cpu_plan_forward(const attn_context *ctx, const attn_job *job, attn_plan *plan)
{
    const attn_cpu_level *level = attn_cpu_choose_level(&ctx->force, "forward");
    /* A bound may be above the room that there is. Never more than `alone` looks at below, so that what is sized for one
     * thread runs on one. */
    const int64_t q = attn_min(job->max_q, job->q_span.room), k = attn_min(job->max_k, job->kv_span.room);
    if (!ctx->force.threads && is_small(job, q, k)) plan->threads = 1;
    if (!attn_job_is_empty(job)) { /* whatever max_q and max_k say of threads today */
        const int64_t most_q = attn_span_most(&job->q_span, job->max_q);
        const int64_t most_k = attn_span_most(&job->kv_span, job->max_k);
        const bool alone = !ctx->force.threads && is_small(job, most_q, most_k);
        const size_t scratch = level->scratch_bytes(job, row_bound(ctx, level, job));
        double partials = partial_bound(job, level->key_step) * (double)partial_floats(job) * sizeof(float);
        double starts = (double)job->batch * sizeof(attn_cpu_start);
        double units = unit_bytes(ctx, job), bytes = partials + starts + units;
        if (bytes > 7e13) return attn_fail(ATTN_OUT_OF_MEMORY, "this problem needs a workspace of %.3g bytes", bytes);
        plan->workspace_bytes = aligned((size_t)starts) + aligned((size_t)units) + aligned((size_t)partials);
        plan->workspace_bytes += scratch * (alone ? 1 : (size_t)ctx->threads);
    }
    plan->num_splits = (int32_t)piece_count(job, level->key_step, job->max_q, job->max_k);
    attn_cpu_name_plan(ctx, "forward", job, level, plan);
    if (plan->threads > 1 && has_lists(ctx)) strcat(plan->reason, "; a list of tasks for each NUMA node");
    return ATTN_OK;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* exp(x - base) where base is the largest of the x, which may all be -inf: then 0. */
static float weight(float x, float largest) { return expf(x - (largest == -INFINITY ? 0.0f : largest)); }

/* Adds the sink, divides, writes. */
static inline void finish_row(const forward_call *call, const attn_sequence *s, int64_t h, int64_t i, float m, float l,
                              const float *o)
{
    const attn_job *job = call->job;
    float largest = m, shrink = 1.0f;
    if (job->sink) {
        float sink = job->sink[h];
        largest = sink > m ? sink : m;
        shrink = weight(m, largest);
        l = l * shrink + weight(sink, largest);
    }
    int64_t offset = attn_row_offset(&job->out, s->q_batch, h, s->q_row + i);
    if (l == 0.0f)
        memset(attn_element(&job->out, offset), 0, attn_dtype_bytes((attn_dtype)job->out.dtype, job->head_dim_v));
    else call->level->store_row(&job->out, offset, job->head_dim_v, o, shrink, l);
    if (job->lse.data)
        attn_store_float(&job->lse, attn_row_offset(&job->lse, s->q_batch, h, s->q_row + i),
                         l == 0.0f ? -INFINITY : largest + logf(l));
}

static float *partial_of(const forward_call *call, const attn_cpu_start *start, int64_t rows, int64_t pieces,
                         int64_t hkv, int64_t row, int64_t piece)
{
    return call->partials + (start->partial + (hkv * rows + row) * pieces + piece) * partial_floats(call->job);
}

/* ---- phase 1: blocks ------------------------------------------------------------------------- */

/* The sequence that task belongs to: the last one that starts at or before it. */
static int64_t find_sequence(const forward_call *call, int64_t task)
{
    int64_t low = 0, high = call->job->batch;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (call->start[middle].task <= task) low = middle;
        else high = middle;
    }
    return low;
}

/* block: counted from the last one, because causal ones at the end are longest. */
static void run_block(const forward_call *call, const attn_cpu_start *start, int64_t hkv, int64_t block, int64_t piece,
                      int32_t thread)
{
    const attn_job *job = call->job;
    const attn_cpu_level *level = call->level;
    const attn_sequence seq = attn_sequence_of(job, start->b);
    const int64_t pieces = start->pieces, keys = piece_keys(job, level->key_step, seq.q_len, seq.k_len);
    const int64_t rows = seq.q_len * job->group, each = block_rows(level, call->task_rows, rows);
    const int64_t row = (attn_ceil_div(rows, each) - 1 - block) * each, key = piece * keys;
    const attn_cpu_block w = {
        .job = job,
        .seq = seq,
        .b = start->b,
        .hkv = hkv,
        .row = row,
        .rows = (int)attn_min(each, rows - row),
        .key = key,
        .key_end = attn_min(key + keys, seq.k_len),
        .dropout_key = call->dropout_key,
    };

    attn_cpu_state state;
    level->forward(&w, call->scratch + (size_t)thread * call->scratch_bytes, &state);
    int64_t i = attn_block_query(&w, 0), h = attn_block_head(&w, 0);
    for (int r = 0; r < w.rows; r++, attn_block_next(&w, &i, &h)) {
        const float *o = state.o + r * state.o_stride;
        if (pieces == 1) {
            finish_row(call, &w.seq, h, i, state.m[r], state.l[r], o);
            continue;
        }
        float *partial = partial_of(call, start, rows, pieces, w.hkv, w.row + r, piece);
        partial[0] = state.m[r];
        partial[1] = state.l[r];
        memcpy(partial + 2, o, (size_t)job->head_dim_v * sizeof *o);
    }
}

/* One list for all: a sequence's heads go along together, so that its longest blocks come first. */
static void run_task(void *arg, int64_t task, int32_t thread)
{
    const forward_call *call = arg;
    const attn_cpu_start *start = &call->start[find_sequence(call, task)];
    const int64_t heads = call->job->heads_kv, pieces = start->pieces, nth = (task - start->task) / pieces;
    run_block(call, start, nth % heads, nth / heads, (task - start->task) % pieces, thread);
}

/* ---- phase 1 by NUMA node -------------------------------------------------------------------- */

static void run_listed(void *arg, int64_t task, int32_t thread)
{
    const forward_call *call = arg;
    const int64_t heads = call->job->heads_kv;
    int64_t low = 0, high = call->job->batch * heads; /* the last place that starts at or before the task */
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (call->unit[middle].task <= task) low = middle;
        else high = middle;
    }
    const attn_cpu_unit *place = &call->unit[low];
    const attn_cpu_start *start = &call->start[place->index / heads];
    const int64_t pieces = start->pieces;
    task -= place->task;
    run_block(call, start, place->index % heads, task / pieces, task % pieces, thread);
}

/* Where the middle of the keys that a unit's last row sees lies; others' page table entries are not to be read. Not asked
 * for (some 0.3 us each) where there are few keys. */
static void find_homes(const attn_nodes *nodes, const forward_call *call, int64_t units)
{
    const attn_job *job = call->job;
    void *address[ATTN_FIND_MEMORY];
    int32_t node[ATTN_FIND_MEMORY];
    for (int64_t first = 0; first < units; first += ATTN_FIND_MEMORY) {
        const int count = (int)attn_min(ATTN_FIND_MEMORY, units - first);
        for (int n = 0; n < count; n++) {
            const attn_cpu_start *start = &call->start[(first + n) / job->heads_kv];
            const attn_sequence s = attn_sequence_of(job, start->b);
            int64_t first_key, end, batch, row;
            attn_visible(job, &s, s.q_len - 1, &first_key, &end);
            address[n] = NULL;
            if (s.k_len < CHUNK || s.q_len == 0 || first_key >= end) continue;
            attn_key_place(job, &s, start->b, (first_key + end) / 2, &batch, &row);
            address[n] = attn_element(&job->k, attn_row_offset(&job->k, batch, (first + n) % job->heads_kv, row));
        }
        attn_cpu_find_memory(nodes, count, address, node);
        for (int n = 0; n < count; n++) call->unit[first + n].node = node[n];
    }
}

static void run_lists(const attn_context *ctx, forward_call *call, int32_t threads, int64_t tasks)
{
    const int64_t batch = call->job->batch, heads = call->job->heads_kv;
    attn_cpu_lists lists = {.nodes = &ctx->nodes, .body = run_listed, .arg = call};
    int64_t place = 0, task = 0;
    for (int64_t u = 0; u < batch * heads; u++)
        call->unit[u] = (attn_cpu_unit){.work = call->start[u / heads].work, .node = -1};
    if (call->job->max_k >= CHUNK) find_homes(&ctx->nodes, call, batch * heads);
    attn_cpu_deal(&ctx->nodes, batch * heads, call->unit);
    for (int32_t node = 0; node < ctx->nodes.count; node++) {
        for (int64_t u = 0; u < batch * heads; u++) {
            if (call->unit[u].node != node) continue;
            const int64_t n = u / heads, end = n + 1 < batch ? call->start[n + 1].task : tasks;
            call->unit[place].index = u;
            call->unit[place++].task = task;
            task += (end - call->start[n].task) / heads;
        }
        lists.end[node] = task;
    }
    attn_cpu_parallel_lists(ctx, threads, &lists);
}

/* ---- phase 2: fold pieces in key order ------------------------------------------------------- */

static void fold_row(const forward_call *call, float *first, int64_t pieces)
{
    const int64_t dv = call->job->head_dim_v, step = partial_floats(call->job);
    for (int64_t piece = 1; piece < pieces; piece++) {
        const float *next = first + piece * step;
        float largest = next[0] > first[0] ? next[0] : first[0];
        float a = weight(first[0], largest), c = weight(next[0], largest);
        for (int64_t d = 2; d < dv + 2; d++) first[d] = first[d] * a + next[d] * c;
        first[1] = first[1] * a + next[1] * c;
        first[0] = largest;
    }
}

static void run_fold(void *arg, int64_t task, int32_t thread)
{
    (void)thread;
    const forward_call *call = arg;
    const attn_job *job = call->job;
    const attn_cpu_start *start = &call->start[task / job->heads_kv];
    int64_t hkv = task % job->heads_kv;
    attn_sequence s = attn_sequence_of(job, start->b);
    int64_t rows = s.q_len * job->group, pieces = start->pieces;
    if (pieces == 1) return;
    for (int64_t row = 0; row < rows; row++) {
        float *first = partial_of(call, start, rows, pieces, hkv, row, 0);
        fold_row(call, first, pieces);
        finish_row(call, &s, hkv * job->group + row % job->group, row / job->group, first[0], first[1], first + 2);
    }
}

/* ---- phase 3: padding rows ------------------------------------------------------------------- */

static void run_padding(void *arg, int64_t task, int32_t thread)
{
    (void)thread;
    const attn_job *job = ((const forward_call *)arg)->job;
    int64_t b = task / job->heads_q, h = task % job->heads_q;
    attn_sequence s = attn_sequence_of(job, b);
    for (int64_t row = s.q_room_row; row < s.q_room_row + s.q_room; row++) {
        if (row == s.q_row) row += s.q_len;
        if (row >= s.q_room_row + s.q_room) break;
        char *out = attn_element(&job->out, attn_row_offset(&job->out, s.q_batch, h, row));
        memset(out, 0, attn_dtype_bytes((attn_dtype)job->out.dtype, job->head_dim_v));
        if (job->lse.data) attn_store_float(&job->lse, attn_row_offset(&job->lse, s.q_batch, h, row), -INFINITY);
    }
}

/* ---- the call -------------------------------------------------------------------------------- */

/* Blocks as large as they may be, unless that would leave threads idle. Who computes a row cannot change it. */
static int choose_task_rows(const forward_call *call, int most, int32_t threads)
{
    /* Tasks of a thread, so that the last ones end together; fewer where blocks of less than ROWS would pack too often. */
    enum { TASKS = 8, FEWEST = 4, ROWS = 432 };
    const attn_job *job = call->job;
    double rows = 0.0;
    if (threads <= 1) return most;
    for (int64_t n = 0; n < job->batch; n++) {
        attn_sequence s = attn_sequence_of(job, n);
        rows +=
            (double)s.q_len * (double)job->heads_q * (double)piece_count(job, call->level->key_step, s.q_len, s.k_len);
    }
    double share = fmax(rows / threads / TASKS, fmin(rows / threads / FEWEST, ROWS));
    if (share >= (double)most) return most;
    return (int)attn_min(most, attn_round_up(attn_max(1, (int64_t)share), call->level->row_step));
}

attn_status attn_cpu_forward(const attn_context *ctx, const attn_job *job, const attn_plan *plan, const attn_exec *exec)
{
    void *workspace = exec->workspace;
    const attn_cpu_level *level = attn_cpu_choose_level(&ctx->force, "forward");
    if (attn_job_is_empty(job)) return ATTN_OK;
    int most = row_bound(ctx, level, job);
    forward_call call = {
        .job = job,
        .level = level,
        .dropout_key = job->has_dropout ? attn_job_dropout_key(job) : 0,
        .start = workspace,
        .scratch_bytes = level->scratch_bytes(job, most),
    };
    call.task_rows = choose_task_rows(&call, most, plan->threads);
    attn_cpu_order_sequences(job, call.start);
    bool cut = false;
    int64_t task = 0, partial = 0;
    for (int64_t n = 0; n < job->batch; n++) {
        attn_sequence s = attn_sequence_of(job, call.start[n].b);
        int64_t pieces = piece_count(job, level->key_step, s.q_len, s.k_len);
        call.start[n].pieces = pieces;
        call.start[n].task = task;
        call.start[n].partial = partial;
        task += block_count(level, call.task_rows, s.q_len * job->group) * job->heads_kv * pieces;
        partial += pieces > 1 ? s.q_len * job->heads_q * pieces : 0;
        cut = cut || pieces > 1;
    }
    char *next = (char *)workspace + aligned((size_t)job->batch * sizeof *call.start);
    call.unit = (attn_cpu_unit *)(void *)next;
    next += aligned((size_t)unit_bytes(ctx, job));
    call.partials = (float *)next;
    call.scratch = next + aligned((size_t)(partial * partial_floats(job)) * sizeof *call.partials);

    if (plan->threads > 1 && has_lists(ctx)) run_lists(ctx, &call, plan->threads, task);
    else attn_cpu_parallel(ctx, plan->threads, task, run_task, &call);
    if (cut) attn_cpu_parallel(ctx, plan->threads, job->batch * job->heads_kv, run_fold, &call);
    if (job->q_span.used || job->q_span.start)
        attn_cpu_parallel(ctx, plan->threads, job->batch * job->heads_q, run_padding, &call);
    return ATTN_OK;
}
