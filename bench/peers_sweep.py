# SPDX-License-Identifier: Apache-2.0
"""Throughput over sequence length, for a plot: few rounds of all contestants in turn, and medians.

Rounds that the machine disturbed are left out if enough others remain. No ratio is judged here; that is what the
cases are for.
"""
import itertools
import statistics
import sys
import time

import peers_case
import peers_judge
import peers_report
from peers_process import WorkerError, start_attn, start_peer

ROUNDS = 7
ENOUGH = 3   # steady rounds, else all count
POINT_S = 8  # no further round begins at a point after this long


def contestants(run, case):
    """({name: worker}, {name: why there is none})"""
    workers, missing = {}, {}
    for name in ["attn"] + run.options.peers:
        try:
            workers[name] = (start_attn(run.options.attn, case, run.threads) if name == "attn" else
                             start_peer(name, case, run.threads, run.options.attn))
        except WorkerError as error:
            missing[name] = str(error)
    return workers, missing


def one_round(workers, plans, ceiling):
    """A ceiling, every contestant, the ceiling again; as {name: ms} with the ceilings as "before" and "after"."""
    times = {"before": ceiling.measure(workers["attn"])}
    times.update((name, peers_judge.side_ms(worker, plans[name])) for name, worker in workers.items())
    times["after"] = ceiling.measure(workers["attn"])
    return times


def rounds_of(workers, ceiling):
    plans = {name: peers_judge.Plan(peers_judge.calls_for(worker.run())) for name, worker in workers.items()}
    ceiling.learn(workers["attn"])
    rounds, start = [], time.monotonic()
    while len(rounds) < ROUNDS and (not rounds or time.monotonic() - start < POINT_S):
        rounds.append(one_round(workers, plans, ceiling))
    return rounds


def point(run, case):
    """All contestants at one length, as it goes into the file."""
    workers, missing = contestants(run, case)
    entry = {"case": case.name, "shape": case.shape, "causal": case.causal, "dtype": case.dtype,
             "threads": run.threads, "missing": missing, "contestants": {}, "rounds": []}
    ceiling = run.ceiling(case, run.threads, workers["attn"].head if "attn" in workers else {})
    try:
        entry["rounds"] = rounds_of(workers, ceiling) if "attn" in workers else []
    except WorkerError as error:
        missing["this point"] = str(error)
    steady = [r for r in entry["rounds"] if peers_judge.steady(r["before"], r["after"], ceiling.best)]
    counted = steady if len(steady) >= ENOUGH else entry["rounds"]
    entry["steady"] = len(steady)
    for name, worker in workers.items():
        worker.close()
        if counted:
            ms = statistics.median(r[name] for r in counted)
            entry["contestants"][name] = {"ms": ms, "gflops": case.rate(ms), "head": worker.head}
    return entry


def run_sweep(run):
    run.data["cpus"] = run.confine(run.threads)
    heads = max(8, run.threads)  # so that those who spread heads over threads can use all
    lengths = [int(n) for n in run.options.lengths]
    rows = itertools.product(run.options.dtypes or ["f32"], run.options.dims, (False, True))
    for case in itertools.chain(*(peers_case.sweep(int(d), causal, heads, dtype, lengths) for dtype, d, causal in rows)):
        print(f"{case.name} {case.dtype} ...", file=sys.stderr)
        run.data["sweep"].append(point(run, case))
        print(peers_report.sweep_line(run.data["sweep"][-1]), flush=True)
        run.save()
