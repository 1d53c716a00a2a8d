#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's attention on the CPU, as a worker of peers.py: F.scaled_dot_product_attention, and for one query a head plain
products, which can be many times as fast."""
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
    """{name: function that makes run()}, run() giving [B, Hq, Sq, Dv]"""
    b, hq, hkv, sq, sk, d, dv = case.shape
    group = hq // hkv
    ways = {}
    if case.causal and sq != sk:
        return ways  # is_causal aligns the first query with the first key

    def sdpa(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=case.causal, enable_gqa=group > 1)

    def as_rows(attend, q, k, v):
        """The queries of a group are rows of one head, so that its keys are read once."""
        return attend(q.reshape(b, hkv, group * sq, d), k, v).reshape(b, hq, sq, dv)

    def products(q, k, v):
        return torch.softmax(q * d ** -0.5 @ k.transpose(-1, -2), -1) @ v

    def in_float32(attend):
        wide = k.float()
        return attend(q.float(), wide, wide[..., :dv] if case.v_in_k else v.float()).to(q.dtype)

    def sdpa_rows(q, k, v):
        return as_rows(F.scaled_dot_product_attention, q, k, v)

    def product_rows(q, k, v):
        return as_rows(products, q, k, v)

    calls = {"sdpa": sdpa}
    if group > 1 and not case.causal:
        calls["sdpa, groups as rows"] = sdpa_rows
    if sq == 1:
        calls["products, groups as rows"] = product_rows
    for name, attend in calls.items():
        ways[name] = lambda attend=attend: lambda: attend(q, k, v)
        if case.dtype != "f32" and (name != "sdpa" or group == 1):  # where its 16-bit products are slow
            ways[f"{name}, in float32"] = lambda attend=attend: lambda: in_float32(attend)
    return ways


def main():
    case, threads = worker.arguments()
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    torch.manual_seed(1)
    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[case.dtype]
    q = torch.randn(case.b, case.hq, case.sq, case.d).to(dtype)
    k = torch.randn(case.b, case.hkv, case.sk, case.d).to(dtype)
    v = k[..., :case.dv] if case.v_in_k else torch.randn(case.b, case.hkv, case.sk, case.dv).to(dtype)
    config = torch.__config__.show()
    libraries = [text for pattern, text in ((r"Math Kernel Library Version (\S+?)-", "MKL {}"),
                                            (r"MKL-DNN v(\S+)", "oneDNN {}"), (r"OpenBLAS (\S+)", "OpenBLAS {}"))
                 for found in [re.search(pattern, config)] if found for text in [text.format(found.group(1))]]
    head = {"version": f"PyTorch {torch.__version__.split('+')[0]}", "threads": torch.get_num_threads(),
            "backend": ", ".join([torch.backends.cpu.get_cpu_capability()] + libraries)}

    def check(out):
        return worker.relative_error(case, q, k, v, out, lambda x: x.double().numpy())

    worker.serve(case, head, variants(case, q, k, v), check, kernel)


if __name__ == "__main__":
    main()
