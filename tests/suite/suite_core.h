/* SPDX-License-Identifier: Apache-2.0
 * What every section of the suite stands on: targets, checks, the tally, guarded memory, threads. */
#ifndef ATTN_SUITE_CORE_H
#define ATTN_SUITE_CORE_H

#include "attn/attn.h"
#include "suite.h"

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#  define SUITE_PRINTF(text, args) __attribute__((format(printf, text, args)))
#else
#  define SUITE_PRINTF(text, args)
#endif

enum { SUITE_MAX_TARGETS = 24, SUITE_MAX_SECTIONS = 24, SUITE_REASONS = 6, SUITE_KERNELS = 40 };

/* ---- Targets ------------------------------------------------------------------------------------------------------
 * A target is a device together with one level (instruction set, kernel family) that it is forced to use. */
struct suite_target {
    char name[48];   /* "cpu/scalar" */
    char device[24]; /* what --device takes */
    int32_t backend; /* attn_backend */
    int32_t index;   /* as in attn_device_get */
    int32_t ordinal; /* within the backend */
    char force[64];  /* for attn_config.force; "": nothing */
    char isa[16];    /* what the plan must say */
    char kernel[16]; /* what stands behind "forward_" in the plan's kernel, before any further '_' */
    int host;        /* its tensors lie in host memory */
    int staged;      /* 1: all the same it is a GPU; -1: one whose arrays lie here and there */
    attn_context *ctx;
};

/* A further context on a target, for other thread counts or forced choices; NULL if it is refused. extra may be
 * NULL. */
attn_context *suite_context(const struct suite_target *target, int threads, const char *extra);
/* One that also reads index arrays in a GPU's memory; NULL if it is refused. */
attn_context *suite_checking_context(const struct suite_target *target);
/* Fills s->target; returns how many there are. */
struct suite;
int suite_find_targets(struct suite *s);

/* ---- Checks ---------------------------------------------------------------------------------------------------------
 * One case on one target. The first thing that goes wrong is kept as its text. */
struct suite_check {
    struct suite *suite;
    const struct suite_target *target;
    const char *name;
    int failed, skipped;
    double worst; /* largest share of the accuracy rule that was used up */
    char text[512];
};

typedef void suite_function(struct suite_check *check, const void *arg);

/* Records a failure unless ok; returns ok. */
int suite_expect(struct suite_check *check, int ok, const char *format, ...) SUITE_PRINTF(3, 4);
/* Expects the backend, device, level and kernel that the target stands for, and notes the kernel for the report; op:
  what the kernel's name begins with, "forward", "append"; p: of a forward, else NULL. */
int suite_expect_plan(struct suite_check *check, const char *op, const attn_problem *p, const attn_plan *plan);
/* Expects what the target says of staging, for a call that has something to copy. */
int suite_expect_staged(struct suite_check *check, const attn_plan *plan);
/* Expects a status; the text names what and the library's own text. */
int suite_expect_status(struct suite_check *check, attn_status got, attn_status expected, const char *what);
void suite_skip(struct suite_check *check, const char *reason);
suite_function suite_no_memory; /* fails */

struct suite_tally {
    int cases, passed, failed, skipped;
    double worst;
    struct {
        char text[96];
        int count;
    } reason[SUITE_REASONS];
};

struct suite_failure {
    char *name, *target, *text;
};

/* A forward without a mask, D = Dv. */
struct suite_shape {
    const char *name;
    int32_t dtype;
    int b, hq, hkv, sq, sk, d;
};
enum { SUITE_SHAPES = 5 };
double suite_shape_flops(const struct suite_shape *shape);
double suite_shape_bytes(const struct suite_shape *shape); /* of K and V */

struct suite_timing {
    int target;
    const struct suite_shape *shape;
    double seconds; /* of a call; 0: was not timed, because of text */
    char kernel[64], text[160];
};

struct suite_section {
    const char *name, *about;
    void (*run)(struct suite *s);
};

struct suite {
    const struct attn_suite_options *options;
    struct suite_target target[SUITE_MAX_TARGETS];
    int targets;
    struct suite_target reference; /* the judge, also where it is no target itself */
    const struct suite_section *section;
    int section_index;
    int listing; /* only looks whether the filter is the whole name of a case */
    int exact;   /* it is */
    int stopped; /* a case has failed, and that is enough */
    int matched; /* cases that the filter let through */
    struct suite_tally tally[SUITE_MAX_SECTIONS][SUITE_MAX_TARGETS];
    char kernel[SUITE_MAX_TARGETS][SUITE_KERNELS][64]; /* seen in plans */
    struct suite_failure *failures;
    int failure_count;
    struct suite_timing timing[SUITE_MAX_TARGETS * SUITE_SHAPES];
    int timing_count;
    double seconds; /* that the cases took */
};

