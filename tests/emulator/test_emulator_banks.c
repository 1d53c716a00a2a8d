/* SPDX-License-Identifier: Apache-2.0
 * Bank conflicts of patterns whose counts can be worked out: 32 banks of 4 bytes; 8-byte accesses go by half warps,
 * 16-byte ones by quarters. */
#include "emulator_test.h"

enum { CAPACITY = 16 };

static struct emulator_bank_line lines[CAPACITY];
static size_t count;

static void run(const char *kernel, int stride)
{
    const CUdeviceptr out = test_allocate(128);
    driver.banks(NULL, 0); /* forgets those before */
    test_words(kernel, 1, 32, 4096 + 16, NULL, 0, out, stride);
    assert_success(driver.stream_synchronize(NULL));
    count = driver.banks(lines, CAPACITY);
    assert_in_range(count, 1, CAPACITY);
}

static const struct emulator_bank_line *find(int is_write)
{
    const struct emulator_bank_line *found = NULL;
    for (size_t i = 0; i < count; i++)
        if (lines[i].is_write == is_write) {
            assert_null(found);
            found = &lines[i];
        }
    assert_non_null(found);
    assert_non_null(strstr(found->place, "emulator_banks.cu:"));
    return found;
}

static void check(const char *kernel, int bytes, int stride, unsigned wavefronts, unsigned ideal)
{
    run(kernel, stride);
    const struct emulator_bank_line *read = find(0), *write = find(1);
    assert_int_equal(read->bytes, bytes);
    assert_int_equal(read->instructions, 1);
    assert_int_equal(read->wavefronts, wavefronts);
    assert_int_equal(read->ideal, ideal);
    /* The kernel fills 32 words a lane, at stride 1. */
    assert_int_equal(write->bytes, 4);
    assert_int_equal(write->instructions, 32);
    assert_int_equal(write->wavefronts, 32);
    assert_int_equal(write->ideal, 32);
}

static void words(void **state)
{
    (void)state;
    check("banks_stride", 4, 1, 1, 1);
    check("banks_stride", 4, 0, 1, 1); /* one word for all */
    check("banks_stride", 4, 2, 2, 1);
    check("banks_stride", 4, 4, 4, 1);
    check("banks_stride", 4, 8, 8, 1);
    check("banks_stride", 4, 16, 16, 1);
    check("banks_stride", 4, 32, 32, 1);
    check("banks_stride", 4, 33, 1, 1); /* as padded rows */
    check("banks_stride", 4, 36, 4, 1);
}

static void pairs(void **state)
{
    (void)state;
    check("banks_stride_8", 8, 2, 2, 2);
    check("banks_stride_8", 8, 4, 4, 2);
    check("banks_stride_8", 8, 0, 2, 2);
    check("banks_stride_8", 8, 32, 32, 2);
    check("banks_stride_8", 8, 34, 2, 2); /* rows of 64 halves, padded by 4 */
}

static void quadruples(void **state)
{
    (void)state;
    check("banks_stride_16", 16, 4, 4, 4);
    check("banks_stride_16", 16, 8, 8, 4);
    check("banks_stride_16", 16, 32, 32, 4);
    check("banks_stride_16", 16, 36, 4, 4); /* rows of 64 halves, padded by 8 */
}

/* Each of the four matrices is a wavefront of its own, as a quarter of a 16-byte load is. */
static void matrices(void **state)
{
    (void)state;
    check("banks_matrices", 16, 4, 4, 4);
    check("banks_matrices", 16, 8, 8, 4);
    check("banks_matrices", 16, 32, 32, 4);
    check("banks_matrices", 16, 36, 4, 4);
}

/* Once, as the store of 16 bytes that they end in. */
static void copies(void **state)
{
    (void)state;
    static const struct {
        int stride;
        unsigned wavefronts;
    } cases[] = {{4, 4}, {8, 8}, {32, 32}, {36, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        run("banks_copies", cases[i].stride);
        const struct emulator_bank_line *write = find(1);
        assert_int_equal(count, 1);
        assert_int_equal(write->bytes, 16);
        assert_int_equal(write->instructions, 1);
        assert_int_equal(write->wavefronts, cases[i].wavefronts);
        assert_int_equal(write->ideal, 4);
    }
}

/* Off by default. */
static void counted_on_demand(void **state)
{
    (void)state;
    const CUdeviceptr out = test_allocate(128);
    driver.banks(NULL, 0);
    driver.set("banks", "0");
    test_words("banks_stride", 1, 32, 4096, NULL, 0, out, 2);
    assert_success(driver.stream_synchronize(NULL));
    driver.set("banks", "1");
    assert_int_equal(driver.banks(lines, CAPACITY), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(words, test_begin, test_end),
        cmocka_unit_test_setup_teardown(pairs, test_begin, test_end),
        cmocka_unit_test_setup_teardown(quadruples, test_begin, test_end),
        cmocka_unit_test_setup_teardown(matrices, test_begin, test_end),
        cmocka_unit_test_setup_teardown(copies, test_begin, test_end),
        cmocka_unit_test_setup_teardown(counted_on_demand, test_begin, test_end),
    };
    test_open(argc, argv);
    if (!driver.checked()) {
        printf("SKIP: only the checked build counts bank conflicts\n");
        return UNIT_SKIPPED;
    }
    driver.set("banks", "1");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
