/* SPDX-License-Identifier: Apache-2.0
 * Two lists against the reference: the grid (every pair of values of the axes below meets in some case) and random
 * cases. */
#include "suite_case.h"
#include "suite_pairwise.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static const struct {
    int64_t d, dv;
} head_sizes[] = {{64, 64},   {128, 128}, {1, 1},     {7, 7},     {8, 8},     {16, 16},   {32, 32},
                  {40, 40},   {59, 59},   {72, 72},   {80, 80},   {96, 96},   {111, 111}, {160, 160},
                  {192, 192}, {203, 203}, {256, 256}, {192, 128}, {320, 256}, {576, 512}};

static const struct {
    int64_t sq, sk;
} lengths[] = {{1, 1},   {1, 239},   {3, 799},     {113, 203},   {127, 512},   {239, 1},
               {799, 3}, {108, 256}, {1023, 1024}, {1024, 1023}, {2048, 2048}, {16, 20000}};

static const int32_t query_types[] = {ATTN_F32, ATTN_F16, ATTN_BF16};

static const struct {
    int32_t k, v; /* 0: as the query */
    int scaling;
} kv_types[] = {{0, 0, 0},
                {ATTN_F32, ATTN_F32, 0},
                {ATTN_F16, ATTN_F16, 0},
                {ATTN_BF16, ATTN_BF16, 0},
                {ATTN_F8_E4M3, ATTN_F8_E4M3, SCALING_ROW},
                {ATTN_F8_E5M2, ATTN_F8_E5M2, SCALING_NONE},
                {ATTN_I8, ATTN_I8, SCALING_ROW},
                {ATTN_I8, ATTN_F8_E4M3, SCALING_TENSOR},
                {ATTN_Q8_0, ATTN_Q8_0, 0},
                {ATTN_Q4_0, ATTN_Q4_0, 0},
                {ATTN_Q8_0, ATTN_F16, 0},
                {ATTN_F32, ATTN_Q4_0, 0}};

static const struct {
    uint32_t flags;
    int64_t left, right, diagonal;
} masks[] = {{0, 0, 0, 0},
             {ATTN_CAUSAL, 0, 0, 0},
             {ATTN_CAUSAL | ATTN_TOP_LEFT, 0, 0, 0},
             {ATTN_WINDOW_LEFT | ATTN_WINDOW_RIGHT, 64, 17, 0},
             {ATTN_CAUSAL | ATTN_WINDOW_LEFT, 100, 0, 0},
             {ATTN_WINDOW_RIGHT, 0, 3, 0},
             {ATTN_WINDOW_LEFT | ATTN_TOP_LEFT, 130, 0, 0},
             {ATTN_CAUSAL | ATTN_DIAGONAL, 0, 0, 40},
             {ATTN_WINDOW_LEFT | ATTN_WINDOW_RIGHT | ATTN_DIAGONAL, 5, 300, -20}};

static const struct {
    float scale, softcap;
    int alibi, sink;
} scores[] = {{0, 0, 0, 0}, {0, 15, 0, 0},   {0, 0, ALIBI_HEADS, 0}, {0, 0, ALIBI_BATCH, 0},
              {0, 0, 0, 1}, {0.3f, 0, 0, 2}, {0, 5, ALIBI_HEADS, 1}, {-0.05f, 0, 0, 0}};

static const struct {
    int q, k, max;
} ragged[] = {{LENGTHS_FULL, LENGTHS_FULL, 0},     {LENGTHS_USED, LENGTHS_USED, 0},
              {LENGTHS_PACKED, LENGTHS_PACKED, 0}, {LENGTHS_PACKED, LENGTHS_USED, 1},
              {LENGTHS_START, LENGTHS_START, 1},   {LENGTHS_PACKED_USED, LENGTHS_PACKED_USED, 1},
              {LENGTHS_FULL, LENGTHS_USED, 0},     {LENGTHS_USED, LENGTHS_FULL, 0}};

static const int64_t pages[] = {0, 0, 1, 3, 16, 256, -1};

static const struct {
    int64_t b, hq, hkv;
} heads[] = {{1, 1, 1}, {2, 2, 2}, {1, 4, 2}, {2, 4, 1}, {3, 3, 1}, {2, 1, 1}};

static const struct {
    float dropout;
    int splits, no_lse, wide_out, threads;
} calls[] = {{0, 0, 0, 0, 0}, {0, 1, 0, 0, 1},    {0.1f, 0, 0, 0, 0},
             {0, 7, 1, 0, 0}, {0.5f, 3, 0, 1, 3}, {0, 0, 0, 1, 2}};

enum {
    AXIS_HEAD_SIZE,
    AXIS_LENGTHS,
    AXIS_QUERY,
    AXIS_KV,
    AXIS_MASK,
    AXIS_SCORES,
    AXIS_BIAS,
    AXIS_LAYOUT,
    AXIS_RAGGED,
    AXIS_PAGES,
    AXIS_HEADS,
    AXIS_CALL,
    AXES
};

