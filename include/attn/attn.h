/* SPDX-License-Identifier: Apache-2.0
 * attn: exact attention, forward and backward, on the CPU or an NVIDIA GPU, chosen at run time.
 *
 * This header is the whole API and its manual. It needs nothing but the C library and compiles
 * alone as C11 and as C++17. docs/semantics.md states every rule of the arithmetic.
 *
 * In one sentence: describe the work in an attn_problem, ask attn_query whether and how it can be
 * done, call attn_forward or attn_backward.
 *
 *     #include <attn/attn.h>
 *     #include <stdio.h>
 *
 *     enum { B = 1, HQ = 8, HKV = 2, SQ = 128, SK = 128, D = 64 };
 *     static float q[B*HQ*SQ*D], k[B*HKV*SK*D], v[B*HKV*SK*D], out[B*HQ*SQ*D];
 *
 *     int main(void)
 *     {
 *         attn_context *ctx;
 *         if (attn_create(NULL, &ctx) != ATTN_OK) {        // NULL: every device, chosen per call
 *             fprintf(stderr, "%s\n", attn_last_error());
 *             return 1;
 *         }
 *         attn_problem p = ATTN_PROBLEM_INIT;              // zero everywhere: softmax(QK'/sqrt(D)) V
 *         p.q = attn_bhsd(q, ATTN_F32, B, HQ, SQ, D);
 *         p.k = attn_bhsd(k, ATTN_F32, B, HKV, SK, D);
 *         p.v = attn_bhsd(v, ATTN_F32, B, HKV, SK, D);
 *         p.out = attn_bhsd(out, ATTN_F32, B, HQ, SQ, D);
 *         p.mask = ATTN_CAUSAL;
 *         attn_status s = attn_forward(ctx, &p, NULL);     // NULL: return when the result is there
 *         if (s != ATTN_OK) fprintf(stderr, "%s: %s\n", attn_status_string(s), attn_last_error());
 *         attn_destroy(ctx);
 *         return s != ATTN_OK;
 *     }
 *
 * Letters used throughout: B batch, Hq and Hkv query and key/value heads, Sq and Sk query and key
 * tokens of one sequence, D head_dim of query and key, Dv head_dim of value and output.
 *
 * Sizes and strides count elements, never bytes, unless a name ends in _bytes. Structs that can
 * grow start with struct_size, which the caller sets to sizeof of the struct it was compiled with:
 * 0 is INVALID_ARGUMENT, a larger struct than the library knows is accepted if its tail is zero.
 */
#ifndef ATTN_H
#define ATTN_H

#include <stddef.h>
#include <stdint.h>

/* Define ATTN_SHARED when a Windows program links the DLL; the build of attn defines ATTN_BUILD. */
#if defined(_WIN32)
#  if defined(ATTN_BUILD)
#    define ATTN_API __declspec(dllexport)
#  elif defined(ATTN_SHARED)
#    define ATTN_API __declspec(dllimport)
#  else
#    define ATTN_API
#  endif
#elif defined(__GNUC__)
#  define ATTN_API __attribute__((visibility("default")))
#else
#  define ATTN_API
#endif

/* Initialisers: everything zero but struct_size. */
#ifdef __cplusplus
#  define ATTN_INIT_(type) ([] { type x_ = type(); x_.struct_size = (uint32_t)sizeof(type); return x_; }())
#else
#  define ATTN_INIT_(type) { .struct_size = (uint32_t)sizeof(type) }
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define ATTN_VERSION_MAJOR 0
#define ATTN_VERSION_MINOR 1
#define ATTN_VERSION_PATCH 0

/* ---- Status -----------------------------------------------------------------------------------
 * Every call that can fail returns one of these. INVALID_ARGUMENT is wrong on every device; its
 * text names the field. UNSUPPORTED is right, but not here: its text says what is missing. Errors
 * found before the first write (1 to 5) leave all outputs untouched; after DEVICE_ERROR they are
 * unspecified. The library never aborts, exits or prints. The numbers never change. */
typedef enum attn_status {
    ATTN_OK = 0,
    ATTN_INVALID_ARGUMENT = 1,
    ATTN_UNSUPPORTED = 2,
    ATTN_OUT_OF_MEMORY = 3,
    ATTN_WORKSPACE_TOO_SMALL = 4,
    ATTN_NO_DEVICE = 5,
    ATTN_DEVICE_ERROR = 6,
    ATTN_INTERNAL = 7
} attn_status;

