/* SPDX-License-Identifier: Apache-2.0
 * device.cuh for g++ and clang++: kernels become C++ functions, every CUDA thread a fiber (block.h). */
#ifndef ATTN_EMULATOR_DEVICE_EMULATED_H
#define ATTN_EMULATOR_DEVICE_EMULATED_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __F16C__
#  include <immintrin.h>
#endif

struct alignas(8) uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};

namespace emulator
{

/* A compiled-in kernel; the constructor enters it into the list that find_kernel() searches. */
struct Kernel {
    const char *name;
    size_t parameter_bytes;
    unsigned maximum_threads;
    void (*run)(const void *parameter);
    Kernel *next;

    Kernel(const char *its_name, size_t bytes, unsigned threads, void (*its_body)(const void *));
};

struct Where {
    const char *file;
    int line;
};

/* Of m8n8k4, then those of 16 x 8 sums. */
enum MmaForm { MMA_ROW_ROW, MMA_ROW_COL, MMA_COL_ROW, MMA_COL_COL, MMA_K16_F16, MMA_K16_BF16, MMA_K8_F16 };

unsigned thread_index();
unsigned block_index();
unsigned block_count();
char *shared_memory();
void block_barrier(Where);
void warp_barrier(Where);
uint32_t shuffle(uint32_t value, unsigned source_lane, Where);
void mma_m8n8k4(MmaForm, float *d, const uint32_t *a, uint2 b, Where);
void mma_m16n8(MmaForm, float *d, uint4 a, uint2 b, Where);
void mma_complete(Where);
/* `values` is what the lane has read at `row`; r gets four words. */
void load_matrices(uint32_t *r, const void *row, uint4 values, bool transposed, Where);
/* Word `value` of an 8 x 8 matrix of 16-bit elements, a row in four lanes; the same of its transpose. */
uint32_t transpose_pairs(uint32_t value, Where);
void copy_async(void *to, const void *from, size_t bytes, bool wanted, Where);
void close_copies();
void copies_complete();
void copies_complete_but(unsigned last);
void open_gate(void *gate, Where);
void expect_bytes(void *gate, uint32_t bytes, Where);
void copy_bulk(void *to, const void *from, size_t bytes, void *gate, Where);
void pass_gate(void *gate, unsigned phase, Where);
/* Of global memory, by atomic operations. */
void add_float(float *to, float x, Where);
uint32_t count_up(uint32_t *counter, Where);
uint32_t current_turn(const uint32_t *counter, Where);
void wait_for_turn(const uint32_t *counter, uint32_t turn, Where);

/* Vector accesses of the checked build: g++ splits them into words before it instruments them, and then neither
 * alignment nor bank conflicts could be seen. */
void load_checked(void *to, const void *from, size_t bytes);
void store_checked(void *to, const void *from, size_t bytes);
[[noreturn]] void misaligned(const void *address, size_t bytes, Where);

float half_to_float(uint16_t);
uint16_t float_to_half(float);

} // namespace emulator

/* The caller's place. Two plain parameters: g++ 12 gives the wrong line inside a braced default argument. */
#define HERE [[maybe_unused]] const char *file = __builtin_FILE(), [[maybe_unused]] int line = __builtin_LINE()
#define DEVICE [[maybe_unused]] static inline __attribute__((always_inline))
#define KERNEL(name, threads, min_blocks, type, p)                                                               \
  static_assert(sizeof(type) <= 4096, "kernel parameters are limited to 4 KB");                                  \
  static void name(const type &p);                                                                               \
  static const emulator::Kernel name##_entry(                                                                    \
      #name, sizeof(type), threads, [](const void *parameter) { name(*static_cast<const type *>(parameter)); }); \
  static void name(const type &p)

DEVICE int min(int a, int b) { return a < b ? a : b; }
DEVICE int max(int a, int b) { return a > b ? a : b; }

DEVICE unsigned thread_index() { return emulator::thread_index(); }
DEVICE unsigned thread_index_again() { return emulator::thread_index(); }
DEVICE unsigned block_index() { return emulator::block_index(); }
DEVICE unsigned block_count() { return emulator::block_count(); }
DEVICE char *shared_memory() { return emulator::shared_memory(); }
DEVICE void block_barrier(HERE) { emulator::block_barrier({file, line}); }
DEVICE void warp_barrier(HERE) { emulator::warp_barrier({file, line}); }

template <typename T> DEVICE T shuffle_from(T v, int lane, HERE)
{
    static_assert(sizeof(T) == 4, "shuffles move 32 bits");
    uint32_t word;
    memcpy(&word, &v, 4);
    word = emulator::shuffle(word, unsigned(lane), {file, line});
    memcpy(&v, &word, 4);
    return v;
}

template <typename T> DEVICE T shuffle_xor(T v, int mask, HERE)
{
    return shuffle_from(v, int(emulator::thread_index() & 31) ^ mask, file, line);
}

