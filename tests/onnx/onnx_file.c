/* SPDX-License-Identifier: Apache-2.0 */
#include "onnx_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE = 1 << 24, MAX_COUNT = 1 << 22, PATH = 4096 };

/* ---- protobuf: a message is a row of (number, wire type, value) ------------------------------------------ */

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

typedef struct span {
    const unsigned char *p;
    size_t n;
} span;

typedef struct field {
    uint64_t number;
    unsigned wire;
    uint64_t value; /* WIRE_VARINT */
    span bytes;     /* the others */
} field;

static int take_varint(span *s, uint64_t *value)
{
    *value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        if (s->n == 0) return 0;
        unsigned char byte = *s->p;
        s->p++;
        s->n--;
        *value |= (uint64_t)(byte & 127) << shift;
        if (!(byte & 128)) return 1;
    }
    return 0;
}

static int take_bytes(span *s, uint64_t n, span *bytes)
{
    if (n > s->n) return 0;
    *bytes = (span){s->p, (size_t)n};
    s->p += n;
    s->n -= (size_t)n;
    return 1;
}

/* 1: a field was taken, 0: the message is at its end, -1: it is malformed. */
static int take_field(span *s, field *f)
{
    uint64_t tag, length;
    if (s->n == 0) return 0;
    if (!take_varint(s, &tag)) return -1;
    *f = (field){.number = tag >> 3, .wire = (unsigned)(tag & 7)};
    switch (f->wire) {
    case WIRE_VARINT: return take_varint(s, &f->value) ? 1 : -1;
    case WIRE_64: return take_bytes(s, 8, &f->bytes) ? 1 : -1;
    case WIRE_BYTES: return take_varint(s, &length) && take_bytes(s, length, &f->bytes) ? 1 : -1;
    case WIRE_32: return take_bytes(s, 4, &f->bytes) ? 1 : -1;
    default: return -1;
    }
}

static int is(const field *f, uint64_t number, unsigned wire) { return f->number == number && f->wire == wire; }

static int copy_name(char name[ONNX_NAME], span bytes)
{
    if (bytes.n >= ONNX_NAME || (bytes.n && memchr(bytes.p, 0, bytes.n))) return 0;
    if (bytes.n) memcpy(name, bytes.p, bytes.n);
    name[bytes.n] = 0;
    return 1;
}

/* ---- files ----------------------------------------------------------------------------------------------- */

/* The caller frees bytes->p. */
static int read_file(const char *path, span *bytes)
{
    unsigned char *data = NULL;
    size_t n = 0, room = 0;
    FILE *file = fopen(path, "rb");
    if (!file) return 0;
    for (;;) {
        if (n == room) {
            unsigned char *more = room < MAX_FILE ? realloc(data, room = room ? 2 * room : 4096) : NULL;
            if (!more) break;
            data = more;
        }
        size_t got = fread(data + n, 1, room - n, file);
        n += got;
        if (got == 0) {
            int good = !ferror(file);
            fclose(file);
            if (!good) free(data);
            *bytes = (span){data, n};
            return good;
        }
    }
    free(data);
    fclose(file);
    return 0;
}

/* ---- TensorProto: 1 dims, 2 data_type, 8 name, 9 raw_data ------------------------------------------------ */

static size_t type_bytes(uint64_t type)
{
    switch (type) {
    case ONNX_FLOAT: return 4;
    case ONNX_INT64: return 8;
    case ONNX_BOOL: return 1;
    case ONNX_FLOAT16: return 2;
    default: return 0;
    }
}

static int parse_array(span message, onnx_array *a)
{
    span raw = {NULL, 0};
    field f;
    int got;
    memset(a, 0, sizeof *a);
    a->count = 1;
    while ((got = take_field(&message, &f)) > 0) {
        if (is(&f, 1, WIRE_VARINT)) {
            if (a->rank == ONNX_MAX_RANK || f.value == 0 || a->count > MAX_COUNT / f.value) return 0;
            a->dim[a->rank++] = (int64_t)f.value;
            a->count *= (size_t)f.value;
        } else if (is(&f, 2, WIRE_VARINT)) {
            a->element_bytes = type_bytes(f.value);
            a->type = a->element_bytes ? (int)f.value : 0;
        } else if (is(&f, 8, WIRE_BYTES)) {
            if (!copy_name(a->name, f.bytes)) return 0;
        } else if (is(&f, 9, WIRE_BYTES)) {
            raw = f.bytes;
        } else {
            return 0; /* another place for the data, or a segment of a larger tensor */
        }
    }
    if (got < 0 || a->rank == 0 || !a->element_bytes || raw.n != a->count * a->element_bytes) return 0;
    a->data = malloc(raw.n);
    if (a->data) memcpy(a->data, raw.p, raw.n);
    return a->data != NULL;
}

/* ---- model.onnx ------------------------------------------------------------------------------------------ */

static int parse_attribute(span message, onnx_attribute *a)
{
    field f;
    int got;
    memset(a, 0, sizeof *a);
    while ((got = take_field(&message, &f)) > 0) {
        if (is(&f, 1, WIRE_BYTES)) {
            if (!copy_name(a->name, f.bytes)) return 0;
        } else if (is(&f, 2, WIRE_32)) {
            const unsigned char *b = f.bytes.p;
            uint32_t bits = b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
            memcpy(&a->f, &bits, sizeof bits);
        } else if (is(&f, 3, WIRE_VARINT)) {
            a->i = (int64_t)f.value;
        } else if (is(&f, 4, WIRE_BYTES)) {
            if (!copy_name(a->s, f.bytes)) return 0;
        }
    }
    return got == 0;
}

