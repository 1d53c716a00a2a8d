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
enum {
    X87 = 1,
    SSE = 2,
    YMM = 4,
    OPMASK = 0x20,
    ZMM_UPPER = 0x40,
    ZMM_MORE = 0x80,
    PKRU = 0x200,
    TILE_SHAPES = 0x20000,
    TILE_DATA = 0x40000,
    XCR0 = 0x600e7,
    AMX_BF16 = 0x400000, /* of leaf 7 EDX, as the next */
    AMX_TILE = 0x1000000,
    EDX = AMX_BF16 | AMX_TILE,
    BF16 = 0x20,       /* of leaf 7.1 EAX */
    INTEL = 0x756e6547 /* "Genu" */
};
#define AMD 0x68747541u /* "Auth" */

enum {
    UP_TO_AVX2 = ATTN_CPU_FMA | ATTN_CPU_F16C | ATTN_CPU_AVX2,
    UP_TO_AVX512 = UP_TO_AVX2 | ATTN_CPU_AVX512,
    ALL = UP_TO_AVX512 | ATTN_CPU_AVX512_BF16 | ATTN_CPU_AMX,
    EVERY = ALL | ATTN_CPU_FAST_BF16
};

static const struct {
    const char *name;
    attn_cpuid id;
    unsigned features;
} processors[] = {
    {"nothing", {0, 0, 0, 0, 0, 0}, 0},
    {"all", {INTEL, LEAF1, LEAF7, EDX, BF16, XCR0}, ALL},
    {"all of AMD", {AMD, LEAF1, LEAF7, EDX, BF16, XCR0}, EVERY},
    {"every bit", {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT64_MAX}, ALL},
    {"with protection keys", {INTEL, LEAF1, LEAF7, EDX, BF16, XCR0 | PKRU}, ALL},
    {"Haswell", {INTEL, LEAF1, AVX2, 0, 0, X87 | SSE | YMM}, UP_TO_AVX2},
    {"Skylake-X", {INTEL, LEAF1, LEAF7, 0, 0, XCR0}, UP_TO_AVX512},
    {"Cooper Lake", {INTEL, LEAF1, LEAF7, 0, BF16, XCR0}, UP_TO_AVX512 | ATTN_CPU_AVX512_BF16},
    {"Zen 3", {AMD, LEAF1, AVX2, 0, 0, X87 | SSE | YMM}, UP_TO_AVX2},
    {"Zen 4", {AMD, LEAF1, LEAF7, 0, BF16, XCR0}, UP_TO_AVX512 | ATTN_CPU_AVX512_BF16 | ATTN_CPU_FAST_BF16},
    {"Ivy Bridge", {INTEL, LEAF1 & ~FMA, 0, 0, 0, X87 | SSE | YMM}, ATTN_CPU_F16C},
    {"Piledriver", {AMD, LEAF1, 0, 0, 0, X87 | SSE | YMM}, ATTN_CPU_FMA | ATTN_CPU_F16C},
    {"Sandy Bridge", {INTEL, OSXSAVE | AVX, 0, 0, 0, X87 | SSE | YMM}, 0},
    {"without FMA", {INTEL, LEAF1 & ~FMA, LEAF7, EDX, BF16, XCR0}, ALL & ~ATTN_CPU_FMA},
    {"without F16C", {INTEL, LEAF1 & ~F16C, LEAF7, EDX, BF16, XCR0}, ALL & ~ATTN_CPU_F16C},
    {"without AVX2", {INTEL, LEAF1, LEAF7 & ~AVX2, EDX, BF16, XCR0}, ALL & ~ATTN_CPU_AVX2},
    {"without AVX-512 F", {INTEL, LEAF1, LEAF7 & ~F, EDX, BF16, XCR0}, UP_TO_AVX2 | ATTN_CPU_AMX},
    {"without AVX-512 DQ", {INTEL, LEAF1, LEAF7 & ~DQ, 0, BF16, XCR0}, UP_TO_AVX2},
    {"without AVX-512 BW", {INTEL, LEAF1, LEAF7 & ~BW, 0, BF16, XCR0}, UP_TO_AVX2},
    {"without AVX-512 VL", {INTEL, LEAF1, LEAF7 & ~VL, 0, BF16, XCR0}, UP_TO_AVX2},
    {"AVX-512 F alone (Knights Landing)", {INTEL, LEAF1, AVX2 | F, 0, 0, XCR0}, UP_TO_AVX2},
    {"tiles without bf16", {INTEL, LEAF1, LEAF7, AMX_TILE, BF16, XCR0}, ALL & ~ATTN_CPU_AMX},
    {"bf16 without tiles", {INTEL, LEAF1, LEAF7, AMX_BF16, BF16, XCR0}, ALL & ~ATTN_CPU_AMX},
    /* A system that saves less than the processor has. */
    {"without OSXSAVE", {INTEL, LEAF1 & ~OSXSAVE, LEAF7, EDX, BF16, XCR0}, 0},
    {"without AVX", {INTEL, LEAF1 & ~AVX, LEAF7, EDX, BF16, XCR0}, 0},
    {"XCR0 0", {INTEL, LEAF1, LEAF7, EDX, BF16, 0}, 0},
    {"XCR0 without ymm", {INTEL, LEAF1, LEAF7, EDX, BF16, XCR0 & ~YMM}, 0},
    {"XCR0 without xmm", {INTEL, LEAF1, LEAF7, EDX, BF16, XCR0 & ~SSE}, 0},
    {"XCR0 with ymm only", {INTEL, LEAF1, LEAF7, EDX, BF16, X87 | SSE | YMM}, UP_TO_AVX2},
    {"XCR0 without opmask", {INTEL, LEAF1, LEAF7, 0, BF16, XCR0 & ~OPMASK}, UP_TO_AVX2},
    {"XCR0 without upper halves of zmm", {INTEL, LEAF1, LEAF7, 0, BF16, XCR0 & ~ZMM_UPPER}, UP_TO_AVX2},
    {"XCR0 without zmm16 to zmm31", {INTEL, LEAF1, LEAF7, 0, BF16, XCR0 & ~ZMM_MORE}, UP_TO_AVX2},
    {"XCR0 with zmm, without ymm", {INTEL, LEAF1, LEAF7, 0, 0, X87 | SSE | OPMASK | ZMM_UPPER | ZMM_MORE}, 0},
    {"XCR0 without tiles", {INTEL, LEAF1, LEAF7, EDX, BF16, XCR0 & ~TILE_DATA}, ALL & ~ATTN_CPU_AMX},
    {"XCR0 without their shapes", {INTEL, LEAF1, LEAF7, EDX, BF16, XCR0 & ~TILE_SHAPES}, ALL & ~ATTN_CPU_AMX},
    {"leaf 7 alone", {INTEL, 0, LEAF7, EDX, BF16, XCR0}, 0},
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

/* Each bit that is looked at matters, and no other does; of the vendor every one. */
static void one_bit(void **state)
{
    (void)state;
    for (int bit = 0; bit < 64; bit++) {
        const attn_cpuid all = {AMD, LEAF1, LEAF7, EDX, BF16, XCR0};
        const uint64_t flip = (uint64_t)1 << bit;
        attn_cpuid id[6] = {all, all, all, all, all, all};
        const int matters[6] = {bit < 32,          (LEAF1 & flip) != 0, (LEAF7 & flip) != 0,
                                (EDX & flip) != 0, (BF16 & flip) != 0,  (XCR0 & ~X87 & flip) != 0};
        id[0].leaf0_ebx ^= (uint32_t)flip;
        id[1].leaf1_ecx ^= (uint32_t)flip;
        id[2].leaf7_ebx ^= (uint32_t)flip;
        id[3].leaf7_edx ^= (uint32_t)flip;
        id[4].leaf7_1_eax ^= (uint32_t)flip;
        id[5].xcr0 ^= flip;
        for (int n = 0; n < 6; n++)
            if ((attn_cpu_decode_features(&id[n]) != EVERY) != matters[n]) fail_msg("bit %d of word %d", bit, n);
    }
}

/* ---- levels ------------------------------------------------------------------------------------------------------------- */

static unsigned pretended;

unsigned attn_cpu_features(void) { return pretended; }

static const struct {
    unsigned features;
    const char *best;
    int avx2, avx512, bf16, amx;
} choices[] = {
    {0, "scalar", 0, 0, 0, 0},
#if defined(__x86_64__)
    {ATTN_CPU_AVX2, "scalar", 0, 0, 0, 0},
    {ATTN_CPU_FMA | ATTN_CPU_F16C, "scalar", 0, 0, 0, 0},
    {ATTN_CPU_AVX2 | ATTN_CPU_FMA, "scalar", 0, 0, 0, 0},
    {ATTN_CPU_AVX2 | ATTN_CPU_F16C, "scalar", 0, 0, 0, 0},
    {UP_TO_AVX2, "avx2", 1, 0, 0, 0},
    {ATTN_CPU_AVX512, "scalar", 0, 0, 0, 0},
    {UP_TO_AVX512 & ~ATTN_CPU_FMA, "scalar", 0, 0, 0, 0},
    {UP_TO_AVX512 & ~ATTN_CPU_F16C, "scalar", 0, 0, 0, 0},
    {UP_TO_AVX512 & ~ATTN_CPU_AVX2, "scalar", 0, 0, 0, 0}, /* compilers take AVX2 for granted where AVX-512 is */
    {UP_TO_AVX512, "avx512", 1, 1, 0, 0},
    {UP_TO_AVX512 | ATTN_CPU_AVX512_BF16, "avx512", 1, 1, 1, 0}, /* Intel's: slower than avx512 */
    {UP_TO_AVX512 | ATTN_CPU_AVX512_BF16 | ATTN_CPU_FAST_BF16, "avx512bf16", 1, 1, 1, 0},
    {UP_TO_AVX512 | ATTN_CPU_AMX, "avx512", 1, 1, 0, 0},
    {ALL, "amx", 1, 1, 1, 1},
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
        expect_level("avx512bf16", choices[n].bf16);
        expect_level("amx", choices[n].amx);
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
        if (strcmp(choices[n].best, "scalar") &&
            (pretended & ~(here | ATTN_CPU_FAST_BF16))) { /* a plan asks the level, in its instructions */
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
        if (choices[n].bf16) expect_plan("isa=avx512bf16", "avx512bf16");
        else expect_refused("isa=avx512bf16");
        if (choices[n].amx) expect_plan("isa=amx", "amx");
        else expect_refused("isa=amx");
    }
}

/* What is found on this processor is what some level needs, or less. */
static void this_processor(void **state)
{
    (void)state;
    pretended = features_of_this_processor();
    assert_int_equal(pretended & ~(unsigned)EVERY, 0);
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
