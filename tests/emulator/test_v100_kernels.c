/* SPDX-License-Identifier: Apache-2.0
 * Which kernel serves what, by itself and when it is forced: every feature times head size times type of v100_kernels.inc
 * on a GPU that poses as a V100, or, where EMULATOR_CAPABILITY says so, as another. Nothing runs; plans are asked for. */
#include "calls_test.h"

enum { B = 2, HQ = 4, HKV = 2, SQ = 40, SK = 200, POOL = 400, AREA = 8 << 20, FAILURES_SHOWN = 10 };

struct row {
    attn_problem p;
    int64_t d, dv;
    int32_t kv_type;
    int odd_stride, unaligned, bshd, v_in_k;
    char *q, *k, *v, *out, *lse, *bias; /* areas of a GPU's memory */
    float *floats, *scale;
    int32_t *words;
};

static attn_dtype query_type(int32_t kv) { return kv == ATTN_F32 || kv == ATTN_BF16 ? (attn_dtype)kv : ATTN_F16; }

static void reshape(struct row *r, int64_t hq, int64_t hkv, int64_t sq, int64_t sk)
{
    const attn_dtype type = query_type(r->kv_type), kv = (attn_dtype)r->kv_type;
    r->p.q = attn_bhsd(r->q, type, B, hq, sq, r->d);
    r->p.out = attn_bhsd(r->out, type, B, hq, sq, r->dv);
    r->p.k = attn_bhsd(r->k, kv, B, hkv, sk, r->d);
    r->p.v = attn_bhsd(r->v, kv, B, hkv, sk, r->dv);
}

static void pages(struct row *r, int64_t size)
{
    r->p.k = attn_bhsd(r->k, (attn_dtype)r->kv_type, POOL / size, r->p.k.shape[1], size, r->d);
    r->p.v = attn_bhsd(r->v, (attn_dtype)r->kv_type, POOL / size, r->p.v.shape[1], size, r->dv);
    r->p.page_table = r->words;
    r->p.page_table_pages = (SK + size - 1) / size;
    r->p.kv_len.used = r->words;
}

static void pack(struct row *r, int64_t max)
{
    r->p.q.shape[0] = r->p.out.shape[0] = r->p.k.shape[0] = r->p.v.shape[0] = 1;
    r->p.q_len = r->p.kv_len = (attn_lengths){.offsets = r->words, .count = B, .max = max};
}

/* What a feature says of all tensors: rows further apart by one element, an address between two alignments, the other
 * order, V within K. */
static void lay_out(struct row *r)
{
    attn_tensor *const tensors[] = {&r->p.q, &r->p.k, &r->p.v, &r->p.out};
    for (int n = 0; n < 4; n++) {
        attn_tensor *t = tensors[n];
        if (r->bshd) *t = attn_bshd(t->data, (attn_dtype)t->dtype, t->shape[0], t->shape[1], t->shape[2], t->shape[3]);
        if (r->odd_stride) {
            t->stride[2] = t->shape[3] + 1;
            t->stride[1] = t->stride[2] * t->shape[2] + 1;
            t->stride[0] = t->stride[1] * t->shape[1];
        }
        if (r->unaligned) t->data = (char *)t->data + attn_dtype_bytes((attn_dtype)t->dtype, 1);
        if (t->dtype == ATTN_I8) t->scale = r->scale;
    }
    if (r->v_in_k) {
        r->p.v = r->p.k;
        r->p.v.shape[3] = r->dv;
    }
}

#define NONE(...)
#define DEFINE(name, all, ...) \
  static void feature_##name(struct row *r) { __VA_ARGS__; }
#define ROW(name, all, ...) {#name, all, feature_##name},
#define SIZE_ROW(d, dv, kernel) {d, dv, kernel},
#define TYPE_ROW(name, type, block, suffix) {#name, type, block, suffix},

#define FEATURE DEFINE
#define SIZE NONE
#define TYPE NONE
#include "v100_kernels.inc"
#undef FEATURE

#define FEATURE ROW
static const struct {
    const char *name;
    int all;
    void (*apply)(struct row *r);
} features[] = {
#include "v100_kernels.inc"
};
#undef FEATURE
#undef SIZE

#define FEATURE NONE
#define SIZE SIZE_ROW
static const struct {
    int64_t d, dv;
    const char *kernel;
} sizes[] = {
#include "v100_kernels.inc"
};
#undef SIZE
#undef TYPE

#define SIZE NONE
#define TYPE TYPE_ROW
static const struct {
    const char *name;
    int32_t kv;
    int64_t block;
    const char *suffix; /* of the kernels on tensor cores; NULL: there are none */
} types[] = {
#include "v100_kernels.inc"
};

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* ---- the rows ------------------------------------------------------------------------------------------------------ */

