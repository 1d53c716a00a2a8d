/* SPDX-License-Identifier: Apache-2.0
 * Unfused attention on OpenBLAS, a rival of bench/peers.py: S = QK' by sgemm, softmax of its rows, O = SV by
 * sgemm. The heads are spread over OpenMP threads, each of which calls a single-threaded sgemm: faster than one
 * head after another by a threaded one.
 *
 *   blas_attention LIBRARY B,Hq,Hkv,Sq,Sk,D,Dv full|causal THREADS
 *
 * bench/README.md has the lines that it prints and takes. The library is loaded by name, so that Debian's OpenBLAS
 * and the one inside a numpy wheel (64-bit integers, names with a prefix) serve alike. bench/worker_blas.py
 * compiles this file. */
#include <dlfcn.h>
#include <inttypes.h>
#include <math.h>
#include <omp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 }; /* the numbers of every cblas.h */

typedef void sgemm32(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda,
                     const float *b, int ldb, float beta, float *c, int ldc);
typedef void sgemm64(int order, int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                     int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
typedef char *text_function(void);

static sgemm32 *gemm32; /* one of the two is set */
static sgemm64 *gemm64;
static text_function *library_config, *library_core;

typedef struct problem {
    int b, hq, hkv, sq, sk, d, dv;
    bool causal;
    bool grouped; /* the heads that share keys are the rows of one product */
    int threads;
    float *q, *k, *v, *out;
    float **scores; /* a thread's S each */
} problem;

static void fail(const char *what)
{
    printf("{\"error\": \"%s\"}\n", what);
    exit(1);
}

/* ---- The library -------------------------------------------------------------------------------- */

/* ISO C has no conversion from an object's pointer to a function's. */
static void symbol(void *library, const char *prefix, const char *name, const char *suffix, void *function)
{
    char full[80];
    snprintf(full, sizeof full, "%s%s%s", prefix, name, suffix);
    void *found = dlsym(library, full);
    memcpy(function, &found, sizeof found);
}

static void load(const char *path)
{
    static const char *const names[][2] = {{"", ""}, {"", "64_"}, {"scipy_", ""}, {"scipy_", "64_"}};
    setenv("OPENBLAS_NUM_THREADS", "1", 1); /* read while it is loaded */
    void *library = dlopen(path, RTLD_NOW);
    if (!library) fail("OpenBLAS was not found (Debian: libopenblas-dev)");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *prefix = names[i][0], *suffix = names[i][1];
        if (*suffix) {
            symbol(library, prefix, "cblas_sgemm", suffix, &gemm64);
        } else {
            symbol(library, prefix, "cblas_sgemm", suffix, &gemm32);
        }
        symbol(library, prefix, "openblas_get_config", suffix, &library_config);
        symbol(library, prefix, "openblas_get_corename", suffix, &library_core);
        if (gemm32 || gemm64) break;
    }
    if ((!gemm32 && !gemm64) || !library_config || !library_core) fail("the library is no OpenBLAS");
}

/* C[m][n] = alpha A[m][k] B, where B is [k][n] or, transposed, [n][k]; C is dense. */
static void gemm(int tb, int m, int n, int k, float alpha, const float *a, const float *b, float *c)
{
    int ldb = tb == TRANS ? k : n;
    if (gemm64) {
        gemm64(ROW_MAJOR, NO_TRANS, tb, m, n, k, alpha, a, k, b, ldb, 0.0f, c, n);
    } else {
        gemm32(ROW_MAJOR, NO_TRANS, tb, m, n, k, alpha, a, k, b, ldb, 0.0f, c, n);
    }
}

/* ---- Attention ---------------------------------------------------------------------------------- */

