#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's scaled_dot_product_attention on a GPU beside `attn bench --device cuda --graph`, at the same shapes.

Each backend of PyTorch is a contestant of its own: flash, cuDNN, memory-efficient and plain products ("math"); those
that refuse a case are reported with PyTorch's reason. Results are compared with float64 first. Calls of both sides are
replayed from a CUDA graph, so that no host stands between them; PyTorch's replays are timed by events, attn's by the host
that waits for them. PyTorch's twice: over arrays that take turns and together exceed the GPU's cache, and over the same
arrays again and again, which is what `attn bench` does.

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

import worker
from peers_case import BYTES, Case
from peers_torch import BACKENDS, NAMES, Sdpa

ROTATED_BYTES = 256 << 20  # more than any GPU's L2 cache
COPIES_MAX = 64
MEASURED = 15  # times of which the median counts
WITHOUT_F32 = "flash", "cudnn"
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


def parse_backends(text):
    names = tuple(text.split(","))
    for name in names:
        if name not in BACKENDS:
            raise argparse.ArgumentTypeError(f"'{name}' is none of {', '.join(BACKENDS)}")
    return names


def copies_of(case):
    """How many sets of arrays exceed the cache."""
    one = case.kv_bytes + 2 * case.b * case.hq * case.sq * case.d * BYTES[case.dtype]
    return max(2, min(COPIES_MAX, -(-ROTATED_BYTES // one)))


def bench_command(attn, case, device, what=FORWARD):
    shape = ",".join(str(n) for n in case.shape[:6])
    return [attn, "bench", "--device", f"cuda:{device}", "--graph", "--json", "--shape", shape, "--dtype", case.dtype,
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


class Torch(Sdpa):
    """What is measured of PyTorch on a GPU."""

    def __init__(self, device, budget, what=FORWARD):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what a fixed order of its products asks for
        super().__init__(f"cuda:{device}", bool(what))
        torch, self.budget = self.torch, budget
        if not torch.cuda.is_available():
            raise ImportError("PyTorch sees no GPU")
        torch.cuda.set_device(self.device)
        self.stream = torch.cuda.Stream()
        torch.use_deterministic_algorithms(what == BACKWARD)
        torch.backends.cuda.matmul.allow_tf32 = False  # float32 means float32

    def about(self):
        properties = self.torch.cuda.get_device_properties(self.device)
        return {"torch": self.torch.__version__, "cuda": self.torch.version.cuda, "gpu": properties.name,
                "cudnn": self.torch.backends.cudnn.version()}

    def with_results(self, case, sets):
        # Autograd goes backward on the stream that it went forward on, and that is the one which is captured.
        with self.torch.cuda.stream(self.stream):
            ready = super().with_results(case, sets)
        self.torch.cuda.synchronize()
        return ready

    def peak_bytes(self, case, one):
        """Beyond what is allocated before, in a call without a graph; the first one takes the libraries' own memory."""
        cuda = self.torch.cuda
        self.step(case, *one)
        cuda.synchronize()
        before = cuda.memory_allocated()
        cuda.reset_peak_memory_stats()
        results = self.step(case, *one)
        cuda.synchronize()
        peak = cuda.max_memory_allocated()
        del results
        return peak - before

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

    def time_same(self, case, one):
        calls = copies_of(case)
        return self.time(self.graph(case, [one] * calls), calls)

    def measure(self, case, sets):
        """{"ms" over rotated arrays, "same_ms" over the same ones, "relative_error"}"""
        sets = self.with_results(case, sets)
        return {"relative_error": self.right_error(case, sets[0]),
                "ms": self.time(self.graph(case, sets), len(sets)),
                "same_ms": self.time(self.graph(case, sets[:1] * len(sets)), len(sets))}

    def case(self, case, names):
        found = {}
        for name in names:
            if case.dtype == "f32" and name in WITHOUT_F32:
                continue
            try:
                sets = self.arrays(case, copies_of(case))
            except self.torch.cuda.OutOfMemoryError as failure:
                found[name] = {"error": worker.reason(failure)}
                continue
            found[name] = self.alone(BACKENDS[name], self.measure, case, sets)
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
    parser.add_argument("--backends", type=parse_backends, default=tuple(BACKENDS), metavar="LIST",
                        help="of PyTorch, separated by commas; default: " + ",".join(BACKENDS))
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
    print(f"PyTorch {about['torch']}, CUDA {about['cuda']}, cuDNN {about['cudnn']}, {about['gpu']}; ms of calls in "
          "CUDA graphs, PyTorch by its backends over rotated/the same arrays, best/attn over the same")
    for case in cases:
        rows.append({"shape": ",".join(str(n) for n in case.shape[:6]), "dtype": case.dtype, "causal": case.causal,
                     "attn": run_attn(options.attn, case, options.device, what) if options.attn else None,
                     "torch": rival.case(case, options.backends)})
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
