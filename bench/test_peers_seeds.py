#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What peers_seeds.py makes of words and numbers, with programs and a PyTorch that only pretend. Needs Python's own
library only."""
import contextlib
import json
import subprocess
import sys
import types
import unittest
from unittest import mock

import peers_cuda
import peers_seeds
import peers_torch
import worker_seeds

CASE = peers_seeds.Case("", 1, 2, 2, 8, 8, 4, 4, False, "f16")


def row(op, ms=2.0, workspace=100, verified=True, causal=False):
    shape = dict(zip(("batch", "heads_q", "heads_kv", "seq_q", "seq_k", "head_dim", "head_dim_v"), CASE.shape))
    return {"op": op, "kernel": "K", "dtype": "f16", "shape": shape, "causal": causal, "workspace_bytes": workspace,
            "median_ms": ms if verified else None, "verified": verified}


def options(*words):
    chosen = peers_seeds.options_of(["--attn", "attn", *words])
    chosen.cases = [CASE]
    chosen.deadline = peers_seeds.Deadline(60)
    return chosen


def pretended(*answers):
    """subprocess.run: (status, standard output, standard error) for each call, or what it raises."""
    return mock.patch("subprocess.run", side_effect=[
        one if isinstance(one, Exception) else subprocess.CompletedProcess([], one[0], one[1].encode(), one[2].encode())
        for one in answers])


class Options(unittest.TestCase):
    def test_defaults(self):
        self.assertEqual((options("--device", "cuda:1").dtype, options("--device", "cpu").dtype), ("f16", "f32"))
        self.assertEqual(options("--device", "cuda").backend, "math")
        self.assertGreaterEqual(options("--device", "cpu").threads, 1)

    def test_refused(self):
        for words in ([], ["--device", "gpu"], ["--device", "cuda:"], ["--device", "cuda:x"],
                      ["--device", "cpu", "--dtype", "i8"], ["--device", "cpu", "--backend", "naive"]):
            with mock.patch("sys.stderr"), self.assertRaises(SystemExit, msg=words):
                peers_seeds.options_of(words)


class Attn(unittest.TestCase):
    def run_with(self, device, *answers):
        with pretended(*answers) as run:
            found = peers_seeds.run_attn(options("--device", device), peers_seeds.Deadline(60))
        return found, [call.args[0] for call in run.call_args_list]

    def test_gpu(self):
        found, called = self.run_with("cuda:1", (0, json.dumps([row("forward"), row("backward", 5.0)]), ""),
                                      (0, json.dumps([row("backward", 3.0)]), ""))
        self.assertEqual(called[0], "attn bench --suite seeds --json --dtype f16 --device cuda:1 --seconds 0.2 --graph".split())
        self.assertEqual(called[1], called[0] + ["--backward", "--unordered"])
        self.assertEqual([found[CASE, op]["median_ms"] for op in peers_seeds.OPS], [2.0, 5.0, 3.0])

    def test_cpu_has_one_order(self):
        found, called = self.run_with("cpu", (0, json.dumps([row("forward"), row("backward")]), ""))
        self.assertEqual([op for _, op in found], ["forward", "backward"])
        self.assertIn("--threads", called[0])
        self.assertNotIn("--graph", called[0])

    def test_a_wrong_result_is_no_figure(self):
        found, _ = self.run_with("cpu", (1, json.dumps([row("forward"), row("backward", verified=False)]), "attn: wrong"))
        self.assertEqual(found[CASE, "forward"]["median_ms"], 2.0)
        self.assertEqual(found[CASE, "backward"], {"error": "wrong result"})

    def test_cut_off(self):
        late = subprocess.TimeoutExpired("attn", 1, output=("[" + json.dumps(row("forward"))).encode())
        found, _ = self.run_with("cpu", late)
        self.assertEqual(found[CASE, "forward"]["median_ms"], 2.0)
        self.assertEqual(found[CASE, "backward"], {"error": "no time is left"})
        found, _ = self.run_with("cpu", (3, "", "attn: no device\n"))
        self.assertEqual(found[CASE, "forward"], {"error": "status 3: attn: no device"})
        found, _ = self.run_with("cpu", OSError("No such file"))
        self.assertEqual(found[CASE, "forward"], {"error": "No such file"})

    def test_list(self):
        rows = [row("forward"), row("forward", causal=True), row("backward")]
        with pretended((0, json.dumps(rows), "")):
            self.assertEqual([case.causal for case in peers_seeds.list_cases("attn", "f16")], [False, True])
        with pretended((2, "", "attn: no suite\n")), self.assertRaises(OSError):
            peers_seeds.list_cases("attn", "f16")

    def test_memory(self):
        # 2 heads of 8 rows of 4 columns, two bytes each: 128 bytes an array, 64 of LSE.
        self.assertEqual(peers_seeds.attn_bytes(CASE, "forward", (1000, 1000)), 1128)
        self.assertEqual(peers_seeds.attn_bytes(CASE, "backward", (0, 1000)), 128 + 64 + 3 * 128 + 1000)
        self.assertEqual(peers_seeds.attn_bytes(CASE, "backward", (5000, 1000)), 128 + 64 + 5000)
        found = {(CASE, "forward"): row("forward", workspace=0), (CASE, "backward"): row("backward", 4.0, 1000)}
        self.assertEqual(peers_seeds.attn_of(found, CASE, "backward"),
                         {"ms": 4.0, "memory_bytes": 1576, "kernel": "K", "workspace_bytes": 1000})
        found[CASE, "forward"] = {"error": "gone"}
        self.assertEqual(peers_seeds.attn_of(found, CASE, "backward"), {"error": "gone"})


class Torch(unittest.TestCase):
    def cpu(self, *answers):
        with mock.patch("importlib.util.find_spec"), pretended(*answers):
            rival = peers_seeds.Cpu(options("--device", "cpu"))
            return rival.measure(CASE), rival

    def test_cpu(self):
        text = 'chatter\n{"op":"forward","version":"2.5","ms":1}\n{"op":"backward","version":"2.5","ms":2}\n'
        found, rival = self.cpu((0, text, ""))
        self.assertEqual(found, {"forward": {"ms": 1}, "backward": {"ms": 2}})
        self.assertEqual(rival.about()["torch"], "2.5")

    def test_cpu_says_what_is_missing(self):
        forward = '{"op":"forward","version":"2.5","ms":1}\n'
        found, _ = self.cpu(subprocess.TimeoutExpired("python3", 1, output=forward.encode()))
        self.assertEqual(found, {"forward": {"ms": 1}, "backward": {"error": "no time is left"}})
        found, _ = self.cpu((-9, forward, ""))
        self.assertEqual(found["backward"], {"error": "status -9"})
        found, _ = self.cpu((0, '{"error":"no numpy"}\n', ""))
        self.assertEqual(found["forward"], {"error": "no numpy"})

    def test_gpu(self):
        rival = mock.Mock()
        rival.alone.side_effect = [{"ms": 1}, {"error": "CUDA out of memory"}]
        with mock.patch.object(peers_cuda, "Torch", return_value=rival) as made, \
                mock.patch.dict(sys.modules, numpy=types.ModuleType("numpy")):
            gpu = peers_seeds.Gpu(options("--device", "cuda:3"))
            found = gpu.measure(CASE)
            gpu.deadline = peers_seeds.Deadline(0)
            self.assertEqual(gpu.measure(CASE)["forward"], {"error": "no time is left"})
        self.assertEqual([call.args for call in made.call_args_list], [(3, 0.2), (3, 0.2, peers_cuda.UNORDERED)])
        self.assertEqual(rival.alone.call_args.args, ("MATH", rival.measure_same, CASE))
        self.assertEqual(found, {"forward": {"ms": 1}, "backward": {"error": "CUDA out of memory"}})

    def test_peak(self):
        def event(ts, count, name="[memory]"):
            return {"name": name, "ts": ts, "args": {"Bytes": count}}
        events = [event(4, 50), event(1, 100), event(3, -100), event(2, 30), {"name": "aten::bmm"}, event(9, 999, "x")]
        self.assertEqual(worker_seeds.peak_of(events), 130)

    def rival(self, error):
        rival = object.__new__(peers_torch.Sdpa)
        rival.gradients, rival.only = False, lambda backends: contextlib.nullcontext()
        rival.backend = types.SimpleNamespace(MATH=1)
        rival.arrays = lambda case, copies: ["set"] * copies
        rival.error = lambda case, one: error
        rival.peak_bytes = lambda case, one: 4096
        rival.time_same = lambda case, one: 1.5
        return rival.alone("MATH", rival.measure_same, CASE)

    def test_measure_same(self):
        self.assertEqual(self.rival(1e-4), {"relative_error": 1e-4, "ms": 1.5, "memory_bytes": 4096})
        self.assertEqual(self.rival(0.5), {"error": "wrong by 0.5 of the largest result"})
        self.assertIn("error", self.rival(float("nan")))


class Table(unittest.TestCase):
    rows = [peers_seeds.row_of(CASE, "forward", {"ms": 2.0, "memory_bytes": 500}, {"ms": 3.0, "memory_bytes": 2000}),
            peers_seeds.row_of(CASE, "backward", {"error": "gone"}, {"ms": 3.0, "memory_bytes": 5e9})]

    def test_cells(self):
        self.assertEqual(peers_seeds.cells(self.rows[0]),
                         ["1,2,8,8,4", "f16", "full", "forward", "2", "3", "1.50", "500 B", "2 KB", "75.0 %"])
        self.assertEqual(peers_seeds.cells(self.rows[1])[4:], ["-", "3", "-", "-", "5 GB", "-"])
        self.assertEqual([peers_seeds.size(n) for n in (0, 999, 999499, 999500, 33554432)],
                         ["0 B", "999 B", "999 KB", "1 MB", "33.6 MB"])

    def test_markdown(self):
        lines = peers_seeds.markdown(self.rows, "math")
        self.assertEqual(len(lines), 4)
        self.assertEqual({line.count("|") for line in lines}, {11})
        self.assertIn("math ms", lines[0])

    def test_nothing_is_missing_silently(self):
        self.assertEqual(peers_seeds.skipped(self.rows), ["SKIP: attn: 1,2,8,8,4 f16 full backward: gone"])

    def main(self, *words):
        with mock.patch.object(sys, "argv", ["peers_seeds.py", *words]), mock.patch("builtins.print") as said, \
                mock.patch("sys.stderr"), mock.patch.object(peers_seeds, "list_cases", return_value=[CASE]):
            status = peers_seeds.main()
        return status, [call.args[0] for call in said.call_args_list]

    def test_main(self):
        theirs = {op: {"ms": 3.0, "memory_bytes": 2000} for op in peers_seeds.OPS[:2]}
        rival = mock.Mock(**{"measure.return_value": theirs, "about.return_value": {"torch": "2.5"}})
        attn = json.dumps([row("forward"), row("backward")]), json.dumps([row("backward", 1.0)])
        with mock.patch.object(peers_seeds, "Gpu", return_value=rival), pretended(*((0, text, "") for text in attn)):
            status, lines = self.main("--device", "cuda", "--markdown")
        self.assertEqual(status, 0)
        self.assertEqual([line.split()[3] for line in lines[2:5]], ["forward", "backward", "unordered"])
        self.assertEqual(sum(line.startswith("| 1,2,8,8,4 | f16 |") for line in lines), 3)

    def test_says_that_it_cannot(self):
        with mock.patch("importlib.util.find_spec", return_value=None):
            self.assertEqual(self.main("--device", "cpu"), (77, ["SKIP: PyTorch: No module named 'torch'"]))


if __name__ == "__main__":
    unittest.main()
