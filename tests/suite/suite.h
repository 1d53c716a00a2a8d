/* SPDX-License-Identifier: Apache-2.0
 * The one suite that every backend must pass. It uses the public API only, so the same list of cases runs on every
 * device, on every instruction set level and kernel family that can be forced. */
#ifndef ATTN_SUITE_H
#define ATTN_SUITE_H

struct attn_suite_options {
    const char *device; /* "cpu", "cuda", "cuda:N", "reference"; NULL: every device that is present */
    int full;           /* 0: the quick part of each list */
    const char *filter; /* NULL: all. A case's whole name: that case, quick or not; else a part of names */
    int json;           /* one JSON object on stdout instead of text */
    int fail_fast;      /* stop after the first case that fails */
    int timings;        /* time some shapes also with a filter */
    int verbose;        /* also a line per case that passes or is skipped */
};

/* 0: all passed; 1: something failed; 3: cannot run here (no such device, no memory, nothing matches). */
int attn_suite_main(const struct attn_suite_options *options);

#endif
