/* SPDX-License-Identifier: Apache-2.0
 * test_onnx [DIR] [--device cpu|reference]: the node test vectors of the ONNX project for Attention, RotaryEmbedding
 * and TensorScatter, each on both backends. DIR (or the environment variable ATTN_ONNX_DIR) holds one folder a case;
 * the vectors are no part of this source tree.
 *
 * How ONNX maps onto this library:
 *   - tensors [B, S, H*D] of rank 3 are strided views [B, H, S, D];
 *   - past_key, past_value: both parts are appended to a cache, which must then equal present_key, present_value to the
 *     bit, and attention runs over the cache;
 *   - is_causal: key j <= query i + past length, so ATTN_DIAGONAL with that length, 0 (top-left) without a past;
 *   - attn_mask shorter than the keys: the rest is masked, which the test writes out, as this library refuses it;
 *   - nonpad_kv_seqlen: kv_len.used;
 *   - RotaryEmbedding: attn_kv_append with rope, checked on the keys of the cache and on q;
 *   - TensorScatter: attn_kv_append behind write_indices, or to slots where the cache is circular.
 * Anything of a case that is not checked is printed with its reason. */
#include "onnx_file.h"

#include <attn/attn.h>
#include <dirent.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The tolerances: |x - expected| <= tolerance * max(1, |expected|). Copies (present_key, caches) must be equal. */
#define TOLERANCE_F32 1e-5
#define TOLERANCE_F16 2e-3

typedef enum verdict { PASS, FAIL, SKIP } verdict;

static char reason[512]; /* of the last verdict that is not PASS */

static verdict say(verdict v, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    return v;
}

static verdict failed_call(const char *name, attn_status status)
{
    return say(FAIL, "%s: %s: %s", name, attn_status_string(status), attn_last_error());
}

/* ---- memory of one case: everything is freed when its run ends ------------------------------------------- */

static void *scratch[16];
static int scratch_count;

/* Filled with 0xFF, which is NaN in every float type, so that what is never written does not pass. */
static void *take(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    if (!p || scratch_count == (int)(sizeof scratch / sizeof *scratch)) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    memset(p, 0xFF, bytes);
    return scratch[scratch_count++] = p;
}

static void release(void)
{
    while (scratch_count) free(scratch[--scratch_count]);
}

/* ---- views and comparison -------------------------------------------------------------------------------- */

static attn_dtype dtype_of(const onnx_array *a)
{
    return a->type == ONNX_FLOAT16 ? ATTN_F16 : a->type == ONNX_BOOL ? ATTN_BOOL : ATTN_F32;
}

static int is_float(const onnx_array *a) { return a->type == ONNX_FLOAT || a->type == ONNX_FLOAT16; }

/* [B, H, S, D], or [B, S, H*D] if `heads` is given; 0 if the array is neither. */
static int view_at(const onnx_array *a, void *data, int64_t heads, attn_tensor *t)
{
    if (!is_float(a)) return 0;
    if (a->rank == 4) {
        *t = attn_bhsd(data, dtype_of(a), a->dim[0], a->dim[1], a->dim[2], a->dim[3]);
        return 1;
    }
    if (a->rank != 3 || heads <= 0 || a->dim[2] % heads) return 0;
    *t = attn_bshd(data, dtype_of(a), a->dim[0], heads, a->dim[1], a->dim[2] / heads);
    return 1;
}

static double f16_value(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double x = exponent == 31 ? (fraction ? NAN : INFINITY)
               : exponent     ? ldexp(1024 + fraction, exponent - 25)
                              : ldexp(fraction, -24);
    return bits & 0x8000 ? -x : x;
}

static double value_at(const onnx_array *a, const void *data, size_t i)
{
    if (a->type == ONNX_FLOAT) {
        float x;
        memcpy(&x, (const char *)data + 4 * i, sizeof x);
        return x;
    }
    uint16_t bits;
    memcpy(&bits, (const char *)data + 2 * i, sizeof bits);
    return f16_value(bits);
}

