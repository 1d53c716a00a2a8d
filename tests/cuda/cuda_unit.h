/* SPDX-License-Identifier: Apache-2.0
 * What tests against fake_driver.c share: its books, contexts, and the start. */
#ifndef CUDA_UNIT_H
#define CUDA_UNIT_H

#include "unit.h"

#include "cuda/state.h"
#include "fake_driver.h"

#include <dlfcn.h>
#include <stdlib.h>

static struct fake *fake;

static inline attn_context *context(int32_t backend, int32_t device)
{
    attn_config config = ATTN_CONFIG_INIT;
    attn_context *ctx = NULL;
    config.backend = backend;
    config.device = device;
    if (attn_create(&config, &ctx) != ATTN_OK) fail_msg("%s", attn_last_error());
    return ctx;
}

static inline void expect(attn_status status, attn_status expected, const char *text)
{
    if (status != expected || !strstr(attn_last_error(), text))
        fail_msg("status %d, \"%s\"; expected %d, \"...%s...\"", status, attn_last_error(), expected, text);
}

/* The program's one argument is the fake driver's path. */
static inline int find_fake(int argc, char **argv)
{
    if (argc != 2) return 0;
    setenv("ATTN_CUDA_DRIVER", argv[1], 1);
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    fake = library ? dlsym(library, "fake") : NULL;
    if (!fake) printf("%s\n", dlerror());
    return fake != NULL;
}

#endif
