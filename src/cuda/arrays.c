/* SPDX-License-Identifier: Apache-2.0
 * Asks the driver about every pointer of a call, so that a kernel meets none that it cannot follow. */
#include "arrays.h"
#include <stdio.h>

typedef struct array {
    const char *name;
    const void *pointer;
} array;

attn_status attn_cuda_check_array(const void *pointer, const char *name, int32_t ordinal)
{
    attn_cuda_place place;
    int32_t owner;
    if (!pointer) return ATTN_OK;
    ATTN_TRY(attn_cuda_locate(pointer, &place, &owner));
    if (place == ATTN_CUDA_HOST)
        return attn_fail(ATTN_UNSUPPORTED, "%s: host memory; calls on a GPU take memory of that GPU or managed memory",
                         name);
    if (place == ATTN_CUDA_DEVICE && owner != ordinal)
        return attn_fail(ATTN_INVALID_ARGUMENT, "%s: memory of GPU %d, but GPU %d computes", name, owner, ordinal);
    return ATTN_OK;
}

static attn_status check_all(const array *arrays, size_t count, int32_t ordinal)
{
    for (size_t n = 0; n < count; n++) ATTN_TRY(attn_cuda_check_array(arrays[n].pointer, arrays[n].name, ordinal));
    return ATTN_OK;
}

#define CHECK_ALL(arrays, ordinal) check_all(arrays, sizeof(arrays) / sizeof *(arrays), ordinal)

attn_status attn_cuda_check_job(const attn_job *job, int32_t ordinal)
{
    const array arrays[] = {
        {"q", job->q.data},
        {"k", job->k.data},
        {"k.scale", job->k.scale},
        {"v", job->v.data},
        {"v.scale", job->v.scale},
        {"out", job->out.data},
        {"lse", job->lse.data},
        {"bias", job->bias.data},
        {"q_len.used", job->q_span.used},
        {"q_len.offsets", job->q_span.offsets},
        {"q_len.start", job->q_span.start},
        {"kv_len.used", job->kv_span.used},
        {"kv_len.offsets", job->kv_span.offsets},
        {"kv_len.start", job->kv_span.start},
        {"page_table", job->page_table},
        {"alibi_slopes", job->alibi},
        {"sink", job->sink},
        {"seed_offset", job->seed_offset},
    };
    return CHECK_ALL(arrays, ordinal);
}

attn_status attn_cuda_check_append(const attn_append_job *job, int32_t ordinal)
{
    const array arrays[] = {
        {"k_new", job->k_new.data},
        {"v_new", job->v_new.data},
        {"q", job->q.data},
        {"k_cache", job->k_cache.data},
        {"k_cache.scale", job->k_cache.scale},
        {"v_cache", job->v_cache.data},
        {"v_cache.scale", job->v_cache.scale},
        {"new_len.used", job->new_span.used},
        {"new_len.offsets", job->new_span.offsets},
        {"new_len.start", job->new_span.start},
        {"cache_len.used", job->cache_span.used},
        {"cache_len.offsets", job->cache_span.offsets},
        {"cache_len.start", job->cache_span.start},
        {"page_table", job->page_table},
        {"slots", job->slots},
        {"rope.cos", job->rotate ? job->rope.cos : NULL},
        {"rope.sin", job->rotate ? job->rope.sin : NULL},
        {"rope.positions", job->rotate ? job->rope.positions : NULL},
    };
    return CHECK_ALL(arrays, ordinal);
}

attn_status attn_cuda_check_merge(const attn_merge_job *job, int32_t ordinal)
{
    const array arrays[] = {{"out", job->out.data}, {"lse", job->lse.data}};
    char name[40];
    for (int32_t n = 0; n < job->parts; n++) {
        snprintf(name, sizeof name, "out_parts[%d]", n);
        ATTN_TRY(attn_cuda_check_array(job->out_parts[n].data, name, ordinal));
        snprintf(name, sizeof name, "lse_parts[%d]", n);
        ATTN_TRY(attn_cuda_check_array(job->lse_parts[n].data, name, ordinal));
    }
    return CHECK_ALL(arrays, ordinal);
}