static char *memory; /* of device 1 */
/* The families of tensor cores that is made for what the device poses as, and that is forced: an sm_75 has not the memory for sm70. */
static const char *native, *native_arch, *forced;
static attn_context *of_gpu;

static struct row row_of(int feature, int size, int type)
{
    struct row r = {.p = ATTN_PROBLEM_INIT, .d = sizes[size].d, .dv = sizes[size].dv, .kv_type = types[type].kv};
    char **const areas[] = {&r.q, &r.k, &r.v, &r.out, &r.lse, &r.bias};
    for (int n = 0; n < COUNT(areas); n++) *areas[n] = memory + (size_t)n * AREA;
    r.floats = (float *)(void *)(memory + 6 * (size_t)AREA);
    r.scale = (float *)(void *)(memory + 7 * (size_t)AREA);
    r.words = (int32_t *)(void *)(memory + 8 * (size_t)AREA);
    reshape(&r, HQ, HKV, SQ, SK);
    features[feature].apply(&r);
    lay_out(&r);
    return r;
}

/* Rows of blocks have no odd strides and no addresses within a block; head sizes are whole blocks. */
static int exists(const struct row *r, int type)
{
    const int64_t block = types[type].block;
    if (r->v_in_k && r->dv > r->d) return 0;
    return block == 1 || (r->d % block == 0 && r->dv % block == 0 && !r->odd_stride && !r->unaligned);
}

/* Head sizes of the kernels for few queries, which have one body. */
static int64_t few_size(const char *family, int64_t d, int64_t dv)
{
    static const int64_t each[] = {64, 128, 256};
    const int count = strcmp(family, "sm75") ? 3 : 2;
    for (int n = 0; n < count; n++)
        if (d <= each[n] && dv <= each[n]) return each[n];
    return 0;
}

/* Where warps share rows, sm70 has a kernel for f16 alone, and sm75 none; sm75 has no bf16. */
static void expected_kernel(int feature, int size, int type, const char *family, char *label, size_t bytes)
{
    const char *kernel = sizes[size].kernel, *suffix = types[type].suffix, *all = features[feature].all ? "_all" : "";
    const int volta = !strcmp(family, "sm70"), turing = !strcmp(family, "sm75"), newer = !strcmp(family, "sm80");
    const char *shape = strstr(kernel, "_d");
    const struct row r = row_of(feature, size, type);
    const int64_t few = r.p.q.shape[2] == 1 ? few_size(family, sizes[size].d, sizes[size].dv) : 0;
    const int decodes = few && strcmp(family, "simt");
    const int bulk =
        newer && few > 64 && !strcmp(native_arch, "sm_90"); /* whose kernel of 128 columns has 4 rows too */
    if (decodes && (types[type].kv == ATTN_I8 || types[type].kv == ATTN_Q8_0))
        snprintf(label, bytes, "forward_%s_stored8_d%d%s", family, (int)few,
                 types[type].kv == ATTN_Q8_0 && !turing ? "_q8_0" : "");
    else if (!strcmp(family, "simt") || !suffix || !shape ||
             (!newer && (!volta || *suffix) && !strcmp(shape, "_d576_512")) || (turing && *suffix))
        snprintf(label, bytes, "forward_simt");
    else if (few && (newer || !*suffix))
        snprintf(label, bytes, "forward_%s_%s_d%d%s", family,
                 !bulk        ? "few8"
                 : few == 128 ? "bulk4"
                              : "bulk8",
                 (int)few, newer && !*suffix ? "_f16" : suffix);
    else snprintf(label, bytes, "forward_%s%s%s%s", family, shape, newer && !*suffix ? "_f16" : suffix, all);
}

/* Asks for every row's plan; returns how many there are. family: whose kernels are to be found where they serve a row. */
static int expect_table(attn_context *ctx, const char *family)
{
    int rows = 0, failures = 0;
    for (int f = 0; f < COUNT(features); f++)
        for (int s = 0; s < COUNT(sizes); s++)
            for (int t = 0; t < COUNT(types); t++) {
                const struct row r = row_of(f, s, t);
                attn_plan plan = ATTN_PLAN_INIT;
                char label[64];
                if (!exists(&r, t)) continue;
                rows++;
                expected_kernel(f, s, t, family, label, sizeof label);
                const char *isa = strcmp(label, "forward_simt") ? family : "simt";
                const attn_status status = attn_query(ctx, ATTN_OP_FORWARD, &r.p, NULL, NULL, &plan);
                if (status == ATTN_OK && !strcmp(plan.kernel, label) && !strcmp(plan.isa, isa) && !plan.staged &&
                    plan.backend == ATTN_BACKEND_CUDA)
                    continue;
                if (failures++ < FAILURES_SHOWN)
                    printf("%s, head size %d and %d, %s: %s (isa %s, staged %d, %s), expected %s\n", features[f].name,
                           (int)r.d, (int)r.dv, types[t].name, plan.kernel, plan.isa, (int)plan.staged,
                           status == ATTN_OK ? "ok" : attn_last_error(), label);
            }
    if (failures) fail_msg("%d of %d rows have another kernel", failures, rows);
    return rows;
}

