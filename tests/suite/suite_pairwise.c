/* SPDX-License-Identifier: Apache-2.0
 * Greedy: each row starts from the first pair that is still missing and then gives every other axis the value that adds
 * most new pairs. */
#include "suite_pairwise.h"

#include <stdlib.h>
#include <string.h>

struct design {
    const int *values;
    int axes, missing;
    char covered[PAIRWISE_AXES][PAIRWISE_VALUES][PAIRWISE_AXES][PAIRWISE_VALUES];
};

static int find_missing(const struct design *d, struct pairwise_row *row)
{
    for (int a = 0; a < d->axes; a++)
        for (int b = a + 1; b < d->axes; b++)
            for (int x = 0; x < d->values[a]; x++)
                for (int y = 0; y < d->values[b]; y++)
                    if (!d->covered[a][x][b][y]) {
                        row->value[a] = (signed char)x;
                        row->value[b] = (signed char)y;
                        return 1;
                    }
    return 0;
}

static int gain(const struct design *d, const struct pairwise_row *row, int axis, int value)
{
    int count = 0;
    for (int a = 0; a < d->axes; a++)
        if (a != axis && row->value[a] >= 0) count += !d->covered[a][row->value[a]][axis][value];
    return count;
}

/* Ties go to a value that moves from row to row. */
static void fill_axis(const struct design *d, struct pairwise_row *row, int axis, int turn)
{
    int best = -1, most = -1;
    for (int n = 0; n < d->values[axis]; n++) {
        int value = (n + turn) % d->values[axis], count = gain(d, row, axis, value);
        if (count > most) {
            most = count;
            best = value;
        }
    }
    row->value[axis] = (signed char)best;
}

static void cover(struct design *d, const struct pairwise_row *row)
{
    for (int a = 0; a < d->axes; a++)
        for (int b = 0; b < d->axes; b++) {
            if (a == b) continue;
            char *seen = &d->covered[a][row->value[a]][b][row->value[b]];
            d->missing -= a < b && !*seen;
            *seen = 1;
        }
}

int pairwise_design(const int *values, int axes, struct pairwise_row **rows)
{
    struct design *d = calloc(1, sizeof *d);
    int count = 0, room = 0;
    *rows = NULL;
    if (!d) return 0;
    d->values = values;
    d->axes = axes;
    for (int a = 0; a < axes; a++)
        for (int b = a + 1; b < axes; b++) d->missing += values[a] * values[b];
    while (d->missing > 0) {
        struct pairwise_row row;
        memset(&row, -1, sizeof row);
        find_missing(d, &row);
        for (int n = 0; n < axes; n++) {
            int axis = (n + count) % axes;
            if (row.value[axis] < 0) fill_axis(d, &row, axis, count * 7 + axis);
        }
        cover(d, &row);
        if (count == room) {
            struct pairwise_row *grown = realloc(*rows, sizeof **rows * (size_t)(room += 64));
            if (!grown) break;
            *rows = grown;
        }
        (*rows)[count++] = row;
    }
    free(d);
    return count;
}
