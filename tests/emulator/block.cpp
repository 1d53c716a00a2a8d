/* SPDX-License-Identifier: Apache-2.0 */
#include "block.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <string>

#include "banks.h"
#include "report.h"
#include "settings.h"
#include "shadow.h"

namespace emulator
{

thread_local Worker *worker;
thread_local Fiber *self;

/* ---- The compiled-in kernels ------------------------------------------------------------------------------------- */

static Kernel *kernels;

Kernel::Kernel(const char *its_name, size_t bytes, unsigned threads, void (*its_body)(const void *))
    : name(its_name), parameter_bytes(bytes), maximum_threads(threads), run(its_body), next(kernels)
{
    kernels = this;
}

const Kernel *find_kernel(const char *name)
{
    for (const Kernel *k = kernels; k != nullptr; k = k->next)
        if (strcmp(k->name, name) == 0) return k;
    return nullptr;
}

/* ---- Set-up ------------------------------------------------------------------------------------------------------ */

char *map_memory(size_t bytes, int protection)
{
    void *address = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) {
        perror("emulator: mmap");
        abort();
    }
    return static_cast<char *>(address);
}

Worker::Worker() : shadow(shadow_create())
{
    warp = reinterpret_cast<Warp *>(map_memory(sizeof(Warp) * MAX_WARPS, PROT_READ | PROT_WRITE));
    fiber = static_cast<Fiber *>(calloc(MAX_THREADS, sizeof(Fiber)));
    stacks = map_memory(size_t(MAX_THREADS) * STACK_BYTES, PROT_READ | PROT_WRITE);
    for (unsigned i = 0; i < MAX_THREADS; i++) {
        fiber[i].stack = stacks + size_t(i) * STACK_BYTES + PAGE;
        fiber[i].index = i;
        fiber[i].lane = i % LANES;
        fiber[i].warp = &warp[i / LANES];
    }
    for (unsigned w = 0; w < MAX_WARPS; w++) {
        warp[w].index = w;
        warp[w].fiber = &fiber[w * LANES];
    }
    shared_top = map_memory(SHARED_LIMIT + 2 * PAGE, PROT_NONE) + PAGE + SHARED_LIMIT;
    mprotect(shared_top - SHARED_LIMIT, SHARED_LIMIT, PROT_READ | PROT_WRITE);
}

/* Guard pages cost a system call each, and few kernels have 1,024 threads. */
void Worker::make_stacks(unsigned count)
{
    for (; stacks_made < count; stacks_made++) mprotect(stacks + size_t(stacks_made) * STACK_BYTES, PAGE, PROT_NONE);
}

bool Worker::owns_shared(const void *address) const
{
    const char *at = static_cast<const char *>(address);
    return at >= shared_top - SHARED_LIMIT - PAGE && at < shared_top + PAGE;
}

/* ---- Scheduling -------------------------------------------------------------------------------------------------- */

/* The next fiber that can run: of the same warp if possible, which keeps collectives cheap. */
Fiber *Worker::pick(Fiber *from)
{
    unsigned first_warp = from->warp->index, first_lane = from->lane;
    if (random != 0) {
        random = random * 1664525 + 1013904223;
        first_warp = (random >> 8) % warps;
        first_lane = random >> 27;
    }
    for (unsigned i = 0; i < warps; i++) {
        unsigned w = first_warp + i;
        w = w >= warps ? w - warps : w;
        const uint32_t runnable = warp[w].runnable;
        if (runnable == 0) continue;
        const uint32_t later = i == 0 ? runnable & ~0u << first_lane : runnable;
        return &warp[w].fiber[__builtin_ctz(later != 0 ? later : runnable)];
    }
    return nullptr;
}

__attribute__((noinline)) void Worker::leave(Fiber *from)
{
    Fiber *to = pick(from);
    Context *target = to != nullptr ? &to->context : &scheduler;
    if (to == nullptr && exited != threads) describe_deadlock();
    counters.switches++;
    self = to;
    fiber_switch(from->context, *target);
}

void Worker::abandon()
{
    Fiber *from = self;
    abandoned = true;
    launch->failed = true;
    self = nullptr;
    fiber_switch(from->context, scheduler);
    abort(); /* never resumed */
}

