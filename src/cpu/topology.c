/* SPDX-License-Identifier: Apache-2.0
 * What hwloc knows of this machine. The topology is loaded once a process and kept: loading takes
 * milliseconds, and Debian's plugin package would otherwise open vendor GPU libraries each time. */
#include "topology.h"
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

enum { DEFAULT_L2 = 512 << 10 }; /* where nobody says */

static pthread_once_t load_once = PTHREAD_ONCE_INIT;
static hwloc_topology_t topology; /* NULL: no /sys, or hwloc failed: the scheduler answers instead */

/* Without it (a chroot or container that lacks /sys) hwloc would find nothing and say so on stderr, which no library
 * of ours may do. */
static bool cpus_are_described(void)
{
    return access("/sys/devices/system/cpu", F_OK) == 0 || access("/sys/bus/cpu/devices", F_OK) == 0;
}

static void load_topology(void)
{
    static const char *const gpu_components[] = {"cuda", "nvml", "opencl", "gl", "rsmi", "levelzero"};
    hwloc_topology_t t;
    if (!cpus_are_described() || hwloc_topology_init(&t) != 0) return;
    for (size_t n = 0; n < sizeof gpu_components / sizeof *gpu_components; n++)
        hwloc_topology_set_components(t, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, gpu_components[n]);
    if (hwloc_topology_load(t) == 0) topology = t;
    else hwloc_topology_destroy(t);
}

/* Physical cores of which this process may use at least one hardware thread. */
static int32_t count_cores(void)
{
    hwloc_bitmap_t bound = hwloc_bitmap_alloc();
    int32_t cores = 0;
    if (bound && hwloc_get_cpubind(topology, bound, HWLOC_CPUBIND_PROCESS) == 0) {
        hwloc_obj_t core = NULL;
        while ((core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) != NULL)
            cores += hwloc_bitmap_intersects(core->cpuset, bound);
        if (cores == 0) cores = hwloc_bitmap_weight(bound); /* no cores described: hardware threads */
    }
    hwloc_bitmap_free(bound);
    return cores;
}

/* The share of one core in the smallest L2 cache: kernels keep their tiles there. */
static size_t share_of_l2(void)
{
    size_t least = 0;
    hwloc_obj_t cache = NULL;
    while ((cache = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_L2CACHE, cache)) != NULL) {
        int cores = hwloc_get_nbobjs_inside_cpuset_by_type(topology, cache->cpuset, HWLOC_OBJ_CORE);
        size_t share = cache->attr->cache.size / (size_t)(cores > 1 ? cores : 1);
        if (share && (!least || share < least)) least = share;
    }
    return least;
}

/* ---- NUMA nodes ------------------------------------------------------------------------------- */

/* Memory beside that of its cores' own nodes, as CXL's at a machine or a package. */
static bool holds_another(hwloc_topology_t t, hwloc_obj_t node)
{
    hwloc_obj_t other = NULL;
    while ((other = hwloc_get_next_obj_by_type(t, HWLOC_OBJ_NUMANODE, other)) != NULL)
        if (!hwloc_bitmap_iszero(other->cpuset) && hwloc_bitmap_isincluded(other->cpuset, node->cpuset) &&
            !hwloc_bitmap_isequal(other->cpuset, node->cpuset))
            return true;
    return false;
}

/* The node of the first of these CPUs that has one; -1: none. */
static int32_t node_of_set(const attn_nodes *nodes, hwloc_const_bitmap_t cpus)
{
    for (int cpu = hwloc_bitmap_first(cpus); cpu >= 0 && cpu < ATTN_MAX_CPUS; cpu = hwloc_bitmap_next(cpus, cpu))
        if (nodes->of_cpu[cpu] >= 0) return nodes->of_cpu[cpu];
    return -1;
}

static void one_node(attn_nodes *nodes) { *nodes = (attn_nodes){.count = 1, .cores = {1}}; }

