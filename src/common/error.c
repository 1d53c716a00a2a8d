/* SPDX-License-Identifier: Apache-2.0 */
#include "internal.h"
#include <stdarg.h>
#include <stdio.h>

/* Static thread-local storage: setting an error never allocates and threads never see each other's. */
static _Thread_local char last_error[512];

attn_status attn_fail(attn_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    return status;
}

char *attn_add_text(char *at, const char *end, const char *part)
{
    const size_t length = strlen(part), room = (size_t)(end - at) - 1, n = length < room ? length : room;
    memcpy(at, part, n);
    at[n] = '\0';
    return at + n;
}

const char *attn_last_error(void) { return last_error; }

const char *attn_status_string(attn_status status)
{
    switch (status) {
    case ATTN_OK: return "ok";
    case ATTN_INVALID_ARGUMENT: return "invalid argument";
    case ATTN_UNSUPPORTED: return "unsupported";
    case ATTN_OUT_OF_MEMORY: return "out of memory";
    case ATTN_WORKSPACE_TOO_SMALL: return "workspace too small";
    case ATTN_NO_DEVICE: return "no device";
    case ATTN_DEVICE_ERROR: return "device error";
    case ATTN_INTERNAL: return "internal error";
    }
    return "unknown status";
}
