/* SPDX-License-Identifier: Apache-2.0
 * test_torch VALUES: compares this library with PyTorch's float64 results in values.txt (make_values.py): forward, LSE
 * and dropout masks on both backends, gradients on the reference and wherever else they can be computed, merging and
 * appending on both. Gradients are F32, and so is the rest unless the case is about storage types. */
#include "values.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The bounds on |x - expected|. `row` is the largest magnitude in the row (the last axis) of the expected values.
 *
 * The reference computes in float64 and rounds once, so it must be within one unit in the last place of the row's
 * largest element; TINY is for rows whose terms cancel. */
#define ULP 0x1p-23
#define TINY 0x1p-40
/* A float32 score s is off by about e * |s|, and an output then by that much of max|v|:
 * FORWARD_F32 * e * (1 + max|s|) * max|v|, gradients GRADIENT_F32 times, relative to the whole array or 1. */
#define HALF_ULP 0x1p-24
#define FORWARD_F32 4.0
#define GRADIENT_F32 64.0

enum { REFERENCE, CPU, BACKENDS };
static const char *const backend_name[BACKENDS] = {"reference", "cpu"};

static int passed, failed, skipped;
static char skip_reason[512]; /* why backward was skipped on the CPU */

typedef struct run {
    attn_context *ctx;
    int backend;
    const values_case *c;
    void *memory[64]; /* freed when the case ends */
    int memory_count;
    int bad; /* something of this check failed */
} run;

static void complain(run *r, const char *format, ...)
{
    va_list args;
    printf("FAIL: %s on %s: ", r->c->name, backend_name[r->backend]);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    r->bad = 1;
}

static int called(run *r, const char *name, attn_status status)
{
    if (status != ATTN_OK) complain(r, "%s: %s: %s", name, attn_status_string(status), attn_last_error());
    return status == ATTN_OK;
}

/* Ends one check. */
static void count(run *r)
{
    passed += !r->bad;
    failed += r->bad;
    r->bad = 0;
}

/* Memory of just this size, all bits set: NaN as a float. */
static void *take(run *r, size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    if (!p || r->memory_count == (int)(sizeof r->memory / sizeof *r->memory)) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    memset(p, 0xFF, bytes);
    return r->memory[r->memory_count++] = p;
}

/* ---- numbers in and out of storage ----------------------------------------------------------------------- */

/* x must be a number of the type, which all inputs are. */
static void store(int32_t dtype, void *at, double x)
{
    float f = (float)x;
    uint32_t bits;
    uint16_t half;
    memcpy(&bits, &f, sizeof bits);
    switch (dtype) {
    case ATTN_F32: memcpy(at, &f, sizeof f); break;
    case ATTN_BF16:
        half = (uint16_t)(bits >> 16);
        memcpy(at, &half, sizeof half);
        break;
    case ATTN_F16:
        half = (uint16_t)(bits >> 16 & 0x8000);
        if (isnan(x)) half = 0x7E00;
        else if (x != 0) half |= (uint16_t)(((bits >> 23 & 255) - 112) << 10 | (bits >> 13 & 1023));
        memcpy(at, &half, sizeof half);
        break;
    default: *(unsigned char *)at = (unsigned char)x; /* BOOL and bytes */
    }
}

static double load(int32_t dtype, const void *at)
{
    uint16_t half;
    uint32_t bits;
    float f;
    if (dtype == ATTN_F32) {
        memcpy(&f, at, sizeof f);
        return f;
    }
    if (dtype == ATTN_BOOL) return *(const unsigned char *)at;
    memcpy(&half, at, sizeof half);
    if (dtype == ATTN_BF16) {
        bits = (uint32_t)half << 16;
        memcpy(&f, &bits, sizeof f);
        return f;
    }
    int exponent = half >> 10 & 31, fraction = half & 1023;
    double x = exponent == 31 ? (fraction ? NAN : INFINITY)
               : exponent     ? ldexp(1024 + fraction, exponent - 25)
                              : ldexp(fraction, -24);
    return half & 0x8000 ? -x : x;
}

