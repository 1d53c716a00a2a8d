/* SPDX-License-Identifier: Apache-2.0
 * Reads NVIDIA's fat binary container as far as a driver must: which architectures, which kernels. */
#ifndef ATTN_EMULATOR_FATBIN_H
#define ATTN_EMULATOR_FATBIN_H

/* An image that starts with "emulated" stands for a module built without nvcc: it fits any device, has any kernel. */
enum FatbinFit { FATBIN_INVALID, FATBIN_NO_CODE, FATBIN_MACHINE_CODE, FATBIN_PTX };

/* What a GPU of `capability` (70) would use of the image. */
FatbinFit fatbin_fit(const void *image, long capability);

/* Whether a machine-code entry of the image has a kernel of this name. */
bool fatbin_has_kernel(const void *image, const char *name);

#endif
