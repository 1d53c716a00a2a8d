/* SPDX-License-Identifier: Apache-2.0
 * The list of what is tested: every device, and on it every level that this build and machine can be forced to use. */
#include "suite_core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Levels that a device may have: an instruction set, a family of kernels. What a context refuses is not there; the
 * header line of the run says so. A new one is a row here. */
static const struct level {
    int32_t backend;
    const char *name, *force, *isa; /* the plan's isa is also the end of its kernel */
    int staged;                     /* as in suite_target */
    int capability;                 /* the least that a GPU must have */
} levels[] = {
    {ATTN_BACKEND_CPU, "scalar", "isa=scalar", "scalar", 0, 0},
    {ATTN_BACKEND_CPU, "avx2", "isa=avx2", "avx2", 0, 0},
    {ATTN_BACKEND_CPU, "avx512", "isa=avx512", "avx512", 0, 0},
    {ATTN_BACKEND_CPU, "avx512bf16", "isa=avx512bf16", "avx512bf16", 0, 0},
    {ATTN_BACKEND_CPU, "amx", "isa=amx", "amx", 0, 0},
    {ATTN_BACKEND_CUDA, "simt", "isa=simt", "simt", 0, 0},
    {ATTN_BACKEND_CUDA, "sm70", "isa=sm70", "sm70", 0, 0},
    {ATTN_BACKEND_CUDA, "sm75", "isa=sm75", "sm75", 0, 75},
    {ATTN_BACKEND_CUDA, "sm80", "isa=sm80", "sm80", 0, 80},
    {ATTN_BACKEND_CUDA, "staged", "isa=simt", "simt", 1, 0},
    {ATTN_BACKEND_CUDA, "mixed", "isa=simt", "simt", -1, 0},
};
enum { LEVELS = sizeof levels / sizeof *levels };

attn_context *suite_context(const struct suite_target *target, int threads, const char *extra)
{
    char force[160], count[24] = ""; /* a forced number of threads is taken at its word, also for small problems */
    if (threads) snprintf(count, sizeof count, "threads=%d", threads);
    const char *words[] = {target->force, count, extra ? extra : ""};
    size_t used = 0;
    force[0] = 0;
    for (int n = 0; n < 3; n++)
        if (words[n][0]) used += (size_t)snprintf(force + used, sizeof force - used, "%s%s", used ? "," : "", words[n]);
    attn_config config = {.struct_size = sizeof config};
    config.backend = target->backend;
    config.device = target->ordinal;
    config.force = force[0] ? force : NULL;
    attn_context *ctx;
    return attn_create(&config, &ctx) == ATTN_OK ? ctx : NULL;
}

attn_context *suite_checking_context(const struct suite_target *target)
{
    attn_config config = {.struct_size = sizeof config, .backend = target->backend, .device = target->ordinal};
    attn_context *ctx;
    config.flags = ATTN_CFG_CHECK_INDICES;
    return attn_create(&config, &ctx) == ATTN_OK ? ctx : NULL;
}

static const char *backend_name(int32_t backend)
{
    return backend == ATTN_BACKEND_CPU ? "cpu" : backend == ATTN_BACKEND_CUDA ? "cuda" : "reference";
}

/* The kernel of a level, which may go on with what it was tuned for: "forward_sm70_d128". */
static int is_kernel(const char *kernel, const char *expected, int whole)
{
    size_t length = strlen(expected);
    return !strncmp(kernel, expected, length) && (!kernel[length] || (!whole && kernel[length] == '_'));
}

static void note_kernel(struct suite_check *check, const char *kernel)
{
    struct suite *s = check->suite;
    for (int t = 0; t < s->targets; t++)
        for (int n = 0; n < SUITE_KERNELS && check->target == &s->target[t]; n++) {
            if (!s->kernel[t][n][0]) snprintf(s->kernel[t][n], sizeof s->kernel[t][n], "%s", kernel);
            if (!strcmp(s->kernel[t][n], kernel)) return;
        }
}

