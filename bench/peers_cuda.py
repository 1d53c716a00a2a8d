#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's scaled_dot_product_attention on a GPU beside `attn bench --device cuda`, at the same shapes.

Each backend of PyTorch is a contestant of its own: flash, cuDNN, memory-efficient and plain products ("math"); those
that refuse a case are reported with PyTorch's reason. Results are compared with float64 first. Calls are replayed from a
CUDA graph, so that no Python stands between them, and timed by events. Twice: over arrays that take turns and together
exceed the GPU's cache, and over the same arrays again and again, which is what `attn bench` does.

With --backward the gradients of Q, K and V are measured instead: attn's, in order, beside PyTorch under
use_deterministic_algorithms(True); with --unordered as well, attn's in any order beside PyTorch as it comes.

A case is B,HQ,HKV,SQ,SK,D:TYPE, with :causal behind it where the mask is.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import warnings

import worker
from peers_case import BYTES, Case

ROTATED_BYTES = 256 << 20  # more than any GPU's L2 cache
COPIES_MAX = 64
MEASURED = 15  # times of which the median counts
ALL = "FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "MATH"
NAMES = {"FLASH_ATTENTION": "flash", "CUDNN_ATTENTION": "cudnn", "EFFICIENT_ATTENTION": "efficient", "MATH": "math"}
BACKENDS = {"f32": ALL[2:], "f16": ALL, "bf16": ALL}
FORWARD, BACKWARD, UNORDERED = (), ("--backward",), ("--backward", "--unordered")  # what attn bench is told


