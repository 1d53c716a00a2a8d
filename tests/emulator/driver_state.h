/* SPDX-License-Identifier: Apache-2.0
 * What the driver's entry points share: objects, the lock, how a call begins. */
#ifndef ATTN_EMULATOR_DRIVER_STATE_H
#define ATTN_EMULATOR_DRIVER_STATE_H

#include <string>
#include <vector>

#include "block.h"
#include "stream.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

struct CUctx_st {
    int device;
    bool is_primary;
    int references;                               /* 0: destroyed; a foreign context has one */
    CUresult sticky;                              /* an error that ended the context */
    std::vector<emulator::StreamPointer> streams; /* the first is the legacy one */
};

struct CUstream_st {
    emulator::StreamPointer stream;
    CUstreamCaptureStatus capture;
    std::vector<emulator::Command> captured;
};

struct CUevent_st {
    CUcontext context;
    emulator::StreamPointer stream; /* where it was recorded last; null: nowhere */
    uint64_t number;
};

struct CUmod_st {
    const void *image;
    CUcontext context;
    std::vector<CUfunction> functions;
};

struct CUfunc_st {
    const emulator::Kernel *kernel;
    CUmodule module;
    int shared_limit;
};

namespace emulator
{

enum Needs { NOTHING, INITIALISED, CONTEXT };

/* The beginning of an entry point: takes the lock, counts the call, finds out whether it must fail at once. */
struct Call {
    Call(const char *symbol, Needs);
    Lock lock;
    CUresult code;
};

#define ENTER(symbol, needs)                     \
  emulator::Call call(#symbol, emulator::needs); \
  if (call.code != CUDA_SUCCESS) return call.code
#define REQUIRE(condition, code) \
  if (!(condition)) return code

/* All guarded by the lock. */
struct DriverState {
    bool is_initialised;
    int process; /* that did it: a driver does not survive fork() */
    std::vector<CUcontext> contexts;
    std::vector<CUstream> streams;
    std::vector<CUevent> events;
    std::vector<CUmodule> modules;
    uint64_t calls, launches, faults, lost_bytes;
    Counters counters;
};

DriverState &driver_state();

/* The calling thread's stack of contexts; with needs CONTEXT it is not empty. */
std::vector<CUcontext> &current_contexts();
inline CUcontext current_context() { return current_contexts().back(); }

CUcontext context_create(int device, bool is_primary);
void context_destroy(Lock &, CUcontext);

/* Shared memory that a block may opt in to, and multiprocessors of a well-known device of the capability. */
struct Pose {
    long capability;
    int shared_optin, multiprocessors;
};
Pose pose();

/* Adds a launch that has run; takes the lock. */
void count_launch(const Counters &);

/* What a handle, 0 being the legacy stream of the current context, stands for; null for a wrong one. */
StreamPointer stream_of(CUstream);

/* Queues a command, or adds it to what the stream captures. */
CUresult enqueue(CUstream, std::function<CUresult()> run);

/* Ends the captures that a call does which must not happen during one: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, or
 * success if there is none. */
CUresult forbid_capture();

template <typename T> bool remove_from(std::vector<T> &all, T one)
{
    for (auto at = all.begin(); at != all.end(); ++at)
        if (*at == one) {
            all.erase(at);
            return true;
        }
    return false;
}

template <typename T> bool holds(const std::vector<T> &all, T one)
{
    for (const T &known : all)
        if (known == one) return true;
    return false;
}

} // namespace emulator
#endif
