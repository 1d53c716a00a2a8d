/* SPDX-License-Identifier: Apache-2.0
 * What this processor can do, as far as the levels ask. */
#ifndef ATTN_CPU_FEATURES_H
#define ATTN_CPU_FEATURES_H

#include <stdint.h>

enum { /* sets of bits */
       ATTN_CPU_FMA = 1,
       ATTN_CPU_F16C = 2,
       ATTN_CPU_AVX2 = 4,
       ATTN_CPU_AVX512 = 8, /* F, BW, DQ and VL */
       ATTN_CPU_AVX512_BF16 = 16,
       ATTN_CPU_AMX = 32,      /* TILE and BF16 */
       ATTN_CPU_FAST_BF16 = 64 /* AVX512_BF16 at twice the speed of float32: AMD's, not Intel's (docs/performance.md) */
};

/* The words of CPUID and XGETBV that matter; 0 where a leaf does not exist. */
typedef struct attn_cpuid {
    uint32_t leaf0_ebx; /* first four letters of the vendor */
    uint32_t leaf1_ecx, leaf7_ebx, leaf7_edx, leaf7_1_eax;
    uint64_t xcr0; /* 0 unless leaf1_ecx says that it may be read (OSXSAVE) */
} attn_cpuid;

/* An instruction set counts only where the operating system saves its registers (XCR0; Intel SDM volume 1, 13.3
 * and 14.3): a kernel booted without AVX, or a virtual machine, may leave the CPUID bit set. */
unsigned attn_cpu_decode_features(const attn_cpuid *id);
/* Of this processor; AMX only where Linux lets this process use tiles, for which it is asked once. */
unsigned attn_cpu_features(void);

#endif
