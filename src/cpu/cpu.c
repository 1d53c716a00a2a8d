/* SPDX-License-Identifier: Apache-2.0
 * The CPU backend: its levels and its table. */
#include "level.h"

static const attn_cpu_level *const levels[] = {
#define LEVEL(name) &attn_cpu_level_##name,
#include "levels.inc"
#undef LEVEL
};
enum { LEVELS = sizeof levels / sizeof *levels };

static bool runs_here(const attn_cpu_level *level) { return (level->needs & ~attn_cpu_features()) == 0; }

const attn_cpu_level *attn_cpu_find_level(const char *name)
{
    for (int n = 0; n < LEVELS; n++)
        if (strcmp(levels[n]->name, name) == 0) return runs_here(levels[n]) ? levels[n] : NULL;
    return NULL;
}

const attn_cpu_level *attn_cpu_best_level(void)
{
    int n = LEVELS - 1;
    while (n > 0 && (!runs_here(levels[n]) || levels[n]->wants & ~attn_cpu_features())) n--;
    return levels[n]; /* the first needs nothing */
}

const char *attn_cpu_level_names(void)
{
#define LEVEL(name) " " #name
    return
#include "levels.inc"
        ;
#undef LEVEL
}

/* Level of a kernel "OPERATION_LEVEL"; NULL: of another operation, not built, or not on this processor. */
static const attn_cpu_level *level_of_kernel(const char *kernel, const char *operation)
{
    if (!kernel[0]) return NULL;
    const size_t length = strlen(operation);
    if (strncmp(kernel, operation, length) != 0 || kernel[length] != '_') return NULL;
    return attn_cpu_find_level(kernel + length + 1);
}

static bool has_kernel(const char *kernel)
{
    return level_of_kernel(kernel, "forward") || level_of_kernel(kernel, "backward");
}

/* An isa and a kernel that are both forced have to agree, or the plan is refused. */
const attn_cpu_level *attn_cpu_choose_level(const attn_force *force, const char *operation)
{
    if (force->isa[0]) return attn_cpu_find_level(force->isa);
    const attn_cpu_level *level = level_of_kernel(force->kernel, operation);
    return level ? level : attn_cpu_best_level();
}

void attn_cpu_name_plan(const attn_context *ctx, const char *operation, const attn_job *job,
                        const attn_cpu_level *level, attn_plan *plan)
{
    const bool forced = ctx->force.isa[0] || level_of_kernel(ctx->force.kernel, operation);
    const char *kernel_end = plan->kernel + sizeof plan->kernel, *reason_end = plan->reason + sizeof plan->reason;
    char *at = attn_add_text(plan->kernel, kernel_end, operation);
    at = attn_add_text(at, kernel_end, "_");
    attn_add_text(at, kernel_end, level->name);
    at = attn_add_text(plan->reason, reason_end, forced ? "host tensors; forced level " : "host tensors; best level ");
    at = attn_add_text(at, reason_end, level->name);
    if (level->multiplies_bf16 && !attn_job_is_bf16(job))
        at = attn_add_text(at, reason_end, ", in float32: q, k, v are not all BF16");
    if (plan->threads > 1 && attn_cpu_binds(ctx)) attn_add_text(at, reason_end, "; threads bound to cores");
    attn_add_text(plan->isa, plan->isa + sizeof plan->isa, level->name);
}

static attn_status plan_cpu(const attn_context *ctx, attn_op op, const attn_job *job, attn_plan *plan)
{
    return op == ATTN_OP_BACKWARD ? attn_cpu_plan_backward(ctx, job, plan) : attn_cpu_plan_forward(ctx, job, plan);
}

const attn_backend_table attn_cpu_backend = {
    .id = ATTN_BACKEND_CPU,
    .name = "cpu",
    .has_kernel = has_kernel,
    .plan = plan_cpu,
    .forward = attn_cpu_forward,
    .backward = attn_cpu_backward,
    .append = attn_cpu_append,
    .merge = attn_cpu_merge,
    .dropout_mask = attn_cpu_dropout_mask,
};
