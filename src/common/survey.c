/* SPDX-License-Identifier: Apache-2.0
 * Asks the driver about every pointer of a call. */
#include "survey.h"
#include <stdio.h>

void attn_survey_begin(attn_survey *s, const attn_context *ctx, const attn_exec *exec)
{
    bool only_gpu = ctx->backend == &attn_cuda_backend;
    *s = (attn_survey){.readable = true, .gpu = -1, .cpu_only = exec->device == 1};
    if (exec->device > 1) s->gpu = exec->device - 2;
    else if (only_gpu) s->gpu = ctx->gpu;
    s->asks = ctx->cuda && (s->gpu >= 0 || attn_cuda_active());
}

attn_array_name attn_survey_name(const char *name, int32_t part)
{
    attn_array_name n;
    if (part < 0) snprintf(n.text, sizeof n.text, "%s", name);
    else snprintf(n.text, sizeof n.text, "%s[%d]", name, part);
    return n;
}

/* part: index of an array's element, -1: none. *readable: whether the host can read it. */
static attn_status look(attn_survey *s, const char *name, int32_t part, const void *pointer, bool *readable)
{
    int32_t owner = -1;
    *readable = true;
    if (!pointer) return ATTN_OK;
    ATTN_TRY(attn_cuda_place(pointer, &owner, readable));
    if (owner < 0) {
        if (s->host) return ATTN_OK;
        s->host = name;
        s->part = part;
        return ATTN_OK;
    }
    if (!s->cpu_only && s->gpu < 0) s->gpu = owner;
    if (*readable || owner == s->gpu) return ATTN_OK; /* managed memory is everybody's */
    if (s->cpu_only)
        return attn_fail(ATTN_UNSUPPORTED, "%s: memory of GPU %d, but exec.device says that the CPU computes",
                         attn_survey_name(name, part).text, owner);
    return attn_fail(ATTN_INVALID_ARGUMENT, "%s: memory of GPU %d, but GPU %d computes",
                     attn_survey_name(name, part).text, owner, s->gpu);
}

static attn_status look_at(attn_survey *s, const char *name, const void *pointer)
{
    bool unused;
    return look(s, name, -1, pointer, &unused);
}

/* An array whose content validation wants to know. */
static attn_status look_at_index(attn_survey *s, const char *name, const void *pointer)
{
    bool readable;
    ATTN_TRY(look(s, name, -1, pointer, &readable));
    s->readable = s->readable && readable;
    return ATTN_OK;
}

/* The data of a tensor without elements may be anything. */
static attn_status look_at_tensor(attn_survey *s, const char *name, const char *scale_name, const attn_tensor *t)
{
    if (!t->shape[0] || !t->shape[1] || !t->shape[2] || !t->shape[3]) return ATTN_OK;
    ATTN_TRY(look_at(s, name, t->data));
    return look_at(s, scale_name, t->data ? t->scale : NULL);
}

#define TENSOR(of, field) ATTN_TRY(look_at_tensor(s, #field, #field ".scale", &(of)->field))
#define ARRAY(of, field) ATTN_TRY(look_at(s, #field, (of)->field))
#define INDEX(of, field) ATTN_TRY(look_at_index(s, #field, (of)->field))
#define LENGTHS(of, field)  \
  INDEX(of, field.used);    \
  INDEX(of, field.offsets); \
  INDEX(of, field.start)

attn_status attn_survey_problem(attn_survey *s, const attn_problem *p)
{
    TENSOR(p, q);
    TENSOR(p, k);
    TENSOR(p, v);
    TENSOR(p, out);
    TENSOR(p, lse);
    TENSOR(p, bias);
    LENGTHS(p, q_len);
    LENGTHS(p, kv_len);
    INDEX(p, page_table);
    ARRAY(p, alibi);
    ARRAY(p, sink);
    ARRAY(p, seed_offset);
    return ATTN_OK;
}

attn_status attn_survey_grads(attn_survey *s, const attn_grads *g)
{
    TENSOR(g, dout);
    TENSOR(g, dq);
    TENSOR(g, dk);
    TENSOR(g, dv);
    TENSOR(g, dbias);
    TENSOR(g, dlse);
    ARRAY(g, dsink);
    return ATTN_OK;
}

attn_status attn_survey_append(attn_survey *s, const attn_append *a)
{
    attn_rope rope;
    TENSOR(a, k_new);
    TENSOR(a, v_new);
    TENSOR(a, k_cache);
    TENSOR(a, v_cache);
    TENSOR(a, q);
    LENGTHS(a, new_len);
    LENGTHS(a, cache_len);
    INDEX(a, page_table);
    INDEX(a, slots);
    if (!a->rope) return ATTN_OK;
    ATTN_TRY(attn_import(&rope, sizeof rope, a->rope, "rope"));
    ATTN_TRY(look_at(s, "rope.cos", rope.cos));
    ATTN_TRY(look_at(s, "rope.sin", rope.sin));
    return look_at_index(s, "rope.positions", rope.positions);
}

/* The problem's tensors say who computes, but are not touched. */
attn_status attn_survey_mask(attn_survey *s, const attn_job *job, const attn_tensor *keep)
{
    s->host = NULL;
    ATTN_TRY(look_at(s, "seed_offset", job->seed_offset));
    return look_at_tensor(s, "keep", "keep.scale", keep);
}

attn_status attn_survey_merge(attn_survey *s, const attn_merge_job *job, const attn_tensor *out, const attn_tensor *lse)
{
    bool unused;
    if (!job->shape[0] || !job->shape[1] || !job->shape[2]) return ATTN_OK;
    for (int32_t n = 0; n < job->parts; n++) {
        ATTN_TRY(look(s, "out_parts", n, job->shape[3] ? job->out_parts[n].data : NULL, &unused));
        ATTN_TRY(look(s, "lse_parts", n, job->lse_parts[n].data, &unused));
    }
    ATTN_TRY(look_at_tensor(s, "out", "out.scale", out));
    return lse ? look_at_tensor(s, "lse", "lse.scale", lse) : ATTN_OK;
}