/* A constant name such as "invalid argument"; never NULL, also for unknown numbers. */
ATTN_API const char *attn_status_string(attn_status status);
/* The text of this thread's last failed call; "" before the first. Valid until this thread's next
 * call into the library. */
ATTN_API const char *attn_last_error(void);
/* The version of the library that runs: major << 16 | minor << 8 | patch. */
ATTN_API uint32_t attn_version(void);
/* One constant line: version, compiler, options, backends and CPU levels built in. */
ATTN_API const char *attn_build_info(void);

/* ---- Devices ----------------------------------------------------------------------------------
 * Device 0 is the CPU and is always there; NVIDIA GPUs follow in the driver's order. */
typedef enum attn_backend {
    ATTN_BACKEND_AUTO = 0,
    ATTN_BACKEND_CPU = 1,
    ATTN_BACKEND_CUDA = 2,
    ATTN_BACKEND_REFERENCE = 3 /* float64 on the CPU, slow: the judge of the others. Only when asked
                                  for, never chosen automatically. */
} attn_backend;

typedef struct attn_device_info {
    uint32_t struct_size;
    int32_t backend;       /* attn_backend                                                       */
    int32_t ordinal;       /* CUDA ordinal; 0 for the CPU                                        */
    int32_t units;         /* physical cores of the process's cpuset, or SMs                     */
    uint64_t memory_bytes; /* of the machine or the card                                         */
    char name[64];
    char arch[32];         /* the best level the device can run: "scalar", "avx2", "sm_70"       */
    char driver[32];       /* GPUs: the CUDA version that the driver is for, "CUDA 12.8"; else "" */
} attn_device_info;

ATTN_API attn_status attn_device_count(int32_t *count);
/* index from 0 to count - 1. Thread-safe. */
ATTN_API attn_status attn_device_get(int32_t index, attn_device_info *info);

/* ---- Context ----------------------------------------------------------------------------------
 * Holds the permitted devices and the choices forced by the caller. It is immutable after creation,
 * so any number of threads may use one context at the same time; destroy it after the last call
 * has returned. Creating one is cheap (no thread is started, no GPU is touched until first used; that
 * takes up to seconds, and the log has a line before it).
 *
 * `force` pins automatic choices: a comma-separated list of key=value, for example
 * "isa=scalar,threads=4". Keys: backend (auto, cpu, cuda, reference), isa (scalar, ...), kernel (a
 * name that attn_plan gives), splits (1 and up), threads (1 to 1024), stage (auto, never: a GPU that
 * would have to copy host tensors to itself answers UNSUPPORTED instead, and none is chosen for
 * them), numa (auto, never: one list of tasks for all NUMA nodes), bind (cores, never: goes before
 * ATTN_CFG_BIND_THREADS). The environment variable ATTN_FORCE takes the same words and is used for keys
 * that `force` lacks. `backend` in ATTN_FORCE applies only where the config says AUTO. An unknown key or
 * value is INVALID_ARGUMENT.
 *
 * Threads: a call uses an OpenMP team of num_threads, or the caller alone where the work is too small to
 * be worth waking it (threads=N in `force` is taken at its word). Called from inside a parallel region it
 * follows OpenMP's nesting rules (by default: one thread). In a child made by fork() after a
 * context existed, calls run on one thread, because OpenMP's pool does not survive a fork.
 * ATTN_CFG_BIND_THREADS: while a team works, each of its threads, the caller's among them, may run on one
 * physical core only, of those that its affinity permits and that no other team of the process has; then
 * its affinity is as before. Threads for which there is no core, or the system's consent, stay as they are, and
 * so do all where OpenMP has been told to bind (OMP_PROC_BIND, GOMP_CPU_AFFINITY). It costs 5 to 7 us
 * a team of two, of which a call has one to seven, and may help where other programs move threads about. */
typedef struct attn_context attn_context;

