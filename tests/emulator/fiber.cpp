/* SPDX-License-Identifier: Apache-2.0 */
#include "fiber.h"

#if defined(__x86_64__) && !defined(EMULATOR_UCONTEXT)
asm(R"(
    .text
    .hidden emulator_fiber_switch
    .globl emulator_fiber_switch
    .type emulator_fiber_switch, @function
emulator_fiber_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size emulator_fiber_switch, . - emulator_fiber_switch
)");
#endif