/* exp of x <= 0 to about 2 ulp without a branch, so that the loops round it become vector code. */
static inline float exp_negative(float x)
{
    x = x < -87.0f ? -87.0f : x;
    float n = (x * 1.44269504f + 0x1.8p23f) - 0x1.8p23f; /* rounds to an integer */
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    int32_t bits = ((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

/* x[0..visible) becomes exp(x - max), the rest 0; returns the sum. */
static float exponentials(float *x, int visible, int n)
{
    float largest = -INFINITY, sum = 0.0f;
#pragma omp simd reduction(max : largest)
    for (int j = 0; j < visible; j++) largest = x[j] > largest ? x[j] : largest;
#pragma omp simd reduction(+ : sum)
    for (int j = 0; j < visible; j++) {
        x[j] = exp_negative(x[j] - largest);
        sum += x[j];
    }
    for (int j = visible; j < n; j++) x[j] = 0.0f;
    return sum;
}

/* `heads` query heads from head h of sequence b on, which share their keys. */
static void attend(const problem *p, int b, int h, int heads, float *scores)
{
    int rows = heads * p->sq;
    size_t kv = (size_t)b * p->hkv + h / (p->hq / p->hkv), row = ((size_t)b * p->hq + h) * p->sq;
    float *out = p->out + row * p->dv;
    gemm(TRANS, rows, p->sk, p->d, 1.0f / sqrtf((float)p->d), p->q + row * p->d, p->k + kv * p->sk * p->d, scores);
    float *sums = scores + (size_t)rows * p->sk;
    for (int i = 0; i < rows; i++) {
        int visible = p->causal ? i % p->sq + 1 + p->sk - p->sq : p->sk;
        sums[i] = exponentials(scores + (size_t)i * p->sk, visible, p->sk);
    }
    gemm(NO_TRANS, rows, p->dv, p->sk, 1.0f, scores, p->v + kv * p->sk * p->dv, out);
    for (int i = 0; i < rows; i++) { /* cheaper here than in S: Dv numbers a row, not Sk */
        float scale = 1.0f / sums[i];
        for (int j = 0; j < p->dv; j++) out[(size_t)i * p->dv + j] *= scale;
    }
}

static void forward(const problem *p)
{
    int heads = p->grouped ? p->hq / p->hkv : 1, tasks = p->b * p->hq / heads;
    if (tasks == 1) { /* waking a team would cost more than a small one takes */
        attend(p, 0, 0, heads, p->scores[0]);
        return;
    }
#pragma omp parallel for num_threads(p->threads) schedule(dynamic, 1)
    for (int task = 0; task < tasks; task++) {
        int head = task * heads;
        attend(p, head / p->hq, head % p->hq, heads, p->scores[omp_get_thread_num()]);
    }
}

/* ---- Data and its check ----------------------------------------------------------------------- */

static double uniform(void) /* in (0, 1) */
{
    static uint64_t state = 0x9E3779B97F4A7C15u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return ((double)(state >> 11) + 0.5) * 0x1p-53;
}

/* Huge pages as the library under test may ask for them too. */
static float *memory(size_t count)
{
    size_t page = (size_t)2 << 20, bytes = (count * sizeof(float) + page - 1) / page * page;
    float *data = aligned_alloc(page, bytes);
    if (!data) fail("out of memory");
    madvise(data, bytes, MADV_HUGEPAGE);
    return data;
}

/* Standard normal; repeats with a prime period, because making 10^8 of them would take longer than the run. */
static float *normal(size_t count)
{
    enum { PERIOD = 1000003 };
    float *x = memory(count);
    for (size_t i = 0; i < count; i++) {
        x[i] = i < PERIOD ? (float)(sqrt(-2.0 * log(uniform())) * cos(6.283185307179586 * uniform())) : x[i - PERIOD];
    }
    return x;
}

/* Row i of head h of sequence b in double; adds the largest deviation and the largest number to *worst and *largest. */
static void check_row(const problem *p, int b, int h, int i, double *worst, double *largest)
{
    size_t kv = (size_t)b * p->hkv + h / (p->hq / p->hkv), row = ((size_t)b * p->hq + h) * p->sq + i;
    const float *q = p->q + row * p->d, *k = p->k + kv * p->sk * p->d, *v = p->v + kv * p->sk * p->dv;
    int visible = p->causal ? i + 1 + p->sk - p->sq : p->sk;
    double *weight = malloc((size_t)visible * sizeof *weight), max = -INFINITY, sum = 0.0;
    if (!weight) fail("out of memory");
    for (int j = 0; j < visible; j++) {
        double s = 0.0;
        for (int c = 0; c < p->d; c++) s += (double)q[c] * k[(size_t)j * p->d + c];
        weight[j] = s / sqrt((double)p->d);
        max = fmax(max, weight[j]);
    }
    for (int j = 0; j < visible; j++) sum += weight[j] = exp(weight[j] - max);
    for (int c = 0; c < p->dv; c++) {
        double o = 0.0;
        for (int j = 0; j < visible; j++) o += weight[j] / sum * v[(size_t)j * p->dv + c];
        *worst = fmax(*worst, fabs(o - p->out[row * p->dv + c]));
        *largest = fmax(*largest, fabs(o));
    }
    free(weight);
}

static double relative_error(const problem *p)
{
    double worst = 0.0, largest = 0.0;
    for (int n = 0; n < 24; n++) { /* the first two are the first and the last row */
        int i = n == 0 ? 0 : n == 1 ? p->sq - 1 : (int)(uniform() * p->sq);
        int h = n == 1 ? p->hq - 1 : (int)(uniform() * p->hq);
        check_row(p, n == 1 ? p->b - 1 : (int)(uniform() * p->b), h, i, &worst, &largest);
    }
    return worst / largest;
}

/* ---- The worker ------------------------------------------------------------------------------- */

/* Of one call, timed as so many. */
static double time_ms(const problem *p, int calls)
{
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int n = 0; n < calls; n++) forward(p);
    clock_gettime(CLOCK_MONOTONIC, &to);
    return ((double)(to.tv_sec - from.tv_sec) * 1e3 + (double)(to.tv_nsec - from.tv_nsec) * 1e-6) / calls;
}

static double best_ms(problem *p, bool grouped)
{
    p->grouped = grouped;
    double best = time_ms(p, 1);
    for (int n = 0; n < 3; n++) best = fmin(best, time_ms(p, 1));
    return best;
}

static void prepare(problem *p)
{
    size_t group = (size_t)(p->hq / p->hkv), rows = group * (size_t)p->sq;
    p->q = normal((size_t)p->b * p->hq * p->sq * p->d);
    p->k = normal((size_t)p->b * p->hkv * p->sk * p->d);
    p->v = normal((size_t)p->b * p->hkv * p->sk * p->dv);
    p->out = memory((size_t)p->b * p->hq * p->sq * p->dv);
    p->scores = malloc((size_t)p->threads * sizeof *p->scores);
    if (!p->scores) fail("out of memory");
    for (int t = 0; t < p->threads; t++) p->scores[t] = memory(rows * ((size_t)p->sk + 1));
    if (group > 1) p->grouped = best_ms(p, true) < best_ms(p, false);
}

int main(int argc, char **argv)
{
    problem p = {.threads = argc == 5 ? atoi(argv[4]) : 0};
    if (p.threads < 1 || sscanf(argv[2], "%d,%d,%d,%d,%d,%d,%d", &p.b, &p.hq, &p.hkv, &p.sq, &p.sk, &p.d, &p.dv) != 7) {
        fprintf(stderr, "usage: %s LIBRARY B,Hq,Hkv,Sq,Sk,D,Dv full|causal THREADS\n", argv[0]);
        return 2;
    }
    p.causal = strcmp(argv[3], "causal") == 0;
    load(argv[1]);
    prepare(&p);
    forward(&p);
    double error = relative_error(&p);
    char name[32] = "", version[32] = ""; /* the first words of the configuration */
    sscanf(library_config(), "%31s %31s", name, version);
    printf("{\"version\": \"%s %s\", \"kernel\": \"sgemm, softmax, sgemm; a task a %s\", \"backend\": \"%s\", "
           "\"threads\": %d, \"verified\": %s, \"relative_error\": %.3g}\n",
           name, version, p.grouped ? "group of heads" : "head", library_core(), p.threads,
           error < 1e-5 ? "true" : "false", error);
    fflush(stdout);
    char line[32];
    while (fgets(line, sizeof line, stdin) && strncmp(line, "run", 3) == 0) {
        int calls = atoi(line + 3);
        printf("{\"ms\": %.6f}\n", time_ms(&p, calls > 1 ? calls : 1));
        fflush(stdout);
    }
    return 0;
}