typedef struct attn_config {
    uint32_t struct_size;
    int32_t backend;     /* attn_backend; AUTO: all devices, chosen per call; else only this one  */
    int32_t device;      /* ordinal within the backend; not used with AUTO                        */
    int32_t num_threads; /* CPU threads, to 1024; 0: one a physical core of the process's cpuset  */
    uint32_t flags;      /* ATTN_CFG_*                                                            */
    /* Optional pair for host memory of the library (the context and workspaces it takes itself);
     * both or neither. Must be thread-safe; alloc may return NULL. */
    void *(*alloc)(void *user, size_t bytes, size_t align);
    void (*release)(void *user, void *ptr);
    /* Optional; called with one line of text, level 0 error, 1 notice, 2 detail. Thread-safe. */
    void (*log)(void *user, int level, const char *text);
    void *user;
    const char *force;   /* see above; copied; NULL: nothing forced here                          */
} attn_config;
#define ATTN_CONFIG_INIT ATTN_INIT_(attn_config)
#define ATTN_CFG_CHECK_INDICES 1u /* also validate lengths and page tables in GPU memory (waits)  */
#define ATTN_CFG_BIND_THREADS 2u  /* see "Threads" above                                          */

/* config NULL: all defaults. On failure *out is NULL. */
ATTN_API attn_status attn_create(const attn_config *config, attn_context **out);
ATTN_API void attn_destroy(attn_context *ctx); /* NULL is allowed                                 */

/* ---- Tensors ----------------------------------------------------------------------------------
 * A tensor is a view: a pointer, a type, four sizes and four strides. The library never owns, frees
 * or keeps one beyond the call. The logical axes are always [batch, head, sequence, feature];
 * memory layouts (BHSD, BSHD, packed QKV, a V that is a part of K) differ only in strides. Strides
 * count elements and may be 0 on inputs (broadcast); the feature stride must be 1; the stride of
 * an axis of size 0 or 1 is never looked at. Outputs must not overlap each other or any input (this
 * is not checked).
 * data is aligned to its element (2 bytes for Q8_0 and Q4_0); data == NULL means absent.
 *
 * Storage types. Query and output: F32, F16 or BF16, each on its own. Key and value, each on its
 * own, also F8_E4M3, F8_E5M2, I8 (value = scale * code) and the block types of ggml. All sums are
 * float32 or better, whatever the storage. */
typedef enum attn_dtype {
    ATTN_F32 = 1,
    ATTN_F16 = 2,
    ATTN_BF16 = 3,
    ATTN_BOOL = 4,    /* masks: one byte, non-zero keeps                                          */
    ATTN_F8_E4M3 = 5, /* OCP 8-bit float without infinities, largest 448                          */
    ATTN_F8_E5M2 = 6, /* OCP 8-bit float, largest finite 57344                                    */
    ATTN_I8 = 7,
    ATTN_Q8_0 = 8,    /* blocks of 32: f16 scale, 32 int8; 34 bytes                               */
    ATTN_Q4_0 = 9     /* blocks of 32: f16 scale, 16 bytes of nibbles; 18 bytes                   */
} attn_dtype;

typedef struct attn_tensor {
    void *data;       /* inputs are never written; const is cast away by the caller               */
    int32_t dtype;    /* attn_dtype                                                               */
    uint32_t flags;   /* 0                                                                        */
    int64_t shape[4]; /* [batch, head, sequence, feature]                                         */
    int64_t stride[4];/* in elements. Q8_0, Q4_0: feature size and all strides multiples of 32    */
    float *scale;     /* I8, F8: factor of each (batch or page, head, sequence) row; F8: NULL is 1 */
    int64_t scale_stride[3]; /* elements; all 0: one factor for the whole tensor                  */
    uint64_t reserved[2];    /* 0                                                                 */
} attn_tensor;

/* Contiguous views; memory order b,h,s,d or b,s,h,d. The arguments are the logical shape [b, h, s, d] in both. */
ATTN_API attn_tensor attn_bhsd(void *data, attn_dtype dtype, int64_t b, int64_t h, int64_t s, int64_t d);
ATTN_API attn_tensor attn_bshd(void *data, attn_dtype dtype, int64_t b, int64_t h, int64_t s, int64_t d);
/* Bytes of n consecutive elements (block types: n rounded up to 32); 0 for an unknown type or n < 0,
 * SIZE_MAX beyond 2^60 elements. */
ATTN_API size_t attn_dtype_bytes(attn_dtype dtype, int64_t n);
/* "f32", "f16", "bf16", "bool", "f8_e4m3", "f8_e5m2", "i8", "q8_0", "q4_0"; "?" for others. */
ATTN_API const char *attn_dtype_name(attn_dtype dtype);

