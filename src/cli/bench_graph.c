/* SPDX-License-Identifier: Apache-2.0
 * attn bench --graph: calls that a CUDA graph replays. It is also an example of how a program captures calls of the
 * library. */
#include "bench.h"

#include "bench_gpu.h"
#include "timing.h"

#include <stdlib.h>

struct driver {
    int (*capture_begin)(void *stream, int mode);
    int (*capture_end)(void *stream, void **graph);
    int (*graph_destroy)(void *graph);
    int (*instantiate)(void **executable, void *graph, unsigned long long flags);
    int (*launch)(void *executable, void *stream);
    int (*executable_destroy)(void *executable);
};

/* As in struct driver; of CUDA 11.4. */
static const char *const symbols[] = {"cuStreamBeginCapture_v2",     "cuStreamEndCapture", "cuGraphDestroy",
                                      "cuGraphInstantiateWithFlags", "cuGraphLaunch",      "cuGraphExecDestroy"};
enum { SYMBOLS = sizeof symbols / sizeof *symbols };
_Static_assert(sizeof(struct driver) == SYMBOLS * sizeof(void *), "one pointer a symbol");

enum { CAPTURE_THREAD_LOCAL = 1 }; /* of the driver's ABI */

struct bench_graph {
    struct bench_gpu gpu;
    struct driver driver;
    void *graph, *executable;
};

static int capture(struct bench_graph *g, struct bench_run *run)
{
    const struct driver *d = &g->driver;
    attn_exec exec = run->exec;
    exec.stream = g->gpu.stream;
    int status =
        bench_gpu_check(&g->gpu, "cuStreamBeginCapture_v2", d->capture_begin(g->gpu.stream, CAPTURE_THREAD_LOCAL));
    if (status) return status;
    status = bench_put(run, &exec, run->batch);
    const int code = d->capture_end(g->gpu.stream, &g->graph); /* after a failure too, of which this is no news */
    if (!status) status = bench_gpu_check(&g->gpu, "cuStreamEndCapture", code);
    if (!status)
        status = bench_gpu_check(&g->gpu, "cuGraphInstantiateWithFlags", d->instantiate(&g->executable, g->graph, 0));
    return status;
}

int bench_graph_open(struct bench_run *run, struct bench_graph **graph)
{
    double seconds;
    struct bench_graph *g = *graph = calloc(1, sizeof *g);
    if (!g) return cli_fail(CLI_CANNOT, "--graph: out of memory");
    int status = bench_gpu_open(&g->gpu, "--graph", (int)run->options->ordinal);
    if (!status) status = bench_gpu_find(&g->gpu, symbols, SYMBOLS, &g->driver);
    if (!status) status = capture(g, run);
    return status ? status : bench_graph_replay(run, g, &seconds); /* the first one also brings the graph to the GPU */
}

int bench_graph_replay(const struct bench_run *run, const struct bench_graph *g, double *seconds)
{
    const double start = cli_now();
    int status = bench_gpu_check(&g->gpu, "cuGraphLaunch", g->driver.launch(g->executable, g->gpu.stream));
    if (!status)
        status = bench_gpu_check(&g->gpu, "cuStreamSynchronize", g->gpu.driver.stream_synchronize(g->gpu.stream));
    *seconds = (cli_now() - start) / (double)run->batch;
    return status;
}

void bench_graph_close(struct bench_graph *g)
{
    if (!g) return;
    const struct driver *d = &g->driver;
    if (g->executable) d->executable_destroy(g->executable);
    if (g->graph) d->graph_destroy(g->graph);
    bench_gpu_close(&g->gpu);
    free(g);
}