/* Whether kernels for few queries read K or V as they are stored: one scale for all rows of a head. */
static int is_stored(const struct suite_target *target, const attn_problem *p, const attn_tensor *t)
{
    if (t->dtype == ATTN_F16) return strcmp(target->isa, "sm70") != 0;
    if (t->dtype == ATTN_Q8_0 || t->dtype == ATTN_Q4_0) return 1;
    if (t->dtype != ATTN_I8 && t->dtype != ATTN_F8_E4M3 && t->dtype != ATTN_F8_E5M2) return 0;
    return !t->scale ||
           !((t->shape[2] > 1 && t->scale_stride[2]) || (p->page_table && t->shape[0] > 1 && t->scale_stride[0]));
}

/* f16 queries, up to 16 of a sequence and 64 of a group. */
static int has_few_stored(const struct suite_target *target, const attn_problem *p)
{
    const int64_t most = !strcmp(target->isa, "sm80") || !strcmp(target->isa, "sm70") ? 256
                         : !strcmp(target->isa, "sm75")                               ? 128
                                                                                      : 0;
    const int64_t queries = p->q_len.max ? p->q_len.max : p->q.shape[2];
    return p->q.dtype == ATTN_F16 && is_stored(target, p, &p->k) && is_stored(target, p, &p->v) &&
           p->q.shape[3] <= most && p->v.shape[3] <= most && queries <= 16 &&
           queries * (p->q.shape[1] / p->k.shape[1]) <= 64;
}

/* The family that serves a problem on a target: tensor cores take two types and some head sizes, all else is simt's. */
static const char *family_of(const struct suite_target *target, const attn_problem *p)
{
    if (strncmp(target->isa, "sm", 2) || !p) return target->isa;
    int32_t type = p->q.dtype;
    int one = (type == ATTN_F16 || type == ATTN_BF16) && p->k.dtype == type && p->v.dtype == type;
    int largest = strcmp(target->isa, "sm70") ? !strcmp(target->isa, "sm80") : type == ATTN_F16;
    if (type == ATTN_BF16 && !strcmp(target->isa, "sm75")) return "simt"; /* these tensor cores have no bf16 */
    return one && p->q.shape[3] <= (largest ? 576 : 320) && p->v.shape[3] <= (largest ? 512 : 256) ? target->isa
                                                                                                   : "simt";
}

static const char *forward_family_of(const struct suite_target *target, const attn_problem *p)
{
    return p && has_few_stored(target, p) ? target->isa : family_of(target, p);
}

/* GPUs whose blocks have 99 KB of shared memory. */
static int has_small_blocks(const struct suite_target *target)
{
    attn_device_info info = {.struct_size = sizeof info};
    if (attn_device_get(target->index, &info) != ATTN_OK) return 0;
    return !strcmp(info.arch, "sm_86") || !strcmp(info.arch, "sm_89");
}

/* The backward has kernels on tensor cores for sm80 and, in f16, sm70. */
static const char *backward_family_of(const struct suite_target *target, const attn_problem *p)
{
    if (strncmp(target->isa, "sm", 2)) return target->isa;
    const int64_t most = has_small_blocks(target) ? 128 : 256;
    const int has = !strcmp(target->isa, "sm80") || (!strcmp(target->isa, "sm70") && p->q.dtype == ATTN_F16);
    const int fits = p->q.shape[3] <= most && p->v.shape[3] <= most && p->out.dtype == p->q.dtype;
    return has && fits ? family_of(target, p) : "simt";
}

