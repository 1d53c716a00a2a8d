/* SPDX-License-Identifier: Apache-2.0
 * The checks of every access that a kernel makes, in the checked build; elsewhere these do nothing. */
#ifndef ATTN_EMULATOR_SHADOW_H
#define ATTN_EMULATOR_SHADOW_H

#include "block.h"

namespace emulator
{

/* What is known about the order of accesses to the shared memory of a worker's block; null unless checked. */
Shadow *shadow_create();
void shadow_start_block(Shadow *);
void shadow_block_barrier(Shadow *, unsigned warps);
void shadow_warp_barrier(Shadow *, unsigned warp);

/* Alignment is not looked at: compilers join accesses and split them. -fsanitize=alignment sees what the source says.
 * `code` is the return address of the instrumentation's call. */
void shadow_check(const void *address, size_t bytes, bool is_write, const void *code);

/* The bytes of an asynchronous copy. It writes twice, when it is issued and when it arrives; nobody may touch
 * them in between. In both builds a misaligned address is reported. */
void shadow_copy_issued(const Copy &);
void shadow_copy_arrived(const Copy &);

} // namespace emulator
#endif
