/* SPDX-License-Identifier: Apache-2.0
 * The ceilings. They run on OpenMP's team, the same threads as the library's, so that neither has to share cores with
 * the other's threads, which wait by spinning. Each figure is the median of many short runs. */
#include "bench_peak.h"

#include "timing.h"

#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if defined(__x86_64__)
#  include <cpuid.h>
#  include <sys/syscall.h>
#  include <unistd.h>
#endif

enum { RUNS_MAX = 256, RUNS_MIN = 3 };

/* ---- arithmetic ------------------------------------------------------------------------------------------------- */

/* Every level but amx does x = x * b + a on many independent x, enough to fill the pipelines; x tends to
 * a / (1 - b) = 1, so that no number is ever special. Registers are named, so nothing can be folded or spilled. */
static const float factor = 0.999f, addend = 0.001f;

/* Turns of a loop in a run. A turn takes about twelve cycles, amx's 64, so a run takes some 2 ms: long beside a
 * barrier, short beside a time slice. */
enum { TURNS = 400000, TILE_TURNS = 40000 };

struct level {
    const char *name; /* as attn_plan.isa has it */
    double flops;     /* of one turn of its loop */
    int64_t turns;
    void (*run)(int64_t count);
    int (*is_there)(void);
};

static int always(void) { return 1; }

#if defined(__x86_64__)

/* An instruction for each register of `list`; "\\n" in it is the register's number. */
#  define EACH(list, instruction) ".irp n," list "\n\t" instruction "\n\t.endr\n\t"
#  define LIST_12 "0,1,2,3,4,5,6,7,8,9,10,11"
#  define LIST_24 LIST_12 ",12,13,14,15,16,17,18,19,20,21,22,23"
/* `start` once, then `body` until %0 is counted down to 0. */
#  define LOOP(start, body) start "1:\n\t" body "dec %0\n\tjnz 1b\n\t"
#  define CLOBBER_16                                                                                                 \
    "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", \
        "xmm13", "xmm14", "xmm15"
#  define CLOBBER_26 \
    CLOBBER_16, "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25"

/* The baseline instruction set multiplies and adds apart: twice the instructions, four numbers each. */
#  define SSE2_START                                       \
    "movss %1, %%xmm14\n\tshufps $0, %%xmm14, %%xmm14\n\t" \
    "movss %2, %%xmm15\n\tshufps $0, %%xmm15, %%xmm15\n\t" EACH(LIST_12, "movaps %%xmm15, %%xmm\\n")
#  define SSE2_BODY EACH(LIST_12, "mulps %%xmm14, %%xmm\\n") EACH(LIST_12, "addps %%xmm15, %%xmm\\n")
#  define AVX2_START \
    "vbroadcastss %1, %%ymm14\n\tvbroadcastss %2, %%ymm15\n\t" EACH(LIST_12, "vmovaps %%ymm15, %%ymm\\n")
#  define AVX2_BODY EACH(LIST_12, "vfmadd213ps %%ymm15, %%ymm14, %%ymm\\n")
#  define AVX512_START \
    "vbroadcastss %1, %%zmm24\n\tvbroadcastss %2, %%zmm25\n\t" EACH(LIST_24, "vmovaps %%zmm25, %%zmm\\n")
#  define AVX512_BODY EACH(LIST_24, "vfmadd213ps %%zmm25, %%zmm24, %%zmm\\n")

static void multiply_add_sse2(int64_t count)
{
    __asm__ volatile(LOOP(SSE2_START, SSE2_BODY) : "+r"(count) : "m"(factor), "m"(addend) : CLOBBER_16);
}

__attribute__((target("avx2,fma"))) static void multiply_add_avx2(int64_t count)
{
    __asm__ volatile(LOOP(AVX2_START, AVX2_BODY) "vzeroupper" : "+r"(count) : "m"(factor), "m"(addend) : CLOBBER_16);
}

__attribute__((target("avx512f"))) static void multiply_add_avx512(int64_t count)
{
    __asm__ volatile(LOOP(AVX512_START, AVX512_BODY) "vzeroupper"
                     : "+r"(count)
                     : "m"(factor), "m"(addend)
                     : CLOBBER_26);
}

/* Pairs of bf16 to float32 sums; the zeros that registers hold take no more time than numbers. */
#  define BF16_START "vpxord %%zmm24, %%zmm24, %%zmm24\n\t" EACH(LIST_24, "vmovaps %%zmm24, %%zmm\\n")
#  define BF16_BODY EACH(LIST_24, "vdpbf16ps %%zmm24, %%zmm24, %%zmm\\n")

