/* SPDX-License-Identifier: Apache-2.0
 * Structs across the ABI: the caller's may be older (shorter) or newer (longer) than ours. */
#include "internal.h"

static attn_status read_size(const void *theirs, const char *name, uint32_t *size)
{
    memcpy(size, theirs, sizeof *size);
    if (*size < sizeof *size) return attn_fail(ATTN_INVALID_ARGUMENT, "%s.struct_size is %u", name, *size);
    return ATTN_OK;
}

attn_status attn_import(void *ours, size_t our_size, const void *theirs, const char *name)
{
    uint32_t size, own_size = (uint32_t)our_size;
    if (!theirs) return attn_fail(ATTN_INVALID_ARGUMENT, "%s is NULL", name);
    ATTN_TRY(read_size(theirs, name, &size));
    const unsigned char *bytes = theirs;
    for (size_t n = our_size; n < size; n++)
        if (bytes[n])
            return attn_fail(ATTN_INVALID_ARGUMENT,
                             "%s.struct_size is %u: this library knows %u bytes and the rest is not zero", name, size,
                             own_size);
    const size_t known = size < our_size ? size : our_size;
    memcpy(ours, theirs, known);
    memset((char *)ours + known, 0, our_size - known);
    memcpy(ours, &own_size, sizeof own_size);
    return ATTN_OK;
}

attn_status attn_export(void *theirs, const void *ours, size_t our_size, const char *name)
{
    uint32_t size;
    ATTN_TRY(read_size(theirs, name, &size));
    memset(theirs, 0, size);
    memcpy(theirs, ours, size < our_size ? size : our_size);
    memcpy(theirs, &size, sizeof size);
    return ATTN_OK;
}
