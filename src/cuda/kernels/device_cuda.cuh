/* SPDX-License-Identifier: Apache-2.0
 * device.cuh for nvcc: inline PTX and intrinsics. */
#ifndef ATTN_CUDA_DEVICE_CUDA_CUH
#define ATTN_CUDA_DEVICE_CUDA_CUH

#define DEVICE static __device__ __forceinline__
#define KERNEL(name, threads, min_blocks, type, p)                                                                     \
    static_assert(sizeof(type) <= 4096, "kernel parameters are limited to 4 KB");                                      \
    extern "C" __global__ void __launch_bounds__(threads, min_blocks) name(const __grid_constant__ type p)

DEVICE unsigned thread_index() { return threadIdx.x; }
DEVICE unsigned thread_index_again()
{
    unsigned n;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(n));
    return n;
}
DEVICE unsigned block_index() { return blockIdx.x; }
DEVICE unsigned block_count() { return gridDim.x; }

/* One array of one type for all kernels: two of different types under one name would clash in templates. */
DEVICE char *shared_memory()
{
    extern __shared__ __align__(128) char block_shared[];
    return block_shared;
}

DEVICE void block_barrier() { __syncthreads(); }
DEVICE void warp_barrier() { __syncwarp(); }

template <typename T> DEVICE T shuffle_xor(T v, int mask) { return __shfl_xor_sync(~0u, v, mask); }
template <typename T> DEVICE T shuffle_from(T v, int lane) { return __shfl_sync(~0u, v, lane); }

DEVICE bool any_of_warp(bool condition) { return __any_sync(~0u, condition) != 0; }

template <typename T> DEVICE T load_vector(const void *from) { return *static_cast<const T *>(from); }
template <typename T> DEVICE void store_vector(void *to, T v) { *static_cast<T *>(to) = v; }

/* What L2 gives up first, or as it does without being told. For bulk copies: cp.async with one was an illegal instruction on an H200, in code of nvcc 11.8 and of 13.0. */
typedef uint64_t cache_hint;
DEVICE cache_hint hint_once(bool once)
{
    cache_hint hint = 0;
#if __CUDA_ARCH__ >= 900
    if (once) asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(hint));
    else asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(hint));
#endif
    return hint;
}

/* What is read soon stays in L2; read so, it is given up first. Older GPUs, where nobody has tried that, are told nothing. */
DEVICE void store_kept(void *to, float4 v)
{
#if __CUDA_ARCH__ >= 900
    uint64_t hint;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(hint));
    asm volatile("st.global.L2::cache_hint.v4.f32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "l"(hint) : "memory");
#else
    store_vector(to, v);
#endif
}

DEVICE float4 load_kept(const void *from)
{
#if __CUDA_ARCH__ >= 900
    float4 v;
    asm volatile("ld.global.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(from), "l"(hint_once(true)));
    return v;
#else
    return load_vector<float4>(from);
#endif
}

/* By predicate: a branch round each load would keep the next one back. */
DEVICE uint4 load_if(bool condition, const void *from)
{
    uint4 v = {0, 0, 0, 0};
    asm volatile("{.reg .pred p;\n\tsetp.ne.u32 p, %5, 0;\n\t@p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];}"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
                 : "l"(from), "r"(uint32_t(condition)));
    return v;
}

/* What nobody reads again takes no room in L1. */
DEVICE uint4 load_once_if(bool condition, const void *from)
{
    uint4 v = {0, 0, 0, 0};
    asm volatile("{.reg .pred p;\n\tsetp.ne.u32 p, %5, 0;\n\t"
                 "@p ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];}"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
                 : "l"(from), "r"(uint32_t(condition)));
    return v;
}

DEVICE uint4 load_once(const void *from)
{
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

#define DEFINE_MMA_M8N8K4(rows_a, rows_b)                                                                              \
    DEVICE void mma_m8n8k4_##rows_a##_##rows_b(float(&d)[8], const uint32_t(&a)[2], uint2 b)                           \
    {                                                                                                                  \
        asm("mma.sync.aligned.m8n8k4." #rows_a "." #rows_b ".f32.f16.f16.f32 "                                         \
            "{%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9}, {%10,%11}, {%0,%1,%2,%3,%4,%5,%6,%7};"                                \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])           \
            : "r"(a[0]), "r"(a[1]), "r"(b.x), "r"(b.y));                                                               \
    }
