/* SPDX-License-Identifier: Apache-2.0
 * suite_arguments.inc lists what is changed; here is how each change is tried: the right status, a text that names
 * the field, nothing written. */
#include "suite_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Everything that the calls take. Pointers between the members are set last, by connect(). */
struct arguments {
    attn_problem p;
    attn_grads g;
    attn_exec e;
    attn_append a;
    attn_rope rope;
    struct {
        int32_t n;
        const attn_tensor *out_parts, *lse_parts, *out;
        attn_tensor out_part[2], lse_part[2], to, to_lse;
    } m;
    attn_tensor keep;
    const attn_tensor *keep_pointer;
    attn_config config;
};

enum call { CALL_FORWARD, CALL_BACKWARD, CALL_APPEND, CALL_MERGE, CALL_MASK, CALL_CREATE };
enum base { BASE_PADDED, BASE_PACKED, BASE_PAGED, BASE_NOTHING };

struct change {
    enum {
        CHANGE_NONE,
        CHANGE_INTEGER,
        CHANGE_FLOAT,
        CHANGE_POINTER,
        CHANGE_SHIFT,
        CHANGE_DATA,
        CHANGE_FORCE,
        CHANGE_READS
    } kind;
    const char *field;
    size_t offset, size;
    int64_t value;
    double number;
    int32_t data;
    const char *text;
};

static const struct row {
    enum call call;
    enum base base;
    const char *text;
    attn_status status;
    struct change change[3];
} rows[] = {
#define SIZE(member) sizeof(((struct arguments *)0)->member)
#define SET(member, to)                                                                                           \
  {                                                                                                               \
    .kind = CHANGE_INTEGER, .field = #member, .offset = offsetof(struct arguments, member), .size = SIZE(member), \
    .value = (int64_t)(to)                                                                                        \
  }
#define SETF(member, to)                                                                                 \
  {                                                                                                      \
    .kind = CHANGE_FLOAT, .field = #member, .offset = offsetof(struct arguments, member), .number = (to) \
  }
#define SETP(member, to)                                                                                  \
  {                                                                                                       \
    .kind = CHANGE_POINTER, .field = #member, .offset = offsetof(struct arguments, member), .value = (to) \
  }
#define SHIFT(member, by)                                                                               \
  {                                                                                                     \
    .kind = CHANGE_SHIFT, .field = #member, .offset = offsetof(struct arguments, member), .value = (by) \
  }
#define READS            \
  {                      \
    .kind = CHANGE_READS \
  } /* the mistake is in what arrays hold; it comes first */
#define DATA(member, at, to)                                                                                         \
  {                                                                                                                  \
    .kind = CHANGE_DATA, .field = #member, .offset = offsetof(struct arguments, member), .value = (at), .data = (to) \
  }
#define FORCE(words)                                      \
  {                                                       \
    .kind = CHANGE_FORCE, .field = "force", .text = words \
  }
#define ROW(what, from, named, expected, ...) {CALL_##what, BASE_##from, named, ATTN_##expected, {__VA_ARGS__}},
#include "suite_arguments.inc"
#undef ROW
#undef FORCE
#undef DATA
#undef READS
#undef SHIFT
#undef SETP
#undef SETF
#undef SET
#undef SIZE
};
enum { ROWS = sizeof rows / sizeof *rows };

static void apply(attn_context *ctx, struct arguments *x, const struct change *change)
{
    unsigned char *field = (unsigned char *)x + change->offset;
    float number = (float)change->number;
    int32_t narrow = (int32_t)(uint32_t)change->value;
    uintptr_t address = (uintptr_t)change->value; /* 0, or an address that is wrongly aligned */
    int32_t *data;
    switch (change->kind) {
    case CHANGE_INTEGER:
        if (change->size == sizeof narrow) memcpy(field, &narrow, sizeof narrow);
        else memcpy(field, &change->value, sizeof change->value);
        break;
    case CHANGE_FLOAT: memcpy(field, &number, sizeof number); break;
    case CHANGE_POINTER: memcpy(field, &address, sizeof address); break;
    case CHANGE_SHIFT: /* towards what lies before, where reading does no harm */
        memcpy(&address, field, sizeof address);
        address += (uintptr_t)change->value;
        memcpy(field, &address, sizeof address);
        break;
    case CHANGE_DATA:
        memcpy(&data, field, sizeof data);
        attn_upload(ctx, data + change->value, &change->data, sizeof *data, NULL);
        break;
    case CHANGE_FORCE: x->config.force = change->text; break;
    case CHANGE_READS:
    case CHANGE_NONE: break;
    }
}

/* ---- what is right before the change ---------------------------------------------------------------------------- */

static struct suite_case base_case(enum base base)
{
    struct suite_case c = {.b = 2,
                           .hq = 4,
                           .hkv = 2,
                           .sq = 5,
                           .sk = 7,
                           .d = 8,
                           .bias = BIAS_F32,
                           .alibi = ALIBI_HEADS,
                           .sink = 1,
                           .mask = ATTN_CAUSAL};
    if (base == BASE_PADDED) c.q_lengths = c.k_lengths = LENGTHS_USED;
    if (base == BASE_PACKED) c.q_lengths = c.k_lengths = LENGTHS_PACKED_USED, c.seed = 2;
    if (base == BASE_PAGED) c.k_lengths = LENGTHS_USED, c.page = 3;
    suite_settle(&c);
    return c;
}

