/* SPDX-License-Identifier: Apache-2.0
 * The EMULATOR_* settings. They may be changed while host threads run, hence atomic. */
#ifndef ATTN_EMULATOR_SETTINGS_H
#define ATTN_EMULATOR_SETTINGS_H

#include <atomic>

namespace emulator
{

struct Settings {
    std::atomic<long> capability{70}; /* major * 10 + minor */
    std::atomic<long> devices{1};
    std::atomic<long> memory{1L << 30};   /* bytes a device */
    std::atomic<long> multiprocessors{0}; /* 0: as many as a well-known device of the capability has */
    std::atomic<long> threads{0};         /* OS threads that run blocks; 0: all processors */
    std::atomic<long> seed{0};            /* not 0: a repeatable random schedule of warps and lanes */
    std::atomic<long> immediate{0};       /* 1: every product of mma at once instead of at mma_complete */
    std::atomic<long> truncate{0};        /* 1: mma adds as Volta's tensor cores do */
    std::atomic<long> banks{0};           /* 1: count bank conflicts */
    std::atomic<long> statistics{0};      /* 1: print the counts when the process ends */

    Settings(); /* reads the environment */
};

extern Settings settings;

unsigned worker_threads();

/* "[symbol:]N[:code]": the N-th call from now (of that symbol) fails with that code, out of memory by default. An
 * empty plan ends it. False if malformed. */
bool set_fault_plan(const char *plan);

} // namespace emulator
#endif