DEFINE_MMA_M8N8K4(row, row)
DEFINE_MMA_M8N8K4(row, col)
DEFINE_MMA_M8N8K4(col, row)
DEFINE_MMA_M8N8K4(col, col)
#undef DEFINE_MMA_M8N8K4

/* In a register, where the compiler would find the address anew for each use. */
typedef uint32_t tile_address;
DEVICE tile_address tile_of(const void *p)
{
    uint32_t address = uint32_t(__cvta_generic_to_shared(p));
    asm volatile("" : "+r"(address));
    return address;
}

/* As it is now: no other sum is made of what went into it. */
DEVICE void keep_sum(const char *&p) { asm volatile("" : "+l"(p)); }
DEVICE void keep_sum(int &x) { asm volatile("" : "+r"(x)); }

DEVICE void load_matrices(uint32_t (&r)[4], tile_address row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}

DEVICE void load_matrices_transposed(uint32_t (&r)[4], tile_address row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}

template <int Bytes = 16> DEVICE void copy_async(tile_address to, const void *from, bool wanted)
{
    if constexpr (Bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(wanted ? 16 : 0) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(to), "l"(from), "r"(wanted ? Bytes : 0), "n"(Bytes)
                     : "memory");
}

template <int Bytes = 16> DEVICE void copy_async(tile_address to, const void *from)
{
    if constexpr (Bytes == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
    else asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(Bytes) : "memory");
}

DEVICE void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
DEVICE void copies_complete() { asm volatile("cp.async.wait_all;" ::: "memory"); }
template <int Last> DEVICE void copies_complete_but() { asm volatile("cp.async.wait_group %0;" ::"n"(Last) : "memory"); }

DEVICE void open_gate(tile_address gate)
{
    asm volatile("mbarrier.init.shared.b64 [%0], 1;\n\tfence.mbarrier_init.release.cluster;" ::"r"(gate) : "memory");
}

DEVICE void expect_bytes(tile_address gate, uint32_t bytes)
{
    asm volatile("{.reg .b64 t;\n\tmbarrier.arrive.expect_tx.shared.b64 t, [%0], %1;}" ::"r"(gate), "r"(bytes) : "memory");
}

DEVICE void copy_bulk(tile_address to, const void *from, uint32_t bytes, tile_address gate, cache_hint hint)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to), "l"(from), "r"(bytes),
                 "r"(gate), "l"(hint)
                 : "memory");
}

DEVICE void pass_gate(tile_address gate, uint32_t phase)
{
    uint32_t open;
    do asm volatile("{.reg .pred p;\n\tmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;}"
                    : "=r"(open)
                    : "r"(gate), "r"(phase)
                    : "memory");
    while (!open);
    __syncwarp();
}

DEVICE void stores_before_bulk() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

DEVICE uint32_t transpose_pairs(uint32_t word)
{
    uint32_t turned;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(word));
    return turned;
}

#define DEFINE_MMA_M16N8K16(type)                                                                                      \
    DEVICE void mma_m16n8k16_##type(float *d, const uint32_t(&a)[4], uint32_t b0, uint32_t b1)                         \
    {                                                                                                                  \
        asm("mma.sync.aligned.m16n8k16.row.col.f32." #type "." #type ".f32 "                                           \
            "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                                    \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                           \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                           \
    }
DEFINE_MMA_M16N8K16(f16)
DEFINE_MMA_M16N8K16(bf16)
#undef DEFINE_MMA_M16N8K16

DEVICE void mma_m16n8k8_f16(float *d, uint32_t a0, uint32_t a1, uint32_t b0)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(b0));
}