/* NodeProto: 1 input, 2 output, 4 op_type, 5 attribute. */
static int parse_node(span message, onnx_case *c)
{
    field f;
    int got;
    while ((got = take_field(&message, &f)) > 0) {
        if (is(&f, 1, WIRE_BYTES)) {
            if (c->inputs == ONNX_MAX_ARRAYS || !copy_name(c->input_name[c->inputs++], f.bytes)) return 0;
        } else if (is(&f, 2, WIRE_BYTES)) {
            if (c->outputs == ONNX_MAX_ARRAYS || !copy_name(c->output_name[c->outputs++], f.bytes)) return 0;
        } else if (is(&f, 4, WIRE_BYTES)) {
            if (!copy_name(c->op, f.bytes)) return 0;
        } else if (is(&f, 5, WIRE_BYTES)) {
            if (c->attributes == ONNX_MAX_ATTRIBUTES || !parse_attribute(f.bytes, &c->attribute[c->attributes++]))
                return 0;
        }
    }
    return got == 0;
}

typedef struct value_names { /* of the graph: they number the files */
    int count;
    char name[ONNX_MAX_ARRAYS][ONNX_NAME];
} value_names;

/* ValueInfoProto: 1 name. */
static int parse_value(span message, value_names *values)
{
    field f;
    int got;
    if (values->count == ONNX_MAX_ARRAYS) return 0;
    while ((got = take_field(&message, &f)) > 0) {
        if (is(&f, 1, WIRE_BYTES) && !copy_name(values->name[values->count], f.bytes)) return 0;
    }
    return got == 0 && values->name[values->count++][0];
}

/* GraphProto: 1 node, 11 input, 12 output. */
static int parse_graph(span message, onnx_case *c, value_names *in, value_names *out)
{
    field f;
    int got, nodes = 0;
    while ((got = take_field(&message, &f)) > 0) {
        if (is(&f, 1, WIRE_BYTES) && (nodes++ || !parse_node(f.bytes, c))) return 0;
        if (is(&f, 11, WIRE_BYTES) && !parse_value(f.bytes, in)) return 0;
        if (is(&f, 12, WIRE_BYTES) && !parse_value(f.bytes, out)) return 0;
    }
    return got == 0 && nodes == 1;
}

/* ModelProto: 7 graph. */
static int parse_model(span message, onnx_case *c, value_names *in, value_names *out)
{
    field f;
    int got, graphs = 0;
    while ((got = take_field(&message, &f)) > 0) {
        if (is(&f, 7, WIRE_BYTES) && (graphs++ || !parse_graph(f.bytes, c, in, out))) return 0;
    }
    return got == 0 && graphs == 1;
}

/* ---- a case ---------------------------------------------------------------------------------------------- */

/* Reads FOLDER/test_data_set_0/KIND_k.pb for every value k of the graph into the node's slot of that name. */
static int read_arrays(const char *folder, const char *kind, const value_names *values, int slots,
                       char slot_name[][ONNX_NAME], onnx_array *slot, char *why, size_t why_bytes)
{
    for (int k = 0; k < values->count; k++) {
        char path[PATH];
        span bytes;
        int s = 0;
        while (s < slots && strcmp(slot_name[s], values->name[k])) s++;
        if (s == slots || slot[s].data) {
            snprintf(why, why_bytes, "the node does not use %s just once", values->name[k]);
            return 0;
        }
        int n = snprintf(path, sizeof path, "%s/test_data_set_0/%s_%d.pb", folder, kind, k);
        if (n < 0 || (size_t)n >= sizeof path || !read_file(path, &bytes)) {
            snprintf(why, why_bytes, "%s_%d.pb cannot be read", kind, k);
            return 0;
        }
        int good = parse_array(bytes, &slot[s]) && !strcmp(slot[s].name, values->name[k]);
        free((void *)bytes.p);
        if (!good) {
            snprintf(why, why_bytes, "%s_%d.pb is not a tensor %s that this reader knows", kind, k, values->name[k]);
            return 0;
        }
    }
    for (int s = 0; s < slots; s++) {
        if (slot_name[s][0] && !slot[s].data) {
            snprintf(why, why_bytes, "%s has no file", slot_name[s]);
            return 0;
        }
    }
    return 1;
}

int onnx_read(const char *folder, onnx_case *c, char *why, size_t why_bytes)
{
    char path[PATH];
    span bytes;
    value_names in = {0}, out = {0};
    memset(c, 0, sizeof *c);
    int n = snprintf(path, sizeof path, "%s/model.onnx", folder);
    if (n < 0 || (size_t)n >= sizeof path || !read_file(path, &bytes)) {
        snprintf(why, why_bytes, "model.onnx cannot be read");
        return 0;
    }
    int good = parse_model(bytes, c, &in, &out);
    free((void *)bytes.p);
    if (!good) {
        snprintf(why, why_bytes, "model.onnx is not a model of one node that this reader knows");
        return 0;
    }
    return read_arrays(folder, "input", &in, c->inputs, c->input_name, c->input, why, why_bytes) &&
           read_arrays(folder, "output", &out, c->outputs, c->output_name, c->output, why, why_bytes);
}

void onnx_free(onnx_case *c)
{
    for (int s = 0; s < ONNX_MAX_ARRAYS; s++) {
        free(c->input[s].data);
        free(c->output[s].data);
        c->input[s].data = c->output[s].data = NULL;
    }
}

const onnx_attribute *onnx_find(const onnx_case *c, const char *name)
{
    for (int a = 0; a < c->attributes; a++) {
        if (!strcmp(c->attribute[a].name, name)) return &c->attribute[a];
    }
    return NULL;
}
