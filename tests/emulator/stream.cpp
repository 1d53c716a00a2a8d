/* SPDX-License-Identifier: Apache-2.0 */
#include "stream.h"

#include <condition_variable>

#include "device_memory.h"
#include "driver_state.h"

namespace emulator
{

static std::condition_variable changed; /* some command has ended */
static uint64_t last_number;

bool Stream::is_done(uint64_t number) const
{
    return !(is_busy && running <= number) && (queue.empty() || queue.front().number > number);
}

uint64_t stream_push(Stream &stream, std::function<CUresult()> run, StreamPointer after, uint64_t after_number)
{
    stream.last = ++last_number;
    stream.queue.push_back({stream.last, std::move(run), std::move(after), after_number});
    return stream.last;
}

/* A stream that must get on before `stream` may run its first command; null if none. Waits go to smaller numbers
 * only, so they never form a circle. */
static Stream *blocker(const Stream &stream)
{
    const Command &command = stream.queue.front();
    if (command.after != nullptr && !command.after->is_done(command.after_number)) return command.after.get();
    if (!stream.is_legacy && !stream.is_blocking) return nullptr;
    for (const StreamPointer &other : stream.context->streams) {
        const bool ordered = stream.is_legacy ? other->is_blocking && !other->is_legacy : other->is_legacy;
        if (ordered && !other->is_done(command.number)) return other.get();
    }
    return nullptr;
}

/* Runs one command without the lock, or waits until another thread has run one. `stream` has something left. */
static void advance(Lock &lock, Stream &stream)
{
    if (stream.is_busy) {
        changed.wait(lock);
        return;
    }
    if (Stream *first = blocker(stream)) return advance(lock, *first);
    const Command command = std::move(stream.queue.front());
    stream.queue.pop_front();
    stream.is_busy = true;
    stream.running = command.number;
    CUctx_st &context = *stream.context;
    CUresult code = CUDA_SUCCESS;
    if (command.run != nullptr && context.sticky == CUDA_SUCCESS) { /* a broken context runs nothing any more */
        lock.unlock();
        code = command.run();
        lock.lock();
    }
    if (code != CUDA_SUCCESS) context.sticky = code;
    stream.is_busy = false;
    changed.notify_all();
}

/* The pointers are copies: the lock is open at times, and another thread may then destroy the stream. */
void stream_run(Lock &lock, StreamPointer stream, uint64_t number)
{
    if (stream->is_done(number)) return;
    const MemoryWindow window;
    while (!stream->is_done(number)) advance(lock, *stream);
}

void stream_step(Lock &lock, StreamPointer stream, uint64_t number)
{
    if (stream->is_done(number)) return;
    const MemoryWindow window;
    advance(lock, *stream);
}

void stream_run_all(Lock &lock, CUcontext context)
{
    const std::vector<StreamPointer> streams = context->streams;
    for (const StreamPointer &stream : streams) stream_run(lock, stream, stream->last);
}

} // namespace emulator
