/* SPDX-License-Identifier: Apache-2.0
 * The number of cores follows the cpu set of the process. */
#include "unit.h"

#include "internal.h"

#include <sched.h>

static void plausible(void **state)
{
    (void)state;
    attn_host host = attn_cpu_host();
    assert_true(host.cores >= 1);
    assert_true(host.cores <= CPU_SETSIZE);
    assert_true(host.memory_bytes > (uint64_t)16 << 20);
    assert_true(host.numa_nodes >= 1);
    assert_true(host.l2_bytes >= (size_t)16 << 10 && host.l2_bytes <= (size_t)1 << 30);
    assert_true(host.name[0] != '\0');
    attn_device_info info = {.struct_size = sizeof info};
    assert_int_equal(attn_device_get(0, &info), ATTN_OK);
    assert_string_equal(info.driver, "");
    assert_int_equal(info.units, host.cores);
    assert_true(info.memory_bytes == host.memory_bytes);
    assert_string_equal(info.name, host.name);
}

/* Bound to each processor in turn it is one core; afterwards the former number again. */
static void follows_the_cpu_set(void **state)
{
    (void)state;
    cpu_set_t all, one;
    int32_t cores = attn_cpu_host().cores;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all)) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        if (sched_setaffinity(0, sizeof one, &one) != 0) {
            printf("SKIP: test_topology: sched_setaffinity is not permitted\n");
            skip();
        }
        assert_int_equal(attn_cpu_host().cores, 1);
        attn_context *ctx;
        assert_int_equal(attn_create(NULL, &ctx), ATTN_OK);
        assert_int_equal(ctx->threads, 1);
        attn_destroy(ctx);
    }
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    assert_int_equal(attn_cpu_host().cores, cores);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plausible),
        cmocka_unit_test(follows_the_cpu_set),
    };
    return cmocka_run_group_tests_name("topology", tests, NULL, NULL);
}
