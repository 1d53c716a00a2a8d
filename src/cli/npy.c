/* SPDX-License-Identifier: Apache-2.0
 * No size in a file is trusted: a block is allocated only after the file was found to be exactly as
 * long as its header says. */
#include "npy.h"

#include "cli.h"
#include "npy_header.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Data is read and written as it lies in memory. */
#if defined(__BYTE_ORDER__)
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "NPY files are read on little-endian machines only");
#endif

static const struct {
    size_t bytes;
    const char *descr;
} types[] = {
    [CLI_NPY_BOOL] = {1, "|b1"}, [CLI_NPY_I32] = {4, "<i4"}, [CLI_NPY_I64] = {8, "<i8"},
    [CLI_NPY_F16] = {2, "<f2"},  [CLI_NPY_F32] = {4, "<f4"}, [CLI_NPY_F64] = {8, "<f8"},
};
enum { TYPE_COUNT = sizeof types / sizeof types[0], HEADER_BYTES_MAX = 65535 };

size_t cli_npy_item_bytes(enum cli_npy_type type) { return types[type].bytes; }

const char *cli_npy_descr(enum cli_npy_type type) { return types[type].descr; }

void *cli_npy_alloc(size_t bytes)
{
    if (bytes > SIZE_MAX - 64) return NULL;
    return aligned_alloc(64, (bytes + 64) / 64 * 64);
}

static int find_type(const char *name, const char *descr, enum cli_npy_type *type)
{
    for (int t = 0; t < TYPE_COUNT; t++) {
        if (strcmp(descr + (*descr != 0), types[t].descr + 1) != 0) continue;
        /* '|' says that byte order does not matter, which holds for single bytes only. */
        if (!strchr(types[t].bytes == 1 ? "<=|" : "<=", *descr)) continue;
        *type = (enum cli_npy_type)t;
        return CLI_OK;
    }
    if (*descr == '>') return cli_fail(CLI_BAD_INPUT, "%s: big-endian data ('%s') is not supported", name, descr);
    return cli_fail(CLI_BAD_INPUT, "%s: data type '%s' is not supported (f2, f4, f8, b1, i4, i8 are)", name, descr);
}

/* Reads magic, version and the length of the header. left counts the bytes of the file behind them. */
static int read_prefix(FILE *file, const char *name, uint64_t *left, size_t *header_bytes)
{
    unsigned char prefix[12];
    if (*left < 10 || fread(prefix, 1, 8, file) != 8 || memcmp(prefix, "\x93NUMPY", 6) != 0)
        return cli_fail(CLI_BAD_INPUT, "%s: not an NPY file", name);
    unsigned major = prefix[6], minor = prefix[7];
    if (major < 1 || major > 3 || minor != 0)
        return cli_fail(CLI_BAD_INPUT, "%s: NPY version %u.%u is not supported", name, major, minor);
    size_t width = major == 1 ? 2 : 4;
    if (*left < 8 + width || fread(prefix + 8, 1, width, file) != width)
        return cli_fail(CLI_BAD_INPUT, "%s: the file ends within its header", name);
    *left -= 8 + width;
    uint64_t length = 0;
    for (size_t i = 0; i < width; i++) length |= (uint64_t)prefix[8 + i] << 8 * i;
    if (length > *left) return cli_fail(CLI_BAD_INPUT, "%s: the header is longer than the file", name);
    if (length > HEADER_BYTES_MAX)
        return cli_fail(CLI_BAD_INPUT, "%s: a header of %" PRIu64 " bytes is too long", name, length);
    *left -= length;
    *header_bytes = (size_t)length;
    return CLI_OK;
}

static int read_header(FILE *file, const char *name, size_t bytes, struct cli_npy_header *header)
{
    char *text = malloc(bytes + 1);
    if (!text) return cli_fail(CLI_CANNOT, "%s: out of memory", name);
    const char *wrong = "the file ends within its header";
    if (fread(text, 1, bytes, file) == bytes) wrong = cli_npy_parse_header(text, bytes, header);
    free(text);
    return wrong ? cli_fail(CLI_BAD_INPUT, "%s: %s", name, wrong) : CLI_OK;
}

/* The number of bytes that the shape needs must be exactly what the file has left. */
static int check_size(const char *name, uint64_t left, struct cli_npy *array)
{
    int64_t product = (int64_t)types[array->type].bytes;
    int empty = 0;
    for (int i = 0; i < array->rank; i++) {
        if (array->shape[i] == 0) empty = 1;
        else if (__builtin_mul_overflow(product, array->shape[i], &product))
            return cli_fail(CLI_BAD_INPUT, "%s: the product of the shape overflows", name);
    }
    uint64_t need = empty ? 0 : (uint64_t)product;
    if (need > left)
        return cli_fail(CLI_BAD_INPUT, "%s: the shape needs %" PRIu64 " bytes of data, the file has only %" PRIu64,
                        name, need, left);
    if (need < left)
        return cli_fail(CLI_BAD_INPUT, "%s: the shape needs %" PRIu64 " bytes of data, the file has %" PRIu64 " more",
                        name, need, left - need);
    if (need > SIZE_MAX - 64) return cli_fail(CLI_CANNOT, "%s: too large for this machine", name);
    array->count = (int64_t)(need / types[array->type].bytes);
    return CLI_OK;
}

