/* SPDX-License-Identifier: Apache-2.0
 * Which instruction sets count, from the words of CPUID and XCR0, and which level follows. The library's levels are
 * asked about processors that this one need not be: this program brings its own attn_cpu_features(). */
#include "unit.h"

/* The linker takes both functions of features.c from here, and leaves the library's alone. */
#define attn_cpu_features features_of_this_processor
#include "cpu/features.c"
#undef attn_cpu_features

#include "cpu/level.h"

unsigned attn_cpu_features(void);

/* ---- CPUID and XCR0 -------------------------------------------------------------------------------------------------- */

enum { /* Intel SDM volume 2, CPUID; volume 1, 13.3 */
       FMA = 0x1000,
       OSXSAVE = 0x8000000,
       AVX = 0x10000000,
       F16C = 0x20000000,
       LEAF1 = FMA | OSXSAVE | AVX | F16C
};
#define AVX2 0x20u
#define F 0x10000u
#define DQ 0x20000u
#define BW 0x40000000u
#define VL 0x80000000u
#define LEAF7 (AVX2 | F | DQ | BW | VL)
enum { X87 = 1, SSE = 2, YMM = 4, OPMASK = 0x20, ZMM_UPPER = 0x40, ZMM_MORE = 0x80, XCR0 = 0xe7, PKRU = 0x200 };

enum { UP_TO_AVX2 = ATTN_CPU_FMA | ATTN_CPU_F16C | ATTN_CPU_AVX2, ALL = UP_TO_AVX2 | ATTN_CPU_AVX512 };

static const struct {
    const char *name;
    attn_cpuid id;
    unsigned features;
} processors[] = {
    {"nothing", {0, 0, 0}, 0},
    {"all", {LEAF1, LEAF7, XCR0}, ALL},
    {"every bit", {UINT32_MAX, UINT32_MAX, UINT64_MAX}, ALL},
    {"with protection keys", {LEAF1, LEAF7, XCR0 | PKRU}, ALL},
    {"Haswell", {LEAF1, AVX2, X87 | SSE | YMM}, UP_TO_AVX2},
    {"Ivy Bridge", {LEAF1 & ~FMA, 0, X87 | SSE | YMM}, ATTN_CPU_F16C},
    {"Piledriver", {LEAF1, 0, X87 | SSE | YMM}, ATTN_CPU_FMA | ATTN_CPU_F16C},
    {"Sandy Bridge", {OSXSAVE | AVX, 0, X87 | SSE | YMM}, 0},
    {"without FMA", {LEAF1 & ~FMA, LEAF7, XCR0}, ALL & ~ATTN_CPU_FMA},
    {"without F16C", {LEAF1 & ~F16C, LEAF7, XCR0}, ALL & ~ATTN_CPU_F16C},
    {"without AVX2", {LEAF1, LEAF7 & ~AVX2, XCR0}, ALL & ~ATTN_CPU_AVX2},
    {"without AVX-512 F", {LEAF1, LEAF7 & ~F, XCR0}, UP_TO_AVX2},
    {"without AVX-512 DQ", {LEAF1, LEAF7 & ~DQ, XCR0}, UP_TO_AVX2},
    {"without AVX-512 BW", {LEAF1, LEAF7 & ~BW, XCR0}, UP_TO_AVX2},
    {"without AVX-512 VL", {LEAF1, LEAF7 & ~VL, XCR0}, UP_TO_AVX2},
    {"AVX-512 F alone (Knights Landing)", {LEAF1, AVX2 | F, XCR0}, UP_TO_AVX2},
    /* A system that saves less than the processor has. */
    {"without OSXSAVE", {LEAF1 & ~OSXSAVE, LEAF7, XCR0}, 0},
    {"without AVX", {LEAF1 & ~AVX, LEAF7, XCR0}, 0},
    {"XCR0 0", {LEAF1, LEAF7, 0}, 0},
    {"XCR0 without ymm", {LEAF1, LEAF7, XCR0 & ~YMM}, 0},
    {"XCR0 without xmm", {LEAF1, LEAF7, XCR0 & ~SSE}, 0},
    {"XCR0 with ymm only", {LEAF1, LEAF7, X87 | SSE | YMM}, UP_TO_AVX2},
    {"XCR0 without opmask", {LEAF1, LEAF7, XCR0 & ~OPMASK}, UP_TO_AVX2},
    {"XCR0 without upper halves of zmm", {LEAF1, LEAF7, XCR0 & ~ZMM_UPPER}, UP_TO_AVX2},
    {"XCR0 without zmm16 to zmm31", {LEAF1, LEAF7, XCR0 & ~ZMM_MORE}, UP_TO_AVX2},
    {"XCR0 with zmm, without ymm", {LEAF1, LEAF7, X87 | SSE | OPMASK | ZMM_UPPER | ZMM_MORE}, 0},
    {"leaf 7 alone", {0, LEAF7, XCR0}, 0},
};

static void decode(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof processors / sizeof *processors; n++) {
        unsigned features = attn_cpu_decode_features(&processors[n].id);
        if (features != processors[n].features)
            fail_msg("%s: features 0x%x, expected 0x%x", processors[n].name, features, processors[n].features);
    }
}