/* The array as a tensor of its own memory. */
static attn_tensor input(run *r, const values_array *a)
{
    size_t size = a->is_bytes ? 1 : attn_dtype_bytes((attn_dtype)a->dtype, 1);
    char *data = take(r, a->count * size);
    for (size_t i = 0; i < a->count; i++) store(a->is_bytes ? ATTN_BOOL : a->dtype, data + i * size, a->number[i]);
    return attn_bhsd(data, (attn_dtype)a->dtype, a->dim[0], a->dim[1], a->dim[2], a->dim[3]);
}

static attn_tensor empty(run *r, const values_array *shape, attn_dtype dtype)
{
    int64_t n = shape->dim[0] * shape->dim[1] * shape->dim[2] * shape->dim[3];
    return attn_bhsd(take(r, attn_dtype_bytes(dtype, n)), dtype, shape->dim[0], shape->dim[1], shape->dim[2],
                     shape->dim[3]);
}

static float *input_f32(run *r, const char *name)
{
    const values_array *a = values_in(r->c, name);
    return a ? input(r, a).data : NULL;
}

static int32_t *input_i32(run *r, const char *name)
{
    const values_array *a = values_in(r->c, name);
    int32_t *out = a ? take(r, a->count * sizeof *out) : NULL;
    for (size_t i = 0; a && i < a->count; i++) out[i] = (int32_t)a->number[i];
    return out;
}

/* ---- comparison ------------------------------------------------------------------------------------------ */

/* The largest finite magnitude. */
static double largest_of(const double *x, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++) {
        if (fabs(x[i]) > most && fabs(x[i]) < INFINITY) most = fabs(x[i]);
    }
    return most;
}

static double largest(const values_array *a) { return largest_of(a->number, a->count); }

/* |x - wanted * times| <= relative * row + absolute; NaN in `want` is memory that must be as take() left it. */
static void compare(run *r, const values_array *want, int32_t dtype, const void *data, double times, double relative,
                    double absolute)
{
    size_t size = attn_dtype_bytes((attn_dtype)dtype, 1), width = (size_t)want->dim[3];
    double row = 0;
    for (size_t i = 0; i < want->count; i++) {
        const char *at = (const char *)data + i * size;
        if (i % width == 0) row = largest_of(want->number + i, width);
        if (isnan(want->number[i])) {
            static const unsigned char untouched[4] = {0xFF, 0xFF, 0xFF, 0xFF};
            if (memcmp(at, untouched, size)) {
                complain(r, "%s[%zu] was written", want->name, i);
                return;
            }
            continue;
        }
        double x = load(dtype, at), y = times * want->number[i], bound = times * (relative * row + absolute);
        if (x != y && !(fabs(x - y) <= bound)) {
            complain(r, "%s[%zu] is %.9g instead of %.9g, off by %.2g with %.2g allowed", want->name, i, x, y,
                     fabs(x - y), bound);
            return;
        }
    }
}

static void compare_bytes(run *r, const values_array *want, const unsigned char *data)
{
    for (size_t i = 0; i < want->count; i++) {
        unsigned wanted = isnan(want->number[i]) ? 0xFF : (unsigned)want->number[i];
        if (data[i] != wanted) {
            complain(r, "%s: byte %zu is %02x instead of %02x", want->name, i, data[i], wanted);
            return;
        }
    }
}

static double unit_of(int32_t dtype) { return dtype == ATTN_F16 ? 0x1p-11 : dtype == ATTN_BF16 ? 0x1p-8 : 0; }

/* ---- attention ------------------------------------------------------------------------------------------- */

static attn_lengths input_lengths(run *r, const char *prefix)
{
    attn_lengths n = {0};
    char name[VALUES_NAME];
    snprintf(name, sizeof name, "%s_used", prefix);
    n.used = input_i32(r, name);
    snprintf(name, sizeof name, "%s_start", prefix);
    n.start = input_i32(r, name);
    snprintf(name, sizeof name, "%s_offsets", prefix);
    n.offsets = input_i32(r, name);
    n.count = n.offsets ? (int64_t)values_number(r->c, "size", 0, 1) : 0;
    return n;
}