/* ---- Lengths: ragged batches, padding ---------------------------------------------------------
 * All zero: every sequence has the tensor's full length. Otherwise sequence b uses the rows
 *     base + start[b] ... base + start[b] + used[b] - 1        along the sequence axis, where
 *     base is offsets[b] (packed batches: batch axis of size 1, sequences one behind the other)
 *     or 0, and used[b] defaults to the room there is: offsets[b+1] - offsets[b] (or the tensor's
 *     length, or the page table's capacity) - start[b].
 * start is left padding. Rows of a sequence's room that are not used are padding: keys and values
 * there are never read, outputs there are set to O = 0, LSE = -inf, gradient 0. Output rows that
 * belong to no sequence are not written. On a GPU the arrays may lie in its memory, where what they hold
 * is taken on trust (but see ATTN_CFG_CHECK_INDICES), or in host memory, where it is checked. */
typedef struct attn_lengths {
    const int32_t *used;    /* [B] tokens in use                                                  */
    const int32_t *offsets; /* [B+1] ascending start rows of packed sequences                     */
    const int32_t *start;   /* [B] first row in use of each sequence                              */
    int64_t max;            /* upper bound of used[]; 0: the room there is. With packed sequences
                               on a GPU this sizes the launch, so give it                         */
    int64_t count;          /* B; required with offsets, else 0 or B                              */
    uint64_t reserved;      /* 0                                                                  */
} attn_lengths;

/* ---- The problem ------------------------------------------------------------------------------
 * One description for prefill, decode (a small Sq), cross attention, paged and ragged batches.
 * One score is computed in this order: scale * q.k, softcap c*tanh(s/c), + bias, + ALiBi, mask
 * (select -inf), softmax with the sink in the denominator, dropout, times V.
 *
 * Masks are bands round a diagonal. Query i is aligned with key i + diagonal, where the diagonal is
 * Sk - Sq of that sequence (bottom-right: the last query sees the last key), 0 with TOP_LEFT, or
 * the given number with DIAGONAL (chunks, rings, caches with gaps). CAUSAL keeps keys up to the
 * aligned one. WINDOW_LEFT and WINDOW_RIGHT keep that many keys on either side of it, the aligned
 * key itself not counted; without their flag window_left, window_right and diagonal are not looked
 * at. A row without a visible key gives O = 0, LSE = -inf (the sink's logit if there is one),
 * gradients 0.
 *
 * Paged caches: k and v are pools [pages, Hkv, page_size, D]; token t of sequence b lies in page
 * page_table[b * page_table_stride + t / page_size], row t % page_size. Any page size from 1.
 * Entries that no key inside the band needs are not read. One page a sequence, of its whole capacity, is a
 * batch index into a cache.
 *
 * GQA and MQA: query head h uses key/value head h / (Hq / Hkv). */
enum {
    ATTN_CAUSAL = 1u,
    ATTN_TOP_LEFT = 2u,
    ATTN_WINDOW_LEFT = 4u,
    ATTN_WINDOW_RIGHT = 8u,
    ATTN_DIAGONAL = 16u
};

typedef struct attn_problem {
    uint32_t struct_size;
    uint32_t mask;         /* ATTN_CAUSAL | ...                                                   */
    attn_tensor q;         /* [B, Hq, Sq, D], packed: [1, Hq, total, D]                           */
    attn_tensor k;         /* [B, Hkv, Sk, D], packed: [1, Hkv, total, D], or a pool of pages     */
    attn_tensor v;         /* as k with Dv; may be a view of k's memory                           */
    attn_tensor out;       /* as q with Dv                                                        */
    attn_tensor lse;       /* optional F32, as q with feature size 1: natural log of the sum of
                              exp(score), sink included, dropout not. Backward needs it           */
    attn_tensor bias;      /* optional, [B or 1, Hq or 1, Sq or 1, Sk or 1], any strides: floats
                              are added to scores, BOOL keeps where non-zero. With lengths: local
                              indices, Sq and Sk being the largest of the batch                   */
    attn_lengths q_len, kv_len;
    const int32_t *page_table; /* optional [B, page_table_pages]                                  */
    int64_t page_table_pages;  /* columns, 1 and up: a sequence's capacity is this times page_size */
    int64_t page_table_stride; /* elements between rows; 0: page_table_pages                      */
    const float *alibi;    /* optional slopes, [Hq] or [B, Hq]: - slope * |i + diagonal - j|       */
    int64_t alibi_batch_stride; /* elements between sequences; 0: the same for all                */
    const float *sink;     /* optional [Hq]: a logit that joins the denominator only              */
    float scale;           /* 0: 1/sqrt(D)                                                        */
    float softcap;         /* 0: off                                                              */
    int64_t window_left, window_right; /* with their flags; >= 0                                  */
    int64_t diagonal;      /* with ATTN_DIAGONAL; may be negative                                 */
    int32_t num_splits;    /* pieces the keys are cut into; 0: the library's rule                 */
    float dropout;         /* probability of dropping, 0 to 1                                     */
    uint64_t seed, offset; /* the dropout mask is a pure function of (seed, offset) and the indices
                              (batch, head, query, key), the same on every device                 */
    const uint64_t *seed_offset; /* optional {seed, offset} read when the call runs                 */
    /* Added to the indices of the dropout mask and to nothing else, so that a shard (of a batch, of
     * heads, of a ring) draws its part of the whole problem's mask. 0 .. 2^32 - size. */
    int64_t batch_origin, head_origin, row_origin, column_origin;
} attn_problem;
#define ATTN_PROBLEM_INIT ATTN_INIT_(attn_problem)

