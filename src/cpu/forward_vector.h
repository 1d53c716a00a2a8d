/* SPDX-License-Identifier: Apache-2.0
 * The forward kernel of the vector levels: one text, compiled once a level with its vectors (vector_NAME.h).
 *
 * Forward of one block (docs/semantics.md section 1), for each step of STEP keys:
 *     S = scale Q K'  ->  softcap, bias, ALiBi, mask  ->  m' = max(m, rowmax S)
 *     P = exp(S - m'), l = l exp(m - m') + rowsum P, O = O exp(m - m') + (keep P) V
 * for many rows by packed tiles (forward_tiles.h), for few rows from the caller's memory (forward_few.h).
 *
 * Scratch of a thread, float32: Q [rows][D], O [rows][Dv], K and V of a step, S [STRIP][STEP], one panel of rows; less
 * where a problem has fewer rows or keys (forward_step.h).
 *
 * -inf: a row whose scores are all -inf keeps m = -inf and exponents are taken against 0, so it adds exact zeros.
 * NaN: a NaN score is passed over by the maximum but makes l, and so the row, NaN. */
#ifndef ATTN_CPU_FORWARD_VECTOR_H
#define ATTN_CPU_FORWARD_VECTOR_H

#include "forward_few.h"
#include "forward_tiles.h"

static void forward(const attn_cpu_block *w, void *memory, attn_cpu_state *state)
{
    scratch t;
    scratch_floats(w->job, w->rows, &t, memory);
    *state = (attn_cpu_state){t.m, t.l, t.o, t.dv};
    for (int r = 0; r < w->rows; r++) {
        t.m[r] = -INFINITY;
        t.l[r] = 0.0f;
    }
    memset(t.o, 0, (size_t)(w->rows * t.dv) * sizeof *t.o);
    /* Which of the two must depend on the sequence only: they round differently. */
    if (w->seq.q_len * w->job->group <= FEW_ROWS) forward_few(w, &t);
    else forward_tiles(w, &t);
}

#endif
