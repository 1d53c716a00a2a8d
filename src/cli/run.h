/* SPDX-License-Identifier: Apache-2.0
 * The parts of `attn run`, in the order in which they work: options, inputs, computation, judgement,
 * report. Each returns an exit status and has reported the error if that is not CLI_OK. */
#ifndef ATTN_CLI_RUN_H
#define ATTN_CLI_RUN_H

#include "npy.h"
#include "options.h"
#include "output.h"

enum { RUN_BHSD, RUN_BSHD };
enum { RUN_AS_STORED = -1 }; /* dtype, kv_dtype: not given                                        */

/* What can be written, in the order of the report. */
enum run_result { RUN_OUT, RUN_LSE, RUN_DQ, RUN_DK, RUN_DV, RUN_DBIAS, RUN_DSINKS, RUN_KEEP, RUN_RESULTS };
extern const char *const run_result_names[RUN_RESULTS]; /* "out", "lse", ...                      */

struct run_options {
    const char *q, *k, *v, *bias, *alibi, *sinks, *q_lengths, *kv_lengths, *grad_out, *grad_lse, *expect;
    const char *results[RUN_RESULTS]; /* NULL: not asked for                                      */
    int layout, causal, check, json;
    float scale, softcap;
    float dropout, tolerance; /* < 0: not given                                                   */
    uint64_t seed, offset;
    int dtype;    /* index into cli_float_types                                       */
    int kv_dtype; /* index into cli_kv_types                                          */
    int64_t threads, splits, repeat;
    const char *force;
    int32_t backend, ordinal; /* --device                                                         */
    uint32_t mask;            /* ATTN_* bits                                                      */
    int64_t window_left, window_right, diagonal;
};

int run_parse_options(int argc, char **argv, struct run_options *options);

/* One result of the library. A tensor without data is not computed. */
struct run_tensor {
    attn_tensor tensor;
    struct cli_npy npy; /* its rank and shape in the file; data is empty until run_store          */
};

struct run_time {
    attn_plan plan;
    double median, least; /* seconds; 0: did not run                                              */
    double flops;         /* of the visible pairs                                                 */
};

/* One result against what it should be. */
struct run_verdict {
    const char *what;  /* "out", or the expected file                                          */
    double error;      /* max |x - expected| where both are finite                             */
    double relative;   /* error / max |expected|                                               */
    double allowed;    /* the limit of error                                                   */
    int64_t misplaced; /* elements that are NaN or infinite in one only, or not equally        */
    double row_share;  /* of the row rule, at its worst row; 0: the rule is not for this       */
    int good;
};

enum { RUN_BLOCKS_MAX = 64 };

struct run_job {
    const struct run_options *options;
    attn_context *context;
    attn_problem problem;
    attn_grads grads;
    int backward;
    int rank; /* 4, or 3 without the batch axis                                    */
    struct cli_shape shape;
    struct run_tensor results[RUN_RESULTS];
    struct cli_npy expected; /* --expect                                                          */
    int64_t overflows;       /* finite numbers that became infinite in the type of the computation */
    struct run_time forward, back;
    struct run_verdict verdicts[RUN_RESULTS + 1];
    int verdict_count;
    struct cli_output outputs[RUN_RESULTS];
    int output_count;
    void *blocks[RUN_BLOCKS_MAX]; /* all memory of the job                                        */
    int block_count;
};

/* Memory that lives as long as the job, aligned to 64 bytes, set to zero. */
int run_alloc(struct run_job *job, size_t bytes, void **block);
/* Gives the job a block from cli_npy_alloc. */
int run_keep(struct run_job *job, void *block);
/* Contiguous memory for a tensor of four logical axes, laid out as --layout says. */
int run_new_tensor(struct run_job *job, attn_dtype dtype, const int64_t shape[4], attn_tensor *tensor);
int64_t run_count(const attn_tensor *tensor);
double run_element(const attn_tensor *tensor, int64_t n); /* n-th in memory; F32, F16, BF16, BOOL */

/* The rules of the mask: tokens in use of sequence b, its diagonal, the keys that query i sees. */
int64_t run_used(const attn_lengths *lengths, int64_t b, int64_t all);
int64_t run_diagonal(const struct run_job *job, int64_t b);
void run_visible(const struct run_job *job, int64_t b, int64_t i, int64_t *first, int64_t *end);

int run_load_inputs(struct run_job *job);
/* Memory for each result that is asked for, and its place in problem and grads. */
int run_new_results(struct run_job *job);
int run_compute(struct run_job *job);
/* The naive implementation's results, as float32 tensors that are set to zero and shaped as the
 * job's; dropout: the mask, or NULL; terms [B, Hq, Sq]: of the rows of the output, set to zero. */
struct row_terms;
int run_naive(struct run_job *job, const unsigned char *dropout, attn_tensor results[RUN_RESULTS],
              struct row_terms *terms);
/* --check: adds a verdict for each result. */
int run_check(struct run_job *job);
/* --expect: adds one for the output. */
int run_expect(struct run_job *job);
/* Fills npy.data of all results that are asked for. */
int run_store(struct run_job *job);
void run_report(const struct run_job *job);

#endif