static double worst[2]; /* the largest error of all cases: F32, F16 */

/* `got` has the memory layout of `want`. */
static verdict compare(const onnx_array *want, const void *got)
{
    double tolerance = want->type == ONNX_FLOAT ? TOLERANCE_F32 : TOLERANCE_F16;
    for (size_t i = 0; i < want->count; i++) {
        double x = value_at(want, got, i), y = value_at(want, want->data, i);
        double error = x == y || (isnan(x) && isnan(y)) ? 0 : fabs(x - y) / fmax(1, fabs(y));
        if (!(error <= tolerance)) {
            return say(FAIL, "%s[%zu] is %.9g instead of %.9g", want->name, i, x, y);
        }
        worst[want->type == ONNX_FLOAT16] = fmax(worst[want->type == ONNX_FLOAT16], error);
    }
    return PASS;
}

/* `count` elements are there to compare. */
static verdict compare_bits(const onnx_array *want, const void *got, int64_t count)
{
    if (want->count != (size_t)count || memcmp(got, want->data, want->count * want->element_bytes))
        return say(FAIL, "%s is not equal to the bit", want->name);
    return PASS;
}

/* Values of an int64 array as int32; NULL if one does not fit or there are not `count`. */
static int32_t *narrow(const onnx_array *a, size_t count)
{
    if (a->type != ONNX_INT64 || a->count != count) return NULL;
    int32_t *out = take(count * sizeof *out);
    for (size_t i = 0; i < count; i++) {
        int64_t x;
        memcpy(&x, (const char *)a->data + 8 * i, sizeof x);
        if (x < 0 || x > INT32_MAX) return NULL;
        out[i] = (int32_t)x;
    }
    return out;
}

/* ---- attributes ------------------------------------------------------------------------------------------ */

static int64_t integer(const onnx_case *c, const char *name, int64_t otherwise)
{
    const onnx_attribute *a = onnx_find(c, name);
    return a ? a->i : otherwise;
}

static float number(const onnx_case *c, const char *name, float otherwise)
{
    const onnx_attribute *a = onnx_find(c, name);
    return a ? a->f : otherwise;
}

/* The first attribute that is not in the NULL-terminated list, or NULL. */
static const char *unknown_attribute(const onnx_case *c, const char *const *known)
{
    for (int a = 0; a < c->attributes; a++) {
        const char *const *k = known;
        while (*k && strcmp(*k, c->attribute[a].name)) k++;
        if (!*k) return c->attribute[a].name;
    }
    return NULL;
}

/* ---- Attention ------------------------------------------------------------------------------------------- */

enum { IN_Q, IN_K, IN_V, IN_MASK, IN_PAST_KEY, IN_PAST_VALUE, IN_NONPAD };
enum { OUT_Y, OUT_PRESENT_KEY, OUT_PRESENT_VALUE, OUT_SCORES };

