/* SPDX-License-Identifier: Apache-2.0
 * The cost model and its one table of constants. docs/design.md section 5 has the formulas in words. */
#include "cost.h"
#include <stdio.h>
#include <string.h>

/* ---- constants: all of them ------------------------------------------------------------------- */

/* Flops of one thread in a second when it runs alone, and when all cores are busy (docs/performance.md, CPU forward). */
static const struct {
    const char *level;
    double alone, together;
} levels[] = {
    {"scalar", 9e9, 9e9},         /* 8.6 alone; 142 by 16 threads */
    {"avx2", 70e9, 45e9},         /* half of avx512's lanes; 135 by 2 threads of an EPYC */
    {"avx512", 140e9, 88e9},      /* 142 alone at (1,32,32,2048,2048,128) f32; about 1,400 by 16 threads */
    {"avx512bf16", 190e9, 120e9}, /* bf16, as the next: 190 alone on Zen 4; among others assumed as avx512's */
    {"amx", 480e9, 300e9},        /* 482 alone; 4,300 to 5,200 by 16 threads */
};

/* What a family of kernels reaches of its GPU's peak, and the flops of a multiprocessor and cycle that the peak counts;
 * 0: twice its float32 lanes. */
static const struct {
    const char *family;
    double share, cycle_flops;
} families[] = {
    {"simt", 0.46, 0},    /* 30 of 64 TFLOP/s on an H200 */
    {"sm70", 0.30, 1024}, /* 8 tensor cores of 64 multiply-adds; the share is assumed: no V100 has run it */
    {"sm75", 0.30, 1024}, /* of a T4; consumer GPUs have half; the share is assumed likewise */
    {"sm80", 0.50,
     1024}, /* of sm_86 and later; an A100 has twice, an H100 four times as much, and is the faster side anyway */
};

/* Float32 lanes of a multiprocessor, from a compute capability on (CUDA C Programming Guide, arithmetic throughput). */
static const struct {
    int32_t capability, lanes;
} lanes[] = {{0, 128}, {60, 64}, {61, 128}, {70, 64}, {80, 64}, {86, 128}};

static const double cpu_fixed_seconds = 2e-6; /* (1,1,1,16,16,16) takes 0.8 us, more from cold caches */
static const double cpu_team_seconds =
    200e-6; /* waking a team and its last blocks: 65 to 250 us at 0.3 to 1 ms, 16 threads */
/* Bytes of K and V that one thread reads in a second, alone and among others: decode f16, 88 GB/s by 16 threads, 17 by 2. */
static const double cpu_read_alone = 8.5e9, cpu_read_together = 5.5e9;
static const double gpu_fixed_seconds =
    40e-6; /* pointers, memory, launches, waiting: a staged call of one token, 37 us */
/* Bytes a second between ordinary memory and a GPU: on an H200 (PCI Express 5) 10 to 12e9 there and 7.5 to 9e9 back at 1
 * and 16 MiB, 6.6 to 8.7e9 and 12 to 15e9 at 256 MiB; 6 to 12e9 are usual elsewhere. */
static const double gpu_in_bytes = 8e9, gpu_out_bytes = 9e9;
static const double gpu_clock_hz = 1.4e9;          /* where the driver does not tell: a V100's is 1.38 or 1.53 */
static const double gpu_emulated_share = 0.25;     /* of simt's: sm70's instruction elsewhere, 17 TFLOP/s on an H100 */
static const double ask_started_seconds = 0.4e-3;  /* ten times a GPU's fixed cost */
static const double ask_unstarted_seconds = 50e-3; /* starting a driver takes tenths of a second, once */

/* ---- work -------------------------------------------------------------------------------------- */

enum { SAMPLES = 64 }; /* query rows that are looked at */

/* Mean of the share of keys that a row sees, for sequences of the largest sizes. */
static double visible_share(const attn_job *job)
{
    const attn_sequence s = {.q_len = job->max_q,
                             .k_len = job->max_k,
                             .diagonal = job->bottom_right ? job->max_k - job->max_q : job->diagonal};
    double keys = 0;
    if (job->window_left == ATTN_OPEN && job->window_right == ATTN_OPEN) return 1;
    if (!s.q_len || !s.k_len) return 0;
    for (int n = 0; n < SAMPLES; n++) {
        int64_t first, end, row = (int64_t)((n + 0.5) * (double)s.q_len / SAMPLES);
        attn_visible(job, &s, row, &first, &end);
        keys += (double)attn_max(0, end - first);
    }
    return keys / SAMPLES / (double)s.k_len;
}

/* Query rows, or keys, of a head over all sequences. */
static double tokens(const attn_job *job, const attn_span *span, int64_t longest)
{
    const double all = (double)job->batch * (double)longest;
    return span->offsets && (double)span->room < all ? (double)span->room : all;
}

static double products(const attn_job *job)
{
    return 2.0 * (double)job->heads_q * tokens(job, &job->q_span, job->max_q) * (double)job->max_k *
           (double)(job->head_dim + job->head_dim_v);
}

static double row_bytes(const attn_view *t, int64_t columns)
{
    return (double)attn_dtype_bytes((attn_dtype)t->dtype, columns);
}

/* Of tensors with rows of a batch; a broadcast axis is copied once. */
static double copy_bytes(const attn_job *job, const attn_view *t, double rows, int64_t heads, int64_t columns)
{
    const bool has_batch = !job->q_span.offsets && !(job->page_size && (t == &job->k || t == &job->v));
    if (!t->data || !job->batch) return 0;
    if (has_batch && !t->stride[0]) rows /= (double)job->batch;
    return rows * (t->stride[1] ? (double)heads : 1) * row_bytes(t, columns);
}

