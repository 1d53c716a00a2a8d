/* SPDX-License-Identifier: Apache-2.0
 * What an attn_context holds of GPUs: memory that attn_malloc gave, workspaces and rings that wait for the next call. */
#ifndef ATTN_CUDA_STATE_H
#define ATTN_CUDA_STATE_H

#include "device.h"

typedef struct attn_cuda_allocation {
    struct attn_cuda_allocation *next;
    attn_cuda_device *device;
    CUdeviceptr address;
} attn_cuda_allocation;

/* Scratch of calls on one stream. Its next user waits for `done`, the end of the last one. */
typedef struct attn_cuda_workspace {
    struct attn_cuda_workspace *next;
    attn_cuda_device *device;
    CUstream stream; /* of the last call */
    CUevent done;
    CUdeviceptr address;
    size_t bytes;
    bool taken;
} attn_cuda_workspace;

/* Host memory through which a call's copies go, with the end of each slot's last one. Of one call at a time; while none has
 * it, nothing is on its way. */
enum { ATTN_CUDA_SLOTS = 4, ATTN_CUDA_SLOT_BYTES = 2 << 20 };
typedef struct attn_cuda_ring {
    struct attn_cuda_ring *next;
    attn_cuda_device *device;
    CUevent done[ATTN_CUDA_SLOTS];
    char *memory;
    bool is_pinned; /* else ordinary, as the driver had no other */
} attn_cuda_ring;

struct attn_cuda_state {
    pthread_mutex_t lock;
    attn_cuda_allocation *allocations;
    attn_cuda_workspace *workspaces;
    attn_cuda_ring *rings; /* that no call has */
    uint64_t used;         /* bit n: this context has used GPU n */
    uint64_t failed;       /* bit n: GPU n has failed a call that it was chosen for, and is not chosen again */
};

/* Enters GPU `ordinal` on behalf of a context that may use it. */
attn_status attn_cuda_open(const attn_context *ctx, int32_t ordinal, attn_cuda_device **device);

/* ---- memory (memory.c) ----------------------------------------------------------------------- */

typedef enum attn_cuda_kind {
    ATTN_CUDA_HOST,   /* ordinary; also what the driver does not know */
    ATTN_CUDA_PINNED, /* the host's, and the GPU copies it without the host's help */
    ATTN_CUDA_DEVICE, /* the host cannot read it */
    ATTN_CUDA_MANAGED /* both can */
} attn_cuda_kind;

/* Where a pointer of any origin leads, and to which GPU if not to the host. Needs no current context. Everything is
 * host memory where there is no GPU. */
attn_status attn_cuda_locate(const void *pointer, attn_cuda_kind *kind, int32_t *ordinal);

/* ---- workspaces (workspace.c), between enter and leave --------------------------------------- */

/* Scratch of at least `bytes` for work that will be put on `stream`; give it back once the work is on the stream.
 * Not while it captures: the graph would be replayed on memory that others have by then. */
attn_status attn_cuda_workspace_take(const attn_context *ctx, attn_cuda_device *device, CUstream stream, size_t bytes,
                                     attn_cuda_workspace **workspace);
void attn_cuda_workspace_give(const attn_context *ctx, attn_cuda_workspace *workspace);
/* Frees those that no call holds, of one device or of all (NULL), after their work. */
void attn_cuda_workspace_trim(const attn_context *ctx, attn_cuda_device *device);

/* ---- rings (ring.c), between enter and leave ------------------------------------------------- */

/* Pinned memory if there is some, else the context's and a line in its log. Not while a stream captures. */
attn_status attn_cuda_ring_take(const attn_context *ctx, attn_cuda_device *device, attn_cuda_ring **ring);
/* After its copies have been waited for; NULL: nothing. */
void attn_cuda_ring_give(const attn_context *ctx, attn_cuda_ring *ring);
/* Frees those of a device that no call has. */
void attn_cuda_ring_trim(const attn_context *ctx, const attn_cuda_device *device);

#endif
