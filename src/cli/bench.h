/* SPDX-License-Identifier: Apache-2.0
 * The parts of `attn bench`, in the order in which they work: list of cases, tensors, verification, timing, report; or,
 * instead of the last two, steps. Each returns an exit status and has reported the error if that is not CLI_OK. */
#ifndef ATTN_CLI_BENCH_H
#define ATTN_CLI_BENCH_H

#include "bench_peak.h"
#include "options.h"

enum { BENCH_NOT_GIVEN = -1 };

struct bench_options {
    struct cli_list shapes;
    int suite;    /* index into bench_suite_words, or BENCH_NOT_GIVEN */
    int dtype;    /* index into cli_float_types, or BENCH_NOT_GIVEN */
    int kv_dtype; /* index into cli_kv_types, or BENCH_NOT_GIVEN */
    int backward, unordered, causal, v_in_k, no_verify, json, list, steps, copies, graph;
    int32_t backend, ordinal; /* --device */
    int64_t threads;          /* 0: the library's default */
    int64_t repeat;           /* 0: a time budget instead */
    float seconds;            /* that budget; < 0: not given */
};

struct bench_case {
    struct cli_shape shape;
    attn_dtype dtype, kv_dtype; /* of query and output; of keys and values */
    int causal;
    int v_in_k; /* V is the first columns of K */
    int backward;
    int lse; /* the forward writes it; backward reads it in any case */
};

/* Measures what the choice between CPU and GPU needs to know, instead of any case. */
int bench_copies(const struct bench_options *options);

extern const char *const bench_suite_words[];
/* Whether the options ask for gradients: --backward, or a suite that has both directions. */
int bench_has_backward(const struct bench_options *options);
enum { BENCH_CASES_MAX = 256 };
/* What the options ask for, checked as far as no memory is needed. */
int bench_list_cases(const struct bench_options *options, struct bench_case cases[BENCH_CASES_MAX], int *count);

enum { BENCH_TEXT = 160 };
void bench_shape_text(const struct cli_shape *shape, char text[BENCH_TEXT]); /* as --shape takes it */
void bench_case_text(const struct bench_case *c, char text[BENCH_TEXT]);     /* with types, mask and direction */

enum { BENCH_BLOCKS_MAX = 10, ATTN_BENCH_COLUMNS = 576 /* the largest head size */ };

/* One case on its way. */
struct bench_run {
    const struct bench_options *options;
    attn_context *context;
    attn_context *host; /* fills the tensors of a GPU; NULL: the case is in host memory, `context` fills */
    struct bench_peak *peak;
    const struct bench_case *c;
    double memory_bytes; /* what a case may take */

    attn_problem problem;
    attn_grads grads; /* backward */
    attn_exec exec;   /* with a workspace, as a program that calls more than once has it */
    attn_plan plan;
    double flops; /* of visible pairs: 2 (D + DV) each, backward 2 (3 D + 2 DV) */
    double bytes; /* of K and V, once for each kv head; backward: of all tensors, once */
    double taken_bytes;
    void *blocks[BENCH_BLOCKS_MAX];
    int block_count;

    double first; /* seconds of the first call */
    enum { BENCH_UNVERIFIED, BENCH_WRONG, BENCH_VERIFIED } verified;
    double share;           /* of what the accuracy rule permits, at its worst */
    char wrong[BENCH_TEXT]; /* what is wrong, in words */

    int64_t repeats, batch; /* times measured; calls in each */
    double median, least;   /* seconds of a call; NaN: was not timed */
    double waited;          /* GPU: median of calls that are waited for one by one; else NaN */
    double fma, read, copy; /* ceilings beside it, GFLOP/s and GB/s, copy on a GPU; 0: not known */
};

/* Bytes that this process may still take. */
double bench_available_bytes(void);
/* Tensors, workspace, plan and the counts of a case; bench_close for each, also after a failure. */
int bench_open(struct bench_run *run);
void bench_close(struct bench_run *run);
/* Rows [first, first + rows) of one head as a tensor of its own, [1, 1, rows, D]. */
attn_tensor bench_rows(const attn_tensor *t, int64_t b, int64_t h, int64_t first, int64_t rows);
/* A contiguous tensor of the case's batch; those with numbers are filled with a sequence of their own. */
int bench_new_tensor(struct bench_run *run, attn_dtype type, int64_t heads, int64_t tokens, int64_t columns,
                     attn_tensor *tensor);
/* The index of the GPU that --device names, as in attn_device_get; 0: none. */
int32_t bench_gpu(const struct bench_options *options);

/* So many calls; on a GPU they are on the stream of `exec` then, else done. */
int bench_put(const struct bench_run *run, const attn_exec *exec, int64_t calls);
/* So many calls and, on a GPU, one wait behind them; the seconds that one took. */
int bench_call(struct bench_run *run, int64_t calls, double *seconds);
/* How many calls make one measured time: 1, on a GPU as many as fill a few ms. */
int bench_choose_batch(struct bench_run *run);
/* Compares some rows of the output of the last call with the reference. */
int bench_verify(struct bench_run *run);
/* The first and the last of n, the one in the middle if `middle`, and others by chance; without repetition. Returns how
 * many. */
struct suite_random;
int bench_choose(struct suite_random *random, int64_t n, int middle, int most, int64_t *chosen);
/* Backward: the tensors besides, the forward whose out and lse it needs, and its bench_verify. */
int bench_open_gradients(struct bench_run *run);
int bench_forward_first(struct bench_run *run);
int bench_verify_gradients(struct bench_run *run);
/* The level of arithmetic that the run is held against, as bench_peak_fma takes it: the plan's, but levels with
 * products of bf16 compute all else as avx512 does. */
const char *bench_level(const struct bench_run *run);
/* Whether the CPU multiplies in bf16 what the case has of many queries. */
int bench_is_bf16(const struct bench_run *run);
/* Seconds for each ceiling and for warming up. */
double bench_aside(const struct bench_options *options);
/* GB/s, read and written, of copies within the memory of the run's GPU; 0 if there is no room for them. */
int bench_copy_speed(const struct bench_run *run, double *gbps);
/* --graph: a graph of the run's batch of calls, for bench_graph_close also after a failure. A replay waits for its end and
 * gives the seconds of one call. */
struct bench_graph;
int bench_graph_open(struct bench_run *run, struct bench_graph **graph);
int bench_graph_replay(const struct bench_run *run, const struct bench_graph *graph, double *seconds);
void bench_graph_close(struct bench_graph *graph); /* NULL: nothing */
/* Ceilings, warm-up, then the measured calls. */
int bench_measure(struct bench_run *run);

/* The ceiling that gives the case its floor, the time below which this machine cannot be, and that floor. */
struct bench_ceiling {
    const char *kind, *unit; /* NULL: none is known */
    double value, floor;
};
struct bench_ceiling bench_ceiling_of(const struct bench_run *run);

struct cli_json;
int bench_print_header(const struct bench_run *run);
void bench_print_row(const struct bench_run *run, const struct bench_run *before); /* before: NULL at first */
/* The keys that say what is measured, those of the result with it. */
void bench_json_case(struct cli_json *json, const struct bench_run *run);
void bench_json_row(struct cli_json *json, const struct bench_run *run);
/* --list */
int bench_print_list(const struct bench_options *options, const struct bench_case *cases, int count);

/* --steps: serves the words of standard input. */
int bench_steps(struct bench_run *run);

#endif
