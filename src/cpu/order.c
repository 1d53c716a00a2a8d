/* SPDX-License-Identifier: Apache-2.0
 * The order in which sequences are computed. */
#include "level.h"

/* Shell's sort, because qsort may allocate. */
void attn_cpu_order_sequences(const attn_job *job, attn_cpu_start *start)
{
    const int64_t count = job->batch;
    for (int64_t b = 0; b < count; b++) {
        const attn_sequence s = attn_sequence_of(job, b);
        start[b] = (attn_cpu_start){.b = b, .work = s.q_len * s.k_len};
    }
    for (int64_t gap = count / 2; gap > 0; gap /= 2)
        for (int64_t n = gap; n < count; n++) {
            const attn_cpu_start moved = start[n];
            int64_t at = n;
            for (; at >= gap && start[at - gap].work < moved.work; at -= gap) start[at] = start[at - gap];
            start[at] = moved;
        }
    for (int64_t n = 0; n < count; n++) start[start[n].b].place = n;
}
