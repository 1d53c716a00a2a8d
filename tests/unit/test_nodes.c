/* SPDX-License-Identifier: Apache-2.0
 * NUMA nodes of machines that are only described, whom tasks are dealt to, and that each task of the lists runs once. */
#include "unit.h"

#include "cpu/nodes.h"
#include "cpu/topology.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- nodes of a topology ---------------------------------------------------------------------------------------- */

/* bound: CPUs as hwloc writes lists, "0-3,8"; NULL: all. */
static attn_nodes nodes_of(const char *description, const char *bound)
{
    hwloc_topology_t t;
    attn_nodes nodes;
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    assert_int_equal(hwloc_topology_init(&t), 0);
    assert_int_equal(hwloc_topology_set_synthetic(t, description), 0);
    assert_int_equal(hwloc_topology_load(t), 0);
    if (bound) assert_int_equal(hwloc_bitmap_list_sscanf(set, bound), 0);
    else hwloc_bitmap_copy(set, hwloc_topology_get_topology_cpuset(t));
    attn_cpu_map_nodes(t, set, &nodes);
    hwloc_bitmap_free(set);
    hwloc_topology_destroy(t);
    return nodes;
}

static void even(void **state)
{
    (void)state;
    attn_nodes n = nodes_of("node:2 core:4 pu:2", NULL);
    assert_int_equal(n.count, 2);
    assert_int_equal(n.cores[0], 4);
    assert_int_equal(n.cores[1], 4);
    for (int cpu = 0; cpu < 16; cpu++) assert_int_equal(n.of_cpu[cpu], cpu / 8);
    assert_int_equal(n.of_cpu[16], -1);
    assert_int_equal(n.of_memory[0], 0);
    assert_int_equal(n.of_memory[1], 1);
    assert_int_equal(n.of_memory[2], -1);
    assert_false(n.real);
    n = nodes_of("core:4 pu:2", NULL);
    assert_int_equal(n.count, 1);
    assert_int_equal(n.cores[0], 4);
}

static void by_the_cpu_set(void **state)
{
    (void)state;
    attn_nodes n = nodes_of("node:2 core:4 pu:2", "0-7,11"); /* one thread of one core of the other node */
    assert_int_equal(n.count, 2);
    assert_int_equal(n.cores[0], 4);
    assert_int_equal(n.cores[1], 1);
    n = nodes_of("node:3 core:2 pu:1", "0-1,4-5"); /* the node between is not ours */
    assert_int_equal(n.count, 2);
    assert_int_equal(n.of_cpu[1], 0);
    assert_int_equal(n.of_cpu[2], -1);
    assert_int_equal(n.of_cpu[4], 1);
    assert_int_equal(n.of_memory[0], 0);
    assert_int_equal(n.of_memory[1], -1);
    assert_int_equal(n.of_memory[2], 1);
    assert_int_equal(nodes_of("node:2 core:4 pu:2", "9").count, 1);
}

static void memory_of_other_kinds(void **state)
{
    (void)state;
    /* Two memories for the same cores. */
    attn_nodes n = nodes_of("pack:2 [numa] [numa] core:4 pu:1", NULL);
    assert_int_equal(n.count, 2);
    assert_int_equal(n.cores[1], 4);
    int8_t seen[4];
    for (int memory = 0; memory < 4; memory++) seen[memory] = n.of_memory[memory];
    int of_first = 0;
    for (int memory = 0; memory < 4; memory++) {
        assert_in_range(seen[memory], 0, 1);
        of_first += seen[memory] == 0;
    }
    assert_int_equal(of_first, 2);
    /* And one that has no cores of its own. */
    n = nodes_of("[numa] pack:2 [numa] core:2 pu:1", NULL);
    assert_int_equal(n.count, 2);
    assert_int_equal(n.cores[0] + n.cores[1], 4);
    int unknown = 0;
    for (int memory = 0; memory < 3; memory++) unknown += n.of_memory[memory] == -1;
    assert_int_equal(unknown, 1);
}

/* More than there is room for: as one. */
static void too_many(void **state)
{
    (void)state;
    assert_int_equal(nodes_of("node:64 core:1 pu:1", NULL).count, 64);
    assert_int_equal(nodes_of("node:65 core:1 pu:1", NULL).count, 1);
    assert_int_equal(nodes_of("node:65 core:1 pu:1", "0-63").count, 64);
}

