/* SPDX-License-Identifier: Apache-2.0
 * SIGSEGV: one of a kernel ends its block, as far as the processor is known; any other is the host's. */
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <sys/mman.h>

#include <mutex>

#include "device_memory.h"
#include "pool.h"
#include "report.h"

namespace emulator
{

static struct sigaction previous_action;

#ifdef __x86_64__
static void fault_landing()
{
    worker->launch->illegal_address = true;
    worker->abandon();
}

/* The fiber resumes in fault_landing, on a fresh stack: the old one may be what overflowed. */
static void end_block(const void *address, greg_t *registers)
{
    const char *at = static_cast<const char *>(address);
    const char *kind = "illegal address";
    if (at >= self->stack - PAGE && at < self->stack) kind = "stack overflow";
    else if (worker->owns_shared(address)) kind = "shared memory overrun";
    report("%s: %p at %s", kind, address, source_line(reinterpret_cast<void *>(registers[REG_RIP] + 1)).c_str());
    registers[REG_RIP] = reinterpret_cast<greg_t>(fault_landing);
    registers[REG_RSP] = reinterpret_cast<greg_t>(self->stack + STACK_BYTES - 2 * PAGE - 8);
}
#endif

static void on_fault(int signal, siginfo_t *info, void *context)
{
#ifdef __x86_64__
    if (self != nullptr) {
        end_block(info->si_addr, static_cast<ucontext_t *>(context)->uc_mcontext.gregs);
        return;
    }
#else
    (void)context;
#endif
    static const char text[] = "emulator: the host accesses device memory\n";
    if (memory_in_arena(info->si_addr)) {
        const ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
        (void)written;
    }
    sigaction(signal, &previous_action, nullptr); /* which the repeated access then meets */
}

void catch_faults()
{
    static std::once_flag once;
    std::call_once(once, [] {
        struct sigaction action = {};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigaction(SIGSEGV, &action, &previous_action);
    });
    enum { SIGNAL_STACK_BYTES = 64 << 10 };
    stack_t stack = {};
    stack.ss_sp = map_memory(SIGNAL_STACK_BYTES, PROT_READ | PROT_WRITE);
    stack.ss_size = SIGNAL_STACK_BYTES;
    sigaltstack(&stack, nullptr);
}

} // namespace emulator