/* ---- Gradients --------------------------------------------------------------------------------
 * attn_backward takes the forward's problem with out and lse as forward left them, and dout. dq, dk,
 * dv, dbias, dsink may each be absent. Gradients of q, k, v and bias may be F32, F16 or BF16
 * whatever the inputs are; of quantised keys and values they are those of the dequantised values.
 * Where a bias broadcasts, dbias has the bias's shape and sums. dq, dk, dv have the shapes of q, k,
 * v without paging (backward of a paged cache is UNSUPPORTED). */
enum {
    ATTN_GRAD_ACCUMULATE = 1u, /* add to what dq, dk, dv, dbias, dsink hold                       */
    ATTN_GRAD_UNORDERED = 2u   /* permit any order and tiles: faster, not bitwise repeatable       */
};

typedef struct attn_grads {
    uint32_t struct_size;
    uint32_t flags;    /* ATTN_GRAD_*                                                             */
    attn_tensor dout;  /* as out                                                                  */
    attn_tensor dq, dk, dv;
    attn_tensor dbias;
    float *dsink;      /* [Hq]                                                                    */
    attn_tensor dlse;  /* optional F32, as lse: gradient that arrives at lse                      */
} attn_grads;
#define ATTN_GRADS_INIT ATTN_INIT_(attn_grads)

/* ---- Execution --------------------------------------------------------------------------------
 * exec == NULL: the call returns when the result is there. Otherwise a CUDA call is put on `stream`
 * as given and returns at once, unless ATTN_EXEC_WAIT is set or a host tensor is staged; CPU calls
 * always return with the result. With a caller's workspace of the queried size a call without host tensors
 * allocates nothing and, on a GPU, does not synchronise; nor does a CPU call allocate that needs 48 KiB at
 * most, which it takes from its caller's stack. The workspace belongs to the call until its result
 * is there; its content is scratch, and it lies in the memory of the device. While `stream` captures a graph,
 * host tensors, host lengths and a missing workspace are UNSUPPORTED; a stream of a context other than
 * the device's primary one is INVALID_ARGUMENT.
 *
 * Which device: the one that exec or the context names; in a context for all devices the GPU whose memory
 * any tensor or array lies in. If all are the host's, attn_forward goes where a cost model expects the result sooner, on
 * the CPU or on a GPU, copies included: attn_plan has both figures. Calls below 0.4 ms on the CPU, calls that name a stream
 * and all other functions stay on the CPU. The CUDA driver is started for this only when a call would take the CPU over
 * 50 ms; a process that forks later should use backend cpu. If a GPU so chosen fails, the CPU computes the call, and
 * the context does not choose that GPU again. A workspace in the other side's memory is not used then.
 *
 * Memory of another GPU than the one that computes is INVALID_ARGUMENT, a GPU's memory where exec names the CPU
 * UNSUPPORTED. A context for the CPU alone does not look: all that it is given must be host memory.
 *
 * Staging: what a call on a GPU finds in host memory (tensors and arrays, in any mixture) is copied to memory
 * of that GPU which the library keeps for the next call, and results are copied back; the call waits. Of a
 * strided tensor only its elements are read and written. Keys beyond the longest sequence stay where they are
 * if kv_len.used is host memory; a pool of pages is copied whole. attn_kv_append copies the new tokens' rows
 * instead of the cache, unless a cache, its scale or an index array lies in the GPU's memory: then a cache in
 * host memory makes the whole way to the GPU and back, and nobody else may write to it meanwhile. */
