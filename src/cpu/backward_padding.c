/* SPDX-License-Identifier: Apache-2.0
 * Gradients that nothing is added to: of padding, of rows that see no key, of keys that no row sees. */
#include "backward.h"

void attn_cpu_clear_row(const attn_job *job, const attn_view *t, int64_t batch, int64_t h, int64_t row, int64_t n)
{
    if (job->accumulate || n == 0) return;
    memset(attn_element(t, attn_row_offset(t, batch, h, row)), 0, attn_dtype_bytes((attn_dtype)t->dtype, n));
}

/* Rows of sequence b's room outside [first, end) of them. */
static void clear_padding(const attn_job *job, const attn_view *t, const attn_span *span, int64_t b, int64_t h,
                          int64_t n, bool all)
{
    int64_t base, room, first, used;
    if (!t->data) return;
    attn_span_rows(span, b, &base, &room, &first, &used);
    for (int64_t row = base; row < base + room; row++)
        if (all || row < first || row >= first + used) attn_cpu_clear_row(job, t, span->offsets ? 0 : b, h, row, n);
}

/* dQ of row blocks without a key, and of padding. */
void attn_cpu_query_padding(void *arg, int64_t task, int32_t thread)
{
    (void)thread;
    const backward_call *call = arg;
    const attn_job *job = call->job;
    const chain c = attn_cpu_chain(call, task);
    for (int64_t g = 0; g < job->group; g++)
        clear_padding(job, &job->dq, &job->q_span, c.block.b, c.block.hkv * job->group + g, job->head_dim, false);
    for (int64_t row = 0; row < c.rows; row += call->level->back_rows) {
        attn_cpu_block w = c.block;
        int64_t first, end;
        w.row = row;
        w.rows = (int)attn_min(call->level->back_rows, c.rows - row);
        attn_block_band(&w, &first, &end);
        for (int r = 0; r < w.rows && first >= end; r++)
            attn_cpu_clear_row(job, &job->dq, w.seq.q_batch, attn_block_head(&w, r),
                               w.seq.q_row + attn_block_query(&w, r), job->head_dim);
    }
}

void attn_cpu_key_padding(void *arg, int64_t task, int32_t thread)
{
    (void)thread;
    const attn_job *job = ((const backward_call *)arg)->job;
    const int64_t b = task / job->heads_kv, h = task % job->heads_kv;
    clear_padding(job, &job->dk, &job->kv_span, b, h, job->head_dim, false);
    clear_padding(job, &job->dv, &job->kv_span, b, h, job->head_dim_v, false);
}

void attn_cpu_clear_gradients(const attn_job *job)
{
    backward_call call = {.job = job};
    if (job->accumulate) return;
    for (int64_t b = 0; b < job->batch; b++) {
        for (int64_t h = 0; h < job->heads_q; h++)
            clear_padding(job, &job->dq, &job->q_span, b, h, job->head_dim, true);
        for (int64_t h = 0; h < job->heads_kv; h++) {
            clear_padding(job, &job->dk, &job->kv_span, b, h, job->head_dim, true);
            clear_padding(job, &job->dv, &job->kv_span, b, h, job->head_dim_v, true);
        }
    }
    for (int64_t n = 0; n < job->bias_shape[0] * job->bias_shape[1] && job->dbias.data; n++)
        attn_cpu_bias_clear(&call, n, 0);
    for (int64_t h = 0; h < job->heads_q && job->dsink; h++) job->dsink[h] = 0.0f;
}