/* k or v: numbers, or k_TYPE with k_scale. */
static attn_tensor input_keys(run *r, const char *name)
{
    char other[VALUES_NAME];
    const values_array *a = values_in(r->c, name);
    if (a) return input(r, a);
    snprintf(other, sizeof other, "%s_", name);
    attn_tensor t = input(r, values_in(r->c, other));
    snprintf(other, sizeof other, "%s_scale", name);
    t.scale = input_f32(r, other);
    if (t.scale) {
        t.scale_stride[0] = t.shape[1] * t.shape[2];
        t.scale_stride[1] = t.shape[2];
        t.scale_stride[2] = 1;
    }
    return t;
}

static attn_problem input_problem(run *r)
{
    const values_case *c = r->c;
    attn_problem p = ATTN_PROBLEM_INIT;
    p.mask = (uint32_t)values_word(c, "mask");
    p.q = input(r, values_in(c, "q"));
    p.k = input_keys(r, "k");
    p.v = input_keys(r, "v");
    p.out = empty(r, values_want(c, "out"), (attn_dtype)p.q.dtype);
    p.lse = empty(r, values_want(c, "lse"), ATTN_F32);
    if (values_in(c, "bias")) p.bias = input(r, values_in(c, "bias"));
    p.q_len = input_lengths(r, "q");
    p.kv_len = input_lengths(r, "kv");
    p.page_table = input_i32(r, "page_table");
    if (p.page_table) p.page_table_pages = values_in(c, "page_table")->dim[3];
    p.alibi = input_f32(r, "alibi");
    if (p.alibi && values_in(c, "alibi")->dim[2] > 1) p.alibi_batch_stride = values_in(c, "alibi")->dim[3];
    p.sink = input_f32(r, "sink");
    p.scale = (float)values_number(c, "scale", 0, 0);
    p.softcap = (float)values_number(c, "softcap", 0, 0);
    p.window_left = (int64_t)values_number(c, "window_left", 0, 0);
    p.window_right = (int64_t)values_number(c, "window_right", 0, 0);
    p.diagonal = (int64_t)values_number(c, "diagonal", 0, 0);
    p.dropout = (float)values_number(c, "dropout", 0, 0);
    p.seed = values_word(c, "seed");
    p.offset = values_word(c, "offset");
    p.batch_origin = (int64_t)values_number(c, "origin", 0, 0);
    p.head_origin = (int64_t)values_number(c, "origin", 1, 0);
    p.row_origin = (int64_t)values_number(c, "origin", 2, 0);
    p.column_origin = (int64_t)values_number(c, "origin", 3, 0);
    return p;
}

static double largest_value(const run *r, const attn_problem *p)
{
    const values_array *v = values_in(r->c, "v");
    double most = v ? largest(v) : 448; /* of a storage type: what the inputs are made from is below 2 */
    return (v ? most : 2) / (p->dropout > 0 && p->dropout < 1 ? 1 - p->dropout : 1);
}

static void check_forward(run *r, const attn_problem *p)
{
    const values_case *c = r->c;
    if (called(r, "attn_forward", attn_forward(r->ctx, p, NULL))) {
        double unit = unit_of(p->out.dtype), relative = ULP + unit, absolute = TINY, lse = TINY;
        if (r->backend != REFERENCE) {
            lse = FORWARD_F32 * HALF_ULP * (1 + values_number(c, "largest_score", 0, 0));
            absolute = lse * largest_value(r, p);
        }
        compare(r, values_want(c, "out"), p->out.dtype, p->out.data, 1, relative, absolute);
        compare(r, values_want(c, "lse"), ATTN_F32, p->lse.data, 1, ULP, lse);
    }
    count(r);
}

static void check_dropout_mask(run *r, const attn_problem *p)
{
    const values_array *want = values_want(r->c, "keep");
    if (!want) return;
    attn_tensor keep = empty(r, want, ATTN_BOOL);
    if (called(r, "attn_dropout_mask", attn_dropout_mask(r->ctx, p, &keep, NULL)))
        compare(r, want, ATTN_BOOL, keep.data, 1, 0, 0);
    count(r);
}