typedef uintptr_t tile_address;
DEVICE tile_address tile_of(const void *p) { return reinterpret_cast<uintptr_t>(p); }
DEVICE char *tile_pointer(tile_address address) { return reinterpret_cast<char *>(address); }

DEVICE void keep_sum(const char *&) {}
DEVICE void keep_sum(int &) {}

DEVICE bool any_of_warp(bool condition, HERE)
{
    uint32_t any = condition;
    for (int mask = 1; mask < 32; mask *= 2) any |= shuffle_xor(any, mask, file, line);
    return any != 0;
}

template <typename T> DEVICE T load_vector(const void *from, HERE)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "one access of the machine");
    T v;
#ifdef EMULATOR_CHECKED
    emulator::load_checked(&v, from, sizeof v);
#else
    if ((reinterpret_cast<uintptr_t>(from) & (sizeof v - 1)) != 0) emulator::misaligned(from, sizeof v, {file, line});
    memcpy(&v, from, sizeof v);
#endif
    return v;
}

template <typename T> DEVICE void store_vector(void *to, T v, HERE)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "one access of the machine");
#ifdef EMULATOR_CHECKED
    emulator::store_checked(to, &v, sizeof v);
#else
    if ((reinterpret_cast<uintptr_t>(to) & (sizeof v - 1)) != 0) emulator::misaligned(to, sizeof v, {file, line});
    memcpy(to, &v, sizeof v);
#endif
}

DEVICE uint4 load_if(bool condition, const void *from, HERE)
{
    return condition ? load_vector<uint4>(from, file, line) : uint4{0, 0, 0, 0};
}

DEVICE uint4 load_once_if(bool condition, const void *from, HERE) { return load_if(condition, from, file, line); }
DEVICE uint4 load_once(const void *from, HERE) { return load_vector<uint4>(from, file, line); }

/* There are no caches. */
struct cache_hint {
};
DEVICE cache_hint hint_once(bool) { return {}; }
DEVICE void store_kept(void *to, float4 v, HERE) { store_vector(to, v, file, line); }
DEVICE float4 load_kept(const void *from, HERE) { return load_vector<float4>(from, file, line); }

#define DEFINE_MMA_M8N8K4(rows_a, rows_b, form)                                                  \
  DEVICE void mma_m8n8k4_##rows_a##_##rows_b(float(&d)[8], const uint32_t(&a)[2], uint2 b, HERE) \
  {                                                                                              \
    emulator::mma_m8n8k4(emulator::form, d, a, b, {file, line});                                 \
  }
DEFINE_MMA_M8N8K4(row, row, MMA_ROW_ROW)
DEFINE_MMA_M8N8K4(row, col, MMA_ROW_COL)
DEFINE_MMA_M8N8K4(col, row, MMA_COL_ROW)
DEFINE_MMA_M8N8K4(col, col, MMA_COL_COL)
#undef DEFINE_MMA_M8N8K4

DEVICE void mma_m16n8k16_f16(float *d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1, HERE)
{
    emulator::mma_m16n8(emulator::MMA_K16_F16, d, {a[0], a[1], a[2], a[3]}, {b0, b1}, {file, line});
}

DEVICE void mma_m16n8k16_bf16(float *d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1, HERE)
{
    emulator::mma_m16n8(emulator::MMA_K16_BF16, d, {a[0], a[1], a[2], a[3]}, {b0, b1}, {file, line});
}

DEVICE void mma_m16n8k8_f16(float *d, uint32_t a0, uint32_t a1, uint32_t b0, HERE)
{
    emulator::mma_m16n8(emulator::MMA_K8_F16, d, {a0, a1, 0, 0}, {b0, 0}, {file, line});
}

DEVICE void mma_complete(HERE) { emulator::mma_complete({file, line}); }

DEVICE void load_matrices(uint32_t (&r)[4], tile_address row, HERE)
{
    const char *at = tile_pointer(row);
    emulator::load_matrices(r, at, load_vector<uint4>(at, file, line), false, {file, line});
}

DEVICE void load_matrices_transposed(uint32_t (&r)[4], tile_address row, HERE)
{
    const char *at = tile_pointer(row);
    emulator::load_matrices(r, at, load_vector<uint4>(at, file, line), true, {file, line});
}

template <int Bytes = 16> DEVICE void copy_async(tile_address to, const void *from, bool wanted, HERE)
{
    static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16, "one copy of the machine");
    emulator::copy_async(tile_pointer(to), from, Bytes, wanted, {file, line});
#ifndef EMULATOR_CHECKED /* touched here, so that a fault has the kernel's line */
    if (wanted) (void)*static_cast<const volatile char *>(from);
    memset(tile_pointer(to), 0xff, Bytes);
#endif
}

template <int Bytes = 16> DEVICE void copy_async(tile_address to, const void *from, HERE)
{
    copy_async<Bytes>(to, from, true, file, line);
}

