/* SPDX-License-Identifier: Apache-2.0
 * The settings of the environment, with which CMakeLists.txt starts this program: EMULATOR_CAPABILITY=7.5,
 * EMULATOR_DEVICES=3, EMULATOR_MEMORY=5000, EMULATOR_MULTIPROCESSORS=6, EMULATOR_FAIL=cuDeviceGetCount:2:101. */
#include "emulator_test.h"

static void as_the_environment_says(void **state)
{
    char name[64];
    int count, multiprocessors;
    size_t bytes;
    (void)state;
    assert_success(driver.device_count(&count));
    assert_int_equal(count, 3);
    assert_int_equal(driver.device_count(&count), CUDA_ERROR_INVALID_DEVICE);
    assert_success(driver.device_count(&count));
    assert_success(driver.device_name(name, sizeof name, 2));
    assert_string_equal(name, "emulated sm_75");
    assert_success(driver.device_memory(&bytes, 2));
    assert_int_equal(bytes, 5000);
    assert_success(driver.device_attribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 2));
    assert_int_equal(multiprocessors, 6);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_the_environment_says)};
    test_open(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
