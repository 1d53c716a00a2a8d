/* SPDX-License-Identifier: Apache-2.0
 * The driver as people name it. */
#include "driver.h"
#include <stdio.h>

void attn_cuda_driver_text(char *text, size_t room)
{
    const attn_cuda_driver *driver;
    int version = 0;
    if (room) *text = '\0';
    if (attn_cuda_load(&driver) != ATTN_OK || driver->driver_version(&version) != CUDA_SUCCESS) return;
    snprintf(text, room, "CUDA %d.%d", version / 1000, version % 1000 / 10);
}
