/* SPDX-License-Identifier: Apache-2.0
 * The list of the forward's kernels, in the order of preference, and the choice. */
#include "calls.h"
#include "kernels/tensor_shapes.h"
#include <stdio.h>

/* Of all blocks of a multiprocessor. */
enum { TURING_SHARED_BYTES = 65536 };

/* simt: two tiles of float32, places of rows and keys, factors of keys. O lies in registers, so many rows or many columns;
 * a block of few rows is for problems of few rows. */
#define SIMT_SHARED(rows) \
  (((rows) + SIMT_KEYS) * SIMT_STRIDE * 4 + (rows)*3 * 8 + SIMT_KEYS * 2 * (8 + 4) + SIMT_BLOCK_BYTES)
#define SIMT(name, columns, rows, most_rows) \
  {"simt",                                   \
   "forward_simt",                           \
   "simt_forward",                           \
   "simt_forward_" name,                     \
   ATTN_MAX_HEAD_DIM,                        \
   columns,                                  \
   rows,                                     \
   most_rows,                                \
   SIMT_THREADS,                             \
   SIMT_SHARED(rows),                        \
   1,                                        \
   true,                                     \
   0,                                        \
   false,                                    \
   false,                                    \
   ATTN_STORED_NONE,                         \
   false,                                    \
   0},

/* Tensor cores: a body for masks, then one for everything. */
#define TENSOR(family, layout, module, suffix, dtype, scaled, dk, dv, ...)           \
  TENSOR_BODY(family, layout, module, suffix, dtype, scaled, dk, dv, __VA_ARGS__, 0) \
  TENSOR_BODY(family, layout, module, suffix "_all", dtype, scaled, dk, dv, __VA_ARGS__, 1)
#define TENSOR_BODY(family, layout, module, suffix, dtype, scaled, dk, dv, keys, blocks, warps, q_in_registers, \
                    one_buffer, blocks_per_sm, all)                                                             \
  {#family,                                                                                                     \
   "forward_" #family "_d" #dk "_" #dv suffix,                                                                  \
   #module,                                                                                                     \
   #family "_forward_" #dk "_" #dv suffix,                                                                      \
   dk,                                                                                                          \
   dv,                                                                                                          \
   TENSOR_ROWS(dv, blocks, warps),                                                                              \
   0,                                                                                                           \
   32 * (warps),                                                                                                \
   TENSOR_SHARED(layout, scaled, dk, dv, keys, blocks, warps, q_in_registers, one_buffer, all),                 \
   blocks_per_sm,                                                                                               \
   all,                                                                                                         \
   dtype,                                                                                                       \
   scaled,                                                                                                      \
   false,                                                                                                       \
   ATTN_STORED_NONE,                                                                                            \
   false,                                                                                                       \
   0},
#define SM70(module, ...) TENSOR(sm70, sm70, module, "", ATTN_F16, false, __VA_ARGS__)
#define SM70_BF16(module, ...) TENSOR(sm70, sm70, module##_bf16, "_bf16", ATTN_BF16, true, __VA_ARGS__)
#define SM75(module, ...) TENSOR(sm75, sm75, module, "", ATTN_F16, false, __VA_ARGS__)
#define SM80(...) SM80_LAID_OUT(sm80, __VA_ARGS__)
#define SM80_PADDED(...) SM80_LAID_OUT(sm75, __VA_ARGS__)
#define SM80_LAID_OUT(layout, module, ...)                           \
  TENSOR(sm80, layout, module, "_f16", ATTN_F16, false, __VA_ARGS__) \
  TENSOR(sm80, layout, module, "_bf16", ATTN_BF16, false, __VA_ARGS__)
