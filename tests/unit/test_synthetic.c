/* SPDX-License-Identifier: Apache-2.0
 * What is made of a machine that hwloc only describes: two NUMA nodes, each with two L2 caches of two cores. */
#include "unit.h"

#include "internal.h"

#include <stdlib.h>

static void shared_caches_and_nodes(void **state)
{
    (void)state;
    assert_int_equal(setenv("HWLOC_SYNTHETIC", "node:2 l2:2(size=2097152) core:2 pu:2", 1), 0);
    attn_host host = attn_cpu_host();
    assert_int_equal(host.numa_nodes, 2);
    assert_int_equal(host.l2_bytes, 1 << 20); /* a core's share */
    assert_int_equal(host.cores, 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(shared_caches_and_nodes)};
    return cmocka_run_group_tests_name("synthetic", tests, NULL, NULL);
}
