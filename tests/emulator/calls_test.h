/* SPDX-License-Identifier: Apache-2.0
 * What tests of the library's calls on the emulated GPU share: the start, contexts, numbers. */
#ifndef ATTN_CALLS_TEST_H
#define ATTN_CALLS_TEST_H

#include "emulator_test.h"

#include "attn/attn.h"

#include <stdlib.h>

/* Opens the emulator for the test, which looks behind it, and names it to the library. */
static inline void calls_open(int argc, char **argv)
{
    if (argc > 1) setenv("ATTN_CUDA_DRIVER", argv[1], 1);
    test_open(argc, argv);
}

static inline attn_context *calls_context(int32_t backend, uint32_t flags, const char *force)
{
    attn_config config = ATTN_CONFIG_INIT;
    attn_context *ctx = NULL;
    config.backend = backend;
    config.flags = flags;
    config.force = force;
    if (attn_create(&config, &ctx) != ATTN_OK) fail_msg("%s", attn_last_error());
    return ctx;
}

static inline void calls_expect(attn_status status, attn_status expected, const char *text)
{
    if (status != expected || (expected != ATTN_OK && !strstr(attn_last_error(), text)))
        fail_msg("status %d, \"%s\"; expected %d, \"...%s...\"", status, attn_last_error(), expected, text);
}

static inline void calls_succeed(attn_status status) { calls_expect(status, ATTN_OK, ""); }

/* About -2 .. 2. */
static inline void calls_fill(float *x, size_t count, uint64_t seed)
{
    for (size_t n = 0; n < count; n++) x[n] = (float)(unit_random(&seed) % 4001) / 1000.0f - 2.0f;
}

static inline struct emulator_counts calls_counts(void)
{
    struct emulator_counts counts;
    driver.count(&counts);
    return counts;
}

static inline void *calls_device_copy(attn_context *ctx, int32_t device, const void *from, size_t bytes)
{
    void *to;
    calls_succeed(attn_malloc(ctx, device, bytes, &to));
    calls_succeed(attn_upload(ctx, to, from, bytes, NULL));
    return to;
}

#endif