enum { ATTN_EXEC_WAIT = 1u };

typedef struct attn_exec {
    uint32_t struct_size;
    uint32_t flags;      /* ATTN_EXEC_*                                                           */
    int32_t device;      /* 0: where the tensors are, see above; n + 1: device n                  */
    int32_t reserved;    /* 0                                                                     */
    void *stream;        /* cudaStream_t or CUstream; NULL: the legacy default stream. CPU: unused */
    void *workspace;     /* aligned to 64 bytes; NULL: the library takes it from its own memory,
                            as it does memory for staged copies in any case                       */
    size_t workspace_bytes;
} attn_exec;
#define ATTN_EXEC_INIT ATTN_INIT_(attn_exec)

typedef enum attn_op { ATTN_OP_FORWARD = 0, ATTN_OP_BACKWARD = 1, ATTN_OP_DROPOUT_MASK = 2 } attn_op;

/* What a call would do. */
typedef struct attn_plan {
    uint32_t struct_size;
    int32_t backend;         /* attn_backend                                                      */
    int32_t device;          /* index as in attn_device_get; 0, the CPU, for the reference        */
    int32_t num_splits;      /* key pieces of the longest sequence                                */
    int32_t threads;         /* CPU                                                               */
    int32_t staged;          /* 1: host tensors are copied to that device and back                */
    size_t workspace_bytes;  /* enough for every call with these sizes and the same arrays present,
                                whatever lengths and page tables hold; without staged copies      */
    double estimated_seconds;/* the cost model's figure for `device`; 0: none was needed to choose */
    char isa[16];            /* "scalar", "avx2", "sm_70"                                         */
    char kernel[64];         /* "forward_scalar", "forward_sm70_d128"                             */
    char reason[160];        /* why this device and kernel                                        */
    double cpu_seconds, gpu_seconds; /* figures of both sides where the model has chosen between them, copies
                                included; 0: not asked for, or no GPU                             */
} attn_plan;
#define ATTN_PLAN_INIT ATTN_INIT_(attn_plan)

/* Answers, before anything runs: can this be done, by what, with how much workspace. OK is a promise
 * that the call will not say UNSUPPORTED. grads is for backward only, else NULL. plan may be NULL. Host
 * lengths and page tables are validated here too. exec NULL or as it will be given to the call. */
ATTN_API attn_status attn_query(attn_context *ctx, attn_op op, const attn_problem *problem, const attn_grads *grads,
                                const attn_exec *exec, attn_plan *plan);
ATTN_API attn_status attn_forward(attn_context *ctx, const attn_problem *problem, const attn_exec *exec);
ATTN_API attn_status attn_backward(attn_context *ctx, const attn_problem *problem, const attn_grads *grads,
                                   const attn_exec *exec);

/* ---- Rotary position embedding ----------------------------------------------------------------
 * Applied by attn_kv_append to the new keys and, if given, to q in place. A pair (a, b) of columns at
 * position m becomes (a*cos - b*sin, a*sin + b*cos) with cos[m*rotary_dim/2 + n], n the pair's index. */
typedef struct attn_rope {
    uint32_t struct_size;
    int32_t interleaved; /* 1: pairs (0,1)(2,3)...; 0: pairs (0,r/2)(1,r/2+1)...                   */
    const float *cos, *sin; /* [max_pos, rotary_dim/2]                                            */
    int64_t rotary_dim;  /* even, > 0                                                             */
    int64_t max_pos;
    int64_t first_dim;   /* rotary columns start here (MLA: 512)                                  */
    const int32_t *positions; /* optional, [B, new tokens] (packed: [total]); NULL: tokens in use + i */
} attn_rope;
#define ATTN_ROPE_INIT ATTN_INIT_(attn_rope)

/* ---- Key/value cache --------------------------------------------------------------------------
 * Writes k_new and v_new behind the tokens in use (cache_len.used), converting or quantising to the
 * cache's type; used[] itself is never changed. A place beyond the room is INVALID_ARGUMENT and
 * nothing is written. v_new and v_cache may both be absent (MLA). New tokens are F32, F16 or BF16. */