#define SM80_SMALL(module, dk, dv, keys, ...)                                               \
  TENSOR(sm80, sm80, module, "_k" #keys "_f16", ATTN_F16, false, dk, dv, keys, __VA_ARGS__) \
  TENSOR(sm80, sm80, module, "_k" #keys "_bf16", ATTN_BF16, false, dk, dv, keys, __VA_ARGS__)

/* Tensor cores, few queries. */
#define FEW(family, module, kernel, label, d, rows, most_rows, shared_bytes, blocks_per_sm, dtype, stored, persistent, \
            capability)                                                                                                \
  {#family,                                                                                                            \
   "forward_" #family label,                                                                                           \
   #module,                                                                                                            \
   #module kernel,                                                                                                     \
   d,                                                                                                                  \
   d,                                                                                                                  \
   rows,                                                                                                               \
   most_rows,                                                                                                          \
   FEW_THREADS,                                                                                                        \
   shared_bytes,                                                                                                       \
   blocks_per_sm,                                                                                                      \
   true,                                                                                                               \
   dtype,                                                                                                              \
   false,                                                                                                              \
   true,                                                                                                               \
   stored,                                                                                                             \
   persistent,                                                                                                         \
   capability},
#define RING(family, module, label, suffix, d, rows, most_rows, keys, depth, blocks_per_sm, dtype, stored) \
  FEW(family, module, "_" #d "_" #rows suffix, label #rows "_d" #d suffix, d, rows, most_rows,             \
      RING_SHARED(d, rows, keys, depth, STORED_HAS_HALVES(stored)), blocks_per_sm, dtype, stored, true, 0)
#define SM70_FEW(module, d, rows, blocks_per_sm)                                                            \
  FEW(sm70, module, "_" #d, "_few" #rows "_d" #d, d, rows, 0, FEW_SHARED(d, rows), blocks_per_sm, ATTN_F16, \
      ATTN_STORED_NONE, false, 0)
#define SM75_RING(module, d, rows, most_rows, keys, depth, blocks_per_sm) \
  RING(sm75, module, "_few", "", d, rows, most_rows, keys, depth, blocks_per_sm, ATTN_F16, ATTN_STORED_NONE)
#define SM80_RING(module, d, rows, most_rows, keys, depth, blocks_per_sm)                                        \
  RING(sm80, module, "_few", "_f16", d, rows, most_rows, keys, depth, blocks_per_sm, ATTN_F16, ATTN_STORED_NONE) \
  RING(sm80, module, "_few", "_bf16", d, rows, most_rows, keys, depth, blocks_per_sm, ATTN_BF16, ATTN_STORED_NONE)
#define SM90_RING(module, d, rows, most_rows, keys, depth, blocks_per_sm)        \
  BULK(module, "_f16", d, rows, most_rows, keys, depth, blocks_per_sm, ATTN_F16) \
  BULK(module, "_bf16", d, rows, most_rows, keys, depth, blocks_per_sm, ATTN_BF16)
#define BULK(module, suffix, d, rows, most_rows, keys, depth, blocks_per_sm, dtype)            \
  FEW(sm80, module, "_" #d "_" #rows suffix, "_bulk" #rows "_d" #d suffix, d, rows, most_rows, \
      RING_BULK_SHARED(d, rows, keys, depth), blocks_per_sm, dtype, ATTN_STORED_NONE, true, 90)
#define STORED(family, module, suffix, stored, d, rows, most_rows, keys, depth, blocks_per_sm) \
  RING(family, module, "_stored", suffix, d, rows, most_rows, keys, depth, blocks_per_sm, ATTN_F16, stored)
#define SM70_STORED(module, ...)                               \
  STORED(sm70, module, "_q8_0", ATTN_STORED_Q8_0, __VA_ARGS__) \
  STORED(sm70, module, "_q4_0", ATTN_STORED_Q4_0, __VA_ARGS__) \
  STORED(sm70, module, "", ATTN_STORED_CODES, __VA_ARGS__)
#define SM75_STORED(module, d, rows, most_rows, keys, depth, blocks_per_sm) \
  RING(sm75, module, "_stored", "", d, rows, most_rows, keys, depth, blocks_per_sm, ATTN_F16, ATTN_STORED_ANY)
#define SM80_STORED(module, ...)                               \
  STORED(sm80, module, "_q8_0", ATTN_STORED_Q8_0, __VA_ARGS__) \
  STORED(sm80, module, "_q4_0", ATTN_STORED_Q4_0, __VA_ARGS__) \
  STORED(sm80, module, "", ATTN_STORED_CODES, __VA_ARGS__)
#define SM80_MIXED(module, d, rows, most_rows, keys, depth, blocks_per_sm) \
  RING(sm80, module, "_mixed", "", d, rows, most_rows, keys, depth, blocks_per_sm, ATTN_F16, ATTN_STORED_ANY)

static const attn_forward_kernel kernels[] = {
    SM70_FEW_SHAPES(SM70_FEW) SM75_RING_SHAPES(SM75_RING) SM80_RING_SHAPES_64(SM80_RING) SM90_RING_SHAPES(SM90_RING)
        SM80_RING_SHAPES_MORE(SM80_RING) SM70_STORED_SHAPES(SM70_STORED) SM75_STORED_SHAPES(SM75_STORED)
            SM80_STORED_SHAPES(SM80_STORED) SM80_MIXED_SHAPES(SM80_MIXED) SM70_SHAPES(SM70) SM70_BF16_SHAPES(SM70_BF16)
                SM75_SHAPES(SM75) SM80_SHAPES(SM80) SM80_SMALL_SHAPES(SM80_SMALL) SM80_SHAPES_512(SM80_PADDED)
                    SIMT("few", ATTN_MAX_HEAD_DIM, 16, 16) SIMT("64", 64, 128, 0) SIMT("128", 128, 128, 0)
                        SIMT("256", 256, 64, 0) SIMT("576", ATTN_MAX_HEAD_DIM, 64, 0)};
enum { KERNELS = sizeof kernels / sizeof *kernels };

#define FITS(family, bytes, dk, dv, keys, blocks, warps, q_in_registers, one_buffer, blocks_per_sm)                  \
  _Static_assert(                                                                                                    \
      TENSOR_SHARED(family, 1, dk, dv, keys, blocks, warps, q_in_registers, one_buffer, 1) * blocks_per_sm <= bytes, \
      "shared memory of " #family);
#define FITS_VOLTA(module, ...) FITS(sm70, ATTN_VOLTA_SHARED_BYTES, __VA_ARGS__)
#define FITS_TURING(module, ...) FITS(sm75, TURING_SHARED_BYTES, __VA_ARGS__)
SM70_SHAPES(FITS_VOLTA)
SM75_SHAPES(FITS_TURING)
_Static_assert(SIMT_SHARED(128) <= ATTN_VOLTA_SHARED_BYTES, "shared memory of sm_70");

bool attn_cuda_is_forward(const char *word)
{
    for (int n = 0; n < KERNELS; n++)
        if (attn_kernel_is(kernels[n].label, word)) return true;
    return false;
}

bool attn_cuda_is_family(const char *word)
{
    for (int n = 0; n < KERNELS; n++)
        if (strcmp(kernels[n].family, word) == 0) return true;
    return false;
}

static bool has_more_than_masks(const attn_job *job)
{
    return job->scale < 0 || job->softcap > 0 || job->bias.data || job->alibi || job->has_dropout;
}

static const attn_cuda_family families[] = {
    {"sm70", 70, 75, "the tensor cores of sm_70"},
    {"sm75", 75, 80, "the tensor cores of sm_75, by mma.m16n8k8"},
    {"sm80", 80, INT32_MAX, "tensor cores by mma.m16n8k16"},
    {"simt", 0, INT32_MAX, "float32 multiply-adds, which serve everything"},
};

const attn_cuda_family *attn_cuda_family_of(const char *name)
{
    const attn_cuda_family *f = families;
    while (strcmp(f->name, name) != 0) f++;
    return f;
}

static bool is_tensor(const attn_forward_kernel *k) { return strcmp(k->family, "simt") != 0; }

/* Whether kernels over stored rows take it as k or v. */
static bool is_stored(const attn_forward_kernel *k, const attn_job *job, const attn_view *t)
{
    if (k->stored == ATTN_STORED_Q8_0) return t->dtype == ATTN_Q8_0;
    if (k->stored == ATTN_STORED_Q4_0) return t->dtype == ATTN_Q4_0;
    if (t->dtype == ATTN_F16) return k->stored == ATTN_STORED_ANY;
    if (t->dtype == ATTN_Q8_0 || t->dtype == ATTN_Q4_0) return true;
    if (t->dtype != ATTN_I8 && t->dtype != ATTN_F8_E4M3 && t->dtype != ATTN_F8_E5M2) return false;
    return !t->scale || (!t->scale_stride[2] && !(job->page_size && t->scale_stride[0]));
}

/* The types that a kernel on tensor cores takes, where it does not take a problem's; else NULL. */
static const char *other_types(const attn_forward_kernel *k, const attn_job *job)
{
    if (!k->stored) {
        if (job->q.dtype == k->dtype && job->k.dtype == k->dtype && job->v.dtype == k->dtype) return NULL;
        return k->dtype == ATTN_F16 ? "it takes q, k and v in f16" : "it takes q, k and v in bf16";
    }
    if (job->q.dtype != k->dtype) return "it takes q in f16";
    if (is_stored(k, job, &job->k) && is_stored(k, job, &job->v)) return NULL;
    switch (k->stored) {
    case ATTN_STORED_Q8_0: return "it takes k and v in q8_0";
    case ATTN_STORED_Q4_0: return "it takes k and v in q4_0";
    case ATTN_STORED_CODES:
        return "it takes k and v in q8_0, q4_0, and in i8 and f8 with one scale for all rows of a head";
    default: return "it takes k and v in f16, q8_0, q4_0, and in i8 and f8 with one scale for all rows of a head";
    }
}

/* Why a kernel on tensor cores does not serve a problem, whatever its head sizes; NULL: it does. */
static const char *not_for_tensor_cores(const attn_forward_kernel *k, const attn_job *job)
{
    const int64_t most = (int64_t)1 << 30;
    const char *types = other_types(k, job);
    if (types) return types;
    if (job->max_k > most || job->max_q > most / attn_max(1, job->group) || job->page_size > most)
        return "it counts rows and keys up to 2^30";
    double bytes;
    if (attn_cuda_forward_blocks(job, k, &bytes) > INT32_MAX) return "it counts blocks of rows up to 2^31";
    return NULL;
}

static bool serves(const attn_forward_kernel *k, const attn_job *job)
{
    if (is_tensor(k) && not_for_tensor_cores(k, job)) return false;
    if (k->few && !attn_simt_is_few(job, job->max_q)) return false;
    return job->head_dim <= k->head_dim && job->head_dim_v <= k->head_dim_v &&
           (!k->most_rows || job->max_q * job->group <= k->most_rows) && (k->everything || !has_more_than_masks(job));
}

/* Whether a kernel may be taken: by name, by family, or because it is made for the GPU: the instruction of sm_70 is emulated elsewhere. */
static bool is_wanted(const attn_forward_kernel *k, const attn_cuda_device *d, const attn_force *force)
{
    if ((int64_t)k->shared_bytes > d->shared_bytes || k->capability > d->capability) return false;
    if (force->kernel[0] && !attn_kernel_is(k->label, force->kernel)) return false;
    if (force->family[0]) return !is_tensor(k) || strcmp(k->family, force->family) == 0;
    return force->kernel[0] || attn_cuda_is_made_for(attn_cuda_family_of(k->family), d->capability);
}

/* Blocks of a kernel that the shared memory of an SM holds. From sm_80 on it has 1 KB more than a block may have, and spends as much on each. */
static int64_t fitting_blocks(const attn_cuda_device *d, const attn_forward_kernel *k)
{
    const int64_t own = d->capability >= 80 ? 1024 : 0;
    return (d->shared_bytes + own) / (k->shared_bytes + own);
}

/* Whether an SM holds as many blocks as the kernel is made for; a persistent one has as many as there are. */
static bool has_room(const attn_cuda_device *d, const attn_forward_kernel *k)
{
    return k->persistent || k->blocks_per_sm <= fitting_blocks(d, k);
}

int64_t attn_cuda_resident_blocks(const attn_cuda_device *d, const attn_forward_kernel *k)
{
    return d->multiprocessors * attn_max(1, attn_min(k->blocks_per_sm, fitting_blocks(d, k)));
}

const attn_forward_kernel *attn_cuda_plain_forward(const attn_job *job)
{
    for (int n = 0;; n++)
        if (strcmp(kernels[n].family, "simt") == 0 && serves(&kernels[n], job)) return &kernels[n];
}

/* The words without a kernel of the backward, which say nothing about the forward. */
static attn_force forward_words(const attn_force *given)
{
    attn_force own = *given;
    if (own.kernel[0] && !attn_cuda_is_forward(own.kernel)) own.kernel[0] = 0;
    return own;
}

const attn_forward_kernel *attn_cuda_few_forward(const attn_cuda_device *d, const attn_job *job,
                                                 const attn_force *given, const attn_forward_kernel *kernel)
{
    if (kernel->few || !attn_cuda_has_lengths(&job->q_span)) return NULL;
    const attn_force force = forward_words(given);
    attn_job one = *job; /* the longest that it may take */
    one.max_q = attn_min(job->max_q, attn_min(SIMT_FEW, SIMT_FEW_ROWS / attn_max(1, job->group)));
    for (int n = 0; n < KERNELS && one.max_q; n++) {
        const attn_forward_kernel *k = &kernels[n];
        if (k->few && is_wanted(k, d, &force) && serves(k, &one) && attn_cuda_has_code(d, k->module)) return k;
    }
    return NULL;
}

static const char *type_of(const attn_forward_kernel *k)
{
    if (!is_tensor(k)) return "";
    if (k->has_doubts) return "bf16, scaled to f16, on ";
    return k->dtype == ATTN_F16 ? "f16 on " : "bf16 on ";
}

static attn_status none_serves(const attn_job *job, const char *forced)
{
    const char *why = NULL;
    bool of_one_type = false; /* the kernel that says it, beside which there may be one of more */
    for (int n = 0; n < KERNELS; n++) {
        if (!is_tensor(&kernels[n]) || !attn_kernel_is(kernels[n].label, forced)) continue;
        const char *first = not_for_tensor_cores(&kernels[n], job);
        if (!first) { /* one takes its types */
            why = NULL;
            break;
        }
        if (why && !of_one_type) continue;
        why = first;
        of_one_type = kernels[n].stored == ATTN_STORED_Q8_0 || kernels[n].stored == ATTN_STORED_Q4_0;
    }
    return attn_fail(ATTN_UNSUPPORTED, "kernel=%s is forced, which does not serve this problem: %s", forced,
                     why ? why : "its head sizes, or what it asks for");
}

attn_status attn_cuda_choose_forward(const attn_cuda_device *d, const attn_job *job, const attn_force *given,
                                     const attn_forward_kernel **kernel, char *reason, size_t reason_bytes)
{
    const attn_force own = forward_words(given), *force = &own;
    const attn_forward_kernel *without_code = NULL, *found = NULL;
    for (int n = 0; n < KERNELS && !(found && !is_tensor(&kernels[n])); n++) {
        const attn_forward_kernel *k = &kernels[n];
        if (!is_wanted(k, d, force) || !serves(k, job)) continue;
        if (found && (k->few != found->few || k->head_dim != found->head_dim || k->head_dim_v != found->head_dim_v))
            continue;
        if (!attn_cuda_has_code(d, k->module) || (k->has_doubts && !attn_cuda_has_code(d, "simt_forward"))) {
            without_code = k;
            continue;
        }
        if (!found) found = k;
        if (!has_room(d, k)) continue; /* there may be a smaller one */
        found = k;
        break;
    }
    if (found) {
        *kernel = found;
        snprintf(reason, reason_bytes, "%s%s%s", force->kernel[0] || force->family[0] ? "forced; " : "", type_of(found),
                 attn_cuda_family_of(found->family)->what);
        return ATTN_OK;
    }
    if (without_code) return attn_cuda_no_code(d, without_code->module);
    return none_serves(job, force->kernel);
}
