/* SPDX-License-Identifier: Apache-2.0
 * What this machine can do at most, measured: arithmetic from registers, of float32 or on tiles of bf16, and reading
 * memory. */
#ifndef ATTN_CLI_BENCH_PEAK_H
#define ATTN_CLI_BENCH_PEAK_H

#include <stddef.h>

/* The instruction-set levels of arithmetic that this machine has, worst first; NULL beyond the last. */
const char *bench_peak_level(int n);

/* GFLOP/s of a team of threads that does nothing but multiply and add, at the level that isa (attn_plan.isa) names or
 * begins with, else at the first one, which is what portable code gets. Takes about so many seconds. */
double bench_peak_fma(const char *isa, int threads, double seconds);

/* Memory to read: for each thread a part of its own, far larger than its caches. Zero to begin with. */
struct bench_peak {
    char *data;
    size_t part_bytes;
    int threads;        /* of whom each has touched its part first */
    double limit_bytes; /* of all parts; set by the caller */
};

/* GB/s of a team that reads its parts from one end to the other; makes them for this number of threads if that has not
 * been done. 0 if there is no memory for them. */
double bench_peak_read(struct bench_peak *peak, int threads, double seconds);
void bench_peak_free(struct bench_peak *peak);

#endif
