/* SPDX-License-Identifier: Apache-2.0 */
#include "features.h"
#include <stdbool.h>

unsigned attn_cpu_decode_features(const attn_cpuid *id)
{
    enum { ECX_FMA = 12, ECX_OSXSAVE = 27, ECX_AVX = 28, ECX_F16C = 29 };
    enum { EBX_AVX2 = 5, EBX_AVX512F = 16, EBX_AVX512DQ = 17, EBX_AVX512BW = 30, EBX_AVX512VL = 31 };
    enum { EDX_AMX_BF16 = 22, EDX_AMX_TILE = 24, EAX_AVX512_BF16 = 5, AMD = 0x68747541 /* "Auth" */ };
    const uint64_t ymm = 0x6, zmm = 0xe6; /* SSE, AVX; and mask registers, upper halves, upper registers */
    const uint64_t tiles = 0x60000;       /* their shapes and data */
    const uint32_t amx = 1u << EDX_AMX_BF16 | 1u << EDX_AMX_TILE;
    const uint32_t avx512 = 1u << EBX_AVX512F | 1u << EBX_AVX512DQ | 1u << EBX_AVX512BW | 1u << EBX_AVX512VL;
    unsigned features = 0;
    if (!(id->leaf1_ecx >> ECX_OSXSAVE & 1) || !(id->leaf1_ecx >> ECX_AVX & 1) || (id->xcr0 & ymm) != ymm) return 0;
    if (id->leaf1_ecx >> ECX_FMA & 1) features |= ATTN_CPU_FMA;
    if (id->leaf1_ecx >> ECX_F16C & 1) features |= ATTN_CPU_F16C;
    if (id->leaf7_ebx >> EBX_AVX2 & 1) features |= ATTN_CPU_AVX2;
    if ((id->leaf7_ebx & avx512) == avx512 && (id->xcr0 & zmm) == zmm) features |= ATTN_CPU_AVX512;
    if (features & ATTN_CPU_AVX512 && id->leaf7_1_eax >> EAX_AVX512_BF16 & 1) features |= ATTN_CPU_AVX512_BF16;
    if (features & ATTN_CPU_AVX512_BF16 && id->leaf0_ebx == AMD) features |= ATTN_CPU_FAST_BF16;
    if ((id->leaf7_edx & amx) == amx && (id->xcr0 & tiles) == tiles) features |= ATTN_CPU_AMX;
    return features;
}

#if defined(__x86_64__)
#  include <cpuid.h>
#  include <pthread.h>
#  include <sys/syscall.h>
#  include <unistd.h>

static pthread_once_t read_once = PTHREAD_ONCE_INIT;
static unsigned found;

/* Linux saves the 8 KiB of tiles only for a process that has asked (Documentation/arch/x86/xstate.rst). Refused, for instance
 * where a signal stack would be too small for them: no tiles. */
static bool tiles_are_permitted(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

static void read_features(void)
{
    attn_cpuid id = {0};
    unsigned eax, ebx, ecx, edx;
    if (__get_cpuid(0, &eax, &ebx, &ecx, &edx)) id.leaf0_ebx = ebx;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) id.leaf1_ecx = ecx;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
        const unsigned leaves = eax;
        id.leaf7_ebx = ebx;
        id.leaf7_edx = edx;
        if (leaves >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) id.leaf7_1_eax = eax;
    }
    if (id.leaf1_ecx >> 27 & 1) {
        uint32_t low, high;
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0)); /* the intrinsic would need -mxsave */
        id.xcr0 = (uint64_t)high << 32 | low;
    }
    found = attn_cpu_decode_features(&id);
    if (found & ATTN_CPU_AMX && !tiles_are_permitted()) found &= ~(unsigned)ATTN_CPU_AMX;
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