/* Appends the past and then the new keys and values to an empty cache and makes the problem use it. */
static verdict fill_cache(attn_context *ctx, const onnx_case *c, attn_problem *p)
{
    attn_append a = ATTN_APPEND_INIT;
    attn_tensor past_k, past_v;
    if (!view_at(&c->input[IN_PAST_KEY], c->input[IN_PAST_KEY].data, 0, &past_k) ||
        !view_at(&c->input[IN_PAST_VALUE], c->input[IN_PAST_VALUE].data, 0, &past_v))
        return say(SKIP, "past_key or past_value is not of rank 4");
    if (past_k.shape[0] != p->k.shape[0] || past_k.shape[1] != p->k.shape[1] || past_v.shape[1] != p->v.shape[1])
        return say(SKIP, "past_key or past_value of this shape");
    int64_t batch = past_k.shape[0], past = past_k.shape[2], total = past + p->k.shape[2];
    int32_t *used = take((size_t)batch * sizeof *used);
    size_t k_count = (size_t)(batch * past_k.shape[1] * total * past_k.shape[3]);
    size_t v_count = (size_t)(batch * past_v.shape[1] * total * past_v.shape[3]);
    a.k_cache = attn_bhsd(take(k_count * c->input[IN_K].element_bytes), dtype_of(&c->input[IN_K]), batch,
                          past_k.shape[1], total, past_k.shape[3]);
    a.v_cache = attn_bhsd(take(v_count * c->input[IN_V].element_bytes), dtype_of(&c->input[IN_V]), batch,
                          past_v.shape[1], total, past_v.shape[3]);
    a.cache_len.used = used;
    for (int part = 0; part < 2; part++) {
        for (int64_t b = 0; b < batch; b++) used[b] = part ? (int32_t)past : 0;
        a.k_new = part ? p->k : past_k;
        a.v_new = part ? p->v : past_v;
        attn_status s = attn_kv_append(ctx, &a, NULL);
        if (s != ATTN_OK) return failed_call("attn_kv_append", s);
    }
    p->k = a.k_cache;
    p->v = a.v_cache;
    return PASS;
}

/* Right-aligned axes, 1 broadcasts; a last axis shorter than the keys is continued as masked. */
static verdict set_mask(const onnx_array *mask, attn_problem *p)
{
    int64_t dim[4] = {1, 1, 1, 1}, keys = p->k.shape[2];
    if (mask->rank < 2 || mask->rank > 4 || (!is_float(mask) && mask->type != ONNX_BOOL))
        return say(SKIP, "attn_mask of this rank or type");
    for (int r = 0; r < mask->rank; r++) dim[4 - mask->rank + r] = mask->dim[r];
    if (dim[3] > keys) return say(SKIP, "attn_mask is longer than the keys");
    size_t rows = (size_t)(dim[0] * dim[1] * dim[2]), size = mask->element_bytes;
    char *padded = take(rows * (size_t)keys * size);
    for (size_t r = 0; r < rows; r++) {
        char *row = padded + r * (size_t)keys * size;
        memcpy(row, (char *)mask->data + r * (size_t)dim[3] * size, (size_t)dim[3] * size);
        for (int64_t j = dim[3]; j < keys; j++) {
            const float minus_infinity = -INFINITY;
            const uint16_t minus_infinity_f16 = 0xFC00;
            if (mask->type == ONNX_FLOAT) memcpy(row + j * 4, &minus_infinity, 4);
            else if (mask->type == ONNX_FLOAT16) memcpy(row + j * 2, &minus_infinity_f16, 2);
            else row[j] = 0;
        }
    }
    p->bias = attn_bhsd(padded, dtype_of(mask), dim[0], dim[1], dim[2], keys);
    return PASS;
}

