/* SPDX-License-Identifier: Apache-2.0
 * One forward problem as plain numbers, and what the suite makes of it: tensors in guarded memory, the float64
 * truth, the naive result, the result of a target, the judgement. */
#ifndef ATTN_SUITE_CASE_H
#define ATTN_SUITE_CASE_H

#include "suite_core.h"

/* ---- Description ------------------------------------------------------------------------------------------------ */

enum suite_bias {
    BIAS_NONE,
    BIAS_F32,
    BIAS_F16,
    BIAS_BF16,
    BIAS_HEADLESS, /* f32 [1, 1, Sq, Sk] */
    BIAS_KEYS,     /* f32 [B, 1, 1, Sk] */
    BIAS_QUERIES,  /* f32 [1, Hq, Sq, 1] */
    BIAS_TURNED,   /* f32, stored key by key: its last stride is not 1 */
    BIAS_HOLES,    /* f32 with -inf in places, whole rows too */
    BIAS_BOOL,
    BIAS_BOOL_KEYS, /* [B, 1, 1, Sk] */
    BIAS_KINDS
};

enum suite_alibi { ALIBI_NONE, ALIBI_HEADS, ALIBI_BATCH, ALIBI_KINDS };

enum suite_layout {
    LAYOUT_BHSD,
    LAYOUT_BSHD,
    LAYOUT_PACKED,    /* q, k and v, as far as their types allow, are slices of one projection */
    LAYOUT_HOSTILE,   /* gaps between rows, odd alignment, nonsense strides on axes of size 1 */
    LAYOUT_MLA,       /* v is the first columns of k */
    LAYOUT_BROADCAST, /* k and v have batch stride 0 */
    LAYOUT_KINDS
};

enum suite_lengths {
    LENGTHS_FULL,
    LENGTHS_USED,
    LENGTHS_START,       /* left padding */
    LENGTHS_PACKED,      /* sequences one behind the other */
    LENGTHS_PACKED_USED, /* with room to spare, and started later */
    LENGTHS_KINDS
};

enum suite_scaling { SCALING_NONE, SCALING_TENSOR, SCALING_HEAD, SCALING_ROW, SCALING_KINDS };

/* Where the values of a tensor come from. Values depend on the seed and on (sequence, head, token) only, so the same
 * logical problem can be laid out in many ways. */
struct suite_fill {
    enum { FILL_NORMAL, FILL_CONSTANT } kind; /* normal: times amount, 0 meaning 1 */
    float amount;
};

struct suite_case {
    int32_t q_type, k_type, v_type, out_type; /* attn_dtype */
    int64_t b, hq, hkv, sq, sk, d, dv;        /* sq, sk: the longest sequence */
    uint32_t mask;
    int64_t left, right, diagonal;
    float scale, softcap, dropout;
    int bias, alibi, sink; /* sink: 0 none, 1 random, 2 -inf */
    int layout, q_lengths, k_lengths;
    int scaling;
    int with_max; /* lengths.max is given */
    int64_t page; /* page size; 0: not paged; -1: one page a sequence */
    int no_lse;
    int num_splits, threads;
    uint64_t seed;
    uint64_t dropout_seed, dropout_offset;
    int seed_in_memory; /* through seed_offset */
    int64_t origin[4];  /* batch, head, row, column */
    struct suite_fill fill_q, fill_k, fill_v;
    /* For hand-written cases, NULL or [b]. */
    const int32_t *q_used, *k_used; /* lengths of the sequences */
    const int32_t *identity;        /* which sequence's values stand at place b */
    int64_t kv_repeat;              /* kv head h holds the values of head h / kv_repeat; 0: 1 */
    int64_t key_shuffle;            /* key j holds the values of key (j * key_shuffle) mod sk; 0: 1 */
};

/* Repairs combinations that cannot be, and fills what was left 0. Everything else expects a settled case. */
void suite_settle(struct suite_case *c);
/* The parameters as a name without spaces. */
void suite_describe(const struct suite_case *c, char *name, size_t size);
struct suite_case suite_random_case(uint64_t seed);