static void rows_are_served(void **state)
{
    (void)state;
    const int rows = expect_table(of_gpu, native);
    assert_int_equal(COUNT(features), 32);
    assert_int_equal(COUNT(sizes), 20);
    /* 32 features by 20 sizes by 4 types; q8_0 has 12 sizes and 2 features less. */
    assert_int_equal(rows, 32 * 20 * 4 + 30 * 12);
}

/* In a context for all devices the tensors' memory decides where, and the kernel is the same. */
static void rows_are_served_by_their_memory(void **state)
{
    (void)state;
    attn_context *ctx = calls_context(ATTN_BACKEND_AUTO, 0, NULL);
    expect_table(ctx, native);
    attn_destroy(ctx);
}

/* isa=sm70 takes those tensor cores on any GPU that has the code and the memory, and simt for what they do not serve. */
static void family_is_forced(void **state)
{
    (void)state;
    char text[64];
    snprintf(text, sizeof text, "isa=%s", forced);
    attn_context *ctx = calls_context(ATTN_BACKEND_CUDA, 0, text);
    expect_table(ctx, forced);
    attn_destroy(ctx);
    ctx = calls_context(ATTN_BACKEND_CUDA, 0, "isa=simt");
    expect_table(ctx, "simt");
    attn_destroy(ctx);
}

/* kernel=forward_<family> takes them too, and refuses the rest, saying why. */
static void kernel_is_forced(void **state)
{
    (void)state;
    char text[64];
    snprintf(text, sizeof text, "kernel=forward_%s", forced);
    attn_context *ctx = calls_context(ATTN_BACKEND_CUDA, 0, text);
    for (int f = 0; f < COUNT(features); f++)
        for (int s = 0; s < COUNT(sizes); s++)
            for (int t = 0; t < COUNT(types); t++) {
                const struct row r = row_of(f, s, t);
                attn_plan plan = ATTN_PLAN_INIT;
                char label[64];
                if (!exists(&r, t)) continue;
                expected_kernel(f, s, t, forced, label, sizeof label);
                const attn_status status = attn_query(ctx, ATTN_OP_FORWARD, &r.p, NULL, NULL, &plan);
                if (strcmp(label, "forward_simt")) {
                    calls_succeed(status);
                    assert_string_equal(plan.kernel, label);
                } else {
                    const int takes = types[t].suffix && (!*types[t].suffix || !strcmp(forced, "sm70"));
                    const int stored = types[t].kv == ATTN_I8 || types[t].kv == ATTN_Q8_0;
                    calls_expect(status, ATTN_UNSUPPORTED,
                                 takes || stored ? "its head sizes" : "it takes q, k and v in f16");
                }
            }
    attn_destroy(ctx);
}

/* One by its whole label, where the library would take a smaller one. */
static void label_is_forced(void **state)
{
    (void)state;
    char text[64], label[48];
    snprintf(label, sizeof label, "forward_%s_d128_128", forced);
    snprintf(text, sizeof text, "kernel=%s", label);
    attn_context *ctx = calls_context(ATTN_BACKEND_CUDA, 0, text);
    const struct row r = row_of(0, 0, 0);
    attn_plan plan = ATTN_PLAN_INIT;
    calls_succeed(attn_query(ctx, ATTN_OP_FORWARD, &r.p, NULL, NULL, &plan));
    assert_string_equal(plan.kernel, label);
    assert_string_equal(plan.isa, forced);
    assert_non_null(strstr(plan.reason, "forced"));
    attn_destroy(ctx);
}

