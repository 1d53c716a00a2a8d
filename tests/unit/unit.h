/* SPDX-License-Identifier: Apache-2.0
 * What every unit test includes: cmocka, the headers it wants first, and random numbers. */
#ifndef ATTN_UNIT_H
#define ATTN_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

enum { UNIT_SKIPPED = 77 }; /* exit status of a program that could test nothing */

/* splitmix64 */
static inline uint64_t unit_random(uint64_t *state)
{
    uint64_t x = *state += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* first .. last */
static inline int64_t unit_between(uint64_t *state, int64_t first, int64_t last)
{
    return first + (int64_t)(unit_random(state) % (uint64_t)(last - first + 1));
}

#endif
