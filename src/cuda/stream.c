/* SPDX-License-Identifier: Apache-2.0
 * Streams that the caller gives. */
#include "device.h"

attn_status attn_cuda_check_stream(attn_cuda_device *d, CUstream stream)
{
    CUcontext context = NULL;
    if (!stream) return ATTN_OK; /* the legacy default stream is the current context's */
    CUresult code = d->driver->stream_context(stream, &context);
    if (code == CUDA_ERROR_INVALID_HANDLE || code == CUDA_ERROR_INVALID_CONTEXT)
        return attn_fail(ATTN_INVALID_ARGUMENT, "exec.stream: no stream of GPU %d (%s)", d->ordinal, d->name);
    ATTN_TRY(attn_cuda_check(d->driver, attn_cuda_symbols.stream_context, code));
    if (context != d->context) /* ours between enter and leave, so it does not change */
        return attn_fail(ATTN_INVALID_ARGUMENT, "exec.stream: of another context than the primary one of GPU %d (%s)",
                         d->ordinal, d->name);
    return ATTN_OK;
}

attn_status attn_cuda_capturing(attn_cuda_device *d, CUstream stream, bool *capturing)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult code = d->driver->stream_capturing(stream, &status);
    if (code == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
        return attn_fail(ATTN_UNSUPPORTED,
                         "exec.stream: the legacy default stream, while another stream captures a graph");
    *capturing = status != CU_STREAM_CAPTURE_STATUS_NONE;
    return attn_cuda_check(d->driver, attn_cuda_symbols.stream_capturing, code);
}

attn_status attn_cuda_stream_owner(CUstream stream, int32_t *ordinal)
{
    attn_cuda_device *devices;
    int32_t count;
    CUcontext context, popped;
    CUdevice handle = 0;
    *ordinal = -1;
    if (attn_cuda_devices(&devices, &count) != ATTN_OK) return ATTN_OK;
    ATTN_CUDA_TRY(devices->driver, stream_context, stream, &context);
    ATTN_CUDA_TRY(devices->driver, context_push, context);
    attn_status status = ATTN_CUDA_CALL(devices->driver, context_device, &handle);
    devices->driver->context_pop(&popped);
    for (int32_t n = 0; n < count; n++)
        if (devices[n].handle == handle) *ordinal = n;
    return status;
}