DEVICE void open_gate(tile_address gate, HERE) { emulator::open_gate(tile_pointer(gate), {file, line}); }
DEVICE void expect_bytes(tile_address gate, uint32_t bytes, HERE)
{
    emulator::expect_bytes(tile_pointer(gate), bytes, {file, line});
}
DEVICE void copy_bulk(tile_address to, const void *from, uint32_t bytes, tile_address gate, cache_hint, HERE)
{
    emulator::copy_bulk(tile_pointer(to), from, bytes, tile_pointer(gate), {file, line});
#ifndef EMULATOR_CHECKED /* as above */
    for (uint32_t n = 0; n < bytes; n += 16) (void)static_cast<const volatile char *>(from)[n];
    memset(tile_pointer(to), 0xff, bytes);
#endif
}
DEVICE void pass_gate(tile_address gate, uint32_t phase, HERE)
{
    emulator::pass_gate(tile_pointer(gate), phase, {file, line});
}
DEVICE void stores_before_bulk() {} /* the emulator knows one order alone */

DEVICE uint32_t transpose_pairs(uint32_t word, HERE) { return emulator::transpose_pairs(word, {file, line}); }

DEVICE void add_float(float *to, float x, HERE) { emulator::add_float(to, x, {file, line}); }
DEVICE uint32_t take_ticket(uint32_t *counter, HERE) { return emulator::count_up(counter, {file, line}); }
DEVICE uint32_t current_turn(const uint32_t *counter, HERE) { return emulator::current_turn(counter, {file, line}); }
DEVICE void wait_for_turn(const uint32_t *counter, uint32_t turn, uint32_t seen, HERE)
{
    if (seen != turn) emulator::wait_for_turn(counter, turn, {file, line});
}
DEVICE void signal_turn(uint32_t *counter, HERE) { (void)emulator::count_up(counter, {file, line}); }

DEVICE void close_copies() { emulator::close_copies(); }
DEVICE void copies_complete() { emulator::copies_complete(); }
template <int Last> DEVICE void copies_complete_but() { emulator::copies_complete_but(Last); }

DEVICE uint32_t float_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

DEVICE float bits_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

DEVICE uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector)
{
    const uint64_t bytes = uint64_t(b) << 32 | a;
    uint32_t word = 0;
    for (int i = 0; i < 4; i++) word |= (uint32_t(bytes >> 8 * (selector >> 4 * i & 7)) & 0xffu) << 8 * i;
    return word;
}

DEVICE uint32_t and_xor(uint32_t a, uint32_t b, uint32_t c) { return (a & b) ^ c; }
DEVICE uint32_t and_or(uint32_t a, uint32_t b, uint32_t c) { return (a & b) | c; }
DEVICE uint32_t multiply_high(uint32_t a, uint32_t b) { return uint32_t(uint64_t(a) * b >> 32); }

#ifdef __F16C__
DEVICE float low_half(uint32_t pair) { return _cvtsh_ss(uint16_t(pair)); }
DEVICE float high_half(uint32_t pair) { return _cvtsh_ss(uint16_t(pair >> 16)); }
DEVICE uint32_t half_bits(float x) { return uint16_t(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)); }
#else
DEVICE float low_half(uint32_t pair) { return emulator::half_to_float(uint16_t(pair)); }
DEVICE float high_half(uint32_t pair) { return emulator::half_to_float(uint16_t(pair >> 16)); }
DEVICE uint32_t half_bits(float x) { return emulator::float_to_half(x); }
#endif
DEVICE uint32_t pack_half2(float low, float high) { return half_bits(low) | half_bits(high) << 16; }

/* Products and sums of two halves are exact in double. */
DEVICE uint32_t multiply_half2(uint32_t a, uint32_t b)
{
    return pack_half2(low_half(a) * low_half(b), high_half(a) * high_half(b));
}

DEVICE uint32_t half_sum_bits(float a, float b)
{
    const double sum = double(a) + b;
    const float rounded = float(sum); /* to odd, so that rounding again is right */
    uint32_t bits = float_bits(rounded);
    if (double(rounded) != sum && (bits & 1) == 0) bits += (fabs(double(rounded)) < fabs(sum)) ? 1 : -1;
    return half_bits(bits_float(bits));
}

DEVICE uint32_t add_half2(uint32_t a, uint32_t b)
{
    return half_sum_bits(low_half(a), low_half(b)) | half_sum_bits(high_half(a), high_half(b)) << 16;
}

/* The approximations are the exact functions, but for the subnormals that the instructions flush. */
DEVICE float flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
DEVICE float exp2_approx(float x) { return flush(exp2f(flush(x))); }
DEVICE float log2_approx(float x) { return log2f(flush(x)); }
DEVICE float reciprocal_approx(float x) { return flush(1.0f / flush(x)); }

#endif