/* ---- Built ------------------------------------------------------------------------------------------------------ */

struct suite_view {           /* a tensor in one of the buffers */
    int buffer, scale_buffer; /* -1: absent */
    int64_t offset;           /* elements */
    attn_tensor t;            /* data and scale NULL */
};

struct suite_sequence {
    int64_t sq, sk, diagonal;
    int64_t q_batch, q_row, q_room_row, q_room; /* places in q and out */
    int64_t k_batch, k_row;                     /* in k and v; paged: token of the page table */
    double *q, *k, *v;                          /* dense: [Hq, sq, D], [Hkv, sk, D], [Hkv, sk, Dv] */
    int64_t row;                                /* of all the rows of a result, the first one of this sequence */
};

enum { SUITE_BUFFERS = 48 };

struct suite_built {
    struct suite_case c;
    struct suite_buffer buffer[SUITE_BUFFERS];
    int output[SUITE_BUFFERS]; /* 1: written by the library */
    int buffers;
    struct suite_view q, k, v, out, lse, bias;
    struct suite_view wide; /* a second output, F32, for the reference */
    int q_used, q_offsets, q_start, k_used, k_offsets, k_start, table, alibi, sink, seeds; /* buffers, or -1 */
    int64_t table_pages, table_stride;
    int64_t q_axis, k_axis; /* local index axes: of bias, dropout mask, dbias */
    int64_t q_max, k_max;   /* for lengths.max; 0: not given */
    struct suite_sequence *sequence;
    int64_t rows; /* query rows of all sequences and heads */
    float scale;  /* never 0 */
    uint64_t input_hash;
    double pairs; /* about the number of scores */
};

/* Returns 0, or -1 without memory. */
int suite_build(struct suite_built *t, const struct suite_case *settled);
int suite_build_scores(struct suite_built *t); /* its part: bias, slopes, sinks, seeds */
void suite_unbuild(struct suite_built *t);
int suite_add_buffer(struct suite_built *t, size_t bytes, size_t align, int output); /* its index, or -1 */
/* A tensor of its own; axes in memory order of the layout (BHSD, BSHD or HOSTILE). */
int suite_add_view(struct suite_built *t, struct suite_view *view, int32_t dtype, const int64_t shape[4], int layout,
                   int output);
attn_tensor suite_view_tensor(struct suite_built *t, const struct suite_view *view, const struct suite_target *target);
/* The problem for a target, its inputs and poisoned outputs placed there. */
attn_problem suite_problem(struct suite_built *t, const struct suite_target *target);
void suite_poison_outputs(struct suite_built *t);
uint64_t suite_inputs_hash(const struct suite_built *t);

unsigned char *suite_row(struct suite_built *t, const struct suite_view *view, int64_t b, int64_t h, int64_t s);
void suite_read_row(struct suite_built *t, const struct suite_view *view, int64_t b, int64_t h, int64_t s, double *x);
void suite_write_row(struct suite_built *t, const struct suite_view *view, int64_t b, int64_t h, int64_t s,
                     const float *x);
void suite_key_place(const struct suite_built *t, int64_t b, int64_t j, int64_t *batch, int64_t *row);
void suite_fill_row(struct suite_fill fill, uint64_t seed, int tensor, int64_t sequence, int64_t head, int64_t token,
                    float *x, int64_t n);

/* Keys [first, end) that query i of sequence b sees by the band alone. */
void suite_band(const struct suite_built *t, int64_t b, int64_t i, int64_t *first, int64_t *end);
/* Float bias of a pair, or 0; *masked: a BOOL bias hides it. */
double suite_bias_at(const struct suite_built *t, int64_t b, int64_t h, int64_t i, int64_t j, int *masked);
double suite_slope(const struct suite_built *t, int64_t b, int64_t h);
double suite_sink(const struct suite_built *t, int64_t h); /* -inf: none */
/* The factor of dropout: 0 or 1/(1 - p); 1 without dropout. */
double suite_keep_factor(const struct suite_built *t, int64_t b, int64_t h, int64_t i, int64_t j);

