#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime on the CPU, as a worker of peers.py: models of one attention operator.

Several operators compute the same thing by different code; which of them is the fastest depends on the case, so
all that can express it are tried:

  Attention            of ONNX (opset 23), on [B, H, S, D] and on [B, S, H D]
  MultiHeadAttention   of com.microsoft, with as many heads of keys as of queries; blocked if not causal
  GroupQueryAttention  of com.microsoft, causal; one token of decoding appended to a cache that stays in place

For decoding, the queries of a group can also be the rows of one head, which makes it a small prefill that reads the
keys once (the first two operators).
"""
import worker

try:
    import numpy as np
    import onnxruntime as ort
    from onnx import helper
except ImportError as error:
    worker.refuse(error)

# An opset that has Attention, in the oldest file format for it; onnx writes newer ones than the runtime reads.
OPSET, IR_VERSION = 23, 10
MICROSOFT = "com.microsoft"


def aligned(shape, dtype):
    """An array that begins on a cache line, as the other contestants' do."""
    count = int(np.prod(shape))
    size = np.dtype(dtype).itemsize
    raw = np.empty(count * size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start:start + count * size].view(dtype).reshape(shape)


def copied(values):
    result = aligned(values.shape, values.dtype)
    result[...] = values
    return result


def tokens_first(x):
    """[B, H, S, D] -> [B, S, H D]"""
    b, h, s, d = x.shape
    return copied(x.transpose(0, 2, 1, 3).reshape(b, s, h * d))


