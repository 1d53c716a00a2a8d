/* SPDX-License-Identifier: Apache-2.0
 * How mistakes of kernels are told. */
#ifndef ATTN_EMULATOR_REPORT_H
#define ATTN_EMULATOR_REPORT_H

#include <string>

namespace emulator
{

/* One mistake, on stderr and for emulator_reports(), with kernel, block and thread where there are some; the launch
 * then fails. */
void report(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* "file:line" of the instruction before a return address, that of the kernel where device_emulated.h is inlined. */
std::string source_line(const void *return_address);

const char *base_name(const char *path);

} // namespace emulator
#endif