/* From Fortran order (the first axis runs fastest) to C order. */
static int transpose(const char *name, struct cli_npy *array)
{
    size_t bytes = types[array->type].bytes;
    const char *from = array->data;
    char *to = cli_npy_alloc((size_t)array->count * bytes);
    if (!to) return cli_fail(CLI_CANNOT, "%s: out of memory", name);
    int64_t stride[CLI_NPY_RANK_MAX], index[CLI_NPY_RANK_MAX] = {0}, offset = 0;
    for (int i = 0; i < array->rank; i++) stride[i] = i ? stride[i - 1] * array->shape[i - 1] : 1;
    for (int64_t n = 0; n < array->count; n++) {
        memcpy(to + (size_t)n * bytes, from + (size_t)offset * bytes, bytes);
        for (int i = array->rank - 1; i >= 0; i--) {
            offset += stride[i];
            if (++index[i] < array->shape[i]) break;
            offset -= stride[i] * array->shape[i];
            index[i] = 0;
        }
    }
    free(array->data);
    array->data = to;
    return CLI_OK;
}

static int read_data(FILE *file, const char *name, int fortran_order, struct cli_npy *array)
{
    size_t bytes = (size_t)array->count * types[array->type].bytes;
    array->data = cli_npy_alloc(bytes);
    if (!array->data) return cli_fail(CLI_CANNOT, "%s: out of memory for %zu bytes", name, bytes);
    if (fread(array->data, 1, bytes, file) != bytes) return cli_fail(CLI_BAD_INPUT, "%s: cannot read the data", name);
    if (array->type == CLI_NPY_BOOL)
        for (size_t i = 0; i < bytes; i++) ((unsigned char *)array->data)[i] = ((unsigned char *)array->data)[i] != 0;
    return fortran_order && array->rank > 1 ? transpose(name, array) : CLI_OK;
}

int cli_npy_read(FILE *file, uint64_t file_bytes, const char *name, struct cli_npy *array)
{
    struct cli_npy_header header = {0};
    size_t header_bytes = 0;
    uint64_t left = file_bytes;
    *array = (struct cli_npy){0};
    int status = read_prefix(file, name, &left, &header_bytes);
    if (!status) status = read_header(file, name, header_bytes, &header);
    if (!status) status = find_type(name, header.descr, &array->type);
    if (status) return status;
    array->rank = header.rank;
    memcpy(array->shape, header.shape, sizeof array->shape);
    status = check_size(name, left, array);
    if (!status) status = read_data(file, name, header.fortran_order, array);
    if (status) {
        free(array->data);
        array->data = NULL;
    }
    return status;
}

int cli_npy_load(const char *path, struct cli_npy *array)
{
    *array = (struct cli_npy){0};
    struct stat info;
    /* A pipe has no length to check a header against, and opening one could block. */
    if (stat(path, &info) != 0) return cli_fail(CLI_BAD_INPUT, "%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode)) return cli_fail(CLI_BAD_INPUT, "%s: not a regular file", path);
    FILE *file = fopen(path, "rb");
    if (!file) return cli_fail(CLI_BAD_INPUT, "%s: %s", path, strerror(errno));
    int status;
    if (fstat(fileno(file), &info) != 0) status = cli_fail(CLI_BAD_INPUT, "%s: %s", path, strerror(errno));
    else status = cli_npy_read(file, (uint64_t)info.st_size, path, array);
    fclose(file);
    return status;
}

int cli_npy_write(FILE *file, const struct cli_npy *array)
{
    char header[384];
    size_t used = (size_t)snprintf(header, sizeof header,
                                   "\x93NUMPY\x01%c%c%c{'descr': '%s', 'fortran_order': False, "
                                   "'shape': (",
                                   0, 0, 0, types[array->type].descr);
    for (int i = 0; i < array->rank; i++)
        used += (size_t)snprintf(header + used, sizeof header - used, "%s%" PRId64, i ? ", " : "", array->shape[i]);
    used += (size_t)snprintf(header + used, sizeof header - used, "%s), }", array->rank == 1 ? "," : "");
    /* Spaces and a newline, so that the data begins at a multiple of 64 bytes. */
    size_t total = (used + 1 + 63) / 64 * 64;
    memset(header + used, ' ', total - used);
    header[total - 1] = '\n';
    size_t length = total - 10;
    header[8] = (char)(length & 255);
    header[9] = (char)(length >> 8);
    size_t bytes = (size_t)array->count * types[array->type].bytes;
    if (fwrite(header, 1, total, file) != total || fwrite(array->data, 1, bytes, file) != bytes) return -1;
    return 0;
}