/* Twice: the second time the gradients are added to those of the first. */
static void check_backward(run *r, const attn_problem *p)
{
    static const char *const name[4] = {"dq", "dk", "dv", "dbias"};
    const values_case *c = r->c;
    const values_array *sink = values_want(c, "dsink");
    if (!values_want(c, "dq")) return;
    attn_grads g = ATTN_GRADS_INIT;
    attn_tensor *grad[4] = {&g.dq, &g.dk, &g.dv, &g.dbias};
    g.dout = input(r, values_in(c, "dout"));
    g.dlse = input(r, values_in(c, "dlse"));
    for (int t = 0; t < 4; t++) {
        if (values_want(c, name[t])) *grad[t] = empty(r, values_want(c, name[t]), ATTN_F32);
    }
    if (sink) g.dsink = empty(r, sink, ATTN_F32).data;
    attn_status s = attn_query(r->ctx, ATTN_OP_BACKWARD, p, &g, NULL, NULL);
    if (s == ATTN_UNSUPPORTED && r->backend != REFERENCE) {
        if (!skipped++) snprintf(skip_reason, sizeof skip_reason, "%s", attn_last_error());
        return;
    }
    double error = GRADIENT_F32 * HALF_ULP * (1 + values_number(c, "largest_score", 0, 0)) + 4 * unit_of(p->out.dtype);
    for (int times = 1; times <= 2 && called(r, "attn_query", s); times++) {
        g.flags = times == 2 ? ATTN_GRAD_ACCUMULATE : 0;
        if (!called(r, "attn_backward", attn_backward(r->ctx, p, &g, NULL))) break;
        for (int t = 0; t <= 4; t++) {
            const values_array *want = t == 4 ? sink : values_want(c, name[t]);
            if (!want) continue;
            double absolute = r->backend == REFERENCE ? TINY : error * fmax(1, largest(want));
            compare(r, want, ATTN_F32, t == 4 ? g.dsink : grad[t]->data, times, ULP, absolute);
        }
    }
    count(r);
}

static void check_attention(run *r)
{
    attn_problem p = input_problem(r);
    int before = failed;
    check_forward(r, &p);
    check_dropout_mask(r, &p);
    if (failed == before) check_backward(r, &p);
}

/* ---- merging --------------------------------------------------------------------------------------------- */

static void check_merge(run *r)
{
    attn_tensor out_parts[8], lse_parts[8];
    const values_array *want = values_want(r->c, "out");
    attn_tensor all_out = input(r, values_in(r->c, "out_parts")), all_lse = input(r, values_in(r->c, "lse_parts"));
    attn_tensor out = empty(r, want, ATTN_F32), lse = empty(r, values_want(r->c, "lse"), ATTN_F32);
    int32_t n = (int32_t)all_out.shape[0];
    for (int32_t i = 0; i < n && i < 8; i++) {
        out_parts[i] = all_out;
        lse_parts[i] = all_lse;
        out_parts[i].shape[0] = lse_parts[i].shape[0] = 1;
        out_parts[i].data = (float *)all_out.data + i * all_out.stride[0];
        lse_parts[i].data = (float *)all_lse.data + i * all_lse.stride[0];
    }
    if (called(r, "attn_merge", attn_merge(r->ctx, n, out_parts, lse_parts, &out, &lse, NULL))) {
        int exact = r->backend == REFERENCE;
        double error = FORWARD_F32 * HALF_ULP * (1 + largest(values_in(r->c, "lse_parts")));
        compare(r, want, ATTN_F32, out.data, 1, ULP, exact ? TINY : 2 * error);
        compare(r, values_want(r->c, "lse"), ATTN_F32, lse.data, 1, ULP, exact ? TINY : error);
    }
    count(r);
}

/* ---- appending ------------------------------------------------------------------------------------------- */