def parse_case(text):
    """The Case that a word such as "1,32,8,1,4096,128:f16" or "1,8,8,512,512,64:f32:causal" stands for."""
    shape, *words = text.split(":")
    try:
        numbers = [int(n) for n in shape.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != 6 or min(numbers) < 1 or not words or words[0] not in BYTES or words[1:] not in ([], ["causal"]):
        raise ValueError(f"'{text}' is not B,HQ,HKV,SQ,SK,D:TYPE[:causal]")
    if words[1:] and numbers[3] != numbers[4]:
        raise ValueError(f"'{text}': PyTorch aligns a causal mask with the first key; SQ and SK must be equal")
    return Case("", *numbers, numbers[5], bool(words[1:]), dtype=words[0])


def copies_of(case):
    """How many sets of arrays exceed the cache."""
    one = case.kv_bytes + 2 * case.b * case.hq * case.sq * case.d * BYTES[case.dtype]
    return max(2, min(COPIES_MAX, -(-ROTATED_BYTES // one)))


def bench_command(attn, case, device, what=FORWARD):
    shape = ",".join(str(n) for n in case.shape[:6])
    return [attn, "bench", "--device", f"cuda:{device}", "--json", "--shape", shape, "--dtype", case.dtype,
            *(["--causal"] if case.causal else []), *what]


def run_attn(attn, case, device, what=FORWARD):
    """{"ms", "waited_ms", "kernel"} of `attn bench`, or {"error"}."""
    try:
        done = subprocess.run(bench_command(attn, case, device, what), capture_output=True, text=True, timeout=600, check=False)
        row = json.loads(done.stdout)[0] if done.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, ValueError) as failure:
        return {"error": worker.reason(failure)}
    if row is None:
        return {"error": worker.reason(done.stderr) if done.stderr else f"status {done.returncode}"}
    return {"ms": row["median_ms"], "waited_ms": row["waited_ms"], "kernel": row["kernel"], "verified": row["verified"]}


class Torch:
    """What is measured of PyTorch; the module is only imported where it is."""

    def __init__(self, device, budget, what=FORWARD):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what a fixed order of its products asks for
        import torch
        import torch.nn.functional as functional
        from torch.nn.attention import SDPBackend, sdpa_kernel
        if not torch.cuda.is_available():
            raise ImportError("PyTorch sees no GPU")
        self.torch, self.functional, self.backend, self.only = torch, functional, SDPBackend, sdpa_kernel
        self.device, self.budget = torch.device("cuda", device), budget
        torch.cuda.set_device(self.device)
        self.what, self.stream = what, torch.cuda.Stream()
        torch.set_grad_enabled(False)
        torch.use_deterministic_algorithms(what == BACKWARD)
        torch.backends.cuda.matmul.allow_tf32 = False  # float32 means float32
        torch.manual_seed(1)

    def about(self):
        properties = self.torch.cuda.get_device_properties(self.device)
        return {"torch": self.torch.__version__, "cuda": self.torch.version.cuda, "gpu": properties.name,
                "cudnn": self.torch.backends.cudnn.version()}

    def arrays(self, case, copies):
        dtype = {"f32": self.torch.float32, "f16": self.torch.float16, "bf16": self.torch.bfloat16}[case.dtype]

        def new(*shape):
            return self.torch.randn(shape, device=self.device, dtype=self.torch.float32).to(dtype)

        def one():
            q, k, v = (new(case.b, heads, rows, case.d) for heads, rows in
                       ((case.hq, case.sq), (case.hkv, case.sk), (case.hkv, case.sk)))
            return (q, k, v, new(case.b, case.hq, case.sq, case.d)) if self.what else (q, k, v)

        return [one() for _ in range(copies)]

    def with_results(self, case, sets):
        """The sets as `call` takes them: for gradients with the forward's result, of the backend that is chosen now."""
        if not self.what:
            return sets
        ready = []
        # Autograd goes backward on the stream that it went forward on, and that is the one which is captured.
        with self.torch.enable_grad(), self.torch.cuda.stream(self.stream):
            for q, k, v, dout in sets:
                leaves = [x.detach().requires_grad_() for x in (q, k, v)]
                ready.append((*leaves, dout, self.forward(case, *leaves)))
        self.torch.cuda.synchronize()
        return ready

    def call(self, case, q, k, v, dout=None, out=None):
        if not self.what:
            return self.forward(case, q, k, v)
        return self.torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)

    def error(self, case, one):
        """Of the largest number of a result, against float64."""
        if not self.what:
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

    def forward(self, case, q, k, v):
        group = case.hq // case.hkv
        if group > 1 and not case.causal:
            # The queries of a group are rows of one head: every backend takes that, and reads the keys once.
            rows = q.view(case.b, case.hkv, group * case.sq, case.d)
            out = self.functional.scaled_dot_product_attention(rows, k, v)
            return out.reshape(case.b, case.hq, case.sq, case.d)
        return self.functional.scaled_dot_product_attention(q, k, v, is_causal=case.causal, enable_gqa=group > 1)

    def graph(self, case, sets):
        """A graph of one call on each set of arrays."""
        torch = self.torch
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(2):
                self.call(case, *sets[0])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            for one in sets:
                self.call(case, *one)
        return graph

    def time(self, graph, calls):
        """Milliseconds of a call: the median of MEASURED replays, or of as many as the budget holds."""
        torch, times, spent = self.torch, [], 0.0
        for _ in range(2):
            graph.replay()
        torch.cuda.synchronize()
        while len(times) < MEASURED and (len(times) < 3 or spent < self.budget):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / calls)
            spent += times[-1] * calls * 1e-3
        return statistics.median(times)

    def measure(self, case, backend, sets):
        """{"ms" over rotated arrays, "same_ms" over the same ones, "relative_error"}, or {"error"}."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                with self.only([getattr(self.backend, backend)]):
                    sets = self.with_results(case, sets)
                    error = self.error(case, sets[0])
                    if not error <= worker.TOLERANCE[case.dtype]:
                        return {"error": f"wrong by {error:.2g} of the largest result"}
                    rotated = self.time(self.graph(case, sets), len(sets))
                    same = self.time(self.graph(case, sets[:1] * len(sets)), len(sets))
            except Exception as failure:  # whatever PyTorch raises is the reason why this is no rival
                why = [str(failure)] + [str(one.message) for one in said]
                return {"error": worker.reason("; ".join(why))}
        return {"ms": rotated, "same_ms": same, "relative_error": error}

    def case(self, case):
        found = {}
        for backend in BACKENDS[case.dtype]:
            try:
                sets = self.arrays(case, copies_of(case))
            except self.torch.cuda.OutOfMemoryError as failure:
                found[NAMES[backend]] = {"error": worker.reason(failure)}
                continue
            found[NAMES[backend]] = self.measure(case, backend, sets)
            del sets
            self.torch.cuda.empty_cache()
        return found


def table(rows):
    """Lines for people: attn, then PyTorch's backends, each rotated/same, in ms."""
    lines = [f"{'B,HQ,HKV,SQ,SK,D':24} {'type':5} {'mask':6} {'attn':>9}" +
             "".join(f" {name:>17}" for name in NAMES.values()) + "  best/attn"]
    for row in rows:
        attn = row["attn"].get("ms") if row["attn"] else None
        cells, best = "", None
        for name in NAMES.values():
            one = row["torch"].get(name, {})
            cells += f" {one['ms']:8.4g}/{one['same_ms']:<8.4g}" if "ms" in one else f" {'-':>17}"
            if "ms" in one and (best is None or one["same_ms"] < best):
                best = one["same_ms"]
        ratio = f"{best / attn:.2f}" if best and attn else "-"
        lines.append(f"{row['shape']:24} {row['dtype']:5} {'causal' if row['causal'] else 'full':6} "
                     f"{f'{attn:.4g}' if attn else '-':>9}{cells}  {ratio:>9}")
    return lines


def reasons(rows):
    """What is missing in the table, a line for each reason."""
    seen = []
    for row in rows:
        for name, one in [("attn", row["attn"] or {})] + list(row["torch"].items()):
            line = f"{name}, {row['dtype']}: {one.get('error')}"
            if "error" in one and line not in seen:
                seen.append(line)
    return seen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attn", help="the command; without it PyTorch is measured alone")
    parser.add_argument("--device", type=int, default=0, help="the GPU's number")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each time, at least 3 replays (default 0.5)")
    parser.add_argument("--backward", action="store_true", help="gradients, in a fixed order on both sides")
    parser.add_argument("--unordered", action="store_true", help="with --backward: in any order on both sides")
    parser.add_argument("--json", metavar="FILE", help="write all numbers there")
    parser.add_argument("case", nargs="+")
    options = parser.parse_args()
    if options.unordered and not options.backward:
        parser.error("--unordered is for --backward")
    what = UNORDERED if options.unordered else BACKWARD if options.backward else FORWARD
    try:
        cases = [parse_case(text) for text in options.case]
    except ValueError as error:
        parser.error(str(error))
    try:
        rival = Torch(options.device, options.seconds, what)
        import numpy  # noqa: F401, for the comparison
    except (ImportError, OSError) as error:
        print(f"SKIP: PyTorch: {worker.reason(error)}")
        return 77
    about, rows = rival.about(), []
    print(f"PyTorch {about['torch']}, CUDA {about['cuda']}, cuDNN {about['cudnn']}, {about['gpu']}; ms, PyTorch by its "
          "backends over rotated/the same arrays, best/attn over the same")
    for case in cases:
        rows.append({"shape": ",".join(str(n) for n in case.shape[:6]), "dtype": case.dtype, "causal": case.causal,
                     "attn": run_attn(options.attn, case, options.device, what) if options.attn else None,
                     "torch": rival.case(case)})
        lines = table(rows)
        print("\n".join(lines if len(rows) == 1 else lines[-1:]), flush=True)
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump({**about, "rows": rows}, file, indent=1)
    for line in reasons(rows):
        print(f"SKIP: {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
