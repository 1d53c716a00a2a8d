/* SPDX-License-Identifier: Apache-2.0
 * dbias_ij = dS_ij, summed over the axes on which the bias broadcasts. Where it broadcasts on none, each element is one pair's
 * and the tile that has the pair writes it. Else tiles of dbias are tasks: each computes dS again (two products) for all pairs
 * that its elements sum, in float64 and in the order sequence, head, key block, row. */
#include "backward.h"

/* Pairs (row, key) of a tile of dbias, or of what it sums. */
static size_t tile_pairs(const attn_cpu_level *level, const attn_job *job)
{
    return (size_t)attn_max(level->back_rows, job->group) * (size_t)level->back_keys;
}

size_t attn_cpu_bias_scratch_bytes(const attn_cpu_level *level, const attn_job *job)
{
    if (!job->dbias.data) return 0;
    return tile_pairs(level, job) * (sizeof(float) + sizeof(double));
}

bool attn_cpu_bias_is_whole(const attn_job *job)
{
    const int64_t full[4] = {job->batch, job->heads_q, job->max_q, job->max_k};
    return memcmp(full, job->bias_shape, sizeof full) == 0;
}

/* Room behind the level's scratch: sums of a tile of dbias, raw dS of a tile. */
static double *tile_sums(const backward_call *call, int32_t thread)
{
    return (double *)(void *)((char *)scratch_of(call, thread) + call->level->back_scratch_bytes(call->job));
}

float *attn_cpu_bias_raw(const backward_call *call, int32_t thread)
{
    return (float *)(tile_sums(call, thread) + tile_pairs(call->level, call->job));
}

void attn_cpu_bias_write(const backward_call *call, const attn_cpu_block *w, const float *raw)
{
    const attn_view *t = &call->job->dbias;
    for (int r = 0; r < w->rows; r++) {
        const int64_t at = attn_bias_offset(t, w->b, attn_block_head(w, r), attn_block_query(w, r), w->key);
        for (int64_t j = 0; j < w->key_end - w->key; j++) {
            const int64_t to = at + j * t->stride[3];
            const float old = call->job->accumulate ? attn_load_float(t, to) : 0.0f;
            attn_store_float(t, to, old + raw[r * call->level->back_keys + j]);
        }
    }
}

/* ---- where it sums --------------------------------------------------------------------------- */

/* A tile of dbias: heads of one kv head or all heads, queries [i, i + queries) or all, keys [j, j + keys) or all. */
typedef struct bias_tile {
    int64_t b, hkv, i, queries, j, keys;
    int64_t heads, sum_queries; /* rows of the sums: [heads][sum_queries][back_keys], 1 where it broadcasts */
    double *sums;
} bias_tile;

/* Queries of a tile: as many as a row block has of all heads of a group. */
static int64_t tile_queries(const backward_call *call)
{
    return attn_max(1, call->level->back_rows / call->job->group);
}

/* Adds the dS of a tile of pairs. */
static void add_pairs(const backward_call *call, const bias_tile *t, const attn_cpu_block *w, const float *raw)
{
    const int64_t keys = call->level->back_keys;
    const bool one_key = call->job->bias_shape[3] == 1;
    for (int r = 0; r < w->rows; r++) {
        const int64_t h = t->heads == 1 ? 0 : (w->row + r) % call->job->group;
        const int64_t i = t->sum_queries == 1 ? 0 : attn_block_query(w, r) - t->i;
        double *sum = t->sums + (h * t->sum_queries + i) * keys;
        const float *ds = raw + r * keys;
        for (int64_t j = 0; j < w->key_end - w->key; j++) sum[one_key ? 0 : j] += (double)ds[j];
    }
}

