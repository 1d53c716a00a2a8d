/* SPDX-License-Identifier: Apache-2.0
 * The part of the CUDA driver ABI that the library uses, so that it builds without CUDA headers.
 * Values are ABI and never change; tests/cuda/check_driver_types.c compares them with a real cuda.h. */
#ifndef ATTN_CUDA_DRIVER_TYPES_H
#define ATTN_CUDA_DRIVER_TYPES_H

#include <stddef.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef int CUdevice_attribute;
typedef int CUfunction_attribute;
typedef int CUpointer_attribute;
typedef int CUstreamCaptureStatus;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;

enum {
#define VALUE(name, number) name = number,
#include "driver_values.h"
#undef VALUE
};

/* cuLaunchKernel's `extra`: end marker and keys (pointer-sized). */
#define CU_LAUNCH_PARAM_END ((void *)0x00)
#define CU_LAUNCH_PARAM_BUFFER_POINTER ((void *)0x01)
#define CU_LAUNCH_PARAM_BUFFER_SIZE ((void *)0x02)

#endif
