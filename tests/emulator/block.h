/* SPDX-License-Identifier: Apache-2.0
 * A block of fibers on one OS thread: who runs, who waits for what. */
#ifndef ATTN_EMULATOR_BLOCK_H
#define ATTN_EMULATOR_BLOCK_H

#include <atomic>
#include <vector>

#include "device_emulated.h"
#include "fiber.h"
#include "mma.h"

namespace emulator
{

enum : unsigned {
    MAX_WARPS = 32,
    MAX_THREADS = 1024,
    PAGE = 4096,
    STACK_BYTES = 64 << 10,
    SHARED_LIMIT = 256 << 10,
    /* A prime: a full queue computes, and must not stand in for a forgotten mma_complete. */
    MAX_POSTED = 61,
    COPY_GROUPS = 16 /* of a thread, closed and not waited for */
};

enum Operation : uint8_t { RUNNING, EXITED, AT_BARRIER, WARP_BARRIER, SHUFFLE, MMA, LOAD_MATRICES, TRANSPOSE, GATE };

/* The one collective of a warp that is in flight: lanes leave operands, the last one computes, all take results. */
struct Exchange {
    uint32_t arrived; /* lanes */
    Operation operation;
    Where where;
    uint32_t in[LANES], out[LANES];
    uint4 rows_in[LANES], rows_out[LANES]; /* of load_matrices */
};

/* A product that a lane has posted and that is not computed yet; accumulators stay in place, on the lane's stack. */
struct PostedMma {
    float *c;
    uint32_t a[4], b[2];
    MmaForm form;
    Where where;
};

/* An asynchronous copy that its thread has not waited for yet. */
struct Copy {
    void *to;
    const void *from;
    size_t bytes;     /* 4, 8 or 16; of a bulk copy any multiple of 16 */
    bool wanted;      /* otherwise zeros arrive */
    const void *code; /* where it was issued, for the checks */
    Where where;
    const void *gate; /* of a bulk copy */

    size_t alignment() const { return bytes < 16 ? bytes : 16; }
};

struct Copies {
    Copy *copy; /* [capacity], of which the first `count` are pending */
    unsigned count, capacity;
};

struct Warp;

struct Fiber {
    Context context;
    Warp *warp;
    unsigned index; /* in the block */
    unsigned lane;
    char *stack; /* lowest usable byte, above the guard page */
    unsigned posted;
    Copies copies, bulk_copies;
    unsigned group_end[COPY_GROUPS], groups; /* closed ones, by the number of copies before their end */
    Operation waits;                         /* for what, if it cannot run */
    Where where;
};

struct Warp {
    uint32_t runnable, live;
    unsigned index;
    Fiber *fiber; /* [LANES] */
    Exchange exchange;
    PostedMma queue[LANES][MAX_POSTED];
};

struct Counters {
    uint64_t switches, mma, shuffles, block_barriers, accesses;
};

void add_counters(Counters &sum, const Counters &more);

struct Launch {
    const Kernel *kernel;
    std::vector<char> parameter;
    unsigned blocks, threads, shared_bytes;
    int device;
    unsigned next_block = 0, unfinished = 0; /* guarded by the pool's lock, as are the counters */
    Counters counters = {};
    std::atomic<bool> failed{false}, illegal_address{false};
};

struct Shadow;
struct Banks;

struct Worker {
    Worker();
    void run_block(Launch &, unsigned index);
    Counters counters = {};

    /* State of the current block. */
    Launch *launch = nullptr;
    unsigned block_index, warps, threads, exited, at_barrier;
    Where barrier_where;
    char *shared;
    bool abandoned;
    Context scheduler;
    Shadow *shadow; /* null unless checked */
    Banks *banks;   /* null unless counted */
    uint32_t random;

    Warp *warp;   /* [MAX_WARPS] */
    Fiber *fiber; /* [MAX_THREADS] */

    void leave(Fiber *);         /* runs others until this fiber may go on */
    [[noreturn]] void abandon(); /* gives the block up */
    bool owns_shared(const void *) const;

  private:
    char *shared_top; /* where the guard page begins */
    char *stacks;
    unsigned stacks_made = 0;

    void make_stacks(unsigned count);
    void start();
    Fiber *pick(Fiber *);
    void describe_deadlock();
};

extern thread_local Worker *worker __attribute__((tls_model("initial-exec")));
extern thread_local Fiber *self __attribute__((tls_model("initial-exec")));

const Kernel *find_kernel(const char *name);
const char *operation_name(Operation);

/* Waits for the other lanes of the warp. True for the last one, before the others resume. */
bool arrive(Fiber *, Operation, uint32_t value, Where);

/* Private memory of `bytes`; ends the process where there is none. */
char *map_memory(size_t bytes, int protection);

} // namespace emulator
#endif
