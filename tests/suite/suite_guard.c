/* SPDX-License-Identifier: Apache-2.0
 * Guarded memory, threads and random numbers of the suite. */
#include "suite_core.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- memory ----------------------------------------------------------------------------------------------------- */

enum { MIRROR_EDGE = 256 }; /* bytes of pattern on either side of a mirror */

static size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

int suite_buffer_new(struct suite_buffer *b, size_t bytes, size_t align)
{
    size_t page = page_bytes(), room = (bytes + align + page - 1) / page * page;
    memset(b, 0, sizeof *b);
    if (bytes > ((size_t)1 << 40)) return -1;
    unsigned char *map = mmap(NULL, room + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return -1;
    b->map = map;
    b->map_bytes = room + 2 * page;
    if (mprotect(map + page, room, PROT_READ | PROT_WRITE)) {
        suite_buffer_free(b);
        return -1;
    }
    memset(map + page, SUITE_POISON, room);
    b->data = map + page + room - bytes;
    b->data -= (uintptr_t)b->data % align;
    b->bytes = bytes;
    return 0;
}

static void free_mirror(struct suite_buffer *b)
{
    if (b->mirror) attn_free(b->mirror_target->ctx, b->mirror);
    b->mirror = NULL;
}

void suite_buffer_free(struct suite_buffer *b)
{
    free_mirror(b);
    if (b->map) munmap(b->map, b->map_bytes);
    memset(b, 0, sizeof *b);
}

static void *place_on_device(struct suite_buffer *b, const struct suite_target *target)
{
    static const unsigned char edge[MIRROR_EDGE] = {0};
    if (b->mirror_target != target) free_mirror(b);
    b->mirror_target = target;
    if (!b->mirror && attn_malloc(target->ctx, target->index, b->bytes + 2 * MIRROR_EDGE, &b->mirror) != ATTN_OK) {
        b->mirror = NULL;
        return NULL;
    }
    unsigned char *mirror = b->mirror;
    attn_upload(target->ctx, mirror, edge, MIRROR_EDGE, NULL);
    attn_upload(target->ctx, mirror + MIRROR_EDGE, b->data, b->bytes, NULL);
    attn_upload(target->ctx, mirror + MIRROR_EDGE + b->bytes, edge, MIRROR_EDGE, NULL);
    return mirror + MIRROR_EDGE;
}

void *suite_buffer_place(struct suite_buffer *b, const struct suite_target *target)
{
    int here = target->host || (target->staged < 0 && (suite_mix(b->bytes) & 1)); /* always the same for a case */
    return here ? b->data : place_on_device(b, target);
}

void *suite_workspace_place(struct suite_buffer *b, const struct suite_target *target)
{
    return target->host && !target->staged ? b->data : place_on_device(b, target);
}

int suite_buffer_fetch(struct suite_buffer *b, const struct suite_target *target)
{
    unsigned char before[MIRROR_EDGE], after[MIRROR_EDGE];
    unsigned char *mirror = b->mirror;
    if (!mirror) return target->host || target->staged;
    if (attn_download(target->ctx, before, mirror, MIRROR_EDGE, NULL) != ATTN_OK) return 0;
    if (attn_download(target->ctx, b->data, mirror + MIRROR_EDGE, b->bytes, NULL) != ATTN_OK) return 0;
    if (attn_download(target->ctx, after, mirror + MIRROR_EDGE + b->bytes, MIRROR_EDGE, NULL) != ATTN_OK) return 0;
    for (int n = 0; n < MIRROR_EDGE; n++)
        if (before[n] || after[n]) return 0;
    return 1;
}

int suite_buffer_intact(const struct suite_buffer *b)
{
    size_t page = page_bytes();
    const unsigned char *p = b->map + page, *end = b->map + b->map_bytes - page;
    for (; p < b->data; p++)
        if (*p != SUITE_POISON) return 0;
    for (p = b->data + b->bytes; p < end; p++)
        if (*p != SUITE_POISON) return 0;
    return 1;
}

uint64_t suite_hash(const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint64_t h = 0x243f6a8885a308d3u ^ bytes, word;
    for (; bytes >= sizeof word; bytes -= sizeof word, p += sizeof word) {
        memcpy(&word, p, sizeof word);
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    for (; bytes; bytes--) h = (h ^ *p++) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 32;
}

void *suite_reserve(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

void suite_release(void *data, size_t bytes)
{
    if (data) munmap(data, bytes);
}

/* ---- threads ---------------------------------------------------------------------------------------------------- */

struct crew {
    atomic_llong next;
    int64_t count;
    void (*function)(void *arg, int64_t n);
    void *arg;
};

static void *crew_main(void *arg)
{
    struct crew *crew = arg;
    for (;;) {
        int64_t n = atomic_fetch_add(&crew->next, 1);
        if (n >= crew->count) return NULL;
        crew->function(crew->arg, n);
    }
}

void suite_parallel(int64_t count, double work, void (*function)(void *arg, int64_t n), void *arg)
{
    enum { MOST = 16 };
    pthread_t thread[MOST];
    struct crew crew = {.count = count, .function = function, .arg = arg};
    atomic_init(&crew.next, 0);
    int64_t helpers = sysconf(_SC_NPROCESSORS_ONLN) - 1;
    if (helpers > MOST) helpers = MOST;
    if (helpers > count - 1) helpers = count - 1;
    if (work < 1e6) helpers = 0; /* starting a thread costs more */
    int64_t started = 0;
    while (started < helpers && !pthread_create(&thread[started], NULL, crew_main, &crew)) started++;
    crew_main(&crew);
    while (started > 0) pthread_join(thread[--started], NULL);
}

/* ---- numbers ---------------------------------------------------------------------------------------------------- */

uint64_t suite_mix(uint64_t x) /* the finaliser of splitmix64 */
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

struct suite_random suite_random_of(uint64_t seed, uint64_t stream)
{
    return (struct suite_random){suite_mix(suite_mix(seed) ^ stream)};
}

uint64_t suite_next(struct suite_random *r)
{
    r->state += 0x9e3779b97f4a7c15u;
    return suite_mix(r->state);
}

int64_t suite_below(struct suite_random *r, int64_t n) { return n > 0 ? (int64_t)(suite_next(r) % (uint64_t)n) : 0; }

/* The sum of four uniform numbers, scaled to variance 1: no library function, so the same on every machine. */
float suite_normal(struct suite_random *r)
{
    uint64_t x = suite_next(r);
    int32_t sum = (int32_t)(x & 0xffff) + (int32_t)(x >> 16 & 0xffff) + (int32_t)(x >> 32 & 0xffff) +
                  (int32_t)(x >> 48) - 2 * 0xffff;
    return (float)sum * 2.6429e-5f; /* sqrt(3) / 65535 */
}
