/* SPDX-License-Identifier: Apache-2.0
 * attn bench --graph: calls that a CUDA graph replays. It is also an example of how a program captures calls of the
 * library, so it finds the driver itself and knows of it only what CUDA's manual says. */
#include "bench.h"

#include "timing.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* ENTRY(member, exported symbol, parameters). clang-format takes the parameters for products. */
/* clang-format off */
#define ENTRIES(ENTRY) \
  ENTRY(error_name, cuGetErrorName, (int code, const char **name)) \
  ENTRY(device_get, cuDeviceGet, (int *device, int ordinal)) \
  ENTRY(primary_retain, cuDevicePrimaryCtxRetain, (void **context, int device)) \
  ENTRY(primary_release, cuDevicePrimaryCtxRelease_v2, (int device)) \
  ENTRY(context_push, cuCtxPushCurrent_v2, (void *context)) \
  ENTRY(context_pop, cuCtxPopCurrent_v2, (void **context)) \
  ENTRY(stream_create, cuStreamCreate, (void **stream, unsigned flags)) \
  ENTRY(stream_destroy, cuStreamDestroy_v2, (void *stream)) \
  ENTRY(stream_synchronize, cuStreamSynchronize, (void *stream)) \
  ENTRY(capture_begin, cuStreamBeginCapture_v2, (void *stream, int mode)) \
  ENTRY(capture_end, cuStreamEndCapture, (void *stream, void **graph)) \
  ENTRY(graph_destroy, cuGraphDestroy, (void *graph)) \
  ENTRY(instantiate, cuGraphInstantiateWithFlags, (void **executable, void *graph, unsigned long long flags)) \
  ENTRY(launch, cuGraphLaunch, (void *executable, void *stream)) \
  ENTRY(executable_destroy, cuGraphExecDestroy, (void *executable))
/* clang-format on */

struct driver {
#define MEMBER(member, symbol, parameters) int(*member) parameters;
    ENTRIES(MEMBER)
#undef MEMBER
};

/* As in struct driver. */
static const char *const symbols[] = {
#define NAME(member, symbol, parameters) #symbol,
    ENTRIES(NAME)
#undef NAME
};
enum { SYMBOLS = sizeof symbols / sizeof *symbols };
_Static_assert(sizeof(struct driver) == SYMBOLS * sizeof(void *), "one pointer a symbol");

/* Values of the driver's ABI. */
enum { SUCCESS = 0, OUT_OF_MEMORY = 2, NON_BLOCKING = 1, CAPTURE_THREAD_LOCAL = 1 };

struct bench_graph {
    void *library;
    struct driver driver;
    int device;
    void *context, *current; /* the primary one; the same, once it is current */
    void *stream, *graph, *executable;
};

static int check(const struct bench_graph *g, const char *symbol, int code)
{
    const char *name = NULL;
    if (code == SUCCESS) return CLI_OK;
    if (g->driver.error_name(code, &name) != SUCCESS || !name) name = "CUDA error";
    return cli_fail(code == OUT_OF_MEMORY ? CLI_CANNOT : CLI_DEVICE_ERROR, "--graph: %s: %s (%d)", symbol, name, code);
}

/* The driver that the library has loaded, by the rule that it goes by. */
static int load(struct bench_graph *g)
{
    const char *name = getenv("ATTN_CUDA_DRIVER");
    if (!name || !*name) name = "libcuda.so.1";
    g->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!g->library) return cli_fail(CLI_CANNOT, "--graph: no CUDA driver: %s", dlerror());
    for (int n = 0; n < SYMBOLS; n++) {
        void *address = dlsym(g->library, symbols[n]);
        if (!address)
            return cli_fail(CLI_CANNOT, "--graph: %s has no %s: a driver for CUDA 11.4 or newer is needed", name,
                            symbols[n]);
        /* ISO C has no conversion from void * to a function pointer; POSIX promises equal bits. */
        memcpy((char *)&g->driver + (size_t)n * sizeof address, &address, sizeof address);
    }
    return CLI_OK;
}

/* The library computes in the primary context and takes no stream of another one. */
static int open_stream(struct bench_graph *g, int ordinal)
{
    const struct driver *d = &g->driver;
    int status = check(g, "cuDeviceGet", d->device_get(&g->device, ordinal));
    if (!status) status = check(g, "cuDevicePrimaryCtxRetain", d->primary_retain(&g->context, g->device));
    if (!status) status = check(g, "cuCtxPushCurrent_v2", d->context_push(g->context));
    if (status) return status;
    g->current = g->context;
    return check(g, "cuStreamCreate", d->stream_create(&g->stream, NON_BLOCKING));
}

static int capture(struct bench_graph *g, struct bench_run *run)
{
    const struct driver *d = &g->driver;
    attn_exec exec = run->exec;
    exec.stream = g->stream;
    int status = check(g, "cuStreamBeginCapture_v2", d->capture_begin(g->stream, CAPTURE_THREAD_LOCAL));
    if (status) return status;
    status = bench_put(run, &exec, run->batch);
    const int code = d->capture_end(g->stream, &g->graph); /* after a failure too, of which this is no news */
    if (!status) status = check(g, "cuStreamEndCapture", code);
    if (!status) status = check(g, "cuGraphInstantiateWithFlags", d->instantiate(&g->executable, g->graph, 0));
    return status;
}

int bench_graph_open(struct bench_run *run, struct bench_graph **graph)
{
    double seconds;
    struct bench_graph *g = *graph = calloc(1, sizeof *g);
    if (!g) return cli_fail(CLI_CANNOT, "--graph: out of memory");
    int status = load(g);
    if (!status) status = open_stream(g, (int)run->options->ordinal);
    if (!status) status = capture(g, run);
    return status ? status : bench_graph_replay(run, g, &seconds); /* the first one also brings the graph to the GPU */
}

int bench_graph_replay(const struct bench_run *run, const struct bench_graph *g, double *seconds)
{
    const double start = cli_now();
    int status = check(g, "cuGraphLaunch", g->driver.launch(g->executable, g->stream));
    if (!status) status = check(g, "cuStreamSynchronize", g->driver.stream_synchronize(g->stream));
    *seconds = (cli_now() - start) / (double)run->batch;
    return status;
}

void bench_graph_close(struct bench_graph *g)
{
    if (!g) return;
    const struct driver *d = &g->driver;
    if (g->executable) d->executable_destroy(g->executable);
    if (g->graph) d->graph_destroy(g->graph);
    if (g->stream) d->stream_destroy(g->stream);
    if (g->current) d->context_pop(&g->current);
    if (g->context) d->primary_release(g->device);
    if (g->library) dlclose(g->library); /* the library keeps it */
    free(g);
}
