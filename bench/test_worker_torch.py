#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The ways in which worker_torch.py calls PyTorch, with one that knows shapes and types only.

Needs Python's own library only."""
import importlib
import math
import sys
import types
import unittest
from unittest import mock

import peers_case


class Tensor:
    """Of PyTorch's what worker_torch.py needs: shape and type."""

    def __init__(self, *shape, dtype="f32"):
        self.shape, self.dtype = shape, dtype

    def float(self):
        return Tensor(*self.shape, dtype="f32")

    def to(self, dtype):
        return Tensor(*self.shape, dtype=dtype)

    def reshape(self, *shape):
        assert math.prod(shape) == math.prod(self.shape)
        return Tensor(*shape, dtype=self.dtype)

    def transpose(self, a, b):
        assert (a, b) == (-1, -2)
        return Tensor(*self.shape[:-2], self.shape[-1], self.shape[-2], dtype=self.dtype)

    def __getitem__(self, where):
        return Tensor(*self.shape[:-1], len(range(self.shape[-1])[where[-1]]), dtype=self.dtype)

    def __mul__(self, number):
        return self

    def __matmul__(self, other):
        assert self.dtype == other.dtype and self.shape[-1] == other.shape[-2] and self.shape[:-2] == other.shape[:-2]
        return Tensor(*self.shape[:-1], other.shape[-1], dtype=self.dtype)


def pretended_sdpa(q, k, v, is_causal=False, enable_gqa=False):
    assert q.dtype == k.dtype == v.dtype and q.shape[-1] == k.shape[-1] and k.shape[:-1] == v.shape[:-1]
    assert enable_gqa or q.shape[1] == k.shape[1]
    return Tensor(*q.shape[:-1], v.shape[-1], dtype=q.dtype)


class Torch(unittest.TestCase):
    def setUp(self):
        names = ("torch", "torch.nn", "torch.nn.functional", "torch.utils", "torch.utils._python_dispatch")
        modules = {name: types.ModuleType(name) for name in names}
        modules["torch"].softmax = lambda x, axis: x
        modules["torch"].nn = modules["torch.nn"]
        modules["torch.nn"].functional = modules["torch.nn.functional"]
        modules["torch.nn.functional"].scaled_dot_product_attention = pretended_sdpa
        modules["torch.utils._python_dispatch"].TorchDispatchMode = object
        patch = mock.patch.dict(sys.modules, modules)
        patch.start()
        self.addCleanup(patch.stop)
        sys.modules.pop("worker_torch", None)
        self.worker = importlib.import_module("worker_torch")
        self.addCleanup(sys.modules.pop, "worker_torch")

    def names(self, word):
        """Of the ways to call it, each of which is tried."""
        case = peers_case.choose([word])[0]
        q, k, v = (Tensor(case.b, *sizes, dtype=case.dtype) for sizes in (
            (case.hq, case.sq, case.d), (case.hkv, case.sk, case.d), (case.hkv, case.sk, case.dv)))
        ways = self.worker.variants(case, q, k, v)
        for make in ways.values():
            out = make()()
            self.assertEqual((out.shape, out.dtype), ((case.b, case.hq, case.sq, case.dv), case.dtype))
        return list(ways)

    def test_ways_to_call_it(self):
        rows, products = "sdpa, groups as rows", "products, groups as rows"
        wide = ", in float32"
        self.assertEqual(self.names("p1k_d64"), ["sdpa"])
        self.assertEqual(self.names("p1k_d64_c:f16"), ["sdpa", "sdpa" + wide])
        self.assertEqual(self.names("bdec4k"), ["sdpa", rows, products])
        self.assertEqual(self.names("mla4k:bf16"), ["sdpa", rows, rows + wide, products, products + wide])


if __name__ == "__main__":
    unittest.main()
