#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The V100 report: what a performance model says of the sm_70 kernels, since it reads their machine code.

Usage: tools/v100_report.py --model volta_model.py [--update docs/performance.md] [--banks FILE] [--json]

The model is not part of the project; ATTN_VOLTA_MODEL may name it instead. Wanted besides: Python 3.9, a C compiler,
and nvcc, cuobjdump and nvdisasm of one CUDA toolkit that knows sm_70 (9 to 12).

Two figures a kernel, both of useful work, 2 rows keys (Dk + Dv) a step, or 2 rows keys (3 Dk + 2 Dv) backward: "all code", where every conditional block that
the code falls into runs (masks, paged keys, features, rows that are not aligned; their loops once), and "plain", an
interior step without the lines marked `model: rare` in the sources: no mask, aligned rows, no pages, no features."""
import argparse
import datetime
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

import v100_code
from v100_code import CodeError

ROOT = pathlib.Path(__file__).resolve().parent.parent
KERNELS = ROOT / "src" / "cuda" / "kernels"
INCLUDE = ["-Isrc", "-Isrc/common", "-Iinclude"]
NVCC_FLAGS = ["-std=c++17", "-O3", "-fmad=false", "-arch=sm_70", "-lineinfo", "-cubin", *INCLUDE]
SKIPPED = 77
BEGIN, END = "<!-- v100_report: begin -->", "<!-- v100_report: end -->"

# Conflict factors of shared memory by kind ("load" or "store") and bytes a lane.
Factors = Dict[Tuple[str, int], float]


class Shape(NamedTuple):
    kernel: str
    module: str
    backward: int
    dk: int
    dv: int
    rows: int  # of a block
    keys: int  # of a step; of a block backward
    warps: int
    shared: int

    @property
    def flops(self) -> int:
        """Useful ones of a step and warp."""
        products = 3 * self.dk + 2 * self.dv if self.backward else self.dk + self.dv
        return 2 * self.rows * self.keys * products // self.warps

    @property
    def products(self) -> int:
        """HMMA of a step and warp: each multiplies a quarter of four 8 x 8 x 4, 256 multiply-adds."""
        return self.flops // 512

    @property
    def loaded(self) -> int:
        """Bytes that a block loads in a step: K and V, or Q and dO."""
        return 2 * (self.rows if self.backward else self.keys) * (self.dk + self.dv)


class Peer(NamedTuple):
    name: str
    dim: int
    tflops: float
    share: int
    stalls: str


# Modelled the same way, from code compiled by CUDA 11.8: our results of 2026-11-28 (the model's report, section 2).
# Bank conflicts taken as none.
PEERS = (
    Peer("CUTLASS example 41, 64 x 64", 64, 43.7, 35, "wait LDG (global) 10%, stall count (fixed latency) 10%"),
    Peer("CUTLASS example 41, 32 x 128", 128, 45.6, 36, "wait LDG (global) 19%, stall count (fixed latency) 10%"),
    Peer("CUTLASS example 41, 32 x 128", 256, 34.9, 28, "wait LDG (global) 25%, stall count (fixed latency) 13%"),
    Peer("ggml mma-f16, 64 columns", 64, 27.7, 22, "wait LDG (global) 37%, stall count (fixed latency) 13%"),
    Peer("ggml mma-f16, 64 columns", 128, 34.4, 27, "wait LDG (global) 40%, wait HMMA result 14%"),
    Peer("ggml mma-f16, 64 columns", 256, 30.2, 24, "wait LDG (global) 33%, wait HMMA result 18%"),
    Peer("ai-bond, 64 x 128, its plain path", 64, 22.4, 18, "wait LDG (global) 20%, barrier (BAR.SYNC) 15%"),
    Peer("ai-bond, 32 x 160, all code", 128, 16.5, 13, "wait LDG (global) 24%, barrier (BAR.SYNC) 14%"),
    Peer("ai-bond, 32 x 64, all code", 256, 13.3, 11, "wait LDG (global) 25%, barrier (BAR.SYNC) 15%"),
)


class Skip(Exception):
    """What this machine lacks."""


# ---- What the report reads -------------------------------------------------------------------------------------------

def load_model(path: Optional[str]) -> Any:
    if not path:
        raise Skip("no model of the V100: --model or ATTN_VOLTA_MODEL names its volta_model.py")
    if not os.path.isfile(path):
        raise Skip(f"{path} is missing")
    spec = importlib.util.spec_from_file_location("volta_model", path)
    if spec is None or spec.loader is None:
        raise Skip(f"{path} is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules["volta_model"] = module  # its data classes look for it there
    spec.loader.exec_module(module)
    return module


def output_of(command: List[str], **more: Any) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, **more).stdout
    except FileNotFoundError as error:
        raise Skip(f"{command[0]} was not found") from error
    except subprocess.CalledProcessError as error:
        raise CodeError(f"{' '.join(command)}:\n{error.stderr}") from error


def shapes_of(compiler: str, folder: str) -> List[Shape]:
    """The lists of tensor_shapes.h and backward_params.h, by the C compiler."""
    program = os.path.join(folder, "shapes")
    source = r"""