/* Packed sequences may have few queries: the plan says who takes these. Not where another kernel's whole label is forced. */
static void few_of_a_batch(void **state)
{
    (void)state;
    char text[64], expected[64];
    struct row r = row_of(0, 3, 0); /* 64 columns, f16 */
    attn_plan plan = ATTN_PLAN_INIT;
    pack(&r, 0);
    snprintf(expected, sizeof expected, "few queries by forward_%s_few%d_d64", native, strcmp(native, "sm80") ? 8 : 16);
    calls_succeed(attn_query(of_gpu, ATTN_OP_FORWARD, &r.p, NULL, NULL, &plan));
    assert_non_null(strstr(plan.reason, expected));
    snprintf(text, sizeof text, "kernel=forward_%s_d64_64", forced);
    attn_context *ctx = calls_context(ATTN_BACKEND_CUDA, 0, text);
    calls_succeed(attn_query(ctx, ATTN_OP_FORWARD, &r.p, NULL, NULL, &plan));
    assert_null(strstr(plan.reason, "few queries"));
    attn_destroy(ctx);
}

static void expect_decode(struct row *r, const char *kernel)
{
    attn_plan plan = ATTN_PLAN_INIT;
    calls_succeed(attn_query(of_gpu, ATTN_OP_FORWARD, &r->p, NULL, NULL, &plan));
    assert_string_equal(plan.kernel, kernel);
}

/* Few queries over K and V of other types, each its own: but not where rows have factors of their own. */
static void few_of_stored_types(void **state)
{
    (void)state;
    static const int32_t kinds[] = {ATTN_Q8_0, ATTN_Q4_0, ATTN_I8, ATTN_F8_E4M3, ATTN_F8_E5M2};
    const int volta = !strcmp(native, "sm70"), newer = !strcmp(native, "sm80");
    char stored[48], same[56], mixed[48];
    snprintf(stored, sizeof stored, "forward_%s_stored8_d128", native);
    snprintf(mixed, sizeof mixed, "forward_%s", volta ? "simt" : newer ? "sm80_mixed8_d128" : "sm75_stored8_d128");
    for (int n = 0; n < COUNT(kinds); n++) {
        struct row r = row_of(0, 8, 0); /* 128 columns, f16 */
        reshape(&r, HQ, HKV, 1, SK);
        r.p.k = attn_bhsd(r.k, (attn_dtype)kinds[n], B, HKV, SK, r.d);
        r.p.v = attn_bhsd(r.v, (attn_dtype)kinds[(n + 1) % COUNT(kinds)], B, HKV, SK, r.dv);
        r.p.k.scale = r.p.k.dtype == ATTN_I8 ? r.scale : NULL;
        r.p.v.scale = r.p.v.dtype == ATTN_I8 ? r.scale : NULL;
        expect_decode(&r, stored);
        attn_tensor *scaled = r.p.k.scale ? &r.p.k : r.p.v.scale ? &r.p.v : NULL;
        if (scaled) {
            scaled->scale_stride[2] = 1;
            expect_decode(&r, "forward_simt");
            scaled->scale_stride[2] = 0, scaled->scale_stride[1] = 1;
            expect_decode(&r, stored);
        }
        r.p.v = attn_bhsd(r.v, (attn_dtype)kinds[n], B, HKV, SK, r.dv);
        r.p.v.scale = r.p.v.dtype == ATTN_I8 ? r.scale : NULL;
        snprintf(same, sizeof same, "%s%s", stored, volta || newer ? (n == 0 ? "_q8_0" : n == 1 ? "_q4_0" : "") : "");
        expect_decode(&r, same);
        r.p.k = attn_bhsd(r.k, ATTN_F16, B, HKV, SK, r.d);
        expect_decode(&r, mixed);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_served),     cmocka_unit_test(rows_are_served_by_their_memory),
        cmocka_unit_test(family_is_forced),    cmocka_unit_test(kernel_is_forced),
        cmocka_unit_test(label_is_forced),     cmocka_unit_test(few_of_a_batch),
        cmocka_unit_test(few_of_stored_types),
    };
    attn_device_info info = {.struct_size = sizeof info};
    void *data;
    calls_open(argc, argv);
    const char *arch = argc > 2 ? argv[2] : "sm_70"; /* what EMULATOR_CAPABILITY is to have brought about */
    if (attn_device_get(1, &info) != ATTN_OK || strcmp(info.arch, arch) != 0) {
        fprintf(stderr, "device 1 is %s, expected %s\n", info.arch, arch);
        return 1;
    }
    forced = !strcmp(arch, "sm_75") ? "sm75" : "sm70";
    native = !strcmp(arch, "sm_70") ? "sm70" : !strcmp(arch, "sm_75") ? "sm75" : "sm80";
    native_arch = arch;
    of_gpu = calls_context(ATTN_BACKEND_CUDA, 0, NULL);
    if (attn_malloc(of_gpu, 1, 9 * (size_t)AREA, &data) != ATTN_OK) return 1;
    memory = data;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    attn_free(of_gpu, data);
    attn_destroy(of_gpu);
    return failed;
}