static verdict run_attention(attn_context *ctx, const onnx_case *c)
{
    static const char *const known[] = {"is_causal", "kv_num_heads",          "q_num_heads", "scale",
                                        "softcap",   "qk_matmul_output_mode", NULL};
    const char *unknown = unknown_attribute(c, known);
    if (unknown) return say(SKIP, "the attribute %s is not mapped", unknown);
    const onnx_array *y = &c->output[OUT_Y];
    int64_t heads_q = integer(c, "q_num_heads", 0), heads_kv = integer(c, "kv_num_heads", 0), past = 0;
    attn_problem p = ATTN_PROBLEM_INIT;
    void *out = take(y->count * y->element_bytes);
    if (!view_at(&c->input[IN_Q], c->input[IN_Q].data, heads_q, &p.q) ||
        !view_at(&c->input[IN_K], c->input[IN_K].data, heads_kv, &p.k) ||
        !view_at(&c->input[IN_V], c->input[IN_V].data, heads_kv, &p.v) || !view_at(y, out, heads_q, &p.out))
        return say(SKIP, "Q, K, V or Y of this rank or type");
    if (c->input[IN_PAST_KEY].data && c->input[IN_PAST_VALUE].data) {
        verdict v = fill_cache(ctx, c, &p);
        if (v != PASS) return v;
        past = c->input[IN_PAST_KEY].dim[2];
    }
    if (c->input[IN_MASK].data) {
        verdict v = set_mask(&c->input[IN_MASK], &p);
        if (v != PASS) return v;
    }
    if (c->input[IN_NONPAD].data) {
        if (integer(c, "is_causal", 0)) return say(SKIP, "is_causal together with nonpad_kv_seqlen is not mapped");
        p.kv_len.used = narrow(&c->input[IN_NONPAD], (size_t)p.q.shape[0]);
        if (!p.kv_len.used) return say(SKIP, "nonpad_kv_seqlen of this size or type");
    }
    if (integer(c, "is_causal", 0)) {
        p.mask = ATTN_CAUSAL | ATTN_DIAGONAL;
        p.diagonal = past;
    }
    p.scale = number(c, "scale", 0);
    p.softcap = number(c, "softcap", 0);

    attn_status s = attn_forward(ctx, &p, NULL);
    if (s != ATTN_OK) return failed_call("attn_forward", s);
    verdict v = compare(y, out);
    for (int kv = 0; kv < 2 && v == PASS; kv++) {
        const onnx_array *present = &c->output[kv ? OUT_PRESENT_VALUE : OUT_PRESENT_KEY];
        const attn_tensor *t = kv ? &p.v : &p.k;
        int64_t elements = t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3];
        if (present->data && present->type != c->input[kv ? IN_V : IN_K].type) v = say(SKIP, "present of another type");
        else if (present->data) v = compare_bits(present, t->data, elements);
    }
    return v;
}

/* ---- RotaryEmbedding ------------------------------------------------------------------------------------- */

enum { IN_X, IN_COS, IN_SIN, IN_POSITIONS };

/* cos and sin are [positions, r/2] with position_ids [B, S], or [B, S, r/2] without. The latter is a table of its own
 * for each sequence, so sequences go one by one and their tokens count from an empty cache. */
static verdict run_rotary(attn_context *ctx, const onnx_case *c)
{
    static const char *const known[] = {"interleaved", "num_heads", "rotary_embedding_dim", NULL};
    const char *unknown = unknown_attribute(c, known);
    if (unknown) return say(SKIP, "the attribute %s is not mapped", unknown);
    const onnx_array *x = &c->input[IN_X], *cosines = &c->input[IN_COS], *want = &c->output[0];
    const onnx_array *ids = &c->input[IN_POSITIONS];
    size_t bytes = x->count * x->element_bytes;
    void *key = take(bytes), *query = take(bytes);
    int64_t heads = integer(c, "num_heads", 0);
    attn_append a = ATTN_APPEND_INIT;
    if (x->type != ONNX_FLOAT || cosines->type != ONNX_FLOAT || cosines->count != c->input[IN_SIN].count ||
        want->count != x->count || want->type != x->type || !view_at(x, x->data, heads, &a.k_new) ||
        !view_at(x, key, heads, &a.k_cache) || !view_at(x, query, heads, &a.q) || !a.k_new.shape[0])
        return say(SKIP, "input, output, cos_cache or sin_cache of this rank or type");
    int64_t batch = a.k_new.shape[0], half = cosines->dim[cosines->rank - 1];
    attn_rope rope = ATTN_ROPE_INIT;
    rope.interleaved = integer(c, "interleaved", 0) != 0;
    rope.rotary_dim = integer(c, "rotary_embedding_dim", 0);
    if (!rope.rotary_dim) rope.rotary_dim = a.k_new.shape[3];
    if (rope.rotary_dim != 2 * half || cosines->rank != (ids->data ? 2 : 3) ||
        (!ids->data && (cosines->dim[0] != batch || cosines->dim[1] != a.k_new.shape[2])))
        return say(SKIP, "cos_cache of this shape");
    int64_t calls = ids->data ? 1 : batch;
    rope.max_pos = ids->data ? cosines->dim[0] : a.k_new.shape[2];
    if (ids->data) {
        rope.positions = narrow(ids, (size_t)(batch * a.k_new.shape[2]));
        if (!rope.positions) return say(SKIP, "position_ids of this size or type");
    }
    int32_t *used = take((size_t)batch * sizeof *used);
    for (int64_t b = 0; b < batch; b++) used[b] = 0;
    memcpy(query, x->data, bytes);
    a.cache_len.used = used;
    a.rope = &rope;
    for (int64_t call = 0; call < calls; call++) {
        attn_tensor *views[3] = {&a.k_new, &a.k_cache, &a.q};
        rope.cos = (const float *)cosines->data + call * rope.max_pos * half;
        rope.sin = (const float *)c->input[IN_SIN].data + call * rope.max_pos * half;
        for (int t = 0; t < 3 && calls > 1; t++) {
            if (call) views[t]->data = (float *)views[t]->data + views[t]->stride[0];
            views[t]->shape[0] = 1;
        }
        attn_status s = attn_kv_append(ctx, &a, NULL);
        if (s != ATTN_OK) return failed_call("attn_kv_append", s);
    }
    verdict v = compare(want, key);
    return v == PASS ? compare(want, query) : v;
}

