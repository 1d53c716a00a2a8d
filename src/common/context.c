/* SPDX-License-Identifier: Apache-2.0
 * Devices, contexts and their memory. Only what concerns a GPU may ask the CUDA driver: a process that never does
 * pays nothing for it and may fork. */
#include "validate.h"
#include "../cpu/level.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifndef ATTN_BUILD_TEXT
#  define ATTN_BUILD_TEXT "unknown build"
#endif
#ifndef ATTN_BACKENDS_TEXT
#  define ATTN_BACKENDS_TEXT "unknown backends"
#endif
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

uint32_t attn_version(void) { return ATTN_VERSION_MAJOR << 16 | ATTN_VERSION_MINOR << 8 | ATTN_VERSION_PATCH; }

#define LEVEL(name) " " #name
static const char build_info[] =
    "attn " TEXT(ATTN_VERSION_MAJOR) "." TEXT(ATTN_VERSION_MINOR) "." TEXT(ATTN_VERSION_PATCH) " (" ATTN_BUILD_TEXT
                                                                                               "; " ATTN_BACKENDS_TEXT
                                                                                               "; cpu levels:"
#include "../cpu/levels.inc"
                                                                                               ")";
#undef LEVEL

const char *attn_build_info(void) { return build_info; }

/* ---- devices --------------------------------------------------------------------------------- */

attn_status attn_device_count(int32_t *count)
{
    if (!count) return attn_fail(ATTN_INVALID_ARGUMENT, "count is NULL");
    int32_t gpus;
    attn_cuda_count(&gpus); /* no GPU is no error here */
    *count = 1 + gpus;
    return ATTN_OK;
}

static attn_status export_gpu(int32_t index, attn_device_info *info)
{
    attn_device_info full;
    int32_t gpus;
    attn_cuda_count(&gpus);
    if (index < 0 || index > gpus)
        return attn_fail(ATTN_INVALID_ARGUMENT, "index %d: there %s %d device%s", index, gpus ? "are" : "is", 1 + gpus,
                         gpus ? "s" : "");
    ATTN_TRY(attn_cuda_info(index - 1, &full));
    attn_cuda_driver_text(full.driver, sizeof full.driver);
    return attn_export(info, &full, sizeof full, "info");
}

attn_status attn_device_get(int32_t index, attn_device_info *info)
{
    if (!info) return attn_fail(ATTN_INVALID_ARGUMENT, "info is NULL");
    if (index != 0) return export_gpu(index, info);
    attn_host host = attn_cpu_host();
    attn_device_info full = {
        .backend = ATTN_BACKEND_CPU,
        .units = host.cores,
        .memory_bytes = host.memory_bytes,
    };
    snprintf(full.name, sizeof full.name, "%s", host.name);
    snprintf(full.arch, sizeof full.arch, "%s", attn_cpu_best_level()->name);
    return attn_export(info, &full, sizeof full, "info");
}

/* ---- context --------------------------------------------------------------------------------- */

/* From 32 MiB on every block of glibc's is a mapping of its own, so that the advice ends with it. */
enum { HUGE_PAGE = 2 << 20, HUGE_FROM = 32 << 20 };

/* Large blocks in huge pages, where the system gives them to those who ask: a core reads memory by 4 KiB pages up to a
 * quarter slower. The end of a block, less than a huge page, stays in ordinary ones. */
