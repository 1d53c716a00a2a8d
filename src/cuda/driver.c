/* SPDX-License-Identifier: Apache-2.0
 * Finds the driver's entry points and turns its errors into ours. */
#include "driver.h"
#include <dlfcn.h>
#include <pthread.h>
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
static bool loaded;
static char reason[480]; /* why not */
static pid_t owner;      /* the process that called cuInit */

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

/* The library is never closed: the driver has threads and exit handlers of its own. */
static void load(void)
{
    int version = 0;
    CUresult code;
    const char *name = getenv("ATTN_CUDA_DRIVER");
    if (!name || !*name) name = "libcuda.so.1";
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *text = dlerror();
        snprintf(reason, sizeof reason, "no CUDA driver: %s", text ? text : name);
        return;
    }
    if (!find_symbols(library, name)) return;
    owner = getpid();
    if ((code = table.init(0)) != CUDA_SUCCESS) {
        describe(&table, attn_cuda_symbols.init, code, reason, sizeof reason);
    } else if ((code = table.driver_version(&version)) != CUDA_SUCCESS) {
        describe(&table, attn_cuda_symbols.driver_version, code, reason, sizeof reason);
    } else if (version < OLDEST_VERSION) {
        snprintf(reason, sizeof reason, "the driver is for CUDA %d.%d, too old: " OLDEST_TEXT " or newer is needed",
                 version / 1000, version % 1000 / 10);
    } else {
        loaded = true;
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
