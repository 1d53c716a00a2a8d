/* SPDX-License-Identifier: Apache-2.0
 * Bank conflicts of forward's and backward's kernels, counted by the checked emulator at one shape for each: prints
 *
 *   kernel file:line kind bytes accesses wavefronts ideal factor
 *
 * for every line that touches shared memory, and fails where a factor is above the line's limit in v100_banks.inc. A line
 * is named by a part of its text, so that the list outlives an edit elsewhere. `accesses` are instructions of a warp. */
#include "calls_test.h"

enum { B = 1, HQ = 1, HKV = 1, SQ = 128, SK = 96, CAPACITY = 400, SHOWN = 512 };

static const struct shape {
    const char *force, *kernel; /* the beginning of what the plan must say */
    int32_t type;
    int64_t d, dv;
    int backward;
} shapes[] = {
    {"isa=sm70", "forward_sm70_d64", ATTN_F16, 64, 64, 0},
    {"isa=sm70", "forward_sm70_d128", ATTN_F16, 128, 128, 0},
    {"isa=sm70", "forward_sm70_d256", ATTN_F16, 256, 256, 0},
    {"isa=sm70", "forward_sm70_d576", ATTN_F16, 576, 512, 0},
    {"isa=simt", "forward_simt", ATTN_F16, 64, 64, 0},
    {"isa=simt", "forward_simt", ATTN_F32, 128, 128, 0},
    {"isa=sm70", "backward_sm70_d64", ATTN_F16, 64, 64, 1},
    {"isa=sm70", "backward_sm70_d128", ATTN_F16, 128, 128, 1},
    {"isa=sm70", "backward_sm70_d256", ATTN_F16, 256, 256, 1},
};

/* What may take more than its ideal. Of all that is not listed nothing may. */
static const struct limit {
    const char *kernel;
    double factor;
    const char *text; /* of the source line */
} limits[] = {
#define LIMIT(kernel, factor, text) {kernel, factor, text},
#include "v100_banks.inc"
};
enum { LIMITS = sizeof limits / sizeof *limits };

static int is_used[LIMITS];

/* The text of "file:line" among the kernels' sources; "" if it is not there. */
static void find_text(const char *place, char *text, int bytes)
{
    char path[512];
    const char *colon = strchr(place, ':');
    text[0] = 0;
    if (!colon) return;
    snprintf(path, sizeof path, "%s/%.*s", KERNELS_FOLDER, (int)(colon - place), place);
    FILE *file = fopen(path, "r");
    if (!file) return;
    for (long line = strtol(colon + 1, NULL, 10); line > 0; line--)
        if (!fgets(text, bytes, file)) text[0] = 0;
    fclose(file);
}

static double limit_of(const char *kernel, const char *text)
{
    for (int n = 0; n < LIMITS; n++)
        if (!strncmp(kernel, limits[n].kernel, strlen(limits[n].kernel)) && strstr(text, limits[n].text)) {
            is_used[n] = 1;
            return limits[n].factor;
        }
    return 1;
}

static void run(const struct shape *shape, attn_plan *plan)
{
    static uint16_t zeros[SQ * 576];
    attn_context *ctx = calls_context(ATTN_BACKEND_CUDA, 0, shape->force);
    attn_problem p = ATTN_PROBLEM_INIT;
    void *data[9];
    const size_t bytes = attn_dtype_bytes((attn_dtype)shape->type, SQ * shape->d);
    for (int n = 0; n < 9; n++) data[n] = calls_device_copy(ctx, 1, zeros, n == 4 ? SQ * sizeof(float) : bytes);
    p.mask = ATTN_CAUSAL;
    p.q = attn_bhsd(data[0], (attn_dtype)shape->type, B, HQ, SQ, shape->d);
    p.k = attn_bhsd(data[1], (attn_dtype)shape->type, B, HKV, SK, shape->d);
    p.v = attn_bhsd(data[2], (attn_dtype)shape->type, B, HKV, SK, shape->dv);
    p.out = attn_bhsd(data[3], (attn_dtype)shape->type, B, HQ, SQ, shape->dv);
    attn_grads g = ATTN_GRADS_INIT;
    if (shape->backward) {
        p.lse = attn_bhsd(data[4], ATTN_F32, B, HQ, SQ, 1);
        g.dout = attn_bhsd(data[5], (attn_dtype)shape->type, B, HQ, SQ, shape->dv);
        g.dq = attn_bhsd(data[6], (attn_dtype)shape->type, B, HQ, SQ, shape->d);
        g.dk = attn_bhsd(data[7], (attn_dtype)shape->type, B, HKV, SK, shape->d);
        g.dv = attn_bhsd(data[8], (attn_dtype)shape->type, B, HKV, SK, shape->dv);
    }
    calls_succeed(attn_query(ctx, shape->backward ? ATTN_OP_BACKWARD : ATTN_OP_FORWARD, &p, shape->backward ? &g : NULL,
                             NULL, plan));
    driver.banks(NULL, 0);
    calls_succeed(shape->backward ? attn_backward(ctx, &p, &g, NULL) : attn_forward(ctx, &p, NULL));
    for (int n = 0; n < 9; n++) attn_free(ctx, data[n]);
    attn_destroy(ctx);
}

static void factors(void **state)
{
    static struct emulator_bank_line lines[CAPACITY];
    int failures = 0;
    (void)state;
    for (size_t n = 0; n < sizeof shapes / sizeof *shapes; n++) {
        attn_plan plan = ATTN_PLAN_INIT;
        run(&shapes[n], &plan);
        if (strncmp(plan.kernel, shapes[n].kernel, strlen(shapes[n].kernel)))
            fail_msg("the kernel is %s, not %s", plan.kernel, shapes[n].kernel);
        const size_t count = driver.banks(lines, CAPACITY);
        assert_in_range(count, 10, CAPACITY);
        for (size_t i = 0; i < count; i++) {
            const struct emulator_bank_line *line = &lines[i];
            char text[SHOWN];
            const double factor = (double)line->wavefronts / (double)line->ideal;
            find_text(line->place, text, sizeof text);
            printf("%s_%s %s %s %d %llu %llu %llu %.2f\n", plan.kernel, attn_dtype_name((attn_dtype)shapes[n].type),
                   line->place, line->is_write ? "store" : "load", line->bytes, (unsigned long long)line->instructions,
                   (unsigned long long)line->wavefronts, (unsigned long long)line->ideal, factor);
            const double limit = limit_of(plan.kernel, text);
            if (factor <= limit + 0.005) continue;
            failures++;
            printf("above %.2f: %s", limit, text[0] ? text : "(no text)\n");
        }
    }
    if (failures) fail_msg("%d lines above their limits", failures);
    for (int n = 0; n < LIMITS; n++)
        if (!is_used[n]) fail_msg("no line of %s has \"%s\"", limits[n].kernel, limits[n].text);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(factors)};
    setvbuf(stdout, NULL, _IOLBF, 0); /* failures go to stderr, between the lines */
    calls_open(argc, argv);
    if (!driver.checked()) {
        printf("SKIP: only the checked build counts bank conflicts\n");
        return UNIT_SKIPPED;
    }
    driver.set("banks", "1");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
