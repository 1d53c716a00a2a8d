/* SPDX-License-Identifier: Apache-2.0
 * Shuffles, barriers, matrices and copies do what they say, in whatever order threads run; Philox as the host has
 * it. */
#include "emulator_test.h"

#include "common/philox.h"

static uint32_t in[1280], out[1024];

static unsigned shared_bytes = 1024;

static void run(const char *kernel, unsigned blocks, unsigned threads, int count)
{
    uint64_t seed = 11;
    for (int i = 0; i < 1280; i++) in[i] = (uint32_t)unit_between(&seed, 0, 1 << 20); /* exact as float */
    const CUdeviceptr din = test_upload(in, sizeof in), dout = test_allocate(sizeof out);
    test_words(kernel, blocks, threads, shared_bytes, NULL, din, dout, count);
    test_download(out, dout, sizeof out);
}

static void shuffles(void)
{
    run("probe_shuffle_xor", 1, 128, 0);
    for (unsigned i = 0; i < 128; i++) {
        uint32_t sum = 0;
        for (unsigned mask = 1; mask < 32; mask++) sum = 3 * sum + in[i ^ mask];
        assert_int_equal(out[i], sum);
    }
    run("probe_shuffle_from", 1, 128, 17);
    for (unsigned i = 0; i < 128; i++)
        assert_int_equal(out[i], in[(i & ~31u) | ((5 * i + 3) & 31)] - in[(i & ~31u) | 17]);
}

static void barriers(void)
{
    const unsigned blocks = 4, steps = 19;
    run("probe_barrier", blocks, 256, (int)steps);
    for (unsigned block = 0; block < blocks; block++)
        for (unsigned i = 0; i < 256; i++)
            assert_int_equal(out[256 * block + i], in[256 * block + (i + 256 - steps) % 256] + blocks);
    run("probe_warp_barrier", 1, 64, 0);
    for (unsigned i = 0; i < 64; i++) assert_int_equal(out[i], in[i ^ 31]);
}

/* Element of the 16-bit floats in 64-thread probe_load_matrices; rows are `words` apart. */
static unsigned element(unsigned warp, unsigned matrix, unsigned row, unsigned column, unsigned words)
{
    const uint32_t word = in[(32 * warp + 8 * matrix + row) * words + column / 2];
    return column % 2 != 0 ? word >> 16 : word & 0xffff;
}

static void matrices(void)
{
    for (unsigned words = 4; words <= 20; words += 4) { /* apart */
        shared_bytes = 64 * 4 * words;
        run("probe_load_matrices", 1, 64, (int)words);
        for (unsigned i = 0; i < 64; i++)
            for (unsigned m = 0; m < 4; m++) {
                const unsigned w = i / 32, group = i % 32 / 4, k = 2 * (i % 4);
                const unsigned low = element(w, m, group, k, words), high = element(w, m, group, k + 1, words);
                assert_int_equal(out[8 * i + m], low | high << 16);
                const unsigned first = element(w, m, k, group, words), second = element(w, m, k + 1, group, words);
                assert_int_equal(out[8 * i + 4 + m], first | second << 16);
            }
    }
    shared_bytes = 1024;
}

static void copies(void)
{
    const uint32_t zeros[4] = {0};
    shared_bytes = 40 * 32 * 16;
    run("probe_copy_async", 1, 128, 19);
    for (unsigned i = 0; i < 128; i++) {
        const unsigned from = i ^ 33;
        assert_memory_equal(out + 4 * i, from < 128 - 19 ? in + 4 * from : zeros, 16);
    }
    run("probe_many_copies", 1, 32, 0);
    for (unsigned i = 0; i < 32; i++) {
        uint32_t sum = 0;
        for (unsigned j = 0; j < 40; j++) sum += in[4 * (i + j)];
        assert_int_equal(out[i], sum);
    }
    shared_bytes = 1024;
    run("probe_copy_groups", 1, 32, 0);
    for (unsigned i = 0; i < 32; i++) {
        uint32_t sum = in[i];
        if (i % 2 == 0) sum += 3 * in[32 + 2 * i] + 5 * in[33 + 2 * i];
        for (unsigned j = 0; j < 4; j++) sum += (7 + j) * in[96 + 4 * i + j];
        assert_int_equal(out[i], sum);
    }
}

static void transposes(void)
{
    run("probe_transpose", 1, 64, 0);
    for (unsigned i = 0; i < 64; i++) {
        const unsigned row = i % 32 / 4, column = 2 * (i % 4), matrix = i & ~31u;
        uint32_t word = 0;
        for (unsigned n = 0; n < 2; n++) /* element (column + n, row) of what went in */
            word |= (in[matrix + 4 * (column + n) + row / 2] >> 16 * (row % 2) & 0xffff) << 16 * n;
        assert_int_equal(out[i], word);
    }
}

