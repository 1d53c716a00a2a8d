#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`attn bench --suite seeds` beside PyTorch's unfused attention ("math"): time and memory, forward and backward.

    bench/peers_seeds.py --attn build/release/attn --device cuda --markdown
    bench/peers_seeds.py --attn build/release/attn --device cpu --markdown

Times are of a call over the same arrays; that of backward is of the gradients alone. On a GPU the calls of both sides are
replayed from CUDA graphs (`attn bench --graph`), and attn's gradients are measured twice, in a fixed order and (unordered)
in any, beside PyTorch's as they come. Memory is what is taken at most beyond the inputs: the results and, by attn, its
workspace, by PyTorch all that its allocator counts. Backward's is that of forward and backward together, with the output
and whatever else the forward keeps. saved is 1 - attn / PyTorch.
"""
import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time

import peers_cuda
import worker
from peers_case import BYTES, Case
from peers_process import HERE, environment
from peers_torch import BACKENDS

OPS = "forward", "backward", "unordered"
HEADS = "B,H,M,N,D", "type", "mask", "direction", "attn ms", "{} ms", "factor", "attn memory", "{} memory", "saved"
WIDTHS = 18, 5, 6, 9, 9, 9, 7, 11, 11, 8
WORDS = 4  # columns of them


class Deadline:
    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def left(self):
        return max(0, self.end - time.monotonic())


def run(argv, threads, seconds):
    """(standard output, why it is no more than that), either of which may be empty."""
    try:
        done = subprocess.run(argv, capture_output=True, timeout=seconds, check=False,
                              env=environment(threads) if threads else None)
    except subprocess.TimeoutExpired as late:
        return (late.stdout or b"").decode(), "no time is left"
    except OSError as failure:
        return "", worker.reason(failure)
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return done.stdout.decode(), f"status {done.returncode}" + (f": {said[-1]}" if said else "") if done.returncode else ""


# ---- attn -------------------------------------------------------------------------------------------

def case_of(row):
    """The Case of a row of `attn bench --json`."""
    return Case("", *row["shape"].values(), row["causal"], row["dtype"])


def rows_of(text):
    """The rows of an array that may have been cut off behind one."""
    try:
        return json.loads(text if text.rstrip().endswith("]") else text + "]")
    except ValueError:
        return []


def list_cases(attn, dtype):
    text, why = run([attn, "bench", "--suite", "seeds", "--list", "--json", "--dtype", dtype], 0, 60)
    if why:
        raise OSError(f"attn bench: {why}")
    return [case_of(row) for row in json.loads(text) if row["op"] == "forward"]


def run_attn(options, deadline):
    """{(case, op): row of `attn bench` or {"error"}}, by one process and, on a GPU, one more for any order."""
    command = [options.attn, "bench", "--suite", "seeds", "--json", "--dtype", options.dtype, "--device", options.device,
               "--seconds", str(options.seconds)]
    if is_gpu(options.device):
        command += ["--graph"]
    else:
        command += ["--threads", str(options.threads)]
    found = {}

    def add(words, ops):
        text, why = run(command + words, options.threads, deadline.left())
        for case in options.cases:
            found.update({(case, op): {"error": why or "no such row"} for op in ops})
        for row in rows_of(text):
            op = "unordered" if words else row["op"]
            found[case_of(row), op] = row if row["verified"] else {"error": "wrong result"}

    add([], OPS[:2])
    if is_gpu(options.device):
        add(["--backward", "--unordered"], OPS[2:])
    return found


def attn_bytes(case, op, workspaces):
    """What is taken beyond the inputs. workspaces: of the forward and, for gradients, of backward."""
    queries, item = case.b * case.hq * case.sq, BYTES[case.dtype]
    kept = queries * case.dv * item
    if op == "forward":
        return kept + workspaces[0]
    kept += 4 * queries  # LSE
    gradients = queries * case.d * item + case.kv_bytes
    return kept + max(workspaces[0], gradients + workspaces[1])


def attn_of(found, case, op):
    """{"ms", "memory_bytes", "kernel", "workspace_bytes"} or {"error"}."""
    row, forward = found[case, op], found[case, "forward"]
    for one in (row, forward):
        if "error" in one:
            return one
    workspaces = forward["workspace_bytes"], row["workspace_bytes"]
    return {"ms": row["median_ms"], "memory_bytes": attn_bytes(case, op, workspaces), "kernel": row["kernel"],
            "workspace_bytes": row["workspace_bytes"]}


# ---- PyTorch ----------------------------------------------------------------------------------------

def is_gpu(device):
    return device != "cpu"


class Gpu:
    """Both directions in this process, because starting one for each case would take longer than the cases."""

    def __init__(self, options):
        import numpy  # noqa: F401, for the comparison
        number = int(options.device.partition(":")[2] or 0)
        self.backend, self.deadline = BACKENDS[options.backend], options.deadline
        self.rivals = {"forward": peers_cuda.Torch(number, options.seconds),
                       "backward": peers_cuda.Torch(number, options.seconds, peers_cuda.UNORDERED)}

    def about(self):
        return self.rivals["forward"].about()

    def measure(self, case):
        """{op: {"ms", "memory_bytes", "relative_error"} or {"error"}}"""
        found = {}
        for op, rival in self.rivals.items():
            if not self.deadline.left():
                found[op] = {"error": "no time is left"}
                continue
            found[op] = rival.alone(self.backend, rival.measure_same, case)
            rival.torch.cuda.empty_cache()
        return found


class Cpu:
    """A process for each case, which can be ended and whose memory is its own."""

    def __init__(self, options):
        if importlib.util.find_spec("torch") is None:
            raise ImportError("No module named 'torch'")
        self.options, self.version = options, None

    def about(self):
        return {"torch": self.version, "threads": self.options.threads}

    def measure(self, case):
        options = self.options
        text, why = run([sys.executable, str(HERE / "worker_seeds.py"), "--shape", case.shape_text, "--dtype", case.dtype,
                         "--threads", str(options.threads), "--seconds", str(options.seconds), "--backend",
                         options.backend, *(["--causal"] if case.causal else [])],
                        options.threads, options.deadline.left())
        found, refused = {}, why or "no answer"
        for line in text.splitlines():
            answer = json.loads(line) if line.startswith("{") else {}
            if "op" in answer:
                self.version = answer.pop("version")
                found[answer.pop("op")] = answer
            else:
                refused = answer.get("error", refused)
        return {op: found.get(op, {"error": refused}) for op in OPS[:2]}


# ---- tables -----------------------------------------------------------------------------------------

def row_of(case, op, ours, theirs):
    row = {"shape": [case.b, case.hq, case.sq, case.sk, case.d], "dtype": case.dtype, "causal": case.causal, "op": op,
           "attn": ours, "torch": theirs}
    if "error" not in ours and "error" not in theirs:
        row["factor"] = theirs["ms"] / ours["ms"]
        row["saved"] = 1 - ours["memory_bytes"] / theirs["memory_bytes"]
    return row


def size(count):
    for unit in ("B", "KB", "MB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def cells(row):
    ours, theirs = row["attn"], row["torch"]
    return [",".join(str(n) for n in row["shape"]), row["dtype"], "causal" if row["causal"] else "full", row["op"],
            f"{ours['ms']:.4g}" if "ms" in ours else "-", f"{theirs['ms']:.4g}" if "ms" in theirs else "-",
            f"{row['factor']:.2f}" if "factor" in row else "-",
            size(ours["memory_bytes"]) if "ms" in ours else "-", size(theirs["memory_bytes"]) if "ms" in theirs else "-",
            f"{100 * row['saved']:.1f} %" if "saved" in row else "-"]


def text_line(words):
    return " ".join(word.ljust(width) if n < WORDS else word.rjust(width)
                    for n, (word, width) in enumerate(zip(words, WIDTHS)))


def markdown(rows, backend):
    lines = [[head.format(backend) for head in HEADS], ["---"] * WORDS + ["---:"] * (len(HEADS) - WORDS)]
    return ["| " + " | ".join(line) + " |" for line in lines + [cells(row) for row in rows]]


def skipped(rows):
    """A line for each number that is missing."""
    return [f"SKIP: {name}: {' '.join(cells(row)[:WORDS])}: {row[key]['error']}"
            for row in rows for name, key in (("attn", "attn"), ("PyTorch", "torch")) if "error" in row[key]]


# ---- the command --------------------------------------------------------------------------------------

def options_of(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attn", default=str(HERE.parent / "build/release/attn"), metavar="PATH", help="the command")
    parser.add_argument("--device", required=True, help="cpu, cuda or cuda:N")
    parser.add_argument("--dtype", choices=BYTES, help="default: f16 on a GPU, f32 on the CPU")
    parser.add_argument("--backend", choices=BACKENDS, default="math", help="of PyTorch; default: math, the unfused one")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads; default: one a CPU of this process")
    parser.add_argument("--seconds", type=float, default=0.2, help="for each time, at least 3 calls; default: 0.2")
    parser.add_argument("--minutes", type=float, default=60, help="at most for all, half of it for attn; default: 60")
    parser.add_argument("--json", metavar="FILE", help="write all numbers there")
    parser.add_argument("--markdown", action="store_true", help="the table in Markdown at the end")
    options = parser.parse_args(argv)
    kind, colon, number = options.device.partition(":")
    if options.device != "cpu" and (kind != "cuda" or (colon and not number.isdecimal())):
        parser.error(f"--device: '{options.device}' is none of cpu, cuda, cuda:N")
    options.dtype = options.dtype or ("f16" if is_gpu(options.device) else "f32")
    if is_gpu(options.device):
        options.threads = 0
    else:
        options.threads = options.threads or len(os.sched_getaffinity(0))
    return options


def main():
    options = options_of(sys.argv[1:])
    options.deadline = Deadline(60 * options.minutes)
    try:
        options.cases = list_cases(options.attn, options.dtype)
    except OSError as error:
        sys.exit(f"peers_seeds.py: {error}")
    try:
        rival = Gpu(options) if is_gpu(options.device) else Cpu(options)
    except (ImportError, OSError) as error:
        print(f"SKIP: PyTorch: {worker.reason(error)}")
        return 77
    how = ", calls in CUDA graphs on both sides" if is_gpu(options.device) else ""
    print(f"attn bench on {options.device}{how} ...", file=sys.stderr)
    found = run_attn(options, Deadline(30 * options.minutes))
    rows = []
    print(text_line([head.format(options.backend) for head in HEADS]))
    for case in options.cases:
        theirs = rival.measure(case)
        for op in OPS:
            if (case, op) in found:
                rows.append(row_of(case, op, attn_of(found, case, op), theirs["forward" if op == "forward" else "backward"]))
                print(text_line(cells(rows[-1])), flush=True)
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump({**rival.about(), "backend": options.backend, "rows": rows}, file, indent=1)
    print("\n" + ", ".join(f"{key} {value}" for key, value in rival.about().items() if value))
    for line in (markdown(rows, options.backend) if options.markdown else []) + skipped(rows):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
