/* SPDX-License-Identifier: Apache-2.0
 * Bank conflicts of shared memory. Fibers run one after the other, so each lane's accesses are kept until its warp
 * meets; then the n-th access of every lane by one instruction since the meeting before is one instruction of the
 * warp. */
#ifndef ATTN_EMULATOR_BANKS_H
#define ATTN_EMULATOR_BANKS_H

#include "block.h"

namespace emulator
{

Banks *banks_of_this_thread();
void banks_note(Worker &, const void *code, size_t offset, size_t bytes, bool is_write);
void banks_finish_step(Worker &, unsigned warp);
void banks_finish_block(Worker &);

} // namespace emulator
#endif
