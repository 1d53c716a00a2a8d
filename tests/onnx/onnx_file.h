/* SPDX-License-Identifier: Apache-2.0
 * Reads the node test cases of the ONNX project: a folder with model.onnx (one node) and test_data_set_0/input_k.pb,
 * output_k.pb. Only the fields of protobuf that those files use are known, and nothing in a file is trusted: every
 * length is checked against the bytes that are there, and sizes are bounded. */
#ifndef ATTN_TESTS_ONNX_FILE_H
#define ATTN_TESTS_ONNX_FILE_H

#include <stddef.h>
#include <stdint.h>

enum { ONNX_MAX_RANK = 4, ONNX_MAX_ARRAYS = 8, ONNX_MAX_ATTRIBUTES = 16, ONNX_NAME = 64 };
enum { ONNX_FLOAT = 1, ONNX_INT64 = 7, ONNX_BOOL = 9, ONNX_FLOAT16 = 10 };

typedef struct onnx_array {
    char name[ONNX_NAME];
    int type; /* ONNX_FLOAT ... */
    int rank;
    int64_t dim[ONNX_MAX_RANK];
    size_t count, element_bytes;
    void *data; /* count * element_bytes, owned by the case; NULL: no such array */
} onnx_array;

typedef struct onnx_attribute {
    char name[ONNX_NAME];
    float f;
    int64_t i;
    char s[ONNX_NAME];
} onnx_attribute;

typedef struct onnx_case {
    char op[ONNX_NAME];
    int inputs, outputs, attributes;             /* of the node */
    char input_name[ONNX_MAX_ARRAYS][ONNX_NAME]; /* by the operator's input slot; "" is an absent optional */
    char output_name[ONNX_MAX_ARRAYS][ONNX_NAME];
    onnx_array input[ONNX_MAX_ARRAYS]; /* by slot */
    onnx_array output[ONNX_MAX_ARRAYS];
    onnx_attribute attribute[ONNX_MAX_ATTRIBUTES];
} onnx_case;

/* Reads the case in the folder. On failure returns 0 with the reason in `why`; onnx_free is then still due. */
int onnx_read(const char *folder, onnx_case *c, char *why, size_t why_bytes);
void onnx_free(onnx_case *c);

/* NULL if the node does not have the attribute. */
const onnx_attribute *onnx_find(const onnx_case *c, const char *name);

#endif
