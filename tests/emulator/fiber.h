/* SPDX-License-Identifier: Apache-2.0
 * Switching between stacks: assembly on x86-64 (5 ns), ucontext elsewhere (300 ns, a system call each). All switching
 * of a worker should go through one call site: the processor's return predictor then stays right, as every fiber
 * returns to the same address. */
#ifndef ATTN_EMULATOR_FIBER_H
#define ATTN_EMULATOR_FIBER_H

#include <stddef.h>

#if defined(__x86_64__) && !defined(EMULATOR_UCONTEXT)

struct Context {
    void *stack;
};

extern "C" void emulator_fiber_switch(void **save, void *load) __attribute__((visibility("hidden")));

inline void fiber_switch(Context &from, Context &to) { emulator_fiber_switch(&from.stack, to.stack); }

/* Lets `fiber` start at entry() on the stack [bottom, top), top aligned to 16 bytes; entry never returns. */
inline void fiber_prepare(Context &fiber, char *, char *top, void (*entry)())
{
    void **words = reinterpret_cast<void **>(top) - 8;
    for (int i = 0; i < 6; i++) words[i] = nullptr; /* callee-saved registers */
    words[6] = reinterpret_cast<void *>(entry);
    words[7] = nullptr; /* return address of entry: keeps the ABI's alignment, ends backtraces */
    fiber.stack = words;
}

#else

#  include <ucontext.h>

struct Context {
    ucontext_t state;
};

inline void fiber_switch(Context &from, Context &to) { swapcontext(&from.state, &to.state); }

inline void fiber_prepare(Context &fiber, char *bottom, char *top, void (*entry)())
{
    getcontext(&fiber.state);
    fiber.state.uc_stack.ss_sp = bottom;
    fiber.state.uc_stack.ss_size = size_t(top - bottom);
    fiber.state.uc_link = nullptr;
    makecontext(&fiber.state, entry, 0);
}

#endif
#endif
