/* SPDX-License-Identifier: Apache-2.0
 * Compiled with CUDA_HEADER naming a real cuda.h: each prototype and each constant of ours is the header's. The
 * program only says so. */
#include CUDA_HEADER
#include <stdio.h>

/* Parameter for parameter: calling conventions see integers and pointers, and so do we. The header's own types stand
 * behind the names here, so a wrong one in driver_table.h is another function type. Where the header's entry point is
 * a macro (cuMemAlloc is cuMemAlloc_v2), the table's explicit name is declared all the same. */
#define DRIVER(member, symbol, parameters) \
  _Static_assert(__builtin_types_compatible_p(__typeof__(&symbol), CUresult(*) parameters), #symbol);
#include "cuda/driver_table.h"
#undef DRIVER

#define VALUE(name, number) _Static_assert((int)(name) == (number), #name);
#include "cuda/driver_values.h"
#undef VALUE

/* What driver_types.h says these types are. Enumerations of the header may be unsigned, int holds their values. */
#define SAME(type, ours) _Static_assert(__builtin_types_compatible_p(type, ours), #type)
SAME(CUdevice, int);
SAME(CUcontext, struct CUctx_st *);
SAME(CUmodule, struct CUmod_st *);
SAME(CUfunction, struct CUfunc_st *);
SAME(CUstream, struct CUstream_st *);
SAME(CUevent, struct CUevent_st *);
_Static_assert(sizeof(CUdeviceptr) == sizeof(unsigned long long), "CUdeviceptr");
_Static_assert((CUdeviceptr)-1 > 0, "CUdeviceptr is unsigned");
#define INTEGER(type) _Static_assert(sizeof(type) == sizeof(int), #type)
INTEGER(CUresult);
INTEGER(CUdevice_attribute);
INTEGER(CUfunction_attribute);
INTEGER(CUpointer_attribute);
INTEGER(CUstreamCaptureStatus);

int main(void)
{
    const struct {
        const void *theirs, *ours;
    } keys[] = {{CU_LAUNCH_PARAM_END, (void *)0x00},
                {CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)0x01},
                {CU_LAUNCH_PARAM_BUFFER_SIZE, (void *)0x02}};
    for (int n = 0; n < 3; n++)
        if (keys[n].theirs != keys[n].ours) {
            printf("FAIL: key %d of cuLaunchKernel's extra\n", n);
            return 1;
        }
    printf("the driver's types are as in %s (CUDA %d.%d)\n", CUDA_HEADER, CUDA_VERSION / 1000,
           CUDA_VERSION % 1000 / 10);
    return 0;
}