static void cores_in_turn(void **state)
{
    hwloc_topology_t t;
    static cpu_set_t sets[ATTN_MAX_CORES];
    (void)state;
    attn_nodes nodes = nodes_of("node:2 core:3 pu:2", NULL);
    assert_int_equal(hwloc_topology_init(&t), 0);
    assert_int_equal(hwloc_topology_set_synthetic(t, "node:2 core:3 pu:2"), 0);
    assert_int_equal(hwloc_topology_load(t), 0);
    assert_int_equal(attn_cpu_list_cores(t, &nodes, sets), 6);
    for (int n = 0; n < 6; n++) {
        const int first = n % 2 * 6 + n / 2 * 2;
        assert_int_equal(CPU_COUNT(&sets[n]), 2);
        assert_true(CPU_ISSET((size_t)first, &sets[n]) && CPU_ISSET((size_t)first + 1, &sets[n]));
    }
    hwloc_topology_destroy(t);
}

/* ---- dealing ---------------------------------------------------------------------------------------------------- */

static attn_nodes made(int32_t count, const int32_t *cores)
{
    attn_nodes n = {.count = count};
    for (int32_t k = 0; k < count; k++) n.cores[k] = cores[k];
    return n;
}

static void deals_by_cores(void **state)
{
    (void)state;
    const attn_nodes n = made(2, (const int32_t[]){6, 2});
    attn_cpu_unit unit[8];
    int of_first = 0;
    for (int u = 0; u < 8; u++) unit[u] = (attn_cpu_unit){.work = 5, .node = -1};
    attn_cpu_deal(&n, 8, unit);
    for (int u = 0; u < 8; u++) of_first += unit[u].node == 0;
    assert_int_equal(of_first, 6);
}

static void deals_home(void **state)
{
    (void)state;
    const attn_nodes n = made(2, (const int32_t[]){4, 4});
    attn_cpu_unit unit[9];
    for (int u = 0; u < 8; u++) unit[u] = (attn_cpu_unit){.work = 3, .node = u % 3 != 0};
    /* 0 3 6 at home on 0, five on 1: the last of these is beyond the share. */
    attn_cpu_deal(&n, 8, unit);
    for (int u = 0; u < 8; u++) assert_int_equal(unit[u].node, u == 7 ? 0 : u % 3 != 0);
    /* All of it in one node's memory: half each. */
    for (int u = 0; u < 8; u++) unit[u] = (attn_cpu_unit){.work = 3, .node = 1};
    attn_cpu_deal(&n, 8, unit);
    for (int u = 0; u < 8; u++) assert_int_equal(unit[u].node, u < 4);
    /* A lone unit is beyond any share, and yet at home. */
    unit[0] = (attn_cpu_unit){.work = 3, .node = 1};
    attn_cpu_deal(&n, 1, unit);
    assert_int_equal(unit[0].node, 1);
}

static void deals_anything(void **state)
{
    uint64_t random = 5;
    (void)state;
    for (int round = 0; round < 500; round++) {
        attn_nodes n = {.count = (int32_t)unit_between(&random, 1, 9)};
        attn_cpu_unit unit[64], again[64];
        const int units = (int)unit_between(&random, 0, 64);
        double load[9] = {0}, work = 0, cores = 0, most = 0, least = 1e9;
        for (int32_t k = 0; k < n.count; k++) {
            n.cores[k] = (int32_t)unit_between(&random, 1, 32);
            cores += n.cores[k];
            if (n.cores[k] < least) least = n.cores[k];
        }
        for (int u = 0; u < units; u++) {
            unit[u] = (attn_cpu_unit){.work = unit_between(&random, 0, 1000)};
            unit[u].node = (int32_t)unit_between(&random, -1, n.count - 1);
            again[u] = unit[u];
            work += (double)unit[u].work;
            if ((double)unit[u].work > most) most = (double)unit[u].work;
        }
        attn_cpu_deal(&n, units, unit);
        attn_cpu_deal(&n, units, again);
        for (int u = 0; u < units; u++) {
            assert_in_range(unit[u].node, 0, n.count - 1);
            assert_int_equal(unit[u].node, again[u].node);
            load[unit[u].node] += (double)unit[u].work;
        }
        for (int32_t k = 0; k < n.count; k++)
            assert_true(load[k] / n.cores[k] <= (work / cores + most / least) * (1 + 1e-12));
    }
}