enum {
    ATTN_APPEND_SET_SCALE = 1u /* I8, F8: choose and write the factor of each row; else the factors
                                  in the cache's scale are used. Needs one factor a row           */
};

typedef struct attn_append {
    uint32_t struct_size;
    uint32_t flags;          /* ATTN_APPEND_*                                                     */
    attn_tensor k_new, v_new;     /* [B, Hkv, Snew, D]; packed: [1, Hkv, total, D] by new_len     */
    attn_tensor k_cache, v_cache; /* as k and v of attn_problem, written here                     */
    attn_lengths new_len;
    attn_lengths cache_len;  /* used required unless slots is given                               */
    const int32_t *page_table;    /* as in attn_problem; not used with slots                      */
    int64_t page_table_pages;
    int64_t page_table_stride;
    const int64_t *slots;    /* optional, [B, Snew] (packed: [total]): cache row of each new token,
                                page * page_size + row for a pool (batch * Sk + row for a plain
                                cache); -1 writes nothing (q is rotated all the same). Two
                                tokens with one place: which one stays is not defined             */
    const attn_rope *rope;   /* optional                                                          */
    attn_tensor q;           /* optional [B, Hq, Snew, D]: rotated in place; needs rope            */
} attn_append;
#define ATTN_APPEND_INIT ATTN_INIT_(attn_append)

ATTN_API attn_status attn_query_append(attn_context *ctx, const attn_append *append, const attn_exec *exec,
                                       attn_plan *plan);
ATTN_API attn_status attn_kv_append(attn_context *ctx, const attn_append *append, const attn_exec *exec);

/* ---- Merging parts ----------------------------------------------------------------------------
 * Combines n results of the same queries over disjoint keys (rings, split caches) into the result
 * over all of them: weights exp(lse_i - max). A part whose lse is -inf, or +inf as FlashAttention-2
 * marks empty rows, has no weight and its out is not read; all parts empty gives (0, -inf). Give the
 * sink to exactly one part. out_parts and lse_parts are arrays of n tensors of one shape; out may be
 * of another float type than the parts; lse is optional (data NULL, or a NULL pointer). */
ATTN_API attn_status attn_query_merge(attn_context *ctx, int32_t n, const attn_tensor *out_parts,
                                      const attn_tensor *lse_parts, const attn_tensor *out, const attn_tensor *lse,
                                      const attn_exec *exec, attn_plan *plan);
ATTN_API attn_status attn_merge(attn_context *ctx, int32_t n, const attn_tensor *out_parts,
                                const attn_tensor *lse_parts, const attn_tensor *out, const attn_tensor *lse,
                                const attn_exec *exec);

/* ---- Dropout mask -----------------------------------------------------------------------------
 * Writes the mask that forward and backward of this problem use: keep is BOOL [B, Hq, Sq, Sk], 1 keeps.
 * With packed or padded sequences Sq and Sk are the largest of the batch and indices are local. The problem is
 * given whole, as for forward; its query is ATTN_OP_DROPOUT_MASK. */
ATTN_API attn_status attn_dropout_mask(attn_context *ctx, const attn_problem *problem, const attn_tensor *keep,
                                       const attn_exec *exec);

/* ---- Memory of any device ---------------------------------------------------------------------
 * So that a program, and the tests, need no CUDA header. device is an index as in attn_device_get. Host
 * memory is aligned to 64 bytes; from 32 MiB on, if the context has no allocator of its own, it lies in huge
 * pages where the system gives them (Linux: transparent_hugepage `madvise` or `always`): a K/V cache there is
 * read up to a quarter faster. Free it before the context is destroyed. Copies wait unless exec names a
 * stream without ATTN_EXEC_WAIT; a stream that captures a graph takes none. attn_sync waits for exec's
 * stream; without exec for the default streams of the GPUs that the context has used. */
ATTN_API attn_status attn_malloc(attn_context *ctx, int32_t device, size_t bytes, void **out);
ATTN_API void attn_free(attn_context *ctx, void *ptr); /* NULL is allowed                            */
ATTN_API attn_status attn_upload(attn_context *ctx, void *dst, const void *src, size_t bytes, const attn_exec *exec);
ATTN_API attn_status attn_download(attn_context *ctx, void *dst, const void *src, size_t bytes, const attn_exec *exec);
ATTN_API attn_status attn_sync(attn_context *ctx, const attn_exec *exec);

#ifdef __cplusplus
}
#endif
#endif
