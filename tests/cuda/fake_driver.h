/* SPDX-License-Identifier: Apache-2.0
 * What a test sees of fake_driver.c: the variable `fake`, and streams that the test makes itself. */
#ifndef FAKE_DRIVER_H
#define FAKE_DRIVER_H

#include "cuda/driver_types.h"
#include <stdint.h>

struct fake {
    int calls, fail_at, fail_code; /* call number fail_at answers fail_code */
    int inits, retained, depth;    /* depth: of the stack of current contexts (of all threads) */
    int allocations, events, joins, synchronized;
    size_t bytes;
    int loads;        /* modules */
    unsigned threads; /* of the last launch, with its first parameter and the size of all */
    uint64_t parameter;
    size_t parameter_bytes;
};

struct CUstream_st {
    int device;
    int foreign; /* of a context that is not the primary one */
    int capturing;
    int busy; /* its work does not end by itself */
};

#endif
