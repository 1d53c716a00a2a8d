/* SPDX-License-Identifier: Apache-2.0
 * The list of the forward's kernels, in the order of preference, and the choice. */
#include "forward_kernels.h"
#include "kernels/tensor_shapes.h"
#include <stdio.h>

enum { VOLTA_SHARED_BYTES = 98304 }; /* that a block of sm_70 may have */

/* simt: two tiles of float32, places of rows and keys, factors of keys. O lies in registers, so many rows or many columns;
 * a block of few rows is for problems of few rows. */
#define SIMT_SHARED(rows) \
  (((rows) + SIMT_KEYS) * SIMT_STRIDE * 4 + (rows)*3 * 8 + SIMT_KEYS * 2 * (8 + 4) + SIMT_BLOCK_BYTES)
#define SIMT(name, columns, rows, most_rows)                                         \
  {"simt",  "forward_simt", "simt_forward", "simt_forward_" name, ATTN_MAX_HEAD_DIM, \
   columns, rows,           most_rows,      SIMT_THREADS,         SIMT_SHARED(rows), \
   true,    ANY_TYPE,       false},

/* sm70: a body for masks, then one for everything. */
#define SM70_BODY(module, dk, dv, blocks, warps, shared_bytes, name, everything, type, has_doubts)                 \
  {"sm70", "forward_sm70_d" name, module,       "sm70_forward_" name, dk,   dv,        TENSOR_ROWS(blocks, warps), \
   0,      32 * (warps),          shared_bytes, everything,           type, has_doubts},