/* ---- taking ----------------------------------------------------------------------------------------------------- */

enum { MOST_TASKS = 600 };

typedef struct tally {
    atomic_int runs[MOST_TASKS];
    atomic_int wrong;
    int32_t threads;
} tally;

static void count(void *arg, int64_t task, int32_t thread)
{
    tally *t = arg;
    if (task < 0 || task >= MOST_TASKS || thread < 0 || thread >= t->threads) atomic_fetch_add(&t->wrong, 1);
    else atomic_fetch_add(&t->runs[task], 1);
}

static int each_once(const attn_nodes *nodes, const int64_t *end, int32_t threads)
{
    static _Thread_local tally t;
    attn_cpu_lists lists = {.nodes = nodes, .body = count, .arg = &t};
    memset(&t, 0, sizeof t);
    t.threads = threads;
    memcpy(lists.end, end, (size_t)nodes->count * sizeof *end);
    attn_cpu_parallel_lists(NULL, threads, &lists);
    int good = t.wrong == 0;
    for (int64_t n = 0; n < MOST_TASKS; n++) good = good && t.runs[n] == (n < end[nodes->count - 1]);
    return good;
}

/* Lists of all kinds, threads on all nodes, on one, and on CPUs that nobody knows. */
static int all_lists(void)
{
    static const int64_t ends[][4] = {{3, 3, 3, 3}, {0, 0, 0, 0}, {0, 1, 1, 2}, {0, 0, 0, 600}, {150, 300, 450, 600}};
    static const int32_t teams[] = {1, 2, 3, 7, 32};
    int good = 1;
    for (int place = -1; place < 5; place++) {
        attn_nodes nodes = {.count = 4, .cores = {4, 1, 2, 1}};
        for (int cpu = 0; cpu < ATTN_MAX_CPUS; cpu++) nodes.of_cpu[cpu] = (int8_t)(place < 4 ? place : cpu % 4);
        for (size_t e = 0; e < sizeof ends / sizeof *ends; e++)
            for (size_t k = 0; k < sizeof teams / sizeof *teams; k++)
                good = good && each_once(&nodes, ends[e], teams[k]);
    }
    return good;
}

static void every_task_once(void **state)
{
    (void)state;
    assert_true(all_lists());
    atomic_int bad = 0;
#pragma omp parallel num_threads(3)
    if (!all_lists()) atomic_fetch_add(&bad, 1);
    assert_int_equal(bad, 0);
    attn_cpu_watch_forks();
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        alarm(30);
        _exit(all_lists() ? 0 : 1);
    }
    int status = 1;
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void memory_of_nobody(void **state)
{
    static char somewhere[64];
    (void)state;
    attn_nodes nodes = nodes_of("node:2 core:4 pu:2", NULL);
    void *address[2] = {somewhere, NULL};
    int32_t node[2] = {7, 7};
    attn_cpu_find_memory(&nodes, 2, address, node); /* of a machine that is not there */
    assert_int_equal(node[0], -1);
    assert_int_equal(node[1], -1);
    attn_cpu_nodes(&nodes);
    if (nodes.count > 1) { /* a real one: somewhere, or nobody may ask */
        attn_cpu_find_memory(&nodes, 2, address, node);
        assert_in_range(node[0] + 1, 0, nodes.count);
        assert_int_equal(node[1], -1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(even),
        cmocka_unit_test(by_the_cpu_set),
        cmocka_unit_test(memory_of_other_kinds),
        cmocka_unit_test(too_many),
        cmocka_unit_test(cores_in_turn),
        cmocka_unit_test(deals_by_cores),
        cmocka_unit_test(deals_home),
        cmocka_unit_test(deals_anything),
        cmocka_unit_test(every_task_once),
        cmocka_unit_test(memory_of_nobody),
    };
    return cmocka_run_group_tests_name("nodes", tests, NULL, NULL);
}