/* All pairs of one kv head of one sequence that the tile sums. */
static void sum_pairs(const backward_call *call, const bias_tile *t, int64_t index, int32_t thread)
{
    const attn_cpu_level *level = call->level;
    const chain c = attn_cpu_chain(call, index);
    const int64_t rows = attn_min(c.rows, (t->i + t->queries) * call->job->group);
    const int64_t key_end = attn_min(t->j + t->keys, c.block.seq.k_len);
    void *scratch = scratch_of(call, thread);
    float *raw = attn_cpu_bias_raw(call, thread);
    attn_cpu_key_sums unused;
    for (int64_t key = t->j; key < key_end; key += level->back_keys) {
        attn_cpu_block w = c.block;
        w.key = key;
        w.key_end = attn_min(key + level->back_keys, key_end);
        level->load_keys(&w, scratch, &unused);
        for (w.row = t->i * call->job->group; w.row < rows; w.row += level->back_rows) {
            int64_t first, end;
            w.rows = (int)attn_min(level->back_rows, rows - w.row);
            attn_block_band(&w, &first, &end);
            if (first >= end) continue;
            level->tile_gradients(&w, scratch, call->lse + c.index + w.row, call->rest + c.index + w.row, raw);
            add_pairs(call, t, &w, raw);
        }
    }
}

static void write_bias_tile(const backward_call *call, const bias_tile *t)
{
    const attn_job *job = call->job;
    const int64_t *shape = job->bias_shape;
    const int64_t keys = shape[3] > 1 ? attn_min(t->keys, shape[3] - t->j) : 1;
    const int64_t queries = shape[2] > 1 ? attn_min(t->queries, shape[2] - t->i) : 1;
    for (int64_t row = 0; row < t->heads * t->sum_queries; row++) {
        const int64_t i = row % t->sum_queries, h = shape[1] > 1 ? t->hkv * job->group + row / t->sum_queries : 0;
        if (i >= queries) continue;
        const int64_t at = attn_bias_offset(&job->dbias, t->b, h, t->i + i, t->j);
        for (int64_t j = 0; j < keys; j++) {
            const int64_t to = at + j * job->dbias.stride[3];
            const double old = job->accumulate ? (double)attn_load_float(&job->dbias, to) : 0.0;
            attn_store_float(&job->dbias, to, (float)(old + t->sums[row * call->level->back_keys + j]));
        }
    }
}

void attn_cpu_bias_sum(void *arg, int64_t task, int32_t thread)
{
    const backward_call *call = arg;
    const attn_job *job = call->job;
    const int64_t *shape = job->bias_shape, each = tile_queries(call), keys = call->level->back_keys;
    const int64_t j_tiles = attn_ceil_div(shape[3], keys), i_tiles = attn_ceil_div(shape[2], each);
    const int64_t units = shape[1] > 1 ? job->heads_kv : 1;
    bias_tile t = {.heads = shape[1] > 1 ? job->group : 1, .sums = tile_sums(call, thread)};
    t.j = task % j_tiles * keys;
    t.i = task / j_tiles % i_tiles * each;
    t.hkv = task / j_tiles / i_tiles % units;
    t.b = task / j_tiles / i_tiles / units;
    t.keys = shape[3] > 1 ? keys : ATTN_OPEN;
    t.queries = shape[2] > 1 ? each : ATTN_MAX_SIZE;
    t.sum_queries = shape[2] > 1 ? each : 1;
    memset(t.sums, 0, tile_pairs(call->level, job) * sizeof *t.sums);
    for (int64_t b = shape[0] > 1 ? t.b : 0; b < (shape[0] > 1 ? t.b + 1 : job->batch); b++)
        for (int64_t h = shape[1] > 1 ? t.hkv : 0; h < (shape[1] > 1 ? t.hkv + 1 : job->heads_kv); h++)
            sum_pairs(call, &t, chain_index(call, b, h), thread);
    write_bias_tile(call, &t);
}

void attn_cpu_bias_clear(void *arg, int64_t task, int32_t thread)
{
    (void)thread;
    const attn_job *job = ((const backward_call *)arg)->job;
    const int64_t *shape = job->bias_shape;
    for (int64_t i = 0; i < shape[2]; i++) {
        const int64_t at = attn_bias_offset(&job->dbias, task / shape[1], task % shape[1], i, 0);
        for (int64_t j = 0; j < shape[3]; j++) attn_store_float(&job->dbias, at + j * job->dbias.stride[3], 0.0f);
    }
}

int64_t attn_cpu_bias_tiles(const backward_call *call)
{
    const int64_t *shape = call->job->bias_shape;
    return shape[0] * (shape[1] > 1 ? call->job->heads_kv : 1) * attn_ceil_div(shape[2], tile_queries(call)) *
           attn_ceil_div(shape[3], call->level->back_keys);
}
