#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Unfused attention on OpenBLAS, as a worker of peers.py: compiles blas_attention.c and becomes that program.

OpenBLAS looks the processor up in a list and takes kernels of a much older one where it is newer than the library.
So the types that suit are tried, on Debian's library and on the one inside numpy's wheel, and the fastest is kept.
"""
import dataclasses
import importlib.util
import os
import pathlib
import shlex
import subprocess

import worker
from peers_judge import batch_for
from peers_process import HERE, Worker, WorkerError

BUILD = HERE.parent / "build" / "bench"
FLAGS = "-std=c11 -D_GNU_SOURCE -O3 -march=native -fopenmp -ffp-contract=fast".split()
CORES = (None, "Haswell", "SkylakeX", "SapphireRapids")  # None: what it chooses by itself
LONG_ENOUGH = 1024


def compile_program():
    """Anew each time: -march=native belongs to one machine, and it takes a second."""
    program = BUILD / "blas_attention"
    fresh = BUILD / f"blas_attention.{os.getpid()}"
    BUILD.mkdir(parents=True, exist_ok=True)
    compiler = shlex.split(os.environ.get("CC", "cc"))
    source = [str(HERE / "blas_attention.c"), "-o", str(fresh), "-lm", "-ldl"]
    try:
        result = subprocess.run(compiler + FLAGS + source, capture_output=True, text=True)
    except OSError as error:
        worker.refuse(f"no C compiler: {error}")
    if result.returncode != 0:
        worker.refuse(f"blas_attention.c does not compile: {result.stderr}")
    fresh.replace(program)
    return str(program)


def libraries():
    yield "libopenblas.so.0"
    numpy = importlib.util.find_spec("numpy")
    if numpy is not None:
        for path in sorted(pathlib.Path(numpy.origin).parents[1].glob("numpy.libs/libscipy_openblas*.so*")):
            yield str(path)


def cores():
    """Those whose instructions this processor has; a wrong one would end in SIGILL."""
    flags = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    needs = {None: "", "Haswell": " avx2", "SkylakeX": " avx512dq", "SapphireRapids": " amx_bf16"}
    return [core for core in CORES if needs[core] in flags]


def command(program, library, case, threads):
    return [program, library, case.shape_text, "causal" if case.causal else "full", str(threads)]


def fastest(program, case, threads):
    """(library, environment) of the quickest of them whose results are right."""
    if case.sq == case.sk:  # which one it is does not depend on the length
        case = dataclasses.replace(case, sq=min(case.sq, LONG_ENOUGH), sk=min(case.sk, LONG_ENOUGH))
    best, reasons = None, []
    for library in libraries():
        for core in cores():
            extra = {"OPENBLAS_CORETYPE": core} if core else {}
            try:
                rival = Worker(library, command(program, library, case, threads), threads, extra)
            except WorkerError as error:
                reasons.append(str(error))
                continue
            if rival.head["verified"]:
                batch = batch_for(rival.run())
                ms = min(rival.run(batch) for _ in range(5))
                if best is None or ms < best[0]:
                    best = ms, library, extra
            else:
                reasons.append(f"{library}, {rival.head['backend']}: wrong by {rival.head['relative_error']}")
            rival.close()
    if best is None:
        worker.refuse("; ".join(dict.fromkeys(reasons)))
    return best[1:]


def main():
    case, threads = worker.arguments()
    if case.dtype != "f32":
        worker.refuse("sgemm takes f32 only")
    program = compile_program()
    library, extra = fastest(program, case, threads)
    os.execve(program, command(program, library, case, threads), {**os.environ, **extra})


main()