#define SM70(module, dk, dv, keys, blocks, warps, q_in_registers, one_buffer, blocks_per_sm)                           \
  SM70_BODY(#module, dk, dv, blocks, warps, TENSOR_SHARED(dk, dv, keys, blocks, warps, q_in_registers, one_buffer, 0), \
            #dk "_" #dv, false, ATTN_F16, false)                                                                       \
  SM70_BODY(#module, dk, dv, blocks, warps, TENSOR_SHARED(dk, dv, keys, blocks, warps, q_in_registers, one_buffer, 1), \
            #dk "_" #dv "_all", true, ATTN_F16, false)
#define SM70_BF16(module, dk, dv, keys, blocks, warps, q_in_registers, one_buffer, blocks_per_sm)          \
  SM70_BODY(#module "_bf16", dk, dv, blocks, warps,                                                        \
            TENSOR_SHARED(dk, dv, keys, blocks, warps, q_in_registers, one_buffer, 0) + TENSOR_BF16_BYTES, \
            #dk "_" #dv "_bf16", false, ATTN_BF16, true)                                                   \
  SM70_BODY(#module "_bf16", dk, dv, blocks, warps,                                                        \
            TENSOR_SHARED(dk, dv, keys, blocks, warps, q_in_registers, one_buffer, 1) + TENSOR_BF16_BYTES, \
            #dk "_" #dv "_bf16_all", true, ATTN_BF16, true)

static const attn_forward_kernel kernels[] = {
    SM70_SHAPES(SM70) SM70_SHAPES(SM70_BF16) SIMT("few", ATTN_MAX_HEAD_DIM, 16, 16) SIMT("64", 64, 128, 0)
        SIMT("128", 128, 128, 0) SIMT("256", 256, 64, 0) SIMT("576", ATTN_MAX_HEAD_DIM, 64, 0)};
enum { KERNELS = sizeof kernels / sizeof *kernels };

#define FITS_VOLTA(module, dk, dv, keys, blocks, warps, q_in_registers, one_buffer, blocks_per_sm)                 \
  _Static_assert((TENSOR_SHARED(dk, dv, keys, blocks, warps, q_in_registers, one_buffer, 1) + TENSOR_BF16_BYTES) * \
                         blocks_per_sm <=                                                                          \
                     VOLTA_SHARED_BYTES,                                                                           \
                 "shared memory of sm_70");
SM70_SHAPES(FITS_VOLTA)
_Static_assert(SIMT_SHARED(128) <= VOLTA_SHARED_BYTES, "shared memory of sm_70");

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

/* Why the sm70 kernels do not serve a problem, whatever its head sizes; NULL: they do. */
static const char *not_for_sm70(const attn_job *job)
{
    const int64_t most = (int64_t)1 << 30;
    const int32_t type = job->q.dtype;
    if ((type != ATTN_F16 && type != ATTN_BF16) || job->k.dtype != type || job->v.dtype != type)
        return "they take q, k and v in f16, or all in bf16";
    if (job->max_k > most || job->max_q > most / attn_max(1, job->group) || job->page_size > most)
        return "they count rows and keys up to 2^30";
    return NULL;
}

static bool serves(const attn_forward_kernel *k, const attn_job *job)
{
    if (strcmp(k->family, "sm70") == 0 && not_for_sm70(job)) return false;
    return (k->type == ANY_TYPE || k->type == job->q.dtype) && job->head_dim <= k->head_dim &&
           job->head_dim_v <= k->head_dim_v && (!k->most_rows || job->max_q * job->group <= k->most_rows) &&
           (k->everything || !has_more_than_masks(job));
}

/* Whether a kernel may be taken: by name, by family, or because it is made for the GPU. The tensor cores of sm_70 are
 * found on no other, where their instruction is emulated. */
static bool is_wanted(const attn_forward_kernel *k, const attn_cuda_device *d, const attn_force *force)
{
    const bool plain = strcmp(k->family, "simt") == 0;
    if (force->kernel[0] && !attn_kernel_is(k->label, force->kernel)) return false;
    if (force->family[0]) return plain || strcmp(k->family, force->family) == 0;
    return plain || force->kernel[0] || (d->capability >= 70 && d->capability < 75);
}

const attn_forward_kernel *attn_cuda_plain_forward(const attn_job *job)
{
    for (int n = 0;; n++)
        if (strcmp(kernels[n].family, "simt") == 0 && serves(&kernels[n], job)) return &kernels[n];
}

static bool has_code(const attn_cuda_device *d, const char *module)
{
    return attn_cuda_choose_image(attn_cuda_images, module, d->capability) >= 0;
}

static const char *description_of(const attn_forward_kernel *k)
{
    if (k->type == ATTN_F16) return "f16 on the tensor cores of sm_70";
    return k->type == ATTN_BF16 ? "bf16, scaled to f16, on the tensor cores of sm_70"
                                : "float32 multiply-adds, which serve everything";
}

static attn_status none_serves(const attn_job *job, const char *forced)
{
    const char *why = strncmp(forced, "forward_sm70", 12) == 0 ? not_for_sm70(job) : NULL;
    return attn_fail(ATTN_UNSUPPORTED, "kernel=%s is forced, which does not serve this problem: %s", forced,
                     why ? why : "its head sizes, or what it asks for");
}

attn_status attn_cuda_choose_forward(const attn_cuda_device *d, const attn_job *job, const attn_force *force,
                                     const attn_forward_kernel **kernel, char *reason, size_t reason_bytes)
{
    const attn_forward_kernel *without_code = NULL;
    for (int n = 0; n < KERNELS; n++) {
        const attn_forward_kernel *k = &kernels[n];
        if (!is_wanted(k, d, force) || !serves(k, job)) continue;
        if (!has_code(d, k->module) || (k->has_doubts && !has_code(d, "simt_forward"))) {
            without_code = k;
            continue;
        }
        *kernel = k;
        snprintf(reason, reason_bytes, "%s%s", force->kernel[0] || force->family[0] ? "forced; " : "",
                 description_of(k));
        return ATTN_OK;
    }
    if (without_code) return attn_cuda_no_code(d, without_code->module);
    return none_serves(job, force->kernel);
}
