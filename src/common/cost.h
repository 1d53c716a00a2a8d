/* SPDX-License-Identifier: Apache-2.0
 * The cost model of automatic choice: seconds that a forward of host tensors takes on the CPU and, staged, on a GPU.
 * Arithmetic only: nothing is asked, measured or remembered. */
#ifndef ATTN_COST_H
#define ATTN_COST_H

#include "job.h"
#include <stdbool.h>

/* What a forward has to do, by the sizes of its problem: no array is read. */
typedef struct attn_work {
    double flops;               /* of the visible pairs */
    double kv_bytes;            /* read once for each kv head */
    double in_bytes, out_bytes; /* copied to a GPU and back */
} attn_work;

void attn_cost_work(const attn_job *job, attn_work *work);

/* The level whose speed a job has at level `isa`. */
const char *attn_cost_level(const char *isa, const attn_job *job);
/* `cores`: physical ones, beyond which threads add nothing. 0 for a level without figures. */
double attn_cost_cpu(const char *level, int32_t threads, int32_t cores, const attn_work *work);
/* No more than that whatever the masks: what a choice begins with. */
double attn_cost_cpu_bound(const char *level, int32_t threads, int32_t cores, const attn_job *job);

/* What a GPU's properties and the kernel that serves the problem say. */
typedef struct attn_gpu_rates {
    const char *family; /* of kernels: "simt", "sm70" */
    int32_t capability, multiprocessors;
    double clock_hz; /* 0: the driver does not tell */
    double blocks;   /* of the launch */
} attn_gpu_rates;

/* Copies both ways included; the first use of a GPU is not. */
double attn_cost_gpu(const attn_gpu_rates *gpu, const attn_work *work);

/* "31 ms", "2.4 s". */
typedef struct attn_cost_words {
    char text[32];
} attn_cost_words;
attn_cost_words attn_cost_text(double seconds);

/* From this estimate of the CPU on a GPU is thought of: in a process with a started driver, and in one where thinking
 * of it means to start the driver. */
double attn_cost_worth_asking(bool driver_started);

#endif
