/* SPDX-License-Identifier: Apache-2.0
 * attn_dropout_mask on the CPU, for both host backends. */
#include "level.h"

typedef struct mask_call {
    const attn_job *job;
    const attn_view *keep;
    uint64_t key;
} mask_call;

static void run_mask(void *arg, int64_t task, int32_t thread)
{
    (void)thread;
    const mask_call *call = arg;
    const attn_job *job = call->job;
    int64_t b = task / job->heads_q, h = task % job->heads_q;
    for (int64_t i = 0; i < job->max_q; i++) {
        char *row = call->keep->data + attn_row_offset(call->keep, b, h, i);
        for (int64_t j = 0; j < job->max_k; j++) row[j] = (char)attn_dropout_keep(job, call->key, b, h, i, j);
    }
}

attn_status attn_cpu_dropout_mask(const attn_context *ctx, const attn_job *job, const attn_view *keep,
                                  const attn_plan *plan, const attn_exec *exec)
{
    (void)exec;
    if (!job->max_q || !job->max_k) return ATTN_OK;
    mask_call call = {job, keep, attn_job_dropout_key(job)};
    attn_cpu_parallel(ctx, plan->threads, job->batch * job->heads_q, run_mask, &call);
    return ATTN_OK;
}
