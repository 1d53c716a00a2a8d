/* SPDX-License-Identifier: Apache-2.0
 * attn_kv_append: one task a (sequence, head), rows one by one: read to float32, rotate, store or quantise.
 * The arithmetic is docs/semantics.md sections 5 and 6, to the bit. */
#include "level.h"
#include "rope.h"
#include "rows.h"

static float largest_magnitude(const float *x, int64_t n)
{
    float largest = 0.0f;
    for (int64_t d = 0; d < n; d++) largest = fabsf(x[d]) > largest ? fabsf(x[d]) : largest;
    return largest;
}

static float largest_code(int32_t dtype)
{
    return dtype == ATTN_I8 ? 127.0f : dtype == ATTN_F8_E4M3 ? ATTN_F8_E4M3_MAX : ATTN_F8_E5M2_MAX;
}

static void store_scaled_row(const attn_view *t, int64_t batch, int64_t h, int64_t row, int64_t n, const float *x,
                             bool set_scale)
{
    uint8_t *p = (uint8_t *)attn_element(t, attn_row_offset(t, batch, h, row));
    float *scale = t->scale ? attn_row_scale(t, batch, h, row) : NULL;
    if (set_scale) *scale = largest_magnitude(x, n) / largest_code(t->dtype);
    float s = scale ? *scale : 1.0f, inverse = s != 0.0f ? 1.0f / s : 0.0f;
    for (int64_t d = 0; d < n; d++) {
        if (t->dtype == ATTN_I8) p[d] = (uint8_t)attn_f32_to_i8(x[d] * inverse);
        else if (s == 0.0f) p[d] = 0;
        else p[d] = t->dtype == ATTN_F8_E4M3 ? attn_f32_to_e4m3(x[d] / s) : attn_f32_to_e5m2(x[d] / s);
    }
}

static void store_row(const attn_view *t, int64_t batch, int64_t h, int64_t row, int64_t n, const float *x,
                      bool set_scale)
{
    if (t->dtype == ATTN_Q8_0 || t->dtype == ATTN_Q4_0) {
        uint8_t *block = (uint8_t *)attn_element(t, attn_row_offset(t, batch, h, row));
        for (int64_t d = 0; d < n; d += ATTN_BLOCK) {
            if (t->dtype == ATTN_Q8_0) attn_q8_0_encode(x + d, block);
            else attn_q4_0_encode(x + d, block);
            block += t->dtype == ATTN_Q8_0 ? ATTN_Q8_0_BYTES : ATTN_Q4_0_BYTES;
        }
    } else if (t->dtype == ATTN_F32 || t->dtype == ATTN_F16 || t->dtype == ATTN_BF16) {
        attn_write_row(t, batch, h, row, n, x);
    } else {
        store_scaled_row(t, batch, h, row, n, x, set_scale);
    }
}

static void rotate(const attn_append_job *job, int64_t position, float *x)
{
    const attn_rope *r = &job->rope;
    int64_t at = position * (r->rotary_dim / 2);
    attn_rope_row(x + r->first_dim, r->cos + at, r->sin + at, r->rotary_dim, r->interleaved);
}

/* One head's rows of one sequence: a kv head (h < heads_kv), else a query head. */
static void run_append(void *arg, int64_t task, int32_t thread)
{
    (void)thread;
    const attn_append_job *job = arg;
    int64_t heads = job->heads_kv + job->heads_q, b = task / heads, h = task % heads;
    int64_t base, room, row, count, new_batch = job->new_span.offsets ? 0 : b;
    attn_span_rows(&job->new_span, b, &base, &room, &row, &count);
    for (int64_t i = 0; i < count; i++) {
        float x[ATTN_MAX_HEAD_DIM];
        int64_t batch, place, position = job->rotate ? attn_append_position(job, b, row, i) : 0;
        if (h >= job->heads_kv) {
            attn_read_row(&job->q, new_batch, h - job->heads_kv, row + i, job->head_dim, x);
            rotate(job, position, x);
            attn_write_row(&job->q, new_batch, h - job->heads_kv, row + i, job->head_dim, x);
            continue;
        }
        if (!attn_append_place(job, b, row, i, &batch, &place)) continue; /* slot -1 */
        attn_read_row(&job->k_new, new_batch, h, row + i, job->head_dim, x);
        if (job->rotate) rotate(job, position, x);
        store_row(&job->k_cache, batch, h, place, job->head_dim, x, job->set_scale);
        if (!job->v_cache.data) continue;
        attn_read_row(&job->v_new, new_batch, h, row + i, job->head_dim_v, x);
        store_row(&job->v_cache, batch, h, place, job->head_dim_v, x, job->set_scale);
    }
}

attn_status attn_cpu_append(const attn_context *ctx, const attn_append_job *job, const attn_plan *plan,
                            const attn_exec *exec)
{
    (void)exec;
    attn_append_job copy = *job;
    if (!job->new_rows) return ATTN_OK;
    attn_cpu_parallel(ctx, plan->threads, job->batch * (job->heads_kv + job->heads_q), run_append, &copy);
    return ATTN_OK;
}