static const int axis_values[AXES] = {COUNT(head_sizes), COUNT(lengths), COUNT(query_types), COUNT(kv_types),
                                      COUNT(masks),      COUNT(scores),  BIAS_KINDS,         LAYOUT_KINDS,
                                      COUNT(ragged),     COUNT(pages),   COUNT(heads),       COUNT(calls)};

/* Long sequences come with few heads: the cost, not the combination, is what is left out. */
static void limit_cost(struct suite_case *c)
{
    if (c->sq * c->sk < 300000) return;
    c->b = 1;
    c->hq = c->hq > 2 ? 2 : c->hq;
    c->hkv = c->hkv > c->hq ? c->hq : c->hkv;
}

static struct suite_case grid_case(const struct pairwise_row *row, int index)
{
    const signed char *v = row->value;
    struct suite_case c = {.seed = (uint64_t)index};
    c.d = head_sizes[v[AXIS_HEAD_SIZE]].d, c.dv = head_sizes[v[AXIS_HEAD_SIZE]].dv;
    c.sq = lengths[v[AXIS_LENGTHS]].sq, c.sk = lengths[v[AXIS_LENGTHS]].sk;
    c.q_type = query_types[v[AXIS_QUERY]];
    c.k_type = kv_types[v[AXIS_KV]].k, c.v_type = kv_types[v[AXIS_KV]].v, c.scaling = kv_types[v[AXIS_KV]].scaling;
    c.mask = masks[v[AXIS_MASK]].flags, c.left = masks[v[AXIS_MASK]].left;
    c.right = masks[v[AXIS_MASK]].right, c.diagonal = masks[v[AXIS_MASK]].diagonal;
    c.scale = scores[v[AXIS_SCORES]].scale, c.softcap = scores[v[AXIS_SCORES]].softcap;
    c.alibi = scores[v[AXIS_SCORES]].alibi, c.sink = scores[v[AXIS_SCORES]].sink;
    c.bias = v[AXIS_BIAS];
    c.layout = v[AXIS_LAYOUT];
    c.q_lengths = ragged[v[AXIS_RAGGED]].q, c.k_lengths = ragged[v[AXIS_RAGGED]].k,
    c.with_max = ragged[v[AXIS_RAGGED]].max;
    c.page = pages[v[AXIS_PAGES]];
    c.b = heads[v[AXIS_HEADS]].b, c.hq = heads[v[AXIS_HEADS]].hq, c.hkv = heads[v[AXIS_HEADS]].hkv;
    c.dropout = calls[v[AXIS_CALL]].dropout, c.num_splits = calls[v[AXIS_CALL]].splits;
    c.no_lse = calls[v[AXIS_CALL]].no_lse, c.threads = calls[v[AXIS_CALL]].threads;
    if (calls[v[AXIS_CALL]].wide_out) c.out_type = ATTN_F32;
    c.dropout_seed = suite_mix((uint64_t)index), c.dropout_offset = (uint64_t)index * 3;
    limit_cost(&c);
    suite_settle(&c);
    return c;
}

/* The quick part: what costs little, thinned out. */
static int is_quick(const struct suite_case *c, int index)
{
    double work = (double)(c->b * c->hq * c->sq * c->sk) * (double)(c->d + c->dv);
    return work < 2e7 && index % 2 == 0;
}

void suite_run_grid(struct suite *s)
{
    struct pairwise_row *rows;
    int count = pairwise_design(axis_values, AXES, &rows);
    char what[256], name[280];
    for (int n = 0; n < count; n++) {
        struct suite_case c = grid_case(&rows[n], n);
        suite_describe(&c, what, sizeof what);
        snprintf(name, sizeof name, "grid/%s", what);
        suite_forward_case(s, is_quick(&c, n), name, &c, NULL);
    }
    free(rows);
}

/* ---- random ----------------------------------------------------------------------------------------------------- */

enum { RANDOM_QUICK = 200, RANDOM_FULL = 1000 };

static void run_seed(struct suite *s, uint64_t seed)
{
    char name[64];
    struct suite_case c = suite_random_case(seed);
    snprintf(name, sizeof name, "random/%llu", (unsigned long long)seed);
    suite_forward_case(s, seed <= RANDOM_QUICK, name, &c, NULL);
}

/* "random/SEED" as the filter runs that seed, whatever its number. */
void suite_run_random(struct suite *s)
{
    unsigned long long other;
    char rest;
    const char *filter = s->options->filter;
    for (uint64_t seed = 1; seed <= RANDOM_FULL; seed++) run_seed(s, seed);
    if (filter && sscanf(filter, "random/%llu%c", &other, &rest) == 1 && other > RANDOM_FULL) run_seed(s, other);
}
