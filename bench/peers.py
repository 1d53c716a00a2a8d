#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures attn's CPU forward side by side with PyTorch, ONNX Runtime and an unfused OpenBLAS.

    bench/peers.py --attn build/release/attn --threads 16 --json out.json --table
    bench/peers.py --suite hardware --table
    bench/peers.py --sweep --json sweep.json --plot sweep.png sweep.svg
    bench/peers.py --from out.json --table

README.md beside this file says what is compared, how, and what it needs; peers_judge.py has the protocol.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import shlex
import subprocess
import sys

import peers_case
import peers_judge
import peers_report
import peers_sweep
from peers_process import PEERS, WorkerError, peers_of, start_attn, start_peer

ROOT = pathlib.Path(__file__).resolve().parent.parent


def words(text):
    return [word for word in text.split(",") if word]


def cpu_list(text):
    """"0-3,8" as [0, 1, 2, 3, 8]."""
    cpus = []
    for part in words(text):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus


def options_of(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--attn", default=str(ROOT / "build/release/attn"), metavar="PATH", help="the command")
    parser.add_argument("--cases", type=words, metavar="LIST",
                        help="NAME or NAME:DTYPE, separated by commas; default: " +
                        ",".join(row[0] for row in peers_case.TABLE))
    parser.add_argument("--suite", metavar="NAME", help=f"{', '.join(peers_case.SUITES)}: a list of cases, of which "
                        "--cases and --dtypes leave only some")
    parser.add_argument("--dtypes", type=words, metavar="LIST",
                        help="f32, f16, bf16, q8_0; default: those of the case, of a sweep f32")
    parser.add_argument("--peers", type=words, default=list(PEERS), metavar="LIST", help="default: " + ",".join(PEERS))
    parser.add_argument("--threads", type=int, metavar="N", help="default: one a CPU of this process")
    parser.add_argument("--cpus", type=cpu_list, metavar="LIST",
                        help="where all contestants run, such as 0-7; default: the last N of this process")
    parser.add_argument("--minutes", type=float, default=10, metavar="M", help="at most, for one ratio; default: 10")
    parser.add_argument("--no-fallback", action="store_true",
                        help="one thread does not decide what all threads did not")
    parser.add_argument("--sweep", action="store_true", help="throughput over sequence length instead of the cases")
    parser.add_argument("--dims", type=words, default=["128"], metavar="LIST",
                        help="head sizes of the sweep; default: 128")
    parser.add_argument("--lengths", type=words, default=["256", "512", "1024", "2048", "4096", "8192"], metavar="LIST",
                        help="of its sequences; default: 256 to 8192")
    parser.add_argument("--machine", metavar="TEXT", help="what to call this machine; default: what the kernel says")
    parser.add_argument("--json", metavar="FILE", help="everything measured, rewritten after each case")
    parser.add_argument("--from", dest="sources", nargs="+", metavar="FILE",
                        help="measure nothing, take such files, all of one machine")
    parser.add_argument("--table", action="store_true", help="Markdown at the end")
    parser.add_argument("--plot", nargs="+", metavar="FILE", help="of a sweep: .png, .svg; needs matplotlib")
    options = parser.parse_args(argv)
    unknown = [name for name in options.peers if name not in PEERS]
    if unknown:
        parser.error(f"no peer is called {unknown[0]}")
    try:
        options.chosen = (peers_case.choose_of_suite(options.suite, options.cases, options.dtypes) if options.suite else
                          peers_case.choose(options.cases, options.dtypes))
    except ValueError as error:
        parser.error(str(error))
    if options.sweep and not set(options.dtypes or []) <= set(peers_case.BYTES):
        parser.error(f"--sweep takes {', '.join(peers_case.BYTES)}")
    return options


# ---- The machine ----------------------------------------------------------------------------------

def processor():
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    fields = dict(line.split(":", 1) for line in reversed(text.splitlines()) if ":" in line)
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    return (f"{fields.get('model name', platform.processor())} (family {fields.get('cpu family', '?')}, "
            f"model {fields.get('model', '?')}), {os.cpu_count()} CPUs")


def operating_system():
    try:
        name = platform.freedesktop_os_release()["PRETTY_NAME"]
    except OSError:
        name = platform.system()
    return f"{name}, Linux {platform.release()}"


def attn_build(path):
    try:
        info = subprocess.run([path, "info", "--json"], capture_output=True, text=True, check=True).stdout
        return json.loads(info)["build"]
    except (OSError, subprocess.CalledProcessError, ValueError, KeyError):
        return "unknown"


class Run:
    """What one invocation measured so far, and the ceilings that it has seen."""

    def __init__(self, options):
        self.options = options
        self.cpus = options.cpus or sorted(os.sched_getaffinity(0))
        self.threads = options.threads or len(self.cpus)
        self.ceilings = {}
        self.data = {
            "machine": options.machine or processor(), "system": operating_system(),
            "date": datetime.date.today().isoformat(), "attn": attn_build(options.attn),
            "command": shlex.join(["bench/peers.py"] + sys.argv[1:]), "results": [], "sweep": [],
        }

    def ceiling(self, case, threads, head):
        """That of the case; arithmetic has one for each level, which attn's head says."""
        kind = case.ceiling
        level = peers_report.level_of(head) if kind == "fma" else None
        return self.ceilings.setdefault((kind, level, threads), peers_judge.Ceiling(kind))

    def confine(self, threads):
        """All contestants inherit the CPUs of this process; it sleeps while they work. As text."""
        cpus = self.cpus if self.options.cpus else self.cpus[-threads:]
        cpus = cpus[-1:] if threads == 1 else cpus
        os.sched_setaffinity(0, cpus)
        return peers_report.ranges(cpus)

    def save(self):
        if self.options.json:
            fresh = pathlib.Path(self.options.json + ".tmp")
            fresh.write_text(json.dumps(self.data, indent=1) + "\n", encoding="utf-8")
            fresh.replace(self.options.json)


# ---- Cases ------------------------------------------------------------------------------------------

def judge(run, case, threads, ours, peer):
    """The result of one ratio, as it goes into the file."""
    ceiling = run.ceiling(case, threads, ours.head)
    try:
        repetitions = peers_judge.judge(ours, peer, ceiling, run.options.minutes * 60)
    except WorkerError as error:
        return {"missing": str(error)}
    lines = [[r.before, r.ours, r.peer, r.after, r.seconds] for r in repetitions]
    return {"head": peer.head, "repetitions": lines, **peers_judge.summary(repetitions, ceiling.best)}


def judge_peer(run, case, threads, ours, name):
    try:
        peer = start_peer(name, case, threads, run.options.attn)
    except WorkerError as error:
        return {"missing": str(error)}
    result = judge(run, case, threads, ours, peer)
    peer.close()
    return result


def run_case(run, case, threads, peers):
    """Judges attn against the peers, prints the block and returns the peers that these threads do not decide."""
    cpus = run.confine(threads)
    entry = {"case": case.name, "shape": case.shape, "causal": case.causal, "dtype": case.dtype,
             "v_in_k": case.v_in_k, "threads": threads, "cpus": cpus, "peers": {}}
    run.data["results"].append(entry)
    try:
        ours = start_attn(run.options.attn, case, threads)
    except WorkerError as error:
        entry["missing"] = str(error)
        print(peers_report.block(entry), flush=True)
        return []
    entry["head"] = ours.head
    for name in peers_of(case, peers):
        print(f"{case.name} {case.dtype}, {peers_report.threads_of(threads)}: {name} ...", file=sys.stderr)
        entry["peers"][name] = judge_peer(run, case, threads, ours, name)
    if all("missing" in result for result in entry["peers"].values()):
        entry["alone"] = judge(run, case, threads, ours, ours)  # its share of the ceiling
    ours.close()
    print(peers_report.block(entry), flush=True)
    return [name for name, result in entry["peers"].items() if not result.get("enough", True)]


def run_cases(run):
    for case in run.options.chosen:
        undecided = run_case(run, case, run.threads, run.options.peers)
        run.save()
        if undecided and run.threads > 1 and not run.options.no_fallback:
            print(f"  fewer than {peers_judge.ENOUGH} steady repetitions against {', '.join(undecided)}: "
                  "one thread decides", flush=True)
            run_case(run, case, 1, undecided)
            run.save()


def joined(parts):
    """Several files as if one run had measured all of it."""
    if len({part["machine"] for part in parts}) > 1:
        sys.exit("peers.py: --from: the files are of different machines")
    whole = dict(parts[0])
    for key, between in (("date", ", "), ("attn", "; "), ("command", "; ")):
        whole[key] = between.join(dict.fromkeys(part[key] for part in parts))
    for key in ("results", "sweep"):
        whole[key] = [entry for part in parts for entry in part[key]]
    return whole


def main():
    options = options_of(sys.argv[1:])
    if options.plot:
        try:
            import peers_plot  # nothing else needs matplotlib
        except ImportError as error:
            sys.exit(f"peers.py: --plot: {error}")
    if options.sources:
        data = joined([json.loads(pathlib.Path(file).read_text(encoding="utf-8")) for file in options.sources])
    else:
        run = Run(options)
        data = run.data
        print(peers_report.heading(data), flush=True)
        if options.sweep:
            peers_sweep.run_sweep(run)
        else:
            run_cases(run)
    if options.table:
        print(peers_report.markdown(data))
    if options.plot:
        peers_plot.draw(data, options.plot)


if __name__ == "__main__":
    main()
