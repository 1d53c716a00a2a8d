/* SPDX-License-Identifier: Apache-2.0
 * Finds the driver's entry points and turns its errors into ours. */
#include "driver.h"
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* CUDA 11.0, driver 450: the first to have every entry point of the table (cuDevicePrimaryCtxRelease_v2 is the
 * newest) and to run machine code of any CUDA 11 compiler. Code that is compiled on the spot, which is what a GPU
 * newer than the library gets, needs a driver as new as the compiler: 520 for CUDA 11.8. */
enum { OLDEST_VERSION = 11000 };
#define OLDEST_TEXT "CUDA 11.0 (driver 450)"

const attn_cuda_names attn_cuda_symbols = {
#define DRIVER(member, symbol, parameters) #symbol,
#include "driver_table.h"
#undef DRIVER
};

enum { SYMBOLS = sizeof attn_cuda_symbols / sizeof(const char *) };
_Static_assert(sizeof(attn_cuda_driver) == sizeof(attn_cuda_names), "one pointer a symbol");

static attn_cuda_driver table;
static atomic_bool loaded;
static bool stands_in;
static int32_t toolkit;
static char reason[480]; /* why not */
static pid_t owner;      /* the process that called cuInit */

static const char *library_name(void)
{
    const char *name = getenv("ATTN_CUDA_DRIVER");
    return name && *name ? name : "libcuda.so.1";
}

static void describe(const attn_cuda_driver *driver, const char *symbol, CUresult code, char *text, size_t room)
{
    const char *name = NULL, *meaning = NULL;
    if (driver->error_name(code, &name) != CUDA_SUCCESS || !name) {
        snprintf(text, room, "%s: CUDA error %d", symbol, code);
        return;
    }
    if (driver->error_string(code, &meaning) != CUDA_SUCCESS || !meaning) meaning = "no description";
    snprintf(text, room, "%s: %s (%s)", symbol, name, meaning);
}

static bool find_symbols(void *library, const char *name)
{
    const char *symbols[SYMBOLS];
    memcpy(symbols, &attn_cuda_symbols, sizeof symbols);
    for (int n = 0; n < SYMBOLS; n++) {
        void *address = dlsym(library, symbols[n]);
        if (!address) {
            snprintf(reason, sizeof reason, "%s has no %s: it is older than " OLDEST_TEXT ", or no CUDA driver", name,
                     symbols[n]);
            return false;
        }
        /* ISO C has no conversion from void * to a function pointer; POSIX promises equal bits. */
        memcpy((char *)&table + (size_t)n * sizeof address, &address, sizeof address);
    }
    return true;
}

static bool says_it_stands_in(void *library)
{
    int (*says)(void);
    void *address = dlsym(library, "attn_stand_in");
    memcpy(&says, &address, sizeof address);
    return says && says();
}

/* The library is never closed: the driver has threads and exit handlers of its own. */
static void load(void)
{
    int version = 0;
    CUresult code;
    const char *name = library_name();
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *text = dlerror();
        snprintf(reason, sizeof reason, "no CUDA driver: %s", text ? text : name);
        return;
    }
    if (!find_symbols(library, name)) return;
    stands_in = says_it_stands_in(library);
    owner = getpid();
    if ((code = table.init(0)) != CUDA_SUCCESS) {
        describe(&table, attn_cuda_symbols.init, code, reason, sizeof reason);
    } else if ((code = table.driver_version(&version)) != CUDA_SUCCESS) {
        describe(&table, attn_cuda_symbols.driver_version, code, reason, sizeof reason);
    } else if (version < OLDEST_VERSION) {
        snprintf(reason, sizeof reason, "the driver is for CUDA %d.%d, too old: " OLDEST_TEXT " or newer is needed",
                 version / 1000, version % 1000 / 10);
    } else {
        toolkit = version / 1000;
        atomic_store_explicit(&loaded, true, memory_order_release);
    }
}

attn_status attn_cuda_load(const attn_cuda_driver **driver)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    if (!loaded) return attn_fail(ATTN_NO_DEVICE, "%s", reason);
    if (getpid() != owner)
        return attn_fail(ATTN_NO_DEVICE, "a CUDA driver does not survive fork(): this child can use the CPU only");
    *driver = &table;
    return ATTN_OK;
}

int32_t attn_cuda_driver_toolkit(void) { return toolkit; }
bool attn_cuda_stands_in(void) { return stands_in; }

/* A driver that another part of the process has loaded, but not started, has given nobody memory yet. */
static bool is_started(void *library)
{
    int unused;
    CUresult (*count)(int *);
    void *address = dlsym(library, attn_cuda_symbols.device_count);
    memcpy(&count, &address, sizeof address);
    return count && count(&unused) == CUDA_SUCCESS;
}

static int note_loads(struct dl_phdr_info *info, size_t size, void *loads)
{
    (void)size;
    *(unsigned long long *)loads = info->dlpi_adds;
    return 1;
}

/* dlopen of what is not there searches the disk (20 us), so it is asked again only after the process has loaded
 * something (20 ns to find out). */
bool attn_cuda_active(void)
{
    static _Atomic unsigned long long absent_at; /* so many loads; 0: never looked */
    unsigned long long loads = 0;
    if (atomic_load_explicit(&loaded, memory_order_acquire)) return true;
    dl_iterate_phdr(note_loads, &loads);
    if (loads && atomic_load_explicit(&absent_at, memory_order_relaxed) == loads) return false;
    void *library = dlopen(library_name(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (!library) {
        atomic_store_explicit(&absent_at, loads, memory_order_relaxed);
        return false;
    }
    bool started = is_started(library);
    dlclose(library);
    return started;
}

static attn_status status_of(CUresult code)
{
    switch (code) {
    case CUDA_SUCCESS: return ATTN_OK;
    case CUDA_ERROR_OUT_OF_MEMORY: return ATTN_OUT_OF_MEMORY;
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE: return ATTN_NO_DEVICE;
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: return ATTN_UNSUPPORTED;
    case CUDA_ERROR_NOT_FOUND: return ATTN_INTERNAL; /* a kernel that the library's own module should have */
    default: return ATTN_DEVICE_ERROR;
    }
}

attn_status attn_cuda_check(const attn_cuda_driver *driver, const char *symbol, CUresult code)
{
    char text[400];
    if (code == CUDA_SUCCESS) return ATTN_OK;
    describe(driver, symbol, code, text, sizeof text);
    return attn_fail(status_of(code), "%s", text);
}