/* Whether this case runs. Call it before any expensive preparation; quick: it belongs to the quick part too. */
int suite_selected(struct suite *s, int quick, const char *name);
/* What a crash handler should name; NULL: nothing. */
void suite_note_running(const struct suite_target *target, const char *name);
/* Runs a selected case on every target. */
void suite_on_targets(struct suite *s, const char *name, suite_function *function, const void *arg);
/* Both together. */
void suite_each(struct suite *s, int quick, const char *name, suite_function *function, const void *arg);
/* A case that concerns no target in particular is tallied under the first one. */
void suite_once(struct suite *s, int quick, const char *name, suite_function *function, const void *arg);
double suite_now(void); /* seconds since some moment */
/* Times some shapes on every target, for the report. */
void suite_time(struct suite *s);
/* Prints what was found; returns the number of failures. */
int suite_report(struct suite *s, const struct suite_section *sections, int count);
void suite_report_free(struct suite *s);

/* The sections, in the order of suite_main.c. */
void suite_run_grid(struct suite *s);
void suite_run_random(struct suite *s);
void suite_run_sizes(struct suite *s);
void suite_run_values(struct suite *s);
void suite_run_ranges(struct suite *s);
void suite_run_metamorphic(struct suite *s);
void suite_run_determinism(struct suite *s);
void suite_run_dropout(struct suite *s);
void suite_run_append(struct suite *s);
void suite_run_merge(struct suite *s);
void suite_run_cases(struct suite *s);
void suite_run_gradients(struct suite *s);
void suite_run_arguments(struct suite *s);
void suite_arguments_special(struct suite *s); /* what is no single field */
void suite_run_concurrency(struct suite *s);
void suite_run_memory(struct suite *s);

/* ---- Guarded memory -------------------------------------------------------------------------------------------------
 * Bytes whose end touches a page that faults when it is read or written; the rest of the first page, before the data,
 * holds a pattern that must survive. On a device that is not the host the data has a mirror between two such
 * patterns. */
struct suite_buffer {
    unsigned char *map;
    size_t map_bytes;
    unsigned char *data;
    size_t bytes;
    void *mirror;
    size_t mirror_bytes;
    const struct suite_target *mirror_target;
};

enum { SUITE_POISON = 0xff }; /* NaN in every float type, also as the scale of a block */

/* All of it filled with poison. Returns 0, or -1 without memory. Zero bytes are allowed: any access then faults. */
int suite_buffer_new(struct suite_buffer *buffer, size_t bytes, size_t align);
void suite_buffer_free(struct suite_buffer *buffer);
/* The address to give the library for this target: the data itself, or its mirror, freshly uploaded. NULL: no
 * memory. */
void *suite_buffer_place(struct suite_buffer *buffer, const struct suite_target *target);
/* The same for a workspace, which lies where the work is done. */
void *suite_workspace_place(struct suite_buffer *buffer, const struct suite_target *target);
/* Brings a device's content back into data; 0 if that failed. */
int suite_buffer_fetch(struct suite_buffer *buffer, const struct suite_target *target);
/* 1 if nothing outside the data was written. */
int suite_buffer_intact(const struct suite_buffer *buffer);
uint64_t suite_hash(const void *data, size_t bytes);
/* Address space without memory behind it until it is touched; NULL if refused. */
void *suite_reserve(size_t bytes);
void suite_release(void *data, size_t bytes);

/* ---- Threads and numbers ---------------------------------------------------------------------------------------- */

/* Calls function(arg, n) for n from 0 to count - 1 on a few threads; in order on this one if work (about the number of
 * multiply-adds) is small. */
void suite_parallel(int64_t count, double work, void (*function)(void *arg, int64_t n), void *arg);

/* A counter-based generator: the same numbers wherever and in whatever order they are drawn. */
uint64_t suite_mix(uint64_t x);
struct suite_random {
    uint64_t state;
};
struct suite_random suite_random_of(uint64_t seed, uint64_t stream);
uint64_t suite_next(struct suite_random *r);
int64_t suite_below(struct suite_random *r, int64_t n); /* 0 .. n - 1 */
float suite_normal(struct suite_random *r);             /* about N(0, 1), never beyond 3.5 */

#endif
