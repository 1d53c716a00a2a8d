#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's scaled_dot_product_attention by one backend on the CPU, as a process of peers_seeds.py.

Prints a line of JSON for the forward and one for the gradients: "op" and what Sdpa.measure_same finds, or "error".
"""
import argparse
import json
import os
import resource
import statistics
import tempfile

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # huge pages; read when PyTorch first allocates

import worker
from peers_case import Case
from peers_torch import BACKENDS, Sdpa

REPEATS_MIN = 3
SHARE = 0.9  # of the memory that is available


def peak_of(events):
    """The most that was allocated at once, of a profile's events."""
    held = peak = 0
    for event in sorted((one for one in events if one.get("name") == "[memory]"), key=lambda one: one["ts"]):
        held += event["args"]["Bytes"]  # negative where memory is given back
        peak = max(peak, held)
    return peak


class Cpu(Sdpa):
    def __init__(self, threads, budget, gradients):
        super().__init__("cpu", gradients)
        self.torch.set_num_threads(threads)
        self.budget = budget

    def peak_bytes(self, case, one):
        """By the profiler's record of every allocation of a tensor. The growth of the process would miss what an earlier
        call left in malloc, and what small cases take altogether."""
        profiler = self.torch.profiler
        with profiler.profile(activities=[profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            results = self.step(case, *one)
        del results
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            profile.export_chrome_trace(path)
            with open(path, encoding="utf-8") as file:
                return peak_of(json.load(file)["traceEvents"])

    def time_same(self, case, one):
        """Milliseconds: the median of three calls or of as many as the budget holds. Memory and error had calls before."""
        times = []
        while len(times) < REPEATS_MIN or sum(times) < 1e3 * self.budget:
            times.append(worker.milliseconds(lambda: self.call(case, *one)))
        return statistics.median(times)


def available_bytes():
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))


def limit_memory():
    """PyTorch shall say that there is no memory, before the system ends some process for it."""
    with open("/proc/self/statm", encoding="ascii") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    limit, hard = mapped + int(SHARE * available_bytes()), resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", required=True, help="B,Hq,Hkv,Sq,Sk,D,Dv")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--backend", choices=BACKENDS, required=True)
    options = parser.parse_args()
    case = Case("", *(int(n) for n in options.shape.split(",")), options.causal, options.dtype)
    for gradients in (False, True):
        try:
            rival = Cpu(options.threads, options.seconds, gradients)
            import numpy  # noqa: F401, for the comparison
        except (ImportError, OSError) as failure:
            worker.refuse(failure)
        if not gradients:
            limit_memory()
        found = rival.alone(BACKENDS[options.backend], rival.measure_same, case)
        worker.say({"op": "backward" if gradients else "forward", "version": rival.torch.__version__, **found})


if __name__ == "__main__":
    main()