static void *default_alloc(void *user, size_t bytes, size_t align)
{
    (void)user;
#if defined(MADV_HUGEPAGE)
    void *block;
    if (bytes >= HUGE_FROM && posix_memalign(&block, HUGE_PAGE, bytes) == 0) {
        madvise(block, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE); /* refused: ordinary pages */
        return block;
    }
#endif
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void default_release(void *user, void *ptr)
{
    (void)user;
    free(ptr);
}

enum { HOST_ALIGN = 64 };

void *attn_context_alloc(const attn_context *ctx, size_t bytes)
{
    if (bytes > PTRDIFF_MAX - HOST_ALIGN) return NULL;
    return ctx->alloc(ctx->user, bytes ? bytes : 1, HOST_ALIGN);
}

void attn_context_release(const attn_context *ctx, void *ptr)
{
    if (ptr) ctx->release(ctx->user, ptr);
}

void attn_log(const attn_context *ctx, int level, const char *format, ...)
{
    if (!ctx->log) return;
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    ctx->log(ctx->user, level, text);
}

/* Option first, then environment: the environment is read first and overwritten. */
static attn_status read_force(const attn_config *config, attn_force *force)
{
    const char *environment = getenv("ATTN_FORCE");
    if (environment) ATTN_TRY(attn_force_parse(force, environment, "ATTN_FORCE"));
    if (config->backend != ATTN_BACKEND_AUTO) force->backend = config->backend;
    if (config->num_threads) force->threads = 0; /* an option goes before the environment */
    if (config->force) ATTN_TRY(attn_force_parse(force, config->force, "config.force"));
    if (config->backend != ATTN_BACKEND_AUTO && force->backend == ATTN_BACKEND_AUTO) force->backend = config->backend;
    if (config->backend != ATTN_BACKEND_AUTO && force->backend != config->backend)
        return attn_fail(ATTN_INVALID_ARGUMENT, "config.force: backend differs from config.backend");
    return ATTN_OK;
}

static attn_status check_config(const attn_config *config)
{
    if (config->backend < ATTN_BACKEND_AUTO || config->backend > ATTN_BACKEND_REFERENCE)
        return attn_fail(ATTN_INVALID_ARGUMENT, "config.backend: %d is no attn_backend", config->backend);
    if (config->num_threads < 0 || config->num_threads > ATTN_MAX_THREADS)
        return attn_fail(ATTN_INVALID_ARGUMENT, "config.num_threads: %d is not in 0 .. %d", config->num_threads,
                         ATTN_MAX_THREADS);
    if (config->flags & ~(ATTN_CFG_CHECK_INDICES | ATTN_CFG_BIND_THREADS))
        return attn_fail(ATTN_INVALID_ARGUMENT, "config.flags: unknown bits in 0x%x", config->flags);
    if (!config->alloc != !config->release)
        return attn_fail(ATTN_INVALID_ARGUMENT, "config.alloc and config.release: give both or neither");
    return ATTN_OK;
}

/* The GPU must be there; it is not touched yet. */
static attn_status choose_gpu(const attn_config *config, attn_context *made)
{
    char why[400];
    int32_t gpus, ordinal = config->backend == ATTN_BACKEND_CUDA ? config->device : 0;
    made->backend = &attn_cuda_backend;
    made->gpu = ordinal;
    attn_status status = attn_cuda_count(&gpus);
    if (status != ATTN_OK) {
        snprintf(why, sizeof why, "%.399s", attn_last_error());
        return attn_fail(status, "backend cuda: %s", why);
    }
    if (ordinal >= 0 && ordinal < gpus) return ATTN_OK;
    return attn_fail(ATTN_NO_DEVICE, "config.device: %d, but there %s %d GPU%s", ordinal, gpus == 1 ? "is" : "are",
                     gpus, gpus == 1 ? "" : "s");
}

/* The backend that serves this context. */
static attn_status choose_backend(const attn_config *config, int32_t backend, attn_context *made)
{
    if (backend == ATTN_BACKEND_CUDA) return choose_gpu(config, made);
    if (config->backend != ATTN_BACKEND_AUTO && config->device != 0)
        return attn_fail(ATTN_NO_DEVICE, "config.device: %d: the backend has device 0 only", config->device);
    made->backend = backend == ATTN_BACKEND_REFERENCE ? &attn_ref_backend : &attn_cpu_backend;
    return ATTN_OK;
}

/* One word for both: no level of a CPU is called as a family of GPU kernels. */
static attn_status check_isa(attn_force *force)
{
    if (!force->isa[0] || attn_cpu_find_level(force->isa)) return ATTN_OK;
    if (!attn_cuda_is_family(force->isa))
        return attn_fail(ATTN_INVALID_ARGUMENT,
                         "isa=%s: not in this build or not on this processor, whose best level is %s; the build has%s",
                         force->isa, attn_cpu_best_level()->name, attn_cpu_level_names());
    memcpy(force->family, force->isa, sizeof force->family);
    force->isa[0] = '\0';
    return ATTN_OK;
}

/* A program may hold contexts of several backends; a kernel that the environment forces concerns those that
 * have it. */
static attn_status check_kernel(const attn_config *config, const attn_backend_table *backend, attn_force *force)
{
    if (!force->kernel[0] || backend->has_kernel(force->kernel)) return ATTN_OK;
    bool known = attn_cpu_backend.has_kernel(force->kernel) || attn_cuda_backend.has_kernel(force->kernel) ||
                 attn_ref_backend.has_kernel(force->kernel);
    if (!known || (config->force && strstr(config->force, "kernel=")))
        return attn_fail(ATTN_INVALID_ARGUMENT, "kernel=%s: the %s backend has no such kernel", force->kernel,
                         backend->name);
    force->kernel[0] = '\0';
    return ATTN_OK;
}

attn_status attn_create(const attn_config *given, attn_context **out)
{
    if (!out) return attn_fail(ATTN_INVALID_ARGUMENT, "out is NULL");
    *out = NULL;
    attn_config config = ATTN_CONFIG_INIT;
    attn_force force = {0};
    attn_context made = {0};
    if (given) ATTN_TRY(attn_import(&config, sizeof config, given, "config"));
    ATTN_TRY(check_config(&config));
    ATTN_TRY(read_force(&config, &force));
    ATTN_TRY(choose_backend(&config, force.backend, &made));
    ATTN_TRY(check_isa(&force));
    ATTN_TRY(check_kernel(&config, made.backend, &force));

    attn_host host = attn_cpu_host();
    made.force = force;
    made.flags = config.flags;
    made.alloc = config.alloc ? config.alloc : default_alloc;
    made.release = config.release ? config.release : default_release;
    made.log = config.log;
    made.user = config.user;
    made.threads = force.threads ? force.threads : config.num_threads ? config.num_threads : host.cores;
    made.cores = host.cores;
    made.l2_bytes = host.l2_bytes;
    made.bind = force.bind ? force.bind_cores : (config.flags & ATTN_CFG_BIND_THREADS) != 0;
    attn_cpu_nodes(&made.nodes);
    attn_context *ctx = attn_context_alloc(&made, sizeof *ctx);
    if (!ctx) return attn_fail(ATTN_OUT_OF_MEMORY, "no memory for a context");
    *ctx = made;
    if (force.backend == ATTN_BACKEND_AUTO || force.backend == ATTN_BACKEND_CUDA) {
        attn_status status = attn_cuda_state_new(ctx);
        if (status != ATTN_OK) {
            attn_context_release(&made, ctx);
            return status;
        }
    }
    attn_cpu_watch_forks();
    attn_log(ctx, 2,
             "context: backend %s, %d threads%s on %d cores with %zu KiB of L2 cache each, %d of %d NUMA nodes%s",
             ctx->backend->name, ctx->threads, attn_cpu_binds(ctx) ? " bound to cores" : "", host.cores,
             host.l2_bytes / 1024, ctx->nodes.count, host.numa_nodes,
             ctx->bind && !attn_cpu_binds(ctx) ? "; not bound: OpenMP has been told to bind" : "");
    *out = ctx;
    return ATTN_OK;
}

void attn_destroy(attn_context *ctx)
{
    if (!ctx) return;
    if (ctx->cuda) attn_cuda_state_free(ctx);
    attn_context_release(ctx, ctx);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static attn_status check_context(const attn_context *ctx)
{
    return ctx ? ATTN_OK : attn_fail(ATTN_INVALID_ARGUMENT, "ctx is NULL");
}

attn_status attn_malloc(attn_context *ctx, int32_t device, size_t bytes, void **out)
{
    ATTN_TRY(check_context(ctx));
    if (!out) return attn_fail(ATTN_INVALID_ARGUMENT, "out is NULL");
    *out = NULL;
    if (device > 0 && ctx->cuda) return attn_cuda_malloc(ctx, device - 1, bytes, out);
    if (device != 0) return attn_fail(ATTN_NO_DEVICE, "device %d: this context has device 0 only", device);
    *out = attn_context_alloc(ctx, bytes);
    return *out ? ATTN_OK : attn_fail(ATTN_OUT_OF_MEMORY, "no host memory for %zu bytes", bytes);
}

void attn_free(attn_context *ctx, void *ptr)
{
    if (!ctx || !ptr) return;
    if (!ctx->cuda || !attn_cuda_free(ctx, ptr)) attn_context_release(ctx, ptr);
}

static attn_status copy(attn_context *ctx, void *dst, const void *src, size_t bytes, bool upload, const attn_exec *exec)
{
    attn_exec e;
    bool done = false;
    ATTN_TRY(check_context(ctx));
    ATTN_TRY(attn_check_exec(ctx, exec, &e));
    if (bytes && !dst) return attn_fail(ATTN_INVALID_ARGUMENT, "dst is NULL");
    if (bytes && !src) return attn_fail(ATTN_INVALID_ARGUMENT, "src is NULL");
    if (bytes && ctx->cuda) ATTN_TRY(attn_cuda_copy(ctx, dst, src, bytes, upload, &e, &done));
    if (bytes && !done) memmove(dst, src, bytes);
    return ATTN_OK;
}

attn_status attn_upload(attn_context *ctx, void *dst, const void *src, size_t bytes, const attn_exec *exec)
{
    return copy(ctx, dst, src, bytes, true, exec);
}

attn_status attn_download(attn_context *ctx, void *dst, const void *src, size_t bytes, const attn_exec *exec)
{
    return copy(ctx, dst, src, bytes, false, exec);
}

attn_status attn_sync(attn_context *ctx, const attn_exec *exec)
{
    attn_exec e;
    ATTN_TRY(check_context(ctx));
    ATTN_TRY(attn_check_exec(ctx, exec, &e));
    return ctx->cuda ? attn_cuda_sync(ctx, &e) : ATTN_OK;
}