struct extra {
    struct suite_view dout, dq, dk, dv, dbias, dlse, part[2], part_lse[2], to, to_lse, keep, k_new, v_new, k_cache,
        v_cache;
    int dsink, used, table;
};

static int add_extra(struct suite_built *t, struct extra *x)
{
    const int64_t *q = t->q.t.shape, *k = t->k.t.shape, *v = t->v.t.shape, *out = t->out.t.shape, *lse = t->lse.t.shape;
    const int64_t keep[4] = {t->c.b, t->c.hq, t->q_axis, t->k_axis}, fresh[4] = {2, 2, 3, 8}, cache[4] = {2, 2, 6, 8};
    int failed = 0;
    failed |= suite_add_view(t, &x->dout, ATTN_F32, out, LAYOUT_BHSD, 0) |
              suite_add_view(t, &x->dlse, ATTN_F32, lse, LAYOUT_BHSD, 0);
    failed |=
        suite_add_view(t, &x->dq, ATTN_F32, q, LAYOUT_BHSD, 1) | suite_add_view(t, &x->dk, ATTN_F32, k, LAYOUT_BHSD, 1);
    failed |= suite_add_view(t, &x->dv, ATTN_F32, v, LAYOUT_BHSD, 1);
    failed |= suite_add_view(t, &x->dbias, ATTN_F32, t->bias.t.shape, LAYOUT_BHSD, 1);
    for (int n = 0; n < 2; n++) {
        failed |= suite_add_view(t, &x->part[n], ATTN_F32, out, LAYOUT_BHSD, 0);
        failed |= suite_add_view(t, &x->part_lse[n], ATTN_F32, lse, LAYOUT_BHSD, 0);
    }
    failed |= suite_add_view(t, &x->keep, ATTN_BOOL, keep, LAYOUT_BHSD, 1);
    failed |= suite_add_view(t, &x->k_new, ATTN_F32, fresh, LAYOUT_BHSD, 0) |
              suite_add_view(t, &x->v_new, ATTN_F32, fresh, LAYOUT_BHSD, 0);
    failed |= suite_add_view(t, &x->k_cache, ATTN_F32, cache, LAYOUT_BHSD, 1) |
              suite_add_view(t, &x->v_cache, ATTN_F32, cache, LAYOUT_BHSD, 1);
    x->dsink = suite_add_buffer(t, 4 * sizeof(float), 4, 1);
    x->used = suite_add_buffer(t, 2 * sizeof(int32_t), 4, 0);
    x->table = suite_add_buffer(t, 16 * 4 * sizeof(float), 4, 0);
    if (failed || x->dsink < 0 || x->used < 0 || x->table < 0) return -1;
    memcpy(t->buffer[x->used].data, ((int32_t[2]){1, 2}), 2 * sizeof(int32_t));
    return 0;
}

static void fill_arguments(struct arguments *x, struct suite_built *t, struct extra *e,
                           const struct suite_target *target)
{
    memset(x, 0, sizeof *x);
    x->config = (attn_config){.struct_size = sizeof x->config, .backend = target->backend, .device = target->ordinal};
    x->e.struct_size = sizeof x->e;
    if (!e) return;
    x->p = suite_problem(t, target);
    x->g = (attn_grads){.struct_size = sizeof x->g,
                        .dout = suite_view_tensor(t, &e->dout, target),
                        .dq = suite_view_tensor(t, &e->dq, target),
                        .dk = suite_view_tensor(t, &e->dk, target),
                        .dv = suite_view_tensor(t, &e->dv, target),
                        .dbias = suite_view_tensor(t, &e->dbias, target),
                        .dlse = suite_view_tensor(t, &e->dlse, target),
                        .dsink = suite_buffer_place(&t->buffer[e->dsink], target)};
    for (int n = 0; n < 2; n++) {
        x->m.out_part[n] = suite_view_tensor(t, &e->part[n], target);
        x->m.lse_part[n] = suite_view_tensor(t, &e->part_lse[n], target);
    }
    x->m.n = 2;
    x->m.to = suite_view_tensor(t, &t->out, target);
    x->m.to_lse = suite_view_tensor(t, &t->lse, target);
    x->keep = suite_view_tensor(t, &e->keep, target);
    x->a = (attn_append){.struct_size = sizeof x->a,
                         .k_new = suite_view_tensor(t, &e->k_new, target),
                         .v_new = suite_view_tensor(t, &e->v_new, target),
                         .k_cache = suite_view_tensor(t, &e->k_cache, target),
                         .v_cache = suite_view_tensor(t, &e->v_cache, target)};
    x->a.cache_len.used = suite_buffer_place(&t->buffer[e->used], target);
    x->a.q = x->a.k_new; /* rotated in place, if it came to that */
    float *table = suite_buffer_place(&t->buffer[e->table], target);
    x->rope = (attn_rope){.struct_size = sizeof x->rope, .cos = table, .sin = table, .rotary_dim = 8, .max_pos = 16};
    x->a.rope = &x->rope;
    x->m.out_parts = x->m.out_part;
    x->m.lse_parts = x->m.lse_part;
    x->m.out = &x->m.to;
    x->keep_pointer = &x->keep;
}