#include <stdio.h>
#include "cuda/kernels/backward_params.h"
#define LINE(module, type, scaled, dk, dv, keys, blocks, warps, q, one)                                         \
  for (int all = 0; all < 2; all++)                                                                          \
    printf("sm70_forward_%d_%d" type "%s " #module type " 0 %d %d %d %d %d %d\n", dk, dv, all ? "_all" : "",   \
           dk, dv, TENSOR_ROWS(dv, blocks, warps), keys, warps,                                               \
           (int)TENSOR_SHARED(sm70, scaled, dk, dv, keys, blocks, warps, q, one, all));
#define F16(module, dk, dv, keys, blocks, warps, q, one, per_sm) LINE(module, "", 0, dk, dv, keys, blocks, warps, q, one)
#define BF16(module, dk, dv, keys, blocks, warps, q, one, per_sm) \
  LINE(module, "_bf16", 1, dk, dv, keys, blocks, warps, q, one)
#define BACKWARD(module, d, rows, keys, s_warps, k_warps, q_warps, teams)                                   \
  for (int all = 0; all < 2; all++)                                                                         \
    printf("sm70_backward_%d_%dx%d%s " #module " 1 %d %d %d %d %d %d\n", d, rows, keys, all ? "_all" : "", d, d, \
           rows, keys, BACKWARD_THREADS / 32, (int)BACKWARD_SHARED(sm70, d, rows, keys, teams));
