#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's F.scaled_dot_product_attention on the CPU, as a worker of peers.py."""
import os
import re

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # huge pages; read when PyTorch first allocates

import worker

try:
    import torch
    import torch.nn.functional as F
    from torch.utils._python_dispatch import TorchDispatchMode
except ImportError as error:
    worker.refuse(error)


class Names(TorchDispatchMode):
    """Collects which operators a call comes down to."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function).removeprefix("aten.").removesuffix(".default"))
        return function(*args, **(kwargs or {}))


def kernel(variant, run):
    with Names() as names:
        run()
    attention = [name for name in names.seen if "attention" in name]
    return f"{variant}: {(attention or ['matrix products (no fused kernel)'])[0]}"


def variants(case, q, k, v):
    b, hq, hkv, sq, sk, d, dv = case.shape
    group = hq // hkv
    ways = {}
    if case.causal and sq != sk:
        return ways  # is_causal aligns the first query with the first key
    ways["sdpa"] = lambda: lambda: F.scaled_dot_product_attention(q, k, v, is_causal=case.causal, enable_gqa=group > 1)
    if group > 1 and not case.causal:
        # The queries of a group are rows of one head, so that its keys are read once.
        rows = q.reshape(b, hkv, group * sq, d)
        ways["sdpa, groups as rows"] = lambda: lambda: (
            F.scaled_dot_product_attention(rows, k, v).view(b, hq, sq, dv))
    return ways


def main():
    case, threads = worker.arguments()
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    torch.manual_seed(1)
    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[case.dtype]
    q = torch.randn(case.b, case.hq, case.sq, case.d).to(dtype)
    k = torch.randn(case.b, case.hkv, case.sk, case.d).to(dtype)
    v = torch.randn(case.b, case.hkv, case.sk, case.dv).to(dtype)
    config = torch.__config__.show()
    libraries = [text for pattern, text in ((r"Math Kernel Library Version (\S+?)-", "MKL {}"),
                                            (r"MKL-DNN v(\S+)", "oneDNN {}"), (r"OpenBLAS (\S+)", "OpenBLAS {}"))
                 for found in [re.search(pattern, config)] if found for text in [text.format(found.group(1))]]
    head = {"version": f"PyTorch {torch.__version__.split('+')[0]}", "threads": torch.get_num_threads(),
            "backend": ", ".join([torch.backends.cpu.get_cpu_capability()] + libraries)}

    def check(out):
        return worker.relative_error(case, q, k, v, out, lambda x: x.double().numpy())

    worker.serve(case, head, variants(case, q, k, v), check, kernel)


main()
