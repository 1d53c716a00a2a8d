/* SPDX-License-Identifier: Apache-2.0
 * What blocks do together in global memory. */
#include <sched.h>
#include <time.h>

#include "block.h"
#include "report.h"
#include "shadow.h"

namespace emulator
{

#ifdef EMULATOR_CHECKED
#  define CHECK(p, is_write) shadow_check(p, sizeof *(p), is_write, __builtin_return_address(0))
#else
#  define CHECK(p, is_write) (void)(p)
#endif

enum { PATIENCE_SECONDS = 60 }; /* of a block that waits for its turn */

void add_float(float *to, float x, Where)
{
    CHECK(to, true);
    uint32_t *word = reinterpret_cast<uint32_t *>(to), seen = __atomic_load_n(word, __ATOMIC_RELAXED), wanted;
    do {
        float sum;
        memcpy(&sum, &seen, sizeof sum);
        sum += x;
        memcpy(&wanted, &sum, sizeof sum);
    } while (!__atomic_compare_exchange_n(word, &seen, wanted, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

uint32_t count_up(uint32_t *counter, Where)
{
    CHECK(counter, true);
    return __atomic_fetch_add(counter, 1u, __ATOMIC_ACQ_REL);
}

uint32_t current_turn(const uint32_t *counter, Where)
{
    CHECK(counter, false);
    return __atomic_load_n(counter, __ATOMIC_ACQUIRE);
}

void wait_for_turn(const uint32_t *counter, uint32_t turn, Where where)
{
    CHECK(counter, false);
    const time_t start = time(nullptr);
    while (__atomic_load_n(counter, __ATOMIC_ACQUIRE) != turn) {
        if (worker->launch->failed) worker->abandon(); /* who is waited for may have been given up */
        if (time(nullptr) - start > PATIENCE_SECONDS) {
            report("block %u waits at %s:%d for turn %u, which does not come: it is %u", worker->block_index,
                   base_name(where.file), where.line, turn, __atomic_load_n(counter, __ATOMIC_ACQUIRE));
            worker->abandon();
        }
        sched_yield();
    }
}

} // namespace emulator
