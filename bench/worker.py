# SPDX-License-Identifier: Apache-2.0
"""What the workers written in Python share: arguments, the check against float64, and the answers.

A rival can often be called in several ways. Each is a variant; those that are wrong are no rivals, and of the others
the fastest is the one that is timed.
"""
import argparse
import gc
import json
import sys
import time

from peers_case import Case
from peers_judge import batch_for

# Of the largest result; 16-bit results are rounded once, and their weights before the second product.
TOLERANCE = {"f32": 1e-5, "f16": 5e-3, "bf16": 2e-2}
SAMPLES = 24
ROUNDS, ROUNDS_S = 5, 5  # of the variants, and when no further one begins


def arguments():
    """(case, threads) of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", required=True, help="B,Hq,Hkv,Sq,Sk,D,Dv")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--v-in-k", action="store_true")
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    shape = [int(n) for n in options.shape.split(",")]
    return Case("", *shape, options.causal, options.dtype, options.v_in_k), options.threads


def say(answer):
    print(json.dumps(answer), flush=True)


def refuse(reason):
    say({"error": " ".join(str(reason).split())[:300]})
    sys.exit(0)


def relative_error(case, q, k, v, out, float64):
    """The largest deviation of sampled rows of out [B, Hq, Sq, Dv] from float64, over the largest result.

    `float64` makes numpy arrays of slices of q, k, v and out."""
    import numpy as np
    rng = np.random.default_rng(1)
    rows = [(0, 0, 0), (case.b - 1, case.hq - 1, case.sq - 1)]
    rows += [tuple(rng.integers((case.b, case.hq, case.sq))) for _ in range(SAMPLES - len(rows))]
    worst = largest = 0.0
    for b, h, i in rows:
        visible = min(case.sk, i + 1 + case.sk - case.sq) if case.causal else case.sk
        kv = h // (case.hq // case.hkv)
        s = float64(k[b, kv, :visible]) @ float64(q[b, h, i]) / np.sqrt(case.d)
        p = np.exp(s - s.max())
        want = p @ float64(v[b, kv, :visible]) / p.sum()
        worst = max(worst, np.abs(float64(out[b, h, i]) - want).max())
        largest = max(largest, np.abs(want).max())
    return float(worst / largest) if np.isfinite(worst) else float("inf")


def milliseconds(run, calls=1):
    """Of one call, timed as so many."""
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) * 1e3 / calls


def reason(failure):
    return " ".join(str(failure).split())[:200] or type(failure).__name__


def right_ones(case, variants, check):
    """({name: (run, relative error)}, {name: why not})"""
    right, wrong = {}, {}
    for name, make in variants.items():
        try:
            run = make()
            error = check(run())
        except Exception as failure:  # whatever a library raises is the reason why this is no rival
            wrong[name] = reason(failure)
            continue
        if error <= TOLERANCE[case.dtype]:
            right[name] = run, error
        else:
            wrong[name] = f"wrong by {error:.2g} of the largest result"
    return right, wrong


def serve(case, head, variants, check, kernel=lambda name, run: name):
    """Times the variants, {name: function that makes run()}, in turn, and answers for the best one.

    run() returns what check(result) takes the relative error of. `head` is what the first line says besides."""
    right, wrong = right_ones(case, variants, check)
    if not right:
        refuse("; ".join(f"{name}: {why}" for name, why in wrong.items()) or "no way to call it")
    rounds, start = [], time.monotonic()
    while len(rounds) < ROUNDS and (not rounds or time.monotonic() - start < ROUNDS_S):
        calls = {name: batch_for(rounds[0][name]) if rounds else 1 for name in right}
        rounds.append({name: milliseconds(run, calls[name]) for name, (run, _) in right.items()})
    tried = {name: min(one[name] for one in rounds) for name in right}
    best = min(tried, key=tried.get)
    run, error = right.pop(best)
    right.clear()  # their memory
    say({**head, "kernel": kernel(best, run), "verified": True, "relative_error": error, "tried": {**tried, **wrong}})
    gc.disable()
    for line in sys.stdin:
        word, _, calls = line.strip().partition(" ")
        if word != "run":
            break
        say({"ms": milliseconds(run, int(calls or 1))})