static bool is_within(const attn_view *v, const attn_view *k, int64_t head_dim)
{
    return v->data >= k->data && (double)(v->data - k->data) < row_bytes(k, head_dim) &&
           memcmp(v->stride, k->stride, sizeof v->stride) == 0;
}

static double bias_bytes(const attn_job *job)
{
    double bytes = job->bias.data ? row_bytes(&job->bias, 1) : 0;
    for (int axis = 0; axis < 4; axis++) bytes *= (double)job->bias_shape[axis];
    return bytes;
}

void attn_cost_work(const attn_job *job, attn_work *work)
{
    const double rows = tokens(job, &job->q_span, job->max_q), keys = tokens(job, &job->kv_span, job->max_k);
    const double staged_keys = job->page_size ? (double)job->page_count * (double)job->page_size : keys;
    const bool shared = is_within(&job->v, &job->k, job->head_dim);
    const double key_bytes = row_bytes(&job->k, job->head_dim);
    const double value_bytes = shared ? 0 : row_bytes(&job->v, job->head_dim_v);
    work->flops = products(job) * visible_share(job);
    work->kv_bytes = keys * (double)job->heads_kv * (key_bytes + value_bytes);
    work->out_bytes = copy_bytes(job, &job->out, rows, job->heads_q, job->head_dim_v) +
                      copy_bytes(job, &job->lse, rows, job->heads_q, 1);
    work->in_bytes = copy_bytes(job, &job->q, rows, job->heads_q, job->head_dim) +
                     copy_bytes(job, &job->k, staged_keys, job->heads_kv, job->head_dim) + bias_bytes(job);
    if (!shared) work->in_bytes += copy_bytes(job, &job->v, staged_keys, job->heads_kv, job->head_dim_v);
    if (job->q_span.offsets) work->in_bytes += work->out_bytes; /* staging brings back rows that belong to nobody */
}

/* ---- CPU --------------------------------------------------------------------------------------- */

static int32_t at_work(int32_t threads, int32_t cores) { return cores > 0 && threads > cores ? cores : threads; }

/* Of n threads: the more there are, the slower is each. */
static double together(int32_t n, double alone, double among_others)
{
    return n * among_others + (alone - among_others);
}

/* Levels that multiply bf16 compute all else as avx512 does. */
const char *attn_cost_level(const char *isa, const attn_job *job)
{
    return !attn_job_is_bf16(job) && (strcmp(isa, "amx") == 0 || strcmp(isa, "avx512bf16") == 0) ? "avx512" : isa;
}

static double cpu_rate(const char *level, int32_t threads)
{
    for (size_t n = 0; n < sizeof levels / sizeof *levels; n++)
        if (strcmp(levels[n].level, level) == 0) return together(threads, levels[n].alone, levels[n].together);
    return 0;
}

double attn_cost_cpu(const char *level, int32_t threads, int32_t cores, const attn_work *work)
{
    const int32_t n = at_work(threads, cores);
    const double rate = cpu_rate(level, n);
    if (n < 1 || rate <= 0) return 0;
    const double compute = work->flops / rate;
    const double reading = work->kv_bytes / together(n, cpu_read_alone, cpu_read_together);
    return (compute > reading ? compute : reading) + cpu_fixed_seconds + (n > 1 ? cpu_team_seconds : 0);
}

double attn_cost_cpu_bound(const char *level, int32_t threads, int32_t cores, const attn_job *job)
{
    attn_work most = {.flops = products(job)};
    const double keys = tokens(job, &job->kv_span, job->max_k) * (double)job->heads_kv;
    most.kv_bytes = keys * (row_bytes(&job->k, job->head_dim) + row_bytes(&job->v, job->head_dim_v));
    return attn_cost_cpu(attn_cost_level(level, job), threads, cores, &most);
}

/* ---- GPU --------------------------------------------------------------------------------------- */

static double lanes_of(int32_t capability)
{
    int32_t found = 0;
    for (size_t n = 0; n < sizeof lanes / sizeof *lanes; n++)
        if (lanes[n].capability <= capability) found = lanes[n].lanes;
    return found;
}

static double gpu_rate(const attn_gpu_rates *gpu)
{
    const double clock = gpu->clock_hz > 0 ? gpu->clock_hz : gpu_clock_hz;
    const double busy = gpu->blocks < gpu->multiprocessors ? gpu->blocks : gpu->multiprocessors;
    const double plain = 2 * lanes_of(gpu->capability);
    const bool volta = gpu->capability >= 70 && gpu->capability < 75;
    for (size_t n = 0; n < sizeof families / sizeof *families; n++) {
        if (strcmp(families[n].family, gpu->family) != 0) continue;
        const double tensor = families[n].cycle_flops;
        if (strcmp(gpu->family, "sm70") == 0 && !volta) return busy * clock * plain * gpu_emulated_share;
        return busy * clock * (tensor > 0 ? tensor : plain) * families[n].share;
    }
    return 0;
}

double attn_cost_gpu(const attn_gpu_rates *gpu, const attn_work *work)
{
    const double rate = gpu_rate(gpu);
    if (rate <= 0) return 0;
    return gpu_fixed_seconds + work->in_bytes / gpu_in_bytes + work->out_bytes / gpu_out_bytes + work->flops / rate;
}

attn_cost_words attn_cost_text(double seconds)
{
    attn_cost_words words;
    if (seconds < 0.9995) snprintf(words.text, sizeof words.text, "%.3g ms", 1e3 * seconds);
    else snprintf(words.text, sizeof words.text, "%.3g s", seconds);
    return words;
}

double attn_cost_worth_asking(bool driver_started)
{
    return driver_started ? ask_started_seconds : ask_unstarted_seconds;
}
