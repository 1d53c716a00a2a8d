/* SPDX-License-Identifier: Apache-2.0 */
#include "features.h"

unsigned attn_cpu_decode_features(const attn_cpuid *id)
{
    enum { ECX_FMA = 12, ECX_OSXSAVE = 27, ECX_AVX = 28, ECX_F16C = 29 };
    enum { EBX_AVX2 = 5, EBX_AVX512F = 16, EBX_AVX512DQ = 17, EBX_AVX512BW = 30, EBX_AVX512VL = 31 };
    const uint64_t ymm = 0x6, zmm = 0xe6; /* SSE, AVX; and mask registers, upper halves, upper registers */
    const uint32_t avx512 = 1u << EBX_AVX512F | 1u << EBX_AVX512DQ | 1u << EBX_AVX512BW | 1u << EBX_AVX512VL;
    unsigned features = 0;
    if (!(id->leaf1_ecx >> ECX_OSXSAVE & 1) || !(id->leaf1_ecx >> ECX_AVX & 1) || (id->xcr0 & ymm) != ymm) return 0;
    if (id->leaf1_ecx >> ECX_FMA & 1) features |= ATTN_CPU_FMA;
    if (id->leaf1_ecx >> ECX_F16C & 1) features |= ATTN_CPU_F16C;
    if (id->leaf7_ebx >> EBX_AVX2 & 1) features |= ATTN_CPU_AVX2;
    if ((id->leaf7_ebx & avx512) == avx512 && (id->xcr0 & zmm) == zmm) features |= ATTN_CPU_AVX512;
    return features;
}

#if defined(__x86_64__)
#  include <cpuid.h>
#  include <pthread.h>

static pthread_once_t read_once = PTHREAD_ONCE_INIT;
static unsigned found;

static void read_features(void)
{
    attn_cpuid id = {0};
    unsigned eax, ebx, ecx, edx;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) id.leaf1_ecx = ecx;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) id.leaf7_ebx = ebx;
    if (id.leaf1_ecx >> 27 & 1) {
        uint32_t low, high;
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0)); /* the intrinsic would need -mxsave */
        id.xcr0 = (uint64_t)high << 32 | low;
    }
    found = attn_cpu_decode_features(&id);
}

/* Read once a process: every call asks, and in a virtual machine each CPUID leaves it for microseconds. */
unsigned attn_cpu_features(void)
{
    pthread_once(&read_once, read_features);
    return found;
}
#else
unsigned attn_cpu_features(void) { return 0; }
#endif