/* ---- Results ----------------------------------------------------------------------------------------------------
 * Rows in the order sequence, head, query. */
struct suite_result {
    int64_t rows, dv;
    float *out; /* [rows, Dv] */
    float *lse; /* [rows]; NULL if the case asks for none */
};

struct suite_truth { /* float64, by the suite's own code */
    double *out, *lse;
    double *value_terms;    /* sum over keys of P^2 |V|^2 */
    double *absolute_terms; /* |sum over keys of P |V||^2 */
    double *largest_score;  /* max |s|; 0 for an empty row */
    double *lost_terms;     /* sum over keys with P < ROW_RULE_LOST of P |V| */
    double *lse_tolerance;
};

/* The rows of a problem cut into runs of at most `length` queries of one head, numbered from 0: work for threads. */
int64_t suite_count_runs(const struct suite_built *t, int64_t length);
void suite_find_run(const struct suite_built *t, int64_t length, int64_t n, int64_t *b, int64_t *h, int64_t *first,
                    int64_t *count);

int suite_result_new(struct suite_result *r, const struct suite_built *t, int lse);
void suite_result_free(struct suite_result *r);
int suite_truth_compute(struct suite_truth *truth, const struct suite_built *t);
void suite_truth_free(struct suite_truth *truth);
int suite_naive_compute(struct suite_result *naive, const struct suite_built *t);
/* One sequence for tests/naive.h. Returns -1 without memory; free with suite_naive_free. */
struct naive_problem;
int suite_naive_problem(struct naive_problem *p, const struct suite_built *t, int64_t b);
void suite_naive_free(struct naive_problem *p);

/* Runs forward on check's target and checks everything but the values: plan, status, workspace, padding, bounds,
 * inputs. ctx NULL: the target's. Returns 1 if result holds values to judge. */
int suite_forward(struct suite_check *check, struct suite_built *t, attn_context *ctx, struct suite_result *result);
/* The same for a problem that was changed after suite_problem(); out is where its output lies. */
int suite_forward_problem(struct suite_check *check, struct suite_built *t, attn_context *ctx, const attn_problem *p,
                          struct suite_view *out, struct suite_result *result);
/* Takes the rows of out and lse (NULL: not looked at) out of their buffers, where nothing else may have been
 * written. */
int suite_collect(struct suite_check *check, struct suite_built *t, struct suite_view *out, struct suite_view *lse,
                  struct suite_result *result);
/* Puts poison back over a row, or over all of the buffer. */
void suite_poison_row(struct suite_built *t, const struct suite_view *view, int64_t b, int64_t h, int64_t s);
/* After a call: brings the outputs back from a device. */
void suite_fetch_outputs(struct suite_check *check, struct suite_built *t);
/* Nothing but poison left in an output, guards whole, inputs as they were. */
void suite_expect_clean(struct suite_check *check, struct suite_built *t);
/* Values against the truth by the accuracy rule; LSE too. */
void suite_judge(struct suite_check *check, const struct suite_built *t, const struct suite_truth *truth,
                 const struct suite_result *naive, const struct suite_result *x);
/* The library's reference against the suite's own float64 result. */
void suite_judge_reference(struct suite_check *check, const struct suite_built *t, const struct suite_truth *truth,
                           const struct suite_result *reference);
/* Bit for bit; LSE where both have it. */
void suite_same(struct suite_check *check, const struct suite_built *t, const struct suite_result *a,
                const struct suite_result *b, const char *what);

/* Build, reference, naive, all targets. more may be NULL: further expectations on a target's result. */
typedef void suite_more(struct suite_check *check, struct suite_built *t, const struct suite_result *result);
void suite_forward_case(struct suite *s, int quick, const char *name, const struct suite_case *c, suite_more *more);

#endif