void attn_cpu_map_nodes(hwloc_topology_t t, hwloc_const_bitmap_t bound, attn_nodes *nodes)
{
    hwloc_obj_t node = NULL, core = NULL;
    *nodes = (attn_nodes){.real = hwloc_topology_is_thissystem(t)};
    memset(nodes->of_cpu, -1, sizeof nodes->of_cpu);
    memset(nodes->of_memory, -1, sizeof nodes->of_memory);
    while ((node = hwloc_get_next_obj_by_type(t, HWLOC_OBJ_NUMANODE, node)) != NULL) {
        if (!hwloc_bitmap_intersects(node->cpuset, bound) || holds_another(t, node)) continue;
        int32_t index = node_of_set(nodes, node->cpuset); /* two kinds of memory of the same cores are one node here */
        if (index < 0) index = nodes->count++;
        if (index == ATTN_MAX_NODES) break;
        for (int cpu = hwloc_bitmap_first(node->cpuset); cpu >= 0 && cpu < ATTN_MAX_CPUS;
             cpu = hwloc_bitmap_next(node->cpuset, cpu))
            nodes->of_cpu[cpu] = (int8_t)index;
        if (node->os_index < ATTN_MAX_MEMORIES) nodes->of_memory[node->os_index] = (int8_t)index;
    }
    while ((core = hwloc_get_next_obj_by_type(t, HWLOC_OBJ_CORE, core)) != NULL)
        if (hwloc_bitmap_intersects(core->cpuset, bound)) {
            const int32_t index = node_of_set(nodes, core->cpuset);
            if (index >= 0) nodes->cores[index]++;
        }
    bool whole = nodes->count >= 1 && nodes->count <= ATTN_MAX_NODES;
    for (int32_t n = 0; whole && n < nodes->count; n++) whole = nodes->cores[n] > 0;
    if (!whole) one_node(nodes); /* more than there is room for, or not described */
}

void attn_cpu_nodes(attn_nodes *nodes)
{
    pthread_once(&load_once, load_topology);
    hwloc_bitmap_t bound = topology ? hwloc_bitmap_alloc() : NULL;
    if (bound && hwloc_get_cpubind(topology, bound, HWLOC_CPUBIND_PROCESS) == 0)
        attn_cpu_map_nodes(topology, bound, nodes);
    else one_node(nodes);
    hwloc_bitmap_free(bound);
}

/* ---- cores ------------------------------------------------------------------------------------ */

int attn_cpu_list_cores(hwloc_topology_t t, const attn_nodes *nodes, cpu_set_t *sets)
{
    hwloc_obj_t core[ATTN_MAX_NODES] = {NULL};
    int count = 0;
    for (bool more = true; more && count < ATTN_MAX_CORES;) {
        more = false;
        for (int32_t n = 0; n < nodes->count && count < ATTN_MAX_CORES; n++) {
            hwloc_obj_t next = core[n];
            do {
                next = hwloc_get_next_obj_by_type(t, HWLOC_OBJ_CORE, next);
            } while (next && nodes->count > 1 && node_of_set(nodes, next->cpuset) != n);
            if (!next) continue;
            core[n] = next;
            more = true;
            CPU_ZERO(&sets[count]);
            for (int cpu = hwloc_bitmap_first(next->cpuset); cpu >= 0 && cpu < CPU_SETSIZE;
                 cpu = hwloc_bitmap_next(next->cpuset, cpu))
                CPU_SET((size_t)cpu, &sets[count]);
            count++;
        }
    }
    return count;
}

static pthread_once_t cores_once = PTHREAD_ONCE_INIT;
static cpu_set_t core_set[ATTN_MAX_CORES];
static int core_count;

/* Of the whole machine, whose cpu set may change: each thread knows which of them it may use. */
static void list_cores(void)
{
    attn_nodes all;
    pthread_once(&load_once, load_topology);
    if (!topology) return;
    attn_cpu_map_nodes(topology, hwloc_topology_get_topology_cpuset(topology), &all);
    core_count = attn_cpu_list_cores(topology, &all, core_set);
}

int attn_cpu_core_sets(const cpu_set_t **sets)
{
    pthread_once(&cores_once, list_cores);
    *sets = core_set;
    return core_count;
}

attn_host attn_cpu_host(void)
{
    attn_host host = {0};
    pthread_once(&load_once, load_topology);
    const char *model = NULL;
    if (topology) {
        host.cores = count_cores();
        host.l2_bytes = share_of_l2();
        host.numa_nodes = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE);
        host.memory_bytes = hwloc_get_root_obj(topology)->total_memory;
        hwloc_obj_t package = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_PACKAGE, NULL);
        model = package ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;
    }
    cpu_set_t allowed;
    if (host.cores < 1 && sched_getaffinity(0, sizeof allowed, &allowed) == 0) host.cores = CPU_COUNT(&allowed);
    if (host.cores < 1) host.cores = (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
    if (host.cores < 1) host.cores = 1;
    if (host.memory_bytes == 0) host.memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (host.l2_bytes == 0) host.l2_bytes = DEFAULT_L2;
    if (host.numa_nodes < 1) host.numa_nodes = 1;
    snprintf(host.name, sizeof host.name, "%s", model ? model : "CPU");
    return host;
}
