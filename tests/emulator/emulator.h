/* SPDX-License-Identifier: Apache-2.0
 * What libcuda_emulator.so exports besides the driver's entry points, for tests that look behind them. */
#ifndef ATTN_EMULATOR_H
#define ATTN_EMULATOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sets what EMULATOR_<NAME> sets in the environment; docs/design.md lists the names. -1 for an unknown name or a
 * malformed value. */
int emulator_set(const char *name, const char *value);

/* 1 in the checked build, which looks at every access to memory. */
int emulator_checked(void);

/* 0 where the processor lacks what the kernels were compiled for. */
int emulator_usable(void);

/* Copies the reports since the last call, ended by a zero, and forgets them. Returns their length, also where they
 * were cut. */
size_t emulator_reports(char *text, size_t bytes);

struct emulator_counts {
    uint64_t calls, launches;                                   /* of the driver */
    uint64_t faults;                                            /* calls that were made to fail */
    uint64_t switches, mma, shuffles, block_barriers, accesses; /* of kernels; accesses in the checked build only */
    uint64_t device_bytes, host_bytes, modules, streams, events, contexts; /* alive now */
    uint64_t lost_bytes; /* were still allocated when their context went */
};
void emulator_count(struct emulator_counts *counts);

/* One line of a kernel that accesses shared memory. Without conflicts `wavefronts` equals `ideal`, which is 1 an
 * instruction for up to 4 bytes a lane, 2 for 8 and 4 for 16 (fewer where lanes are idle). */
struct emulator_bank_line {
    char place[96]; /* file:line */
    int bytes, is_write;
    uint64_t instructions, wavefronts, ideal;
};
/* Of all launches since the last call; returns how many lines there are, writes up to `capacity`. Counts only in
 * the checked build after emulator_set("banks", "1"). */
size_t emulator_banks(struct emulator_bank_line *lines, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
