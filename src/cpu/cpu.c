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
    while (n > 0 && !runs_here(levels[n])) n--;
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

static bool has_kernel(const char *kernel)
{
    static const char prefix[] = "forward_";
    return strncmp(kernel, prefix, sizeof prefix - 1) == 0 && attn_cpu_find_level(kernel + sizeof prefix - 1);
}

static attn_status plan_cpu(const attn_context *ctx, attn_op op, const attn_job *job, attn_plan *plan)
{
    if (op == ATTN_OP_BACKWARD)
        return attn_fail(ATTN_UNSUPPORTED,
                         "backward is not implemented on the CPU yet; the reference backend computes it in float64");
    return attn_cpu_plan_forward(ctx, job, plan);
}

const attn_backend_table attn_cpu_backend = {
    .id = ATTN_BACKEND_CPU,
    .name = "cpu",
    .has_kernel = has_kernel,
    .plan = plan_cpu,
    .forward = attn_cpu_forward,
    .append = attn_cpu_append,
    .merge = attn_cpu_merge,
    .dropout_mask = attn_cpu_dropout_mask,
};