/* ---- TensorScatter --------------------------------------------------------------------------------------- */

enum { IN_CACHE, IN_UPDATE, IN_WRITE };

static verdict run_scatter(attn_context *ctx, const onnx_case *c)
{
    static const char *const known[] = {"mode", NULL};
    const char *unknown = unknown_attribute(c, known);
    if (unknown) return say(SKIP, "the attribute %s is not mapped", unknown);
    const onnx_attribute *mode = onnx_find(c, "mode");
    int circular = mode && !strcmp(mode->s, "circular");
    if (mode && !circular && strcmp(mode->s, "linear")) return say(SKIP, "the mode %s is not mapped", mode->s);
    const onnx_array *past = &c->input[IN_CACHE], *update = &c->input[IN_UPDATE], *want = &c->output[0];
    void *cache = take(past->count * past->element_bytes);
    attn_append a = ATTN_APPEND_INIT;
    if (want->count != past->count || want->type != past->type || !view_at(past, cache, 1, &a.k_cache) ||
        !view_at(update, update->data, 1, &a.k_new))
        return say(SKIP, "a cache of this rank or type");
    int64_t batch = a.k_cache.shape[0], room = a.k_cache.shape[2], tokens = a.k_new.shape[2];
    int32_t *write = narrow(&c->input[IN_WRITE], (size_t)batch);
    if (!write) return say(SKIP, "write_indices of this size or type");
    memcpy(cache, past->data, past->count * past->element_bytes);
    if (circular) {
        int64_t *slots = take((size_t)(batch * tokens) * sizeof *slots);
        for (int64_t b = 0; b < batch; b++) {
            for (int64_t i = 0; i < tokens; i++) slots[b * tokens + i] = b * room + (write[b] + i) % room;
        }
        a.slots = slots;
    } else {
        a.cache_len.used = write;
    }
    attn_status s = attn_kv_append(ctx, &a, NULL);
    if (s != ATTN_OK) return failed_call("attn_kv_append", s);
    return compare_bits(want, cache, (int64_t)past->count);
}

/* ---- all cases ------------------------------------------------------------------------------------------- */

static int passed, failed, skipped;

