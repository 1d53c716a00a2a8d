/* SPDX-License-Identifier: Apache-2.0
 * Streams, events and captures. */
#include "driver_state.h"

namespace emulator
{

enum : CUresult { CAPTURE_INVALIDATED = 2 }; /* CU_STREAM_CAPTURE_STATUS_INVALIDATED */
enum : unsigned { STREAM_NON_BLOCKING = 1 }; /* CU_STREAM_NON_BLOCKING */

static CUstream legacy_handle() { return reinterpret_cast<CUstream>(1); } /* CU_STREAM_LEGACY */

static bool is_legacy(CUstream stream) { return stream == nullptr || stream == legacy_handle(); }

/* Also where the capture has become invalid. */
static bool is_capturing(CUstream stream)
{
    return !is_legacy(stream) && stream->capture != CU_STREAM_CAPTURE_STATUS_NONE;
}

StreamPointer stream_of(CUstream stream)
{
    if (is_legacy(stream)) return current_context()->streams[0];
    return holds(driver_state().streams, stream) ? stream->stream : nullptr;
}

CUresult forbid_capture()
{
    CUresult code = CUDA_SUCCESS;
    for (const CUstream stream : driver_state().streams)
        if (stream->capture != CU_STREAM_CAPTURE_STATUS_NONE) {
            stream->capture = CAPTURE_INVALIDATED;
            code = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    return code;
}

/* A blocking stream of the context that captures: stream 0 cannot wait for it. Null if there is none. */
static CUstream implicit_capture(CUcontext context)
{
    for (const CUstream stream : driver_state().streams)
        if (stream->stream->context == context && stream->stream->is_blocking && is_capturing(stream)) return stream;
    return nullptr;
}

CUresult enqueue(CUstream stream, std::function<CUresult()> run)
{
    const StreamPointer target = stream_of(stream);
    REQUIRE(target != nullptr, CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(target->context->sticky == CUDA_SUCCESS, target->context->sticky);
    const CUstream implicit = target->is_legacy ? implicit_capture(target->context) : nullptr;
    if (implicit != nullptr) {
        implicit->capture = CAPTURE_INVALIDATED;
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (!is_capturing(stream)) {
        stream_push(*target, std::move(run));
        return CUDA_SUCCESS;
    }
    REQUIRE(stream->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    stream->captured.push_back({0, std::move(run), nullptr, 0});
    return CUDA_SUCCESS;
}

/* Runs all that a stream has queued and returns what became of its context. */
static CUresult synchronize(Lock &lock, CUstream stream, const StreamPointer &target)
{
    if (is_capturing(stream)) {
        const bool was_active = stream->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE;
        stream->capture = CAPTURE_INVALIDATED;
        return was_active ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    /* A wait for stream 0 is one for everything that stream 0 would wait for. */
    if (target->is_legacy) stream_push(*target, nullptr);
    stream_run(lock, target, target->last);
    return target->context->sticky;
}

static bool is_event(CUevent event) { return holds(driver_state().events, event); }

static bool is_recorded_and_pending(CUevent event)
{
    return event->stream != nullptr && !event->stream->is_done(event->number);
}

} // namespace emulator

using namespace emulator;

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    ENTER(cuStreamCreate, CONTEXT);
    REQUIRE(flags <= STREAM_NON_BLOCKING, CUDA_ERROR_INVALID_VALUE);
    const CUcontext context = current_context();
    const StreamPointer made =
        std::make_shared<Stream>(Stream{context, false, flags != STREAM_NON_BLOCKING, {}, false, 0, 0});
    context->streams.push_back(made);
    *stream = new CUstream_st{made, CU_STREAM_CAPTURE_STATUS_NONE, {}};
    driver_state().streams.push_back(*stream);
    return CUDA_SUCCESS;
}

/* Its work is done first, where a driver would let it go on. */
EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
    ENTER(cuStreamDestroy_v2, CONTEXT);
    REQUIRE(!is_legacy(stream) && stream_of(stream) != nullptr, CUDA_ERROR_INVALID_HANDLE);
    const StreamPointer target = stream->stream;
    remove_from(driver_state().streams, stream);
    delete stream;
    stream_run(call.lock, target, target->last);
    remove_from(target->context->streams, target);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    ENTER(cuStreamGetCtx, CONTEXT);
    const StreamPointer target = stream_of(stream);
    REQUIRE(target != nullptr, CUDA_ERROR_INVALID_HANDLE);
    *context = target->context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    ENTER(cuStreamIsCapturing, CONTEXT);
    const StreamPointer target = stream_of(stream);
    REQUIRE(target != nullptr, CUDA_ERROR_INVALID_HANDLE);
    REQUIRE(!target->is_legacy || implicit_capture(target->context) == nullptr, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    *status = is_legacy(stream) ? CU_STREAM_CAPTURE_STATUS_NONE : stream->capture;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamSynchronize(CUstream stream)
{
    ENTER(cuStreamSynchronize, CONTEXT);
    const StreamPointer target = stream_of(stream);
    REQUIRE(target != nullptr, CUDA_ERROR_INVALID_HANDLE);
    return synchronize(call.lock, stream, target);
}

EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned)
{
    ENTER(cuStreamWaitEvent, CONTEXT);
    const StreamPointer target = stream_of(stream);
    REQUIRE(target != nullptr && is_event(event), CUDA_ERROR_INVALID_HANDLE);
    if (is_capturing(stream)) return CUDA_SUCCESS; /* graphs keep the order of their commands anyway */
    if (is_recorded_and_pending(event)) stream_push(*target, nullptr, event->stream, event->number);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventCreate(CUevent *event, unsigned)
{
    ENTER(cuEventCreate, CONTEXT);
    *event = new CUevent_st{current_context(), nullptr, 0};
    driver_state().events.push_back(*event);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventDestroy_v2(CUevent event)
{
    ENTER(cuEventDestroy_v2, CONTEXT);
    REQUIRE(remove_from(driver_state().events, event), CUDA_ERROR_INVALID_HANDLE);
    delete event;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream)
{
    ENTER(cuEventRecord, CONTEXT);
    const StreamPointer target = stream_of(stream);
    REQUIRE(is_event(event) && target != nullptr && target->context == event->context, CUDA_ERROR_INVALID_HANDLE);
    event->stream = nullptr;
    if (is_capturing(stream)) return CUDA_SUCCESS;
    event->stream = target;
    event->number = stream_push(*target, nullptr);
    return CUDA_SUCCESS;
}

/* Each query runs one command on the way to the event, so that a loop of queries ends, and no sooner than on a GPU. */
EXPORT CUresult cuEventQuery(CUevent event)
{
    ENTER(cuEventQuery, CONTEXT);
    REQUIRE(is_event(event), CUDA_ERROR_INVALID_HANDLE);
    const CUcontext context = event->context;
    if (!is_recorded_and_pending(event)) return context->sticky;
    stream_step(call.lock, event->stream, event->number);
    return context->sticky != CUDA_SUCCESS ? context->sticky : CUDA_ERROR_NOT_READY;
}

EXPORT CUresult cuEventSynchronize(CUevent event)
{
    ENTER(cuEventSynchronize, CONTEXT);
    REQUIRE(is_event(event), CUDA_ERROR_INVALID_HANDLE);
    const CUcontext context = event->context;
    if (is_recorded_and_pending(event)) stream_run(call.lock, event->stream, event->number);
    return context->sticky;
}