def rows_of_groups(case, q):
    """[B, Hq, Sq, D] -> [B, Hkv, g Sq, D]: the queries that share keys."""
    return q.reshape(case.b, case.hkv, case.hq // case.hkv * case.sq, case.d)


class Model:
    """A model of one operator, with its arrays bound once."""

    def __init__(self, threads, operator, inputs, outputs, **attributes):
        """inputs, outputs: {name: array} in the operator's order; an input that is None is left out, and an array
        that is both stays in place."""
        given = {name: array for name, array in inputs.items() if array is not None}
        names = [name if name in given else "" for name in inputs]
        node = helper.make_node(operator, names, list(outputs), **attributes)
        graph = helper.make_graph([node], operator, self.infos(given), self.infos(outputs))
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.model = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self.binding = self.model.io_binding()
        self.arrays = given, outputs  # the values are views of their memory
        self.values = {id(array): ort.OrtValue.ortvalue_from_numpy(array)
                       for arrays in self.arrays for array in arrays.values()}
        for name, array in given.items():
            self.binding.bind_ortvalue_input(name, self.values[id(array)])
        for name, array in outputs.items():
            self.binding.bind_ortvalue_output(name, self.values[id(array)])

    @staticmethod
    def infos(arrays):
        return [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
                for name, array in arrays.items()]

    def run(self):
        self.model.run_with_iobinding(self.binding)


class Variants:
    """Each method makes run(), which returns its result as [B, Hq, Sq, Dv]."""

    def __init__(self, case, threads, q, k, v):
        self.case, self.threads, self.q, self.k, self.v = case, threads, q, k, v

    def named(self):
        case = self.case
        group = case.hq // case.hkv
        if case.causal and case.sq != case.sk:
            return {}  # the operators do not agree on what is aligned then
        ways = {"Attention on BHSD": self.attention, "Attention on BSHD": self.attention_tokens_first}
        if group == 1:
            ways["MultiHeadAttention"] = self.multi_head
        if case.sq == 1:
            ways["GroupQueryAttention, cache in place"] = self.group_query_step
        elif case.causal:
            ways["GroupQueryAttention"] = self.group_query
        if group > 1 and not case.causal:
            ways["Attention, groups as rows"] = self.attention_rows
            ways["MultiHeadAttention, groups as rows"] = self.multi_head_rows
        return ways

    def heads_first(self, operator, q, k, v, **attributes):
        out = aligned(q.shape[:-1] + (self.case.dv,), q.dtype)
        model = Model(self.threads, operator, {"q": q, "k": k, "v": v}, {"out": out}, **attributes)
        return lambda: model.run() or out.reshape(self.case.b, self.case.hq, self.case.sq, self.case.dv)

    def tokens_first(self, operator, inputs, outputs=None, **attributes):
        case = self.case
        out = aligned((case.b, case.sq, case.hq * case.dv), self.q.dtype)
        model = Model(self.threads, operator, inputs, {"out": out, **(outputs or {})}, **attributes)
        return lambda: model.run() or out.reshape(case.b, case.sq, case.hq, case.dv).transpose(0, 2, 1, 3)

    def flat(self):
        return {"q": tokens_first(self.q), "k": tokens_first(self.k), "v": tokens_first(self.v)}

    def attention(self):
        return self.heads_first("Attention", self.q, self.k, self.v, is_causal=int(self.case.causal))

    def attention_tokens_first(self):
        return self.tokens_first("Attention", self.flat(), is_causal=int(self.case.causal),
                                 q_num_heads=self.case.hq, kv_num_heads=self.case.hkv)

    def multi_head(self):
        return self.tokens_first("MultiHeadAttention", self.flat(), domain=MICROSOFT,
                                 num_heads=self.case.hq, unidirectional=int(self.case.causal))

    def group_query(self):
        present = {"present_k": aligned(self.k.shape, self.k.dtype), "present_v": aligned(self.v.shape, self.v.dtype)}
        return self.group_query_call(self.flat(), None, None, present)

    def group_query_step(self):
        last = {"q": tokens_first(self.q), "k": tokens_first(self.k[:, :, -1:]), "v": tokens_first(self.v[:, :, -1:])}
        return self.group_query_call(last, self.k, self.v, {"present_k": self.k, "present_v": self.v})

    def group_query_call(self, inputs, past_k, past_v, present):
        case = self.case
        lengths = {"last": np.full(case.b, case.sk - 1, np.int32), "total": np.array([case.sk], np.int32)}
        inputs = {**inputs, "past_k": past_k, "past_v": past_v, **lengths}
        return self.tokens_first("GroupQueryAttention", inputs, present,
                                 domain=MICROSOFT, num_heads=case.hq, kv_num_heads=case.hkv)

    def attention_rows(self):
        return self.heads_first("Attention", copied(rows_of_groups(self.case, self.q)), self.k, self.v)

    def multi_head_rows(self):
        case = self.case
        rows = tokens_first(rows_of_groups(case, self.q))
        out = aligned(rows.shape[:2] + (case.hkv * case.dv,), rows.dtype)
        model = Model(self.threads, "MultiHeadAttention", {"q": rows, "k": self.k, "v": self.v}, {"out": out},
                      domain=MICROSOFT, num_heads=case.hkv)
        return lambda: model.run() or (
            out.reshape(case.b, -1, case.hkv, case.dv).transpose(0, 2, 1, 3).reshape(case.b, case.hq, case.sq, case.dv))


def main():
    case, threads = worker.arguments()
    if case.dtype == "bf16":
        worker.refuse("its attention operators have no bfloat16 on the CPU")
    dtype = {"f32": np.float32, "f16": np.float16}[case.dtype]
    rng = np.random.default_rng(1)

    def normal(*shape):
        return copied(rng.standard_normal(shape, dtype=np.float32).astype(dtype))

    q = normal(case.b, case.hq, case.sq, case.d)
    k = normal(case.b, case.hkv, case.sk, case.d)
    v = copied(k[..., :case.dv]) if case.v_in_k else normal(case.b, case.hkv, case.sk, case.dv)
    head = {"version": f"ONNX Runtime {ort.__version__}", "backend": "CPU provider, MLAS", "threads": threads}

    def check(out):
        return worker.relative_error(case, q, k, v, out, lambda x: x.astype(np.float64))

    worker.serve(case, head, Variants(case, threads, q, k, v).named(), check)


main()