__attribute__((target("avx512f"))) static void multiply_add_avx512bf16(int64_t count)
{
    __asm__ volatile(LOOP(BF16_START, BF16_BODY) "vzeroupper" : "+r"(count) : : CLOBBER_26);
}

static int has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
static int has_avx512(void) { return __builtin_cpu_supports("avx512f"); }
static int has_avx512bf16(void) { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }

/* amx adds products of bf16 to float32: a tile is 16 rows of 64 bytes, and an instruction adds 32 products to each of
 * 16 x 16 sums. Four tiles of sums hide its latency (52 cycles, one begins every 16); the operands, two left ones and
 * two right ones, stay in their tiles. Compilers use no tile by themselves, so there is none to save. */
enum { TILE_ROWS = 16, ROW_BYTES = 64, TILE_NUMBERS = 16 * 32, TILE_FLOPS = 16 * 16 * 32 * 2 };

struct tile_shapes { /* 64 bytes, as LDTILECFG reads them */
    uint8_t palette, first_row, reserved[14];
    uint16_t row_bytes[16]; /* of the eight tiles; the rest is reserved */
    uint8_t rows[16];
};
#  define EIGHT(x) x, x, x, x, x, x, x, x
static const struct tile_shapes tile_shapes = {
    .palette = 1, .row_bytes = {EIGHT(ROW_BYTES)}, .rows = {EIGHT(TILE_ROWS)}};
_Static_assert(sizeof tile_shapes == 64, "the memory operand of LDTILECFG");

#  define AMX_START \
    "ldtilecfg %1\n\t" EACH("0,1,2,3", "tilezero %%tmm\\n") EACH("4,5,6,7", "tileloadd (%2,%3), %%tmm\\n")
/* tdpbf16ps right, left, sums */
#  define AMX_BODY                                                             \
    "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n\ttdpbf16ps %%tmm7, %%tmm4, %%tmm1\n\t" \
    "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n\ttdpbf16ps %%tmm7, %%tmm5, %%tmm3\n\t"

/* The thread has the shapes and the tiles from here to the end of the run. */
static void multiply_add_amx(int64_t count)
{
    uint16_t numbers[TILE_NUMBERS]; /* from 1 to 2: zeros might take less power */
    for (int i = 0; i < TILE_NUMBERS; i++) numbers[i] = (uint16_t)(0x3f80 + i % 128);
    __asm__ volatile(LOOP(AMX_START, AMX_BODY) "tilerelease"
                     : "+r"(count)
                     : "m"(tile_shapes), "r"(numbers), "r"((int64_t)ROW_BYTES), "m"(numbers)
                     : "cc");
}

/* The processor has the instructions, the system saves the tiles, and this process may use them: Linux gives the
 * permission to processes that ask. */
static int has_amx(void)
{
#  if defined(SYS_arch_prctl)
    enum { ECX_OSXSAVE = 27, EDX_AMX_BF16 = 22, EDX_AMX_TILE = 24, XCR0_TILES = 3 << 17 };
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    unsigned eax, ebx, ecx, edx, xcr0, high;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx >> ECX_OSXSAVE & 1)) return 0;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return 0;
    if (!(edx >> EDX_AMX_BF16 & 1) || !(edx >> EDX_AMX_TILE & 1)) return 0;
    __asm__ volatile("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0));
    return (xcr0 & XCR0_TILES) == XCR0_TILES && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#  else
    return 0;
#  endif
}

static const struct level levels[] = {
    {"scalar", 12 * 4 * 2, TURNS, multiply_add_sse2, always},
    {"avx2", 12 * 8 * 2, TURNS, multiply_add_avx2, has_avx2},
    {"avx512", 24 * 16 * 2, TURNS, multiply_add_avx512, has_avx512},
    {"avx512bf16", 24 * 32 * 2, TURNS, multiply_add_avx512bf16, has_avx512bf16},
    {"amx", 4 * TILE_FLOPS, TILE_TURNS, multiply_add_amx, has_amx},
};

#else

/* Twelve variables of four numbers, because compilers keep no array in registers. */
typedef float four __attribute__((vector_size(16)));
#  define TWELVE(item) item(0) item(1) item(2) item(3) item(4) item(5) item(6) item(7) item(8) item(9) item(10) item(11)
#  define DEFINE(n) four x##n = a * n##.5f; /* each another, or one would do for all */
#  define STEP(n) x##n = x##n * b + a;
#  define ADD(n) sum += x##n[0];

static void multiply_add_portable(int64_t count)
{
    volatile float first = addend, second = factor, sink;
    float sum = 0;
    four a = {first, first, first, first}, b = {second, second, second, second};
    TWELVE(DEFINE)
    while (count-- > 0) {
        TWELVE(STEP)
    }
    TWELVE(ADD)
    sink = sum;
    (void)sink;
}

