/* SPDX-License-Identifier: Apache-2.0
 * Stream capture and graphs, for tests of what a library may do during one. A graph is the captured commands in their
 * order; streams do not join a capture by events. */
#include "driver_state.h"

struct CUgraph_st {
    std::vector<emulator::Command> commands;
};
typedef struct CUgraph_st *CUgraph;

using namespace emulator;

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, int)
{
    ENTER(cuStreamBeginCapture_v2, CONTEXT);
    REQUIRE(holds(driver_state().streams, stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); /* so for stream 0 */
    REQUIRE(stream->capture == CU_STREAM_CAPTURE_STATUS_NONE, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    stream->capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    stream->captured.clear();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    ENTER(cuStreamEndCapture, CONTEXT);
    REQUIRE(holds(driver_state().streams, stream) && stream->capture != CU_STREAM_CAPTURE_STATUS_NONE,
            CUDA_ERROR_INVALID_VALUE);
    const bool good = stream->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    stream->capture = CU_STREAM_CAPTURE_STATUS_NONE;
    *graph = good ? new CUgraph_st{std::move(stream->captured)} : nullptr;
    stream->captured.clear();
    return good ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

/* An executable graph is a copy. */
EXPORT CUresult cuGraphInstantiateWithFlags(CUgraph *executable, CUgraph graph, unsigned long long)
{
    ENTER(cuGraphInstantiateWithFlags, CONTEXT);
    *executable = new CUgraph_st(*graph);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphLaunch(CUgraph executable, CUstream stream)
{
    ENTER(cuGraphLaunch, CONTEXT);
    for (const Command &command : executable->commands)
        if (const CUresult code = enqueue(stream, command.run)) return code;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
    ENTER(cuGraphDestroy, CONTEXT);
    delete graph;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphExecDestroy(CUgraph executable)
{
    ENTER(cuGraphExecDestroy, CONTEXT);
    delete executable;
    return CUDA_SUCCESS;
}