const char *operation_name(Operation operation)
{
    switch (operation) {
    case RUNNING: return "run";
    case EXITED: return "have exited";
    case AT_BARRIER: return "wait at block_barrier";
    case WARP_BARRIER: return "wait at warp_barrier";
    case SHUFFLE: return "wait at shuffle";
    case MMA: return "wait at mma";
    case LOAD_MATRICES: return "wait at load_matrices";
    case TRANSPOSE: return "wait at transpose_pairs";
    case GATE: return "wait at pass_gate";
    }
    return "?";
}

void Worker::describe_deadlock()
{
    std::string text;
    std::vector<bool> told(threads);
    for (unsigned i = 0; i < threads; i++) {
        if (told[i]) continue;
        unsigned count = 0;
        for (unsigned j = i; j < threads; j++)
            if (fiber[j].waits == fiber[i].waits && fiber[j].where.line == fiber[i].where.line) {
                told[j] = true;
                count++;
            }
        text += (text.empty() ? "" : ", ") + std::to_string(count) + " threads (first " + std::to_string(i) + ") " +
                operation_name(fiber[i].waits);
        if (fiber[i].waits != EXITED)
            text += std::string(" ") + base_name(fiber[i].where.file) + ":" + std::to_string(fiber[i].where.line);
    }
    self = nullptr;
    abandoned = true;
    report("no thread can go on: %s", text.c_str());
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

static void fiber_main()
{
    Worker *w = worker;
    Fiber *me = self;
    w->launch->kernel->run(w->launch->parameter.data());
    if (me->posted != 0) {
        report("the kernel ends without mma_complete");
        w->abandon();
    }
    for (const Copies *pending : {&me->copies, &me->bulk_copies})
        if (pending->count != 0) {
            report("the kernel ends without %s after %s:%d", pending == &me->copies ? "copies_complete" : "pass_gate",
                   base_name(pending->copy[0].where.file), pending->copy[0].where.line);
            w->abandon();
        }
    me->waits = EXITED;
    me->where = {nullptr, 0};
    me->warp->runnable &= ~(1u << me->lane);
    me->warp->live &= ~(1u << me->lane);
    w->exited++;
    w->leave(me);
    abort(); /* never resumed */
}

void Worker::start()
{
    threads = launch->threads;
    warps = (threads + LANES - 1) / LANES;
    exited = at_barrier = 0;
    abandoned = false;
    random = settings.seed != 0 ? uint32_t(settings.seed) + block_index * 2654435761u : 0;
    make_stacks(threads);
    /* As near to the guard page as the alignment that kernels may count on allows. */
    shared = shared_top - (launch->shared_bytes + 15) / 16 * 16;
    memset(shared, 0xff, size_t(shared_top - shared)); /* NaN in every format */
    shadow_start_block(shadow);
    for (unsigned w = 0; w < warps; w++) {
        const unsigned lanes = threads - w * LANES < LANES ? threads - w * LANES : unsigned(LANES);
        warp[w].runnable = warp[w].live = lanes == LANES ? ~0u : (1u << lanes) - 1;
        warp[w].exchange.arrived = 0;
    }
    for (unsigned i = 0; i < threads; i++) {
        fiber[i].waits = RUNNING;
        fiber[i].posted = fiber[i].copies.count = fiber[i].bulk_copies.count = fiber[i].groups = 0;
        /* Staggered tops: equal offsets would share a few cache sets. */
        char *top = fiber[i].stack + STACK_BYTES - 2 * PAGE - (i * 5 % 31) * 64;
        fiber_prepare(fiber[i].context, fiber[i].stack, top, fiber_main);
    }
}

void Worker::run_block(Launch &l, unsigned index)
{
    launch = &l;
    worker = this;
    block_index = index;
    banks = settings.banks != 0 ? banks_of_this_thread() : nullptr;
    start();
    self = &fiber[0];
    fiber_switch(scheduler, fiber[0].context);
    self = nullptr;
    if (banks != nullptr) banks_finish_block(*this);
    launch = nullptr;
}

void add_counters(Counters &sum, const Counters &more)
{
    sum.switches += more.switches;
    sum.mma += more.mma;
    sum.shuffles += more.shuffles;
    sum.block_barriers += more.block_barriers;
    sum.accesses += more.accesses;
}

unsigned thread_index() { return self->index; }
unsigned block_index() { return worker->block_index; }
unsigned block_count() { return worker->launch->blocks; }
char *shared_memory() { return worker->shared; }

} // namespace emulator