static void in_order(void **state)
{
    (void)state;
    shuffles();
    barriers();
    matrices();
    transposes();
    copies();
}

static void in_any_order(void **state)
{
    (void)state;
    for (int seed = 1; seed < 6; seed++) {
        char text[16];
        snprintf(text, sizeof text, "%d", seed);
        driver.set("seed", text);
        shuffles();
        barriers();
        matrices();
        transposes();
        copies();
    }
    driver.set("seed", "0");
}

static void on_threads(void **state)
{
    (void)state;
    driver.set("threads", "1");
    barriers();
    driver.set("threads", "3");
    barriers();
    driver.set("threads", "0");
}

/* Warps of the launch counted, and what it did. */
static void counts(void **state)
{
    (void)state;
    struct emulator_counts before, after;
    test_function("probe_barrier");
    driver.count(&before);
    run("probe_barrier", 2, 256, 5);
    run("probe_shuffle_xor", 1, 128, 0);
    driver.count(&after);
    assert_int_equal(after.launches - before.launches, 2);
    assert_int_equal(after.block_barriers - before.block_barriers, 2 * 2 * 5);
    assert_int_equal(after.shuffles - before.shuffles, 4 * 31);
    /* How many the compiler leaves is its business, but each thread of the first loads and stores shared memory. */
    const uint64_t accesses = after.accesses - before.accesses;
    if (driver.checked()) assert_true(accesses >= 512 * 2 * 5);
    else assert_int_equal(accesses, 0);
}

/* Rounded once, to nearest even; subnormals and overflow as halves have them. */
static void halves(void **state)
{
    (void)state;
    /* a, b, a * b, a + b: what IEEE 754 says. */
    static const uint32_t known[][4] = {
        {0x3c00, 0x4000, 0x4000, 0x4200}, /* 1 and 2 */
        {0x3555, 0x4200, 0x3c00, 0x42ab}, /* 0.33325 and 3: 0.99976 lies between two, the even one is 1; 3.33325 */
        {0x0001, 0x3800, 0x0000, 0x3800}, /* 2^-24 and 0.5: half of the least goes to even */
        {0x0003, 0x3800, 0x0002, 0x3800}, /* 3 * 2^-24: 1.5 of the least goes to 2 */
        {0x7bff, 0x4000, 0x7c00, 0x7bff}, /* 65504 and 2: the product is too large */
        {0x6480, 0xe480, 0xfc00, 0x0000}, /* 1152 and -1152 */
        {0x6801, 0x3800, 0x6401, 0x6801}, /* 2050 and 0.5: the sum lies nearer to 2050 */
        {0x8400, 0x0400, 0x8000, 0x0000}, /* -2^-14 and 2^-14 */
    };
    enum { KNOWN = sizeof known / sizeof *known };
    uint32_t pairs[64] = {0}, got[96];
    for (unsigned n = 0; n < KNOWN; n++) {
        pairs[n] = known[n][0] | known[KNOWN - 1 - n][0] << 16;
        pairs[32 + n] = known[n][1] | known[KNOWN - 1 - n][1] << 16;
    }
    const CUdeviceptr din = test_upload(pairs, sizeof pairs), dout = test_allocate(sizeof got);
    test_words("probe_halves", 1, 32, 1024, NULL, din, dout, 0x5140);
    test_download(got, dout, sizeof got);
    for (unsigned n = 0; n < KNOWN; n++) {
        const unsigned m = KNOWN - 1 - n;
        assert_int_equal(got[3 * n], known[n][2] | known[m][2] << 16);
        assert_int_equal(got[3 * n + 1], known[n][3] | known[m][3] << 16);
        const uint32_t a = pairs[n], b = pairs[32 + n];
        assert_int_equal(got[3 * n + 2], (a & 0xff) | (b & 0xff) << 8 | (a & 0xff00) << 8 | (b & 0xff00) << 16);
    }
}

static void philox(void **state)
{
    (void)state;
    run("probe_philox", 1, 32, 0);
    for (unsigned i = 0; i < 32; i++) {
        const attn_philox r = attn_philox_4x32_10(i, 1, 2, 3, 0x123456789abcdefu);
        assert_memory_equal(out + 4 * i, r.word, sizeof r.word);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(in_order, test_begin, test_end),
        cmocka_unit_test_setup_teardown(in_any_order, test_begin, test_end),
        cmocka_unit_test_setup_teardown(on_threads, test_begin, test_end),
        cmocka_unit_test_setup_teardown(counts, test_begin, test_end),
        cmocka_unit_test_setup_teardown(halves, test_begin, test_end),
        cmocka_unit_test_setup_teardown(philox, test_begin, test_end),
    };
    test_open(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
