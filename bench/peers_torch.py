# SPDX-License-Identifier: Apache-2.0
"""PyTorch's scaled_dot_product_attention and its gradients as a rival, on any device.

Those that derive from Sdpa know how their device's time and memory are measured. PyTorch is imported where one is made.
"""
import warnings

import worker

NAMES = {"FLASH_ATTENTION": "flash", "CUDNN_ATTENTION": "cudnn", "EFFICIENT_ATTENTION": "efficient", "MATH": "math"}
BACKENDS = {name: backend for backend, name in NAMES.items()}


class Sdpa:
    def __init__(self, device, gradients):
        import torch
        import torch.nn.functional as functional
        from torch.nn.attention import SDPBackend, sdpa_kernel
        self.torch, self.functional, self.backend, self.only = torch, functional, SDPBackend, sdpa_kernel
        self.device, self.gradients = torch.device(device), gradients
        torch.set_grad_enabled(False)
        torch.manual_seed(1)

    def arrays(self, case, copies):
        """Sets of (q, k, v), for gradients with that of the output."""
        dtype = {"f32": self.torch.float32, "f16": self.torch.float16, "bf16": self.torch.bfloat16}[case.dtype]

        def new(*shape):
            return self.torch.randn(shape, device=self.device, dtype=self.torch.float32).to(dtype)

        def one():
            q, k, v = (new(case.b, heads, rows, case.d) for heads, rows in
                       ((case.hq, case.sq), (case.hkv, case.sk), (case.hkv, case.sk)))
            return (q, k, v, new(case.b, case.hq, case.sq, case.d)) if self.gradients else (q, k, v)

        return [one() for _ in range(copies)]

    def with_results(self, case, sets):
        """The sets as `call` takes them: for gradients with the forward's result, of the backend that is chosen now."""
        if not self.gradients:
            return sets
        ready = []
        with self.torch.enable_grad():
            for q, k, v, dout in sets:
                leaves = [x.detach().requires_grad_() for x in (q, k, v)]
                ready.append((*leaves, dout, self.forward(case, *leaves)))
        return ready

    def call(self, case, q, k, v, dout=None, out=None):
        if not self.gradients:
            return self.forward(case, q, k, v)
        return self.torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)

    def step(self, case, q, k, v, dout=None):
        """All results; with gradients from the forward on, so that what it keeps for them counts, as in training."""
        if not self.gradients:
            return self.forward(case, q, k, v)
        with self.torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in (q, k, v)]
            out = self.forward(case, *leaves)
            return out, self.torch.autograd.grad(out, leaves, dout)

    def error(self, case, one):
        """Of the largest number of a result, against float64."""
        if not self.gradients:
            return worker.relative_error(case, *one, self.call(case, *one), lambda x: x.double().cpu().numpy())
        torch, group = self.torch, case.hq // case.hkv
        got = self.call(case, *one)
        with torch.enable_grad():  # the first kv head, whose gradients are all there is of it
            q, k, v = (x[0, :n].detach().double().requires_grad_() for x, n in zip(one, (group, 1, 1)))
            scores = q @ k.transpose(-1, -2) / case.d ** 0.5
            if case.causal:
                hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=self.device).triu(1)
                scores = scores.masked_fill(hidden, float("-inf"))
            out = torch.softmax(scores, -1) @ v
            expected = torch.autograd.grad(out, (q, k, v), one[3][0, :group].double())
        return max(float((x[0, :y.shape[0]].double() - y).abs().max() / y.abs().max()) for x, y in zip(got, expected))

    def right_error(self, case, one):
        """The same, if it is small enough for a rival."""
        error = self.error(case, one)
        if not error <= worker.TOLERANCE[case.dtype]:
            raise ArithmeticError(f"wrong by {error:.2g} of the largest result")
        return error

    def forward(self, case, q, k, v):
        group = case.hq // case.hkv
        if group > 1 and not case.causal:
            # The queries of a group are rows of one head: every backend takes that, and reads the keys once.
            rows = q.view(case.b, case.hkv, group * case.sq, case.d)
            out = self.functional.scaled_dot_product_attention(rows, k, v)
            return out.reshape(case.b, case.hq, case.sq, case.d)
        return self.functional.scaled_dot_product_attention(q, k, v, is_causal=case.causal, enable_gqa=group > 1)

    def alone(self, backend, measure, *arguments):
        """measure(*arguments) with no other backend of PyTorch, or {"error"}."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                with self.only([getattr(self.backend, backend)]):
                    return measure(*arguments)
            except Exception as failure:  # whatever PyTorch raises is the reason why this is no rival
                why = [str(failure)] + [str(one.message) for one in said]
                return {"error": worker.reason("; ".join(why))}

    def measure_same(self, case):
        """{"ms" over the same arrays, "memory_bytes" that `step` takes at most, "relative_error"}"""
        one = self.arrays(case, 1)[0]
        memory = self.peak_bytes(case, one)
        ready = self.with_results(case, [one])[0]
        return {"relative_error": self.right_error(case, ready), "ms": self.time_same(case, ready),
                "memory_bytes": memory}
