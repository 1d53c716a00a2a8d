/* SPDX-License-Identifier: Apache-2.0 */
#include "../cpu/rows.h"
#include "ref.h"

int64_t attn_ref_row_tasks(const attn_job *job)
{
    int64_t room = job->q_span.room; /* of the longest sequence there can be */
    return job->batch * job->heads_q * attn_ceil_div(attn_min(room, job->max_q), REF_ROWS);
}

bool attn_ref_row_place(const attn_job *job, int64_t task, ref_place *w)
{
    int64_t blocks = attn_ceil_div(attn_min(job->q_span.room, job->max_q), REF_ROWS);
    *w = (ref_place){.job = job, .b = task / blocks / job->heads_q, .h = task / blocks % job->heads_q};
    w->seq = attn_sequence_of(job, w->b);
    w->i = task % blocks * REF_ROWS;
    w->rows = (int)attn_min(REF_ROWS, w->seq.q_len - w->i);
    w->dropout_key = attn_job_dropout_key(job);
    return w->rows > 0;
}

typedef struct forward_call {
    const attn_job *job;
    char *scratch;
    size_t scratch_bytes;
} forward_call;

static void run_rows(void *arg, int64_t task, int32_t thread)
{
    const forward_call *call = arg;
    const attn_job *job = call->job;
    ref_place w;
    ref_stat stat[REF_ROWS];
    if (!attn_ref_row_place(job, task, &w)) return;
    ref_tiles t = attn_ref_tiles_at(job, call->scratch + (size_t)thread * call->scratch_bytes);
    attn_ref_statistics(&w, &t, stat);
    attn_ref_output(&w, &t, stat);
    for (int r = 0; r < w.rows; r++) {
        int64_t row = w.seq.q_row + w.i + r, at = attn_row_offset(&job->out, w.seq.q_batch, w.h, row);
        for (int64_t d = 0; d < job->head_dim_v; d++) attn_store_float(&job->out, at + d, (float)t.o[r * t.dv + d]);
        if (job->lse.data)
            attn_store_float(&job->lse, attn_row_offset(&job->lse, w.seq.q_batch, w.h, row),
                             (float)attn_ref_lse(stat[r]));
    }
}

static void run_padding(void *arg, int64_t task, int32_t thread)
{
    (void)thread;
    const attn_job *job = ((const forward_call *)arg)->job;
    int64_t b = task / job->heads_q, h = task % job->heads_q;
    attn_sequence s = attn_sequence_of(job, b);
    for (int64_t row = s.q_room_row; row < s.q_room_row + s.q_room; row++) {
        if (row >= s.q_row && row < s.q_row + s.q_len) continue;
        int64_t at = attn_row_offset(&job->out, s.q_batch, h, row);
        for (int64_t d = 0; d < job->head_dim_v; d++) attn_store_float(&job->out, at + d, 0.0f);
        if (job->lse.data) attn_store_float(&job->lse, attn_row_offset(&job->lse, s.q_batch, h, row), -INFINITY);
    }
}

attn_status attn_ref_forward(const attn_context *ctx, const attn_job *job, const attn_plan *plan, const attn_exec *exec)
{
    void *workspace = exec->workspace;
    (void)plan;
    if (attn_job_is_empty(job)) return ATTN_OK;
    forward_call call = {job, workspace, attn_ref_tiles_bytes(job)};
    attn_cpu_parallel(ctx, ctx->threads, attn_ref_row_tasks(job), run_rows, &call);
    attn_cpu_parallel(ctx, ctx->threads, job->batch * job->heads_q, run_padding, &call);
    return ATTN_OK;
}