int suite_expect_plan(struct suite_check *check, const char *op, const attn_problem *p, const attn_plan *plan)
{
    const struct suite_target *target = check->target;
    int levelled = !strcmp(op, "forward") || !strcmp(op, "backward"); /* the others are one kernel a backend */
    const char *family = strcmp(op, "backward") ? forward_family_of(target, p) : backward_family_of(target, p);
    char kernel[64];
    snprintf(kernel, sizeof kernel, "%s_%s", op,
             !levelled               ? backend_name(target->backend)
             : family != target->isa ? family
                                     : target->kernel);
    note_kernel(check, plan->kernel);
    return suite_expect(check, plan->backend == target->backend && plan->device == target->index,
                        "plan: backend %d, device %d, expected %d, %d", plan->backend, plan->device, target->backend,
                        target->index) &&
           suite_expect(check, !levelled || !strcmp(plan->isa, family), "plan: isa \"%s\", expected \"%s\"", plan->isa,
                        family) &&
           suite_expect(check, is_kernel(plan->kernel, kernel, !levelled), "plan: kernel \"%s\", expected \"%s\"",
                        plan->kernel, kernel);
}

int suite_expect_staged(struct suite_check *check, const attn_plan *plan)
{
    const struct suite_target *target = check->target;
    return suite_expect(check, target->staged < 0 || plan->staged == target->staged, "plan: staged %d, expected %d",
                        plan->staged, target->staged);
}

static int wanted(const struct suite *s, const struct suite_target *target)
{
    const char *device = s->options->device;
    if (!device) return 1;
    return !strcmp(device, target->device) || !strcmp(device, target->name) ||
           (target->backend == ATTN_BACKEND_CUDA && !strncmp(device, "cuda", 4) &&
            (!device[4] || !strcmp(device + 4, strchr(target->name, '/')))); /* "cuda", "cuda/simt": of every GPU */
}

static void add_target(struct suite *s, struct suite_target target)
{
    if (s->targets == SUITE_MAX_TARGETS || !wanted(s, &target)) return;
    target.ctx = suite_context(&target, 0, NULL);
    if (target.ctx) s->target[s->targets++] = target;
    else if (s->options->verbose && !s->options->json) printf("no %s: %s\n", target.name, attn_last_error());
}

/* 90 of "sm_90"; 0 of other names. */
static int capability_of(const attn_device_info *info)
{
    return strncmp(info->arch, "sm_", 3) ? 0 : atoi(info->arch + 3);
}

static void add_device(struct suite *s, int32_t index, const attn_device_info *info)
{
    for (int n = 0; n < LEVELS; n++) {
        if (levels[n].backend != info->backend || levels[n].capability > capability_of(info)) continue;
        struct suite_target t = {.backend = info->backend, .index = index, .ordinal = info->ordinal};
        t.staged = levels[n].staged;
        t.host = info->backend == ATTN_BACKEND_CPU || t.staged > 0;
        if (info->backend == ATTN_BACKEND_CPU) snprintf(t.device, sizeof t.device, "cpu");
        else snprintf(t.device, sizeof t.device, "cuda:%d", (int)info->ordinal);
        snprintf(t.name, sizeof t.name, "%s/%s", t.device, levels[n].name);
        snprintf(t.force, sizeof t.force, "%s", levels[n].force);
        snprintf(t.isa, sizeof t.isa, "%s", levels[n].isa);
        snprintf(t.kernel, sizeof t.kernel, "%s", levels[n].isa);
        add_target(s, t);
    }
}

int suite_find_targets(struct suite *s)
{
    s->reference = (struct suite_target){.name = "reference",
                                         .device = "reference",
                                         .backend = ATTN_BACKEND_REFERENCE,
                                         .host = 1,
                                         .isa = "float64",
                                         .kernel = "reference"};
    add_target(s, s->reference);
    s->reference.ctx = suite_context(&s->reference, 0, NULL);
    if (!s->reference.ctx) return 0;
    int32_t count = 0;
    attn_device_count(&count);
    for (int32_t n = 0; n < count; n++) {
        attn_device_info info = {.struct_size = sizeof info};
        if (attn_device_get(n, &info) == ATTN_OK) add_device(s, n, &info);
    }
    return s->targets;
}
