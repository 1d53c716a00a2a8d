/* SPDX-License-Identifier: Apache-2.0 */
#include "fatbin.h"

#include <lz4.h>
#include <stdint.h>
#include <string.h>

#include <string>
#include <vector>

struct Header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes; /* of all entries */
};

struct Entry {
    uint16_t kind, version; /* kind: see below */
    uint32_t header_bytes;
    uint64_t bytes;
    uint32_t compressed_bytes, options_offset;
    uint16_t minor, major;
    uint32_t capability;
    uint32_t name_offset, name_bytes;
    uint64_t flags, unused, plain_bytes; /* the last of a compressed payload */
};

enum { FATBIN_MAGIC = 0xba55ed50u, KIND_PTX = 1, KIND_ELF = 2 };
enum { FLAG_LZ4 = 0x2000 };

/* Calls visit(entry, payload) for each entry until it returns true. */
template <typename Visit> static bool any_entry(const void *image, Visit visit)
{
    Header header;
    memcpy(&header, image, sizeof header);
    if (header.magic != FATBIN_MAGIC) return false;
    const char *at = static_cast<const char *>(image) + header.header_bytes, *end = at + header.bytes;
    while (at < end) {
        Entry entry;
        memcpy(&entry, at, sizeof entry);
        if (visit(entry, at + entry.header_bytes)) return true;
        at += entry.header_bytes + entry.bytes;
    }
    return false;
}

static bool stands_in(const void *image) { return memcmp(image, "emulated", 8) == 0; }

FatbinFit fatbin_fit(const void *image, long capability)
{
    if (stands_in(image)) return FATBIN_PTX;
    uint32_t magic;
    memcpy(&magic, image, sizeof magic);
    if (magic != FATBIN_MAGIC) return FATBIN_INVALID;
    const unsigned wanted = unsigned(capability);
    /* Machine code runs on later minor versions, PTX on everything later. */
    if (any_entry(image, [&](const Entry &e, const char *) {
            return e.kind == KIND_ELF && e.capability / 10 == wanted / 10 && e.capability <= wanted;
        }))
        return FATBIN_MACHINE_CODE;
    if (any_entry(image, [&](const Entry &e, const char *) { return e.kind == KIND_PTX && e.capability <= wanted; }))
        return FATBIN_PTX;
    return FATBIN_NO_CODE;
}

static bool holds(const char *payload, size_t bytes, const std::string &section)
{
    return memmem(payload, bytes, section.c_str(), section.size() + 1) != nullptr;
}

bool fatbin_has_kernel(const void *image, const char *name)
{
    if (stands_in(image)) return true;
    const std::string section = std::string(".text.") + name;
    return any_entry(image, [&](const Entry &e, const char *payload) {
        if (e.kind != KIND_ELF) return false;
        if (!e.compressed_bytes) return holds(payload, e.bytes, section);
        if (!(e.flags & FLAG_LZ4)) return true; /* a newer compiler's way to compress: nothing is known */
        std::vector<char> plain(e.plain_bytes);
        const int bytes = LZ4_decompress_safe(payload, plain.data(), int(e.compressed_bytes), int(plain.size()));
        return bytes > 0 && holds(plain.data(), size_t(bytes), section);
    });
}