/* Rotary results are those of one fixed float32 expression: two roundings. Codes of storage types must be equal. */
static void check_append(run *r)
{
    const values_case *c = r->c;
    const values_array *want = values_want(c, "k_"), *scale = values_want(c, "scale"), *slots = values_in(c, "slots");
    int rotary = (int)values_number(c, "rotary", 0, 0);
    attn_append a = ATTN_APPEND_INIT;
    attn_rope rope = ATTN_ROPE_INIT;
    a.flags = values_word(c, "set_scale") ? ATTN_APPEND_SET_SCALE : 0;
    a.k_new = input(r, values_in(c, "k_new"));
    a.k_cache = empty(r, want, want->is_bytes ? (attn_dtype)want->dtype : ATTN_F32);
    if (scale) {
        a.k_cache.scale = empty(r, scale, ATTN_F32).data;
        a.k_cache.scale_stride[0] = a.k_cache.scale_stride[1] = want->dim[2];
        a.k_cache.scale_stride[2] = 1;
    } else {
        a.k_cache.scale = input_f32(r, "scale");
    }
    a.cache_len.used = input_i32(r, "cache_used");
    if (slots) {
        int64_t *slot = take(r, slots->count * sizeof *slot);
        for (size_t i = 0; i < slots->count; i++) slot[i] = (int64_t)slots->number[i];
        a.slots = slot;
    }
    if (rotary) {
        rope.rotary_dim = rotary;
        rope.first_dim = (int64_t)values_number(c, "rotary", 1, 0);
        rope.interleaved = (int32_t)values_number(c, "rotary", 2, 0);
        rope.cos = input_f32(r, "cos");
        rope.sin = input_f32(r, "sin");
        rope.max_pos = values_in(c, "cos")->dim[2];
        rope.positions = input_i32(r, "positions");
        a.rope = &rope;
        a.q = input(r, values_in(c, "q"));
    }
    if (called(r, "attn_kv_append", attn_kv_append(r->ctx, &a, NULL))) {
        if (want->is_bytes) compare_bytes(r, want, a.k_cache.data);
        else compare(r, want, ATTN_F32, a.k_cache.data, 1, 2 * ULP, TINY);
        if (scale) compare(r, scale, ATTN_F32, a.k_cache.scale, 1, TINY, 0); /* equal, but for the digits written */
        if (rotary) compare(r, values_want(c, "q"), ATTN_F32, a.q.data, 1, 2 * ULP, TINY);
    }
    count(r);
}

/* ---- all cases ------------------------------------------------------------------------------------------- */

static void check_case(attn_context *ctx, int backend, const values_case *c)
{
    run r = {.ctx = ctx, .backend = backend, .c = c};
    if (!strcmp(c->operation, "attend")) {
        check_attention(&r);
    } else if (!strcmp(c->operation, "merge")) {
        check_merge(&r);
    } else if (!strcmp(c->operation, "append")) {
        check_append(&r);
    } else {
        complain(&r, "the operation %s is not known", c->operation);
        count(&r);
    }
    while (r.memory_count) free(r.memory[--r.memory_count]);
}

int main(int argc, char **argv)
{
    static const attn_backend backends[BACKENDS] = {ATTN_BACKEND_REFERENCE, ATTN_BACKEND_CPU};
    attn_context *ctx[BACKENDS] = {NULL, NULL};
    values_file file;
    values_case c;
    int cases = 0, got;
    if (argc != 2 || !values_open(&file, argv[1])) {
        fprintf(stderr, "usage: test_torch VALUES (the file values.txt, which must be readable)\n");
        return 2;
    }
    for (int b = 0; b < BACKENDS; b++) {
        attn_config config = ATTN_CONFIG_INIT;
        config.backend = (int32_t)backends[b];
        if (attn_create(&config, &ctx[b]) != ATTN_OK) {
            printf("FAIL: no context on %s: %s\n", backend_name[b], attn_last_error());
            failed++;
        }
    }
    while ((got = values_next(&file, &c)) > 0) {
        for (int b = 0; b < BACKENDS; b++) {
            if (ctx[b]) check_case(ctx[b], b, &c);
        }
        values_free(&c);
        cases++;
    }
    if (got < 0 || cases == 0) {
        printf("FAIL: %s: line %d is malformed\n", argv[1], file.line);
        failed++;
    }
    values_close(&file);
    for (int b = 0; b < BACKENDS; b++) attn_destroy(ctx[b]);
    if (skipped) printf("SKIP: backward of %d cases on %s: %s\n", skipped, backend_name[CPU], skip_reason);
    printf("%d cases of PyTorch on %s and %s\n", cases, backend_name[0], backend_name[1]);
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed != 0;
}