/* In any order among others; no result comes back. */
DEVICE void add_float(float *to, float x) { asm volatile("red.global.add.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory"); }

DEVICE uint32_t take_ticket(uint32_t *counter) { return atomicAdd(counter, 1u); }

/* An acquiring load, or a plain one and a fence behind the last. On an H200 the fence costs 4 % of the backward; on sm_70 an acquiring load is
 * waited for where it stands, which by the model costs more than a tenth. */
#if __CUDA_ARCH__ >= 800
#  define LOAD_TURN "ld.acquire.gpu.global.u32 %0, [%1];"
#else
#  define LOAD_TURN "ld.relaxed.gpu.global.u32 %0, [%1];"
#endif
DEVICE uint32_t current_turn(const uint32_t *counter)
{
    uint32_t turn;
    asm volatile(LOAD_TURN : "=r"(turn) : "l"(counter) : "memory");
    return turn;
}

DEVICE void wait_for_turn(const uint32_t *counter, uint32_t turn, uint32_t seen)
{
    while (seen != turn) seen = current_turn(counter);
#if __CUDA_ARCH__ < 800
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
#endif
}

DEVICE void signal_turn(uint32_t *counter)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

DEVICE void mma_complete() {} /* the instruction is synchronous; the emulator's is not */

DEVICE uint32_t float_bits(float x) { return __float_as_uint(x); }
DEVICE float bits_float(uint32_t u) { return __uint_as_float(u); }
DEVICE uint32_t multiply_high(uint32_t a, uint32_t b) { return __umulhi(a, b); }

DEVICE uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) { return __byte_perm(a, b, selector); }

/* By one instruction; of two constants one is in a register, where the compiler would make two instructions. */
#define DEFINE_LOGIC(name, table)                                                                                      \
    DEVICE uint32_t name(uint32_t a, uint32_t b, uint32_t c)                                                           \
    {                                                                                                                  \
        uint32_t x;                                                                                                    \
        asm("lop3.b32 %0, %1, %2, %3, " table ";" : "=r"(x) : "r"(a), "r"(b), "r"(c));                                 \
        return x;                                                                                                      \
    }
DEFINE_LOGIC(and_xor, "0x6a")
DEFINE_LOGIC(and_or, "0xea")
#undef DEFINE_LOGIC

DEVICE uint32_t multiply_half2(uint32_t a, uint32_t b)
{
    uint32_t product;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    return product;
}

DEVICE uint32_t add_half2(uint32_t a, uint32_t b)
{
    uint32_t sum;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
    return sum;
}

DEVICE uint32_t pack_half2(float low, float high)
{
    uint32_t packed;
    asm("{.reg .b16 l, h;\n\tcvt.rn.f16.f32 l, %1;\n\tcvt.rn.f16.f32 h, %2;\n\tmov.b32 %0, {l, h};}"
        : "=r"(packed)
        : "f"(low), "f"(high));
    return packed;
}

DEVICE float low_half(uint32_t pair)
{
    float value;
    asm("{.reg .b16 l, h;\n\tmov.b32 {l, h}, %1;\n\tcvt.f32.f16 %0, l;}" : "=f"(value) : "r"(pair));
    return value;
}

DEVICE float high_half(uint32_t pair)
{
    float value;
    asm("{.reg .b16 l, h;\n\tmov.b32 {l, h}, %1;\n\tcvt.f32.f16 %0, h;}" : "=f"(value) : "r"(pair));
    return value;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define HAS_PACK_BF16X2
DEVICE uint32_t pack_bf16x2(float low, float high)
{
    uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(packed) : "f"(low), "f"(high));
    return packed;
}
#endif

DEVICE float exp2_approx(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE float log2_approx(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE float reciprocal_approx(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
