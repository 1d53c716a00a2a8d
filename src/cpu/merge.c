/* SPDX-License-Identifier: Apache-2.0
 * attn_merge on the host, for both backends: one task a (batch, head), parts in the given order. In float64,
 * which costs nothing beside the memory traffic and makes it fit to judge devices. */
#include "level.h"
#include "rows.h"

/* A part whose LSE is infinite either way has no weight. */
static bool has_weight(float lse) { return !isinf(lse); }

static float part_lse(const attn_merge_job *job, int32_t part, int64_t b, int64_t h, int64_t i)
{
    const attn_tensor *t = &job->lse_parts[part];
    return ((const float *)
                t->data)[b * (job->shape[0] > 1 ? t->stride[0] : 0) + h * (job->shape[1] > 1 ? t->stride[1] : 0) +
                         i * (job->shape[2] > 1 ? t->stride[2] : 0)];
}

static attn_view part_view(const attn_merge_job *job, int32_t part)
{
    const attn_tensor *t = &job->out_parts[part];
    attn_view v = {.data = t->data, .dtype = t->dtype};
    for (int axis = 0; axis < 3; axis++) v.stride[axis] = job->shape[axis] > 1 ? t->stride[axis] : 0;
    v.stride[3] = 1;
    return v;
}

static void merge_row(const attn_merge_job *job, int64_t b, int64_t h, int64_t i)
{
    enum { COLUMNS = 64 };
    int64_t dv = job->shape[3], at = attn_row_offset(&job->out, b, h, i);
    double largest = -INFINITY, sum = 0.0;
    for (int32_t part = 0; part < job->parts; part++) {
        float lse = part_lse(job, part, b, h, i);
        if (has_weight(lse) && !((double)lse <= largest)) largest = (double)lse; /* a NaN is kept */
    }
    for (int32_t part = 0; part < job->parts; part++) {
        float lse = part_lse(job, part, b, h, i);
        if (has_weight(lse)) sum += exp((double)lse - largest);
    }
    for (int64_t d = 0; d < dv; d += COLUMNS) {
        double o[COLUMNS] = {0};
        int64_t n = attn_min(COLUMNS, dv - d);
        for (int32_t part = 0; part < job->parts; part++) {
            float lse = part_lse(job, part, b, h, i);
            if (!has_weight(lse)) continue;
            attn_view v = part_view(job, part);
            double weight = exp((double)lse - largest);
            int64_t from = attn_row_offset(&v, b, h, i) + d;
            for (int64_t e = 0; e < n; e++) o[e] += weight * (double)attn_load_float(&v, from + e);
        }
        for (int64_t e = 0; e < n; e++) attn_store_float(&job->out, at + d + e, (float)(sum == 0.0 ? 0.0 : o[e] / sum));
    }
    if (job->lse.data)
        attn_store_float(&job->lse, attn_row_offset(&job->lse, b, h, i),
                         (float)(sum == 0.0 ? -INFINITY : largest + log(sum)));
}

static void run_merge(void *arg, int64_t task, int32_t thread)
{
    (void)thread;
    const attn_merge_job *job = arg;
    int64_t b = task / job->shape[1], h = task % job->shape[1];
    for (int64_t i = 0; i < job->shape[2]; i++) merge_row(job, b, h, i);
}

attn_status attn_cpu_merge(const attn_context *ctx, const attn_merge_job *job, const attn_plan *plan,
                           const attn_exec *exec)
{
    (void)exec;
    attn_merge_job copy = *job;
    if (!job->shape[2]) return ATTN_OK;
    attn_cpu_parallel(ctx, plan->threads, job->shape[0] * job->shape[1], run_merge, &copy);
    return ATTN_OK;
}