int main(void) { SM70_SHAPES(F16) SM70_BF16_SHAPES(BF16) SM70_BACKWARD_SHAPES(BACKWARD) return 0; }
"""
    output_of([compiler, *INCLUDE, "-x", "c", "-", "-o", program], input=source)
    words = [line.split() for line in output_of([program]).splitlines()]
    return [Shape(kernel, module, *map(int, numbers)) for kernel, module, *numbers in words]


def factors_of(text: str) -> Dict[str, Factors]:
    """Of each kernel, from lines "kernel file:line kind bytes accesses wavefronts ideal factor"."""
    sums: Dict[str, Dict[Tuple[str, int], List[float]]] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) != 8 or words[2] not in ("load", "store"):
            raise CodeError(f"not a line of bank conflicts: {line}")
        of_kernel = sums.setdefault(words[0], {})
        total = of_kernel.setdefault((words[2], int(words[3])), [0.0, 0.0])
        total[0] += float(words[5])
        total[1] += float(words[6])
    return {kernel: {key: max(1.0, waves / ideal) for key, (waves, ideal) in of_kernel.items()}
            for kernel, of_kernel in sums.items()}


def conflicts_of(factors: Factors) -> Factors:
    """As the model wants them."""
    return {("LDS" if kind == "load" else "STS", size): factor for (kind, size), factor in factors.items()}


# ---- One kernel ------------------------------------------------------------------------------------------------------

def modelled(model: Any, step: v100_code.Step, shape: Shape, taken: Set[int], factors: Factors) -> Dict[str, Any]:
    options = types.SimpleNamespace(
        trip=step.trips(shape.products), taken=taken, conflicts=conflicts_of(factors), threads_for=lambda name: 0,
        smem_for=lambda name: shape.shared, blocks=None, static=False, policy="gto", warmup=2, iters=4)
    result = model.analyse(step.kernel, step.loop, model.Machine(), options)
    products = sum(count for group, count in result["mix"].items() if group.startswith("HMMA"))
    if products != shape.products:
        raise CodeError(f"{shape.kernel}: a step has {products} HMMA, not {shape.products}: not the loop of the steps")
    if result["threads"] != 32 * shape.warps:
        raise CodeError(f"{shape.kernel}: {result['threads']} threads, not {32 * shape.warps}")
    return result


def useful_tflops(model: Any, shape: Shape, result: Dict[str, Any]) -> float:
    machine = model.Machine()
    flops = shape.flops * result["warps_per_sm"] * machine.sms
    return flops / result["cycles_per_iteration"] * machine.clock_ghz / 1e3


def report_kernel(model: Any, kernel: Any, chains: v100_code.Chains, marked: Set[v100_code.Place], shape: Shape,
                  factors: Factors) -> Dict[str, Any]:
    if not shape.backward and shape.keys > 32 * shape.warps:
        raise CodeError(f"{shape.kernel}: loops over keys run more than once, which this does not count")
    step = v100_code.Step(model, kernel, chains, marked)
    everything = modelled(model, step, shape, set(), factors)
    plain = modelled(model, step, shape, step.taken(), factors)
    loaded, wanted = plain["l2_bytes_per_iteration"], shape.loaded * plain["blocks_per_sm"]
    if loaded < wanted:
        raise CodeError(f"{shape.kernel}: a plain step loads {loaded} bytes, not {wanted}: not its way")
    peak = model.Machine().tensor_peak_tflops
    tflops = {"all_code": useful_tflops(model, shape, everything), "plain": useful_tflops(model, shape, plain)}
    stalls = list(plain["stalls"].items())[:3]
    return {
        **shape._asdict(), "registers": kernel.regs, "stack_bytes": kernel.stack,
        "spills": plain["spill_instructions"], "blocks_per_sm": plain["blocks_per_sm"],
        "warps_per_sm": plain["warps_per_sm"], "code_bytes": plain["code_bytes"],
        "instructions": {"all_code": everything["instructions"], "plain": plain["instructions"]},
        "model_tflops": tflops, "model_share": {name: value / peak for name, value in tflops.items()},
        "model_stalls": dict(stalls), "utilisation": plain["utilisation"], "skipped_branches": sorted(step.taken()),
    }


def report_module(model: Any, tools: argparse.Namespace, folder: str, shapes: List[Shape],
                  factors: Dict[str, Factors]) -> List[Dict[str, Any]]:
    module = shapes[0].module
    cubin = os.path.join(folder, module + ".cubin")
    output_of([tools.nvcc, *NVCC_FLAGS, f"src/cuda/kernels/{module}.cu", "-o", cubin], env=tool_environment(tools.nvcc))
    chains = v100_code.line_info(output_of([beside(tools.nvcc, "nvdisasm"), "-c", "-gi", cubin]))
    marked = v100_code.marked_in(KERNELS)
    kernels = {kernel.name: kernel for kernel in model.load_file(cubin, beside(tools.nvcc, "cuobjdump"))}
    return [report_kernel(model, kernels[shape.kernel], chains[shape.kernel], marked, shape,
                          factors.get(shape.kernel, {})) for shape in shapes]


def beside(nvcc: str, tool: str) -> str:
    return os.path.join(os.path.dirname(nvcc), tool)


def tool_environment(nvcc: str) -> Dict[str, str]:
    """nvcc takes its parts from PATH; none of another toolkit may come first."""
    return {**os.environ, "PATH": f"{os.path.dirname(nvcc)}:/usr/bin:/bin"}


# ---- Output ----------------------------------------------------------------------------------------------------------

def row(kernel: Dict[str, Any]) -> str:
    tflops, share = kernel["model_tflops"], kernel["model_share"]
    figures = [f"{tflops[name]:.1f} ({share[name]:.0%})" for name in ("plain", "all_code")]
    warps = kernel["warps_per_sm"] // kernel["blocks_per_sm"]
    stalls = ", ".join(f"{name} {part:.0%}" for name, part in kernel["model_stalls"].items())
    cells = [kernel["kernel"].removeprefix("sm70_").removeprefix("forward_"), *figures, kernel["registers"],
             f"{kernel['spills']}, {kernel['stack_bytes']}", f"{kernel['shared']:,}",
             f"{kernel['blocks_per_sm']} x {warps}", f"{kernel['code_bytes']:,}", stalls]
    return "| " + " | ".join(map(str, cells)) + " |"


def peer_row(peer: Peer) -> str:
    return f"| {peer.name} | {peer.dim} | {peer.tflops} ({peer.share}%) | {peer.stalls} |"


def markdown(report: Dict[str, Any]) -> str:
    head = ["kernel (Dk_Dv, or D and rows x keys)", "model, plain step", "model, all code", "registers", "spills, stack", "shared bytes",
            "blocks x warps an SM", "loop bytes", "main stalls in the model, plain step"]
    lines = [
        f"**Model, not measured:** {report['date']}, {report['compiler']}, `{report['command']}`.",
        f"Bank conflicts: {report['banks']}.", "",
        "| " + " | ".join(head) + " |", "|---|--:|--:|--:|--:|--:|--:|--:|---|",
        *map(row, report["kernels"]), "",
        "Peers in the same model (their code compiled by CUDA 11.8; bank conflicts taken as none; none of these is",
        "measured either):", "",
        "| kernel | D | model TFLOP/s | main stalls in the model |", "|---|--:|--:|---|",
        *map(peer_row, PEERS)]
    return "\n".join(lines)


def updated(text: str, table: str) -> str:
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise CodeError(f"the file does not hold one {BEGIN} and one {END}")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}"


def compiler_version(nvcc: str) -> str:
    found = re.search(r"release ([\d.]+), (V[\d.]+)", output_of([nvcc, "--version"]))
    return f"nvcc {found.group(1)} ({found.group(2)})" if found else "nvcc of unknown version"


def make_report(options: argparse.Namespace) -> Dict[str, Any]:
    model = load_model(options.model)
    factors: Dict[str, Factors] = {}
    banks = "not counted, so the model takes none"
    if options.banks:
        factors = factors_of(pathlib.Path(options.banks).read_text(encoding="utf-8"))
        banks = "as counted by the emulator, by width and kind of access"
    with tempfile.TemporaryDirectory() as folder:
        shapes = shapes_of(options.cc, folder)
        lacking = [shape.kernel for shape in shapes if shape.kernel not in factors]
        if factors and lacking:
            banks += f"; not counted for {', '.join(lacking)}, where the model takes none"
        kernels = []
        for module in dict.fromkeys(shape.module for shape in shapes):
            print(f"{module} ...", file=sys.stderr)
            of_module = [shape for shape in shapes if shape.module == module]
            kernels += report_module(model, options, folder, of_module, factors)
    command = "tools/v100_report.py" + (" --banks FILE" if options.banks else "")
    return {"date": options.date, "compiler": compiler_version(options.nvcc), "command": command, "banks": banks,
            "kernels": kernels, "peers": [peer._asdict() for peer in PEERS]}


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=os.environ.get("ATTN_VOLTA_MODEL"), help="volta_model.py")
    parser.add_argument("--nvcc", default="/usr/bin/nvcc", help="one that knows sm_70, with its tools beside it")
    parser.add_argument("--cc", default=os.environ.get("CC", "cc"), help="C compiler")
    parser.add_argument("--banks", metavar="FILE", help="bank conflicts, a line an instruction, as the emulator counts")
    parser.add_argument("--date", default=datetime.date.today().isoformat())
    parser.add_argument("--json", action="store_true", help="everything, instead of Markdown")
    parser.add_argument("--update", metavar="FILE", help=f"write the tables between {BEGIN} and {END}")
    return parser.parse_args()


def main() -> int:
    options = parse_options()
    try:
        report = make_report(options)
        print(json.dumps(report, indent=1) if options.json else markdown(report))
        if options.update:
            path = pathlib.Path(options.update)
            path.write_text(updated(path.read_text(encoding="utf-8"), markdown(report)), encoding="utf-8")
    except Skip as reason:
        print(f"SKIP: {reason}")
        return SKIPPED
    except (CodeError, OSError) as error:
        print(f"v100_report: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