/* Each bit that is looked at matters, and no other does. */
static void one_bit(void **state)
{
    (void)state;
    for (int bit = 0; bit < 64; bit++) {
        const attn_cpuid all = {LEAF1, LEAF7, XCR0};
        const uint64_t flip = (uint64_t)1 << bit;
        attn_cpuid id[3] = {all, all, all};
        const int matters[3] = {(LEAF1 & flip) != 0, (LEAF7 & flip) != 0, (XCR0 & ~X87 & flip) != 0};
        id[0].leaf1_ecx ^= (uint32_t)flip;
        id[1].leaf7_ebx ^= (uint32_t)flip;
        id[2].xcr0 ^= flip;
        for (int n = 0; n < 3; n++)
            if ((attn_cpu_decode_features(&id[n]) != ALL) != matters[n]) fail_msg("bit %d of word %d", bit, n);
    }
}

/* ---- levels ------------------------------------------------------------------------------------------------------------- */

static unsigned pretended;

unsigned attn_cpu_features(void) { return pretended; }

static const struct {
    unsigned features;
    const char *best;
    int avx2, avx512;
} choices[] = {
    {0, "scalar", 0, 0},
#if defined(__x86_64__)
    {ATTN_CPU_AVX2, "scalar", 0, 0},
    {ATTN_CPU_FMA | ATTN_CPU_F16C, "scalar", 0, 0},
    {ATTN_CPU_AVX2 | ATTN_CPU_FMA, "scalar", 0, 0},
    {ATTN_CPU_AVX2 | ATTN_CPU_F16C, "scalar", 0, 0},
    {UP_TO_AVX2, "avx2", 1, 0},
    {ATTN_CPU_AVX512, "scalar", 0, 0},
    {ALL & ~ATTN_CPU_FMA, "scalar", 0, 0},
    {ALL & ~ATTN_CPU_F16C, "scalar", 0, 0},
    {ALL & ~ATTN_CPU_AVX2, "scalar", 0, 0}, /* compilers take AVX2 for granted where AVX-512 is */
    {ALL, "avx512", 1, 1},
#endif
};

static void expect_level(const char *name, int there)
{
    const attn_cpu_level *level = attn_cpu_find_level(name);
    if ((level != NULL) != there)
        fail_msg("features 0x%x: level %s is %s", pretended, name, level ? "there" : "missing");
    if (level) assert_string_equal(level->name, name);
}

static void find_levels(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof choices / sizeof *choices; n++) {
        pretended = choices[n].features;
        assert_string_equal(attn_cpu_best_level()->name, choices[n].best);
        expect_level("scalar", 1);
        expect_level("avx2", choices[n].avx2);
        expect_level("avx512", choices[n].avx512);
        expect_level("avx", 0);
        expect_level("avx5120", 0);
        expect_level("", 0);
    }
}

/* What the plan says under these words; nothing is computed. */
static attn_status plan_of(const char *force, attn_plan *plan)
{
    static float x[64];
    attn_config config = ATTN_CONFIG_INIT;
    attn_context *ctx;
    attn_problem p = ATTN_PROBLEM_INIT;
    config.backend = ATTN_BACKEND_CPU;
    config.force = force;
    attn_status status = attn_create(&config, &ctx);
    if (status != ATTN_OK) return status;
    p.q = p.k = p.v = p.out = attn_bhsd(x, ATTN_F32, 1, 1, 8, 8);
    *plan = (attn_plan)ATTN_PLAN_INIT;
    status = attn_query(ctx, ATTN_OP_FORWARD, &p, NULL, NULL, plan);
    attn_destroy(ctx);
    return status;
}

static void expect_plan(const char *force, const char *level)
{
    attn_plan plan;
    char kernel[64];
    if (plan_of(force, &plan) != ATTN_OK) fail_msg("features 0x%x, \"%s\": %s", pretended, force, attn_last_error());
    snprintf(kernel, sizeof kernel, "forward_%s", level);
    assert_string_equal(plan.isa, level);
    assert_string_equal(plan.kernel, kernel);
}

static void expect_refused(const char *force)
{
    attn_plan plan;
    assert_int_equal(plan_of(force, &plan), ATTN_INVALID_ARGUMENT);
    if (!strstr(attn_last_error(), force)) fail_msg("the error does not name %s: %s", force, attn_last_error());
}

static void plans(void **state)
{
    const unsigned here = features_of_this_processor();
    (void)state;
    for (size_t n = 0; n < sizeof choices / sizeof *choices; n++) {
        pretended = choices[n].features;
        if (strcmp(choices[n].best, "scalar") && (pretended & ~here)) { /* a plan asks the level, in its instructions */
            print_message("SKIP: plans of %s: this processor lacks it\n", choices[n].best);
            continue;
        }
        expect_plan(NULL, choices[n].best);
        expect_plan("isa=scalar", "scalar");
        expect_plan("kernel=forward_scalar", "scalar");
        if (choices[n].avx2) {
            expect_plan("isa=avx2", "avx2");
            expect_plan("kernel=forward_avx2", "avx2");
        } else {
            expect_refused("isa=avx2");
            expect_refused("kernel=forward_avx2");
        }
        if (choices[n].avx512) expect_plan("isa=avx512", "avx512");
        else expect_refused("isa=avx512");
    }
}

/* What is found on this processor is what some level needs, or less. */
static void this_processor(void **state)
{
    (void)state;
    pretended = features_of_this_processor();
    assert_int_equal(pretended & ~(unsigned)ALL, 0);
    assert_int_equal(attn_cpu_best_level()->needs & ~pretended, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode), cmocka_unit_test(one_bit),        cmocka_unit_test(find_levels),
        cmocka_unit_test(plans),  cmocka_unit_test(this_processor),
    };
    return cmocka_run_group_tests_name("features", tests, NULL, NULL);
}
