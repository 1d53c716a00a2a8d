/* SPDX-License-Identifier: Apache-2.0
 * Streams are lazy: a command runs only when somebody waits for it or for one that comes after it. So what a program
 * reads too early is not there yet, and work that no event orders is done in the order of the waiting, not of the
 * queueing. */
#ifndef ATTN_EMULATOR_STREAM_H
#define ATTN_EMULATOR_STREAM_H

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/driver_types.h"

namespace emulator
{

struct Stream;
typedef std::shared_ptr<Stream> StreamPointer;
typedef std::unique_lock<std::mutex> Lock; /* of the driver; the functions below are called with it held */

struct Command {
    uint64_t number;               /* commands of the process are numbered as they are queued */
    std::function<CUresult()> run; /* without the lock; may be empty */
    StreamPointer after;           /* runs only after this stream's commands up to the number; may be null */
    uint64_t after_number;
};

struct Stream {
    CUcontext context;
    bool is_legacy;   /* stream 0: ordered with all blocking streams of its context */
    bool is_blocking; /* not created with CU_STREAM_NON_BLOCKING */
    std::deque<Command> queue;
    bool is_busy; /* a host thread runs the command `running` */
    uint64_t running;
    uint64_t last; /* number of the last command queued */

    bool is_done(uint64_t number) const; /* nothing up to it is left */
};

/* Queues a command; returns its number. */
uint64_t stream_push(Stream &, std::function<CUresult()> run, StreamPointer after = nullptr, uint64_t after_number = 0);

/* Runs what is needed until nothing up to `number` is left. */
void stream_run(Lock &, StreamPointer, uint64_t number);

/* Runs one command on the way there. */
void stream_step(Lock &, StreamPointer, uint64_t number);

/* All streams of a context. */
void stream_run_all(Lock &, CUcontext);

} // namespace emulator
#endif