static const struct level levels[] = {{"scalar", 12 * 4 * 2, TURNS, multiply_add_portable, always}};

#endif

enum { LEVELS = sizeof levels / sizeof *levels };

const char *bench_peak_level(int n)
{
    for (int i = 0; i < LEVELS; i++)
        if (levels[i].is_there() && n-- == 0) return levels[i].name;
    return NULL;
}

/* GFLOP/s of one run. */
static double multiply_add(const struct level *level, int threads)
{
    double begin = 0, end = 0, team = 1;
#pragma omp parallel num_threads(threads)
    {
        level->run(1000); /* the thread is awake and the pipelines of this level have power */
#pragma omp barrier
#pragma omp master
        {
            begin = cli_now();
            team = (double)omp_get_num_threads();
        }
        level->run(level->turns);
#pragma omp barrier
#pragma omp master
        end = cli_now();
    }
    return 1e-9 * level->flops * (double)level->turns * team / (end - begin);
}

double bench_peak_fma(const char *isa, int threads, double seconds)
{
    const struct level *level = levels;
    for (int i = 1; i < LEVELS; i++)
        if (strncmp(isa, levels[i].name, strlen(levels[i].name)) == 0 && levels[i].is_there()) level = &levels[i];
    double rates[RUNS_MAX], stop = cli_now() + seconds;
    int runs = 0;
    while (runs < RUNS_MAX && (runs < RUNS_MIN || cli_now() < stop)) rates[runs++] = multiply_add(level, threads);
    return cli_median(rates, runs);
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

enum { HUGE_PAGE = 2 << 20, PART_MAX = 256 << 20, LINE = 64, STREAMS = 8 };

/* Brings in every cache line of a part by one load each, because the memory is the limit and not the loads. Eight
 * places at a time: the prefetchers of a core follow a few streams each, and a single one leaves a third unused. */
static uint64_t read_lines(const uint64_t *words, size_t bytes)
{
    size_t stream = bytes / STREAMS / sizeof *words;
    uint64_t seen = 0;
    for (size_t i = 0; i < stream; i += LINE / sizeof *words)
        for (size_t s = 0; s < STREAMS; s++) seen |= words[s * stream + i];
    return seen;
}

static volatile uint64_t read_sink; /* so that reading has a use */

static double read_parts(const struct bench_peak *peak)
{
    double begin = 0, end = 0, team = 1;
    uint64_t seen = 0;
#pragma omp parallel num_threads(peak->threads) reduction(| : seen)
    {
        const char *part = peak->data + (size_t)omp_get_thread_num() * peak->part_bytes;
#pragma omp barrier
#pragma omp master
        {
            begin = cli_now();
            team = (double)omp_get_num_threads();
        }
        seen |= read_lines((const uint64_t *)(const void *)part, peak->part_bytes);
#pragma omp barrier
#pragma omp master
        end = cli_now();
    }
    read_sink = seen;
    return 1e-9 * (double)peak->part_bytes * team / (end - begin);
}

/* Each thread is the first to touch its part, so that the part lies in its own memory where memories differ. */
static int make_parts(struct bench_peak *peak, int threads)
{
    double limit = peak->limit_bytes / threads;
    size_t part = limit > PART_MAX ? PART_MAX : (size_t)(limit > 0 ? limit : 0) / HUGE_PAGE * HUGE_PAGE;
    if (part == 0) part = HUGE_PAGE;
    bench_peak_free(peak);
    peak->data = aligned_alloc(HUGE_PAGE, part * (size_t)threads);
    if (!peak->data) return -1;
#if defined(MADV_HUGEPAGE)
    madvise(peak->data, part * (size_t)threads, MADV_HUGEPAGE); /* refused: ordinary pages */
#endif
    peak->part_bytes = part;
    peak->threads = threads;
#pragma omp parallel num_threads(threads)
    memset(peak->data + (size_t)omp_get_thread_num() * part, 0, part);
    return 0;
}

double bench_peak_read(struct bench_peak *peak, int threads, double seconds)
{
    if (peak->threads != threads && make_parts(peak, threads)) return 0;
    double rates[RUNS_MAX], stop = cli_now() + seconds;
    int runs = 0;
    while (runs < RUNS_MAX && (runs < RUNS_MIN || cli_now() < stop)) rates[runs++] = read_parts(peak);
    return cli_median(rates, runs);
}

void bench_peak_free(struct bench_peak *peak)
{
    free(peak->data);
    peak->data = NULL;
    peak->threads = 0;
}