/* ---- the try ---------------------------------------------------------------------------------------------------- */

static attn_status call(attn_context *ctx, enum call which, struct arguments *x, int only_query)
{
    attn_context *made = NULL;
    attn_status status;
    switch (which) {
    case CALL_FORWARD:
        return only_query ? attn_query(ctx, ATTN_OP_FORWARD, &x->p, NULL, &x->e, NULL)
                          : attn_forward(ctx, &x->p, &x->e);
    case CALL_BACKWARD:
        return only_query ? attn_query(ctx, ATTN_OP_BACKWARD, &x->p, &x->g, &x->e, NULL)
                          : attn_backward(ctx, &x->p, &x->g, &x->e);
    case CALL_APPEND:
        return only_query ? attn_query_append(ctx, &x->a, &x->e, NULL) : attn_kv_append(ctx, &x->a, &x->e);
    case CALL_MERGE:
        return only_query
                   ? attn_query_merge(ctx, x->m.n, x->m.out_parts, x->m.lse_parts, x->m.out, &x->m.to_lse, &x->e, NULL)
                   : attn_merge(ctx, x->m.n, x->m.out_parts, x->m.lse_parts, x->m.out, &x->m.to_lse, &x->e);
    case CALL_MASK: return attn_dropout_mask(ctx, &x->p, x->keep_pointer, &x->e);
    default:
        status = attn_create(&x->config, &made);
        attn_destroy(made);
        return status;
    }
}

/* The mistake is in what an array holds, which only some contexts look at in device memory. */
static int reads_arrays(const struct row *row)
{
    for (int n = 0; n < 3; n++)
        if (row->change[n].kind == CHANGE_DATA || row->change[n].kind == CHANGE_READS) return 1;
    return row->base == BASE_PAGED;
}

static uint64_t hash_all(const struct suite_built *t)
{
    uint64_t h = 1;
    for (int n = 0; n < t->buffers; n++) h = suite_mix(h) ^ suite_hash(t->buffer[n].data, t->buffer[n].bytes);
    return h;
}

static void expect_refused(struct suite_check *check, attn_context *ctx, const struct row *row, struct suite_built *t,
                           struct extra *extra)
{
    struct arguments x;
    fill_arguments(&x, t, extra, check->target);
    if (row->call != CALL_CREATE) {
        attn_status before = call(ctx, row->call, &x, 1);
        int sound =
            before == ATTN_OK || (before == ATTN_UNSUPPORTED && row->call == CALL_BACKWARD) || row->call == CALL_MASK;
        if (!suite_expect(check, sound, "unchanged, it is refused already: %s", attn_last_error())) return;
        fill_arguments(&x, t, extra, check->target);
    }
    for (int n = 0; n < 3; n++) apply(ctx, &x, &row->change[n]);
    suite_fetch_outputs(check, t);
    uint64_t hash = hash_all(t);
    for (int only_query = 1; only_query >= 0; only_query--) {
        attn_status status = call(ctx, row->call, &x, only_query);
        suite_expect_status(check, status, row->status, only_query ? "query" : "call");
        suite_expect(check, strstr(attn_last_error(), row->text) != NULL, "the text \"%s\" does not say \"%s\"",
                     attn_last_error(), row->text);
    }
    suite_fetch_outputs(check, t);
    suite_expect(check, hash_all(t) == hash, "something was written by a call that failed");
}

static void try_row(struct suite_check *check, const void *arg)
{
    const struct row *row = arg;
    struct suite_built t;
    struct extra extra;
    struct suite_case c = base_case(row->base);
    if (row->base == BASE_NOTHING) {
        memset(&t, 0, sizeof t);
        expect_refused(check, check->target->ctx, row, &t, NULL);
        return;
    }
    if (!suite_expect(check, !suite_build(&t, &c), "no memory")) return;
    attn_context *own = reads_arrays(row) ? suite_checking_context(check->target) : NULL;
    attn_context *ctx = own ? own : check->target->ctx;
    if (suite_expect(check, !add_extra(&t, &extra), "no memory")) expect_refused(check, ctx, row, &t, &extra);
    suite_unbuild(&t);
    attn_destroy(own);
}

void suite_run_arguments(struct suite *s)
{
    static const char *const calls[] = {"forward", "backward", "append", "merge", "mask", "create"};
    static const char *const bases[] = {"", "packed-", "paged-", ""};
    char name[160];
    for (int n = 0; n < ROWS; n++) {
        const struct change *last = &rows[n].change[rows[n].change[2].kind ? 2 : rows[n].change[1].kind ? 1 : 0];
        snprintf(name, sizeof name, "arguments/%03d-%s-%s%s", n, calls[rows[n].call], bases[rows[n].base], last->field);
        suite_each(s, 1, name, try_row, &rows[n]);
    }
    suite_arguments_special(s);
}