static void run_case(const char *directory, const char *name, attn_context *const *contexts, const char *const *devices)
{
    onnx_case c;
    char folder[4096];
    int n = snprintf(folder, sizeof folder, "%s/%s", directory, name);
    if (n < 0 || (size_t)n >= sizeof folder || !onnx_read(folder, &c, reason, sizeof reason)) {
        printf("FAIL: %s: %s\n", name, n < 0 || (size_t)n >= sizeof folder ? "its path is too long" : reason);
        failed++;
        if (n >= 0 && (size_t)n < sizeof folder) onnx_free(&c);
        return;
    }
    for (int d = 0; d < 2; d++) {
        verdict v;
        if (!contexts[d]) continue;
        if (!strcmp(c.op, "Attention")) v = run_attention(contexts[d], &c);
        else if (!strcmp(c.op, "RotaryEmbedding")) v = run_rotary(contexts[d], &c);
        else if (!strcmp(c.op, "TensorScatter")) v = run_scatter(contexts[d], &c);
        else v = say(SKIP, "the operator %s is not mapped", c.op);
        release();
        passed += v == PASS;
        failed += v == FAIL;
        skipped += v == SKIP;
        if (v != PASS) printf("%s: %s on %s: %s\n", v == FAIL ? "FAIL" : "SKIP", name, devices[d], reason);
    }
    if (!strcmp(c.op, "Attention") && c.output[OUT_SCORES].data) {
        printf("SKIP: the output qk_matmul_output of %s: this library never holds the scores\n", name);
        skipped++;
    }
    onnx_free(&c);
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* The folders test_* of the directory, sorted; -1 if it cannot be read. */
static int list_cases(const char *directory, char ***names)
{
    int count = 0, room = 0;
    DIR *d = opendir(directory);
    *names = NULL;
    if (!d) return -1;
    for (struct dirent *entry; (entry = readdir(d));) {
        if (strncmp(entry->d_name, "test_", 5)) continue;
        if (count == room) {
            char **more = realloc(*names, (size_t)(room += 128) * sizeof *more);
            if (!more) exit(1);
            *names = more;
        }
        size_t bytes = strlen(entry->d_name) + 1;
        char *name = malloc(bytes);
        if (!name) exit(1);
        (*names)[count++] = memcpy(name, entry->d_name, bytes);
    }
    closedir(d);
    if (count) qsort(*names, (size_t)count, sizeof **names, by_name);
    return count;
}

int main(int argc, char **argv)
{
    static const char *const devices[2] = {"cpu", "reference"};
    static const attn_backend backends[2] = {ATTN_BACKEND_CPU, ATTN_BACKEND_REFERENCE};
    const char *directory = getenv("ATTN_ONNX_DIR"), *only = NULL;
    attn_context *contexts[2] = {NULL, NULL};
    char **names;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--device") && i + 1 < argc) only = argv[++i];
        else if (argv[i][0] != '-') directory = argv[i];
        else only = "";
    }
    if (only && strcmp(only, "cpu") && strcmp(only, "reference")) {
        fprintf(stderr, "usage: test_onnx [DIR] [--device cpu|reference]\n");
        return 2;
    }
    if (!directory || !*directory) {
        printf("SKIP: no directory of ONNX node tests: give it as an argument or in ATTN_ONNX_DIR\n");
        return 77;
    }
    int count = list_cases(directory, &names);
    if (count <= 0) { /* a wrong name must not look like a test that was left out */
        printf("FAIL: %s %s\n", directory, count < 0 ? "cannot be read" : "holds no folder test_*");
        return 1;
    }
    for (int d = 0; d < 2; d++) {
        attn_config config = ATTN_CONFIG_INIT;
        config.backend = (int32_t)backends[d];
        if (only && strcmp(only, devices[d])) continue;
        if (attn_create(&config, &contexts[d]) != ATTN_OK) {
            printf("FAIL: no context on %s: %s\n", devices[d], attn_last_error());
            failed++;
        }
    }
    for (int i = 0; i < count; i++) {
        run_case(directory, names[i], contexts, devices);
        free(names[i]);
    }
    free(names);
    for (int d = 0; d < 2; d++) attn_destroy(contexts[d]);
    printf("%d cases, each on %s; largest errors %.2g (F32, %.0e allowed) and %.2g (F16, %.0e allowed)\n", count,
           only ? only : "cpu and reference", worst[0], TOLERANCE_F32, worst[1], TOLERANCE_F16);
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed != 0;
}
