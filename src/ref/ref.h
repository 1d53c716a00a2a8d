/* SPDX-License-Identifier: Apache-2.0
 * The float64 reference: docs/semantics.md written down once more, plainly, as the judge of every other
 * backend. It shares indexing (job.h), number formats and Philox with them, but has its own masks, scores and
 * sums.
 *
 * Everything works on tiles of ROWS queries x KEYS keys. Nothing of size Sq x Sk is kept: scores are computed
 * anew in each pass, which costs time and saves both memory and code. */
#ifndef ATTN_REF_H
#define ATTN_REF_H

#include "internal.h"

enum { REF_ROWS = 16, REF_KEYS = 64, REF_LANES = 8 };

/* One thread's tiles, in float64. Feature axes are padded to REF_LANES with zeros. */
typedef struct ref_tiles {
    int64_t d, dv;  /* padded head sizes */
    double *q;      /* [ROWS][d] */
    double *dout;   /* [ROWS][dv] */
    double *k, *kt; /* [KEYS][d], [d][KEYS] */
    double *v, *vt; /* [KEYS][dv], [dv][KEYS] */
    double *s;      /* [ROWS][KEYS] scores; -inf where masked */
    double *slope;  /* [ROWS][KEYS] derivative of a score by scale * q.k: 1 without softcap */
    double *p, *ds; /* [ROWS][KEYS] */
    double *z;      /* [ROWS][KEYS] dropout factors, 1 without */
    double *o, *o2; /* results: [ROWS or KEYS][d or dv], or [ROWS][KEYS] */
} ref_tiles;

/* Where a tile lies: rows i .. i + rows of query head h, keys j .. j + keys, of sequence b. */
typedef struct ref_place {
    const attn_job *job;
    attn_sequence seq;
    int64_t b, h, i, j;
    int rows, keys;
    uint64_t dropout_key;
} ref_place;

/* Softmax statistics of a row: m the largest score or sink, l the sum of exp(score - m). Kept apart, because
 * m + ln l loses ln l beside scores of 1e17 and more, such as masks that add the lowest float. l = 0: the row
 * is empty. */
typedef struct ref_stat {
    double m, l;
} ref_stat;

static inline double attn_ref_probability(ref_stat stat, double score)
{
    return stat.l == 0.0 ? 0.0 : exp(score - stat.m) / stat.l;
}

static inline double attn_ref_lse(ref_stat stat) { return stat.l == 0.0 ? -INFINITY : stat.m + log(stat.l); }

size_t attn_ref_tiles_bytes(const attn_job *job);
ref_tiles attn_ref_tiles_at(const attn_job *job, void *memory);

void attn_ref_load_queries(const ref_place *w, ref_tiles *t); /* q, and dout where the job has it */
void attn_ref_load_keys(const ref_place *w, ref_tiles *t);
/* Fills s and slope; false if every pair of the tile is masked (then the tile is skipped and keys are never
 * read). */
bool attn_ref_visible(const ref_place *w);
void attn_ref_scores(const ref_place *w, ref_tiles *t);
void attn_ref_dropout(const ref_place *w, ref_tiles *t); /* fills z */
/* Statistics of each row, sink included. Loads queries and keys itself. */
void attn_ref_statistics(ref_place *w, ref_tiles *t, ref_stat stat[REF_ROWS]);
/* O of each row into t->o [ROWS][dv], given these. */
void attn_ref_output(ref_place *w, ref_tiles *t, const ref_stat stat[REF_ROWS]);

/* c[m][n] += sum over x of a[m * a_row + x * a_col] * b[x * b_row + n], n a multiple of REF_LANES */
void attn_ref_multiply(int64_t m, int64_t n, int64_t count, const double *a, int64_t a_row, int64_t a_col,
                       const double *b, int64_t b_row, double *c, int64_t c_row);

attn_status attn_ref_forward(const attn_context *ctx, const attn_job *job, const attn_plan *plan,
                             const attn_exec *exec);
attn_status attn_ref_backward(const attn_context *ctx, const attn_job *job, const attn_plan *plan,
                              const attn_exec *exec);

/* Row blocks of all query heads: task -> place. */
int64_t attn_ref_row_tasks(const attn_job *job);
bool attn_ref_row_place(const attn_job *job, int64_t task, ref_place *w); /* false: no rows there */

#endif
