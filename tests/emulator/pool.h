/* SPDX-License-Identifier: Apache-2.0
 * The OS threads that run blocks. They start with the first launch and stay. */
#ifndef ATTN_EMULATOR_POOL_H
#define ATTN_EMULATOR_POOL_H

#include "block.h"

namespace emulator
{

/* Runs all blocks of a launch and returns when they are done. Launches of several host threads run side by side. */
void pool_run(Launch &);

/* Lets a fault of a kernel on this thread end its block instead of the process. */
void catch_faults();

} // namespace emulator
#endif
