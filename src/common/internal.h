/* SPDX-License-Identifier: Apache-2.0
 * What the host side shares: errors, the context, and the table that each backend fills. */
#ifndef ATTN_INTERNAL_H
#define ATTN_INTERNAL_H

#include "attn/attn.h"
#include "append_job.h"
#include "cost.h"
#include "job.h"
#include <stdbool.h>

/* ---- errors ---------------------------------------------------------------------------------- */

/* Sets this thread's error text and returns `status`. */
attn_status attn_fail(attn_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Adds `part` at the end of a text as far as there is room before `end`, and returns its new end: a tenth of what snprintf
 * takes, which was a tenth of a small call. */
char *attn_add_text(char *at, const char *end, const char *part);

#define ATTN_TRY(call)                              \
  do {                                              \
    attn_status try_status_ = (call);               \
    if (try_status_ != ATTN_OK) return try_status_; \
  } while (0)

/* A team that OpenMP cannot start ends the process, so a mistaken number must not reach it. */
enum { ATTN_MAX_THREADS = 1024 };

/* ---- forced choices -------------------------------------------------------------------------- */

typedef struct attn_force {
    int32_t backend;         /* attn_backend; AUTO: not forced */
    int32_t splits, threads; /* 0: not forced */
    bool stage_never, numa_never;
    bool bind, bind_cores; /* whether it is said, and what */
    char isa[16];          /* level of the CPU; "": not forced, here and below */
    char family[16];       /* of GPU kernels, also by isa= */
    char kernel[64];
} attn_force;

/* Reads "key=value,..." into `force`; `source` names it in errors. Keys given twice: the last one counts. */
attn_status attn_force_parse(attn_force *force, const char *words, const char *source);
/* Whether a kernel is what kernel=WORD asks for: that name, or one that goes on behind it with "_". */
bool attn_kernel_is(const char *kernel, const char *word);

/* ---- context --------------------------------------------------------------------------------- */

typedef struct attn_backend_table attn_backend_table;

/* NUMA nodes with cores of the cpu set. Memory without such cores belongs to the node whose cores it has, or to none. */
enum { ATTN_MAX_NODES = 64, ATTN_MAX_CPUS = 2048, ATTN_MAX_MEMORIES = 256 };

typedef struct attn_nodes {
    int32_t count;                 /* 1 and up */
    int32_t cores[ATTN_MAX_NODES]; /* of the cpu set, 1 and up */
    int8_t of_cpu[ATTN_MAX_CPUS];  /* by the system's numbers; -1: none of these nodes */
    int8_t of_memory[ATTN_MAX_MEMORIES];
    bool real; /* of the machine that we run on, not one that hwloc was told of */
} attn_nodes;

struct attn_context {
    const attn_backend_table *backend;
    struct attn_cuda_state *cuda; /* NULL: a context that leaves GPUs alone */
    int32_t gpu;                  /* ordinal, in a context for one GPU */
    attn_force force;
    int32_t threads, cores;
    bool bind; /* threads of a team to cores */
    attn_nodes nodes;
    size_t l2_bytes; /* of a core */
    uint32_t flags;
    void *(*alloc)(void *user, size_t bytes, size_t align);
    void (*release)(void *user, void *ptr);
    void (*log)(void *user, int level, const char *text);
    void *user;
};

/* Host memory of the library, aligned to 64 bytes, from the context's allocator. */
void *attn_context_alloc(const attn_context *ctx, size_t bytes);
void attn_context_release(const attn_context *ctx, void *ptr);
void attn_log(const attn_context *ctx, int level, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* ---- validated calls ------------------------------------------------------------------------- */

typedef struct attn_merge_job {
    int32_t parts;
    const attn_tensor *out_parts, *lse_parts; /* validated; all of out's shape */
    attn_view out, lse;                       /* lse.data NULL: not wanted */
    int64_t shape[4];
} attn_merge_job;

/* Each checks everything that is wrong on every device, and fills the job. */
/* `readable`: the host can read length arrays, page tables and the like; else what they hold is taken on trust. */
attn_status attn_validate_problem(const attn_problem *problem, bool readable, attn_job *job);
attn_status attn_validate_grads(const attn_problem *problem, const attn_grads *grads, attn_job *job);
attn_status attn_validate_append(const attn_append *append, bool readable, attn_append_job *job);
attn_status attn_validate_merge(int32_t n, const attn_tensor *out_parts, const attn_tensor *lse_parts,
                                const attn_tensor *out, const attn_tensor *lse, attn_merge_job *job);
/* Where max_q and max_k are only bounds, keep's shape takes their place. */
attn_status attn_validate_keep(attn_job *job, const attn_tensor *keep, attn_view *view);
/* The same checks on copies of index arrays that lie in a GPU's memory; waits for exec's stream. `job` is from validating
 * without reading them. */
attn_status attn_check_problem_indices(const attn_context *ctx, const attn_exec *exec, const attn_problem *problem,
                                       const attn_job *job);
attn_status attn_check_append_indices(const attn_context *ctx, const attn_exec *exec, const attn_append *append,
                                      const attn_append_job *job);
/* Copies a caller's struct of any struct_size into ours; zeros what it lacks; refuses a non-zero tail. */
attn_status attn_import(void *ours, size_t our_size, const void *theirs, const char *name);
/* The way back for structs that the library fills: as much as the caller's struct_size has room for. */
attn_status attn_export(void *theirs, const void *ours, size_t our_size, const char *name);

/* ---- backends -------------------------------------------------------------------------------- */

/* A backend answers what it can do by filling the plan (kernel, isa, threads, splits, workspace), or UNSUPPORTED with the
 * reason; backend, device and `staged` are there already. An operation that it lacks altogether is NULL. The calls get the plan of their own query. On the host
 * exec->workspace has plan->workspace_bytes at least; on a GPU it is what the caller gave, perhaps NULL. */
struct attn_backend_table {
    attn_backend id;
    const char *name;
    bool (*has_kernel)(const char *kernel); /* a name that its plans can give */
    attn_status (*plan)(const attn_context *ctx, attn_op op, const attn_job *job, attn_plan *plan);
    attn_status (*forward)(const attn_context *ctx, const attn_job *job, const attn_plan *plan, const attn_exec *exec);
    attn_status (*backward)(const attn_context *ctx, const attn_job *job, const attn_plan *plan, const attn_exec *exec);
    attn_status (*append)(const attn_context *ctx, const attn_append_job *job, const attn_plan *plan,
                          const attn_exec *exec);
    attn_status (*merge)(const attn_context *ctx, const attn_merge_job *job, const attn_plan *plan,
                         const attn_exec *exec);
    attn_status (*dropout_mask)(const attn_context *ctx, const attn_job *job, const attn_view *keep,
                                const attn_plan *plan, const attn_exec *exec);
};

extern const attn_backend_table attn_cpu_backend, attn_cuda_backend, attn_ref_backend;

/* ---- GPUs (src/cuda; absent.c in a build without) --------------------------------------------- */

/* These two ask the driver, which must not happen for a caller who wants the CPU only. NO_DEVICE with the reason
 * where there is no GPU. */
attn_status attn_cuda_count(int32_t *count);
bool attn_cuda_is_family(const char *word); /* that isa= may name */
attn_status attn_cuda_info(int32_t ordinal, attn_device_info *info);
/* "CUDA 12.8": what the driver is for, as it says itself; "" where it does not. */
void attn_cuda_driver_text(char *text, size_t room);

/* The context's part that has to do with GPUs; asks no driver. */
attn_status attn_cuda_state_new(attn_context *ctx);
void attn_cuda_state_free(attn_context *ctx);

/* For contexts with such a part. free says whether the memory was a GPU's, copy by *done whether one took part. */
attn_status attn_cuda_malloc(const attn_context *ctx, int32_t ordinal, size_t bytes, void **out);
bool attn_cuda_free(const attn_context *ctx, void *pointer);
attn_status attn_cuda_copy(const attn_context *ctx, void *dst, const void *src, size_t bytes, bool upload,
                           const attn_exec *exec, bool *done);
attn_status attn_cuda_sync(const attn_context *ctx, const attn_exec *exec);
/* Whether anybody in this process can have memory of a GPU. Starts no driver. */
bool attn_cuda_active(void);
/* The GPU whose memory `pointer` leads to, -1: the host's; and whether the host can read it. */
attn_status attn_cuda_place(const void *pointer, int32_t *ordinal, bool *readable);

/* The GPU that would have a forward of host tensors done first. Starts the driver; touches no GPU. */
typedef struct attn_gpu_offer {
    int32_t ordinal; /* -1: no GPU serves the problem */
    double seconds;
    char why_not[64]; /* with -1 */
} attn_gpu_offer;
void attn_cuda_offer(const attn_context *ctx, const attn_job *job, const attn_work *work, attn_gpu_offer *offer);
/* This GPU makes no offers to the context any more. */
void attn_cuda_give_up(const attn_context *ctx, int32_t ordinal);

/* ---- host threads ---------------------------------------------------------------------------- */

typedef struct attn_host {
    int32_t cores; /* physical cores that this process may use now */
    int32_t numa_nodes;
    uint64_t memory_bytes;
    size_t l2_bytes; /* that a core has for itself */
    char name[64];
} attn_host;

attn_host attn_cpu_host(void);
void attn_cpu_nodes(attn_nodes *nodes);

/* Calls body(arg, task, thread) for every task of [0, tasks) on a team of at most `threads`, thread <
 * threads. Tasks are handed out in ascending order. One thread after a fork; OpenMP's own rules inside a
 * parallel region. With ctx->bind each thread has a core to itself meanwhile. */
typedef void attn_task(void *arg, int64_t task, int32_t thread);
void attn_cpu_parallel(const attn_context *ctx, int32_t threads, int64_t tasks, attn_task *body, void *arg);
/* Whether a team of this context would be bound: not where OpenMP has been told to. */
bool attn_cpu_binds(const attn_context *ctx);
/* Makes children of a later fork() serial. */
void attn_cpu_watch_forks(void);

#endif
