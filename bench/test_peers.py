#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The statistics of peers.py with fixed numbers, its protocol with workers that only pretend, and its arithmetic.

Needs Python's own library only."""
import contextlib
import io
import sys
import unittest
from unittest import mock

import peers
import peers_case
import peers_judge
import peers_process
import peers_report
from peers_judge import Repetition


def repetition(before, after, ours=10.0, peer=20.0):
    return Repetition(before, ours, peer, after, 0.5)


class Clock:
    """Seconds that pass when somebody works."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Pretender:
    """A worker whose run takes `ms`; its ceilings come from a list, the last one for ever."""

    def __init__(self, name, ms, log, clock, ceilings=(100.0,)):
        self.name, self.ms, self.log, self.clock = name, ms, log, clock
        self.ceilings = list(ceilings)

    def run(self, calls=1):
        self.log.append((self.name, "run" if calls == 1 else f"run {calls}"))
        self.clock.now += self.ms * 1e-3 * calls
        return self.ms

    def ask(self, word):
        self.log.append((self.name, word))
        self.clock.now += 0.15
        return {"value": self.ceilings.pop(0) if len(self.ceilings) > 1 else self.ceilings[0]}


class Dropping(unittest.TestCase):
    def test_ceilings_that_differ_by_over_three_percent(self):
        self.assertTrue(peers_judge.steady(100.0, 97.0, 100.0))
        self.assertTrue(peers_judge.steady(97.0, 100.0, 100.0))
        self.assertFalse(peers_judge.steady(100.0, 96.9, 100.0))
        self.assertFalse(peers_judge.steady(96.9, 100.0, 100.0))

    def test_a_ceiling_under_95_percent_of_the_best(self):
        self.assertTrue(peers_judge.steady(95.0, 95.0, 100.0))
        self.assertFalse(peers_judge.steady(94.9, 95.5, 100.0))
        self.assertFalse(peers_judge.steady(95.5, 94.9, 100.0))

    def test_the_best_judges_earlier_repetitions_too(self):
        repetitions = [repetition(100, 100), repetition(110, 109)]
        self.assertEqual(len(peers_judge.kept(repetitions[:1], 100)), 1)
        self.assertEqual(peers_judge.kept(repetitions, 110), repetitions[1:])


class Statistics(unittest.TestCase):
    def test_quartiles(self):
        self.assertEqual(peers_judge.quartiles([5, 1, 4, 2, 3]), (2, 3, 4))
        self.assertEqual(peers_judge.quartiles([1, 2, 3, 4]), (1.75, 2.5, 3.25))
        self.assertEqual(peers_judge.quartiles([7]), (7, 7, 7))
        self.assertIsNone(peers_judge.quartiles([]))

    def test_summary_counts_the_kept_ones_only(self):
        repetitions = [
            repetition(100, 100, ours=10, peer=10),   # ratio 1
            repetition(100, 90, ours=1, peer=900),    # the machine changed
            repetition(99, 98, ours=10, peer=20),     # 2
            repetition(80, 80, ours=1, peer=900),     # somebody else had a share
            repetition(98, 98, ours=20, peer=60),     # 3
            repetition(97, 97, ours=10, peer=40),     # 4
            repetition(96, 96, ours=10, peer=50),     # 5
        ]
        found = peers_judge.summary(repetitions, best=100, enough=5)
        self.assertEqual((found["taken"], found["kept"], found["enough"]), (7, 5, True))
        self.assertEqual(found["ratio"], (2, 3, 4))
        self.assertEqual((found["ours_ms"], found["peer_ms"], found["ceiling"]), (10, 40, 98))
        self.assertFalse(peers_judge.summary(repetitions, best=100, enough=6)["enough"])

    def test_the_ratio_is_that_of_a_repetition(self):
        # Both sides twice as slow in one of them: the medians of the times would not show 2.
        repetitions = [repetition(100, 100, 10, 20), repetition(100, 100, 20, 40), repetition(100, 100, 5, 10)]
        self.assertEqual(peers_judge.summary(repetitions, 100)["ratio"], (2, 2, 2))

    def test_summary_of_nothing_kept(self):
        found = peers_judge.summary([repetition(100, 50)], best=100)
        self.assertEqual((found["kept"], found["ratio"], found["ours_ms"]), (0, None, None))
        self.assertEqual((found["all"]["ratio"], found["all"]["ceiling"]), ((2, 2, 2), 75))


class Protocol(unittest.TestCase):
    def setUp(self):
        self.log, self.clock = [], Clock()

    def judge(self, ceilings, ours_ms=60.0, peer_ms=120.0, seconds=600.0):
        ours = Pretender("attn", ours_ms, self.log, self.clock, ceilings)
        peer = Pretender("peer", peer_ms, self.log, self.clock)
        self.ceiling = peers_judge.Ceiling("fma")
        return peers_judge.judge(ours, peer, self.ceiling, seconds, clock=self.clock)

    def test_order(self):
        self.judge([100.0])
        self.assertEqual(self.log[6:16], [("attn", "fma")] * 10)  # to know the best before the first repetition
        self.assertEqual(self.log[16:20], [("attn", "fma"), ("attn", "run"), ("peer", "run"), ("attn", "fma")])

    def test_ends_with_fifteen_kept(self):
        # Repetitions 1 and 2 are dropped: one for its difference, one for its height.
        found = self.judge([100.0] * 11 + [90.0, 80.0, 80.0, 100.0])
        self.assertEqual(len(found), 17)
        self.assertEqual(len(peers_judge.kept(found, self.ceiling.best)), 15)

    def test_ends_with_the_time(self):
        found = self.judge([50.0 + n for n in range(1000)], seconds=10.0)
        self.assertLess(len(peers_judge.kept(found, self.ceiling.best)), 15)
        self.assertAlmostEqual(self.clock.now, 10.0, delta=3.0)

    def test_short_calls_are_repeated(self):
        self.judge([100.0], ours_ms=5.0, peer_ms=200.0)
        words = [word for name, word in self.log[16:] if name == "attn"]
        self.assertEqual(words[:13], ["fma"] + ["run"] * 11 + ["fma"])  # one to wake up, ten that count
        self.assertEqual([peers_judge.calls_for(ms) for ms in (1000, 50, 25, 1, 0)], [1, 1, 2, 50, 200])


    def test_both_sides_go_in_batches_where_one_is_tiny(self):
        self.judge([100.0], ours_ms=0.002, peer_ms=0.25)
        self.assertEqual(self.log[6:12], [("attn", "run 500")] * 3 + [("peer", "run 4")] * 3)
        repetition = self.log[22:]
        self.assertEqual(repetition[:53], [("attn", "fma")] + [("attn", "run 500")] * 51 + [("peer", "run 4")])
        self.assertEqual(repetition[53:104], [("peer", "run 4")] * 50 + [("attn", "fma")])


class OneThread(unittest.TestCase):
    def run_cases(self, undecided, no_fallback=False):
        options = mock.Mock(chosen=peers_case.choose(["p1k_d64"]), peers=["torch", "blas"], json=None,
                            no_fallback=no_fallback)
        run = mock.Mock(options=options, threads=16)
        with mock.patch.object(peers, "run_case", side_effect=[undecided, []]) as run_case, \
                contextlib.redirect_stdout(io.StringIO()):
            peers.run_cases(run)
        return [call.args[2:] for call in run_case.call_args_list]

    def test_decides_what_all_threads_do_not(self):
        self.assertEqual(self.run_cases(["blas"]), [(16, ["torch", "blas"]), (1, ["blas"])])
        self.assertEqual(self.run_cases([]), [(16, ["torch", "blas"])])
        self.assertEqual(self.run_cases(["blas"], no_fallback=True), [(16, ["torch", "blas"])])


class Cases(unittest.TestCase):
    def test_flops_of_visible_pairs(self):
        full, causal = peers_case.choose(["p1k_d64", "p1k_d64_c"])
        self.assertEqual(full.flops, 2 * 16 * 1024 * 1024 * 128)
        self.assertEqual(causal.flops, 2 * 16 * (1024 * 1025 // 2) * 128)
        last_rows = peers_case.Case("", 1, 1, 1, 2, 4, 8, 8, True)  # sees 3 and 4 keys
        self.assertEqual(last_rows.flops, 2 * 7 * 16)

    def test_rates(self):
        decode = peers_case.choose(["dec4k:f16"])[0]
        self.assertEqual((decode.ceiling, decode.unit), ("read", "GB/s"))
        self.assertEqual(decode.kv_bytes, 8 * 4096 * 256 * 2)
        self.assertAlmostEqual(decode.rate(1.0), 8 * 4096 * 256 * 2 / 1e6)
        prefill = peers_case.choose(["p1k_d64"])[0]
        self.assertEqual((prefill.ceiling, prefill.unit), ("fma", "GFLOP/s"))

    def test_a_large_group_multiplies(self):
        mla = peers_case.choose(["mla4k:f16"])[0]
        self.assertEqual((mla.ceiling, mla.v_in_k), ("fma", True))
        self.assertEqual(mla.kv_bytes, 4096 * 576 * 2)
        self.assertEqual(mla.flops, 2 * 128 * 4096 * (576 + 512))

    def test_quantised_keys(self):
        case = peers_case.choose(["dec32k:q8_0"])[0]
        self.assertEqual((case.q_dtype, case.kv_bytes), ("f32", 8 * 32768 * 256 // 32 * 34))
        self.assertEqual(peers_case.choose(["dec32k:bf16"])[0].q_dtype, "bf16")
        self.assertEqual(peers_process.peers_of(case, ["torch", "blas"]), [peers_process.ATTN_F16])
        self.assertEqual(peers_process.peers_of(peers_case.choose(["dec4k"])[0], ["torch"]), ["torch"])

    def test_suites(self):
        def chosen(*arguments):
            return [f"{case.name}:{case.dtype}" for case in peers_case.choose_of_suite("hardware", *arguments)]
        self.assertEqual(chosen(), peers_case.SUITES["hardware"])
        self.assertEqual(chosen(["dec32k", "tiny:f32"]), ["dec32k:f32", "dec32k:f16", "dec32k:bf16", "dec32k:q8_0", "tiny:f32"])
        self.assertEqual(chosen(None, ["q8_0"]), ["dec32k:q8_0"])
        for arguments in ("software",), ("hardware", ["p9k"]), ("hardware", None, ["f8"]), ("hardware", ["tiny:f16"]):
            self.assertRaises(ValueError, peers_case.choose_of_suite, *arguments)

    def test_a_ceiling_for_each_level(self):
        run = peers.Run(mock.Mock(cpus=[0], threads=1, machine="M", attn="/no/such/program"))
        f32, bf16, decode = peers_case.choose(["p1k_d64:f32", "p1k_d64:bf16", "dec4k:bf16"])
        tiles, vectors = {"isa": "amx", "level": "amx"}, {"isa": "amx", "level": "avx512"}
        self.assertIsNot(run.ceiling(bf16, 1, tiles), run.ceiling(f32, 1, vectors))
        self.assertIs(run.ceiling(f32, 1, vectors), run.ceiling(f32, 1, {"isa": "avx512"}))
        self.assertIs(run.ceiling(decode, 1, tiles), run.ceiling(decode, 1, vectors))

    def test_choosing(self):
        self.assertEqual([c.dtype for c in peers_case.choose(["dec4k"])], ["f32", "f16", "bf16"])
        self.assertEqual([c.dtype for c in peers_case.choose(["p1k_d64"], ["f16"])], ["f16"])
        self.assertRaises(ValueError, peers_case.choose, ["p9k"])
        self.assertRaises(ValueError, peers_case.choose, ["p1k_d64:f8"])
        self.assertEqual(peers.cpu_list("0-2,5"), [0, 1, 2, 5])


class Report(unittest.TestCase):
    HEAD = {"version": "Rival 1", "backend": "AVX2", "kernel": "fused", "threads": 2}

    def entry(self, **peer_results):
        return {"case": "p1k_d64", "shape": [1, 16, 16, 1024, 1024, 64, 64], "causal": False, "dtype": "f32",
                "threads": 2, "cpus": "0-1", "head": {"kernel": "forward_avx2", "isa": "avx2"}, "peers": peer_results}

    def result(self, repetitions):
        return {"head": self.HEAD, **peers_judge.summary(repetitions, 100)}

    def test_a_missing_peer_says_why(self):
        entry = self.entry(torch={"missing": "No module named 'torch'"})
        self.assertIn("missing: No module named 'torch'", peers_report.block(entry))
        self.assertIn("missing: No module named 'torch'", "\n".join(peers_report.case_table([entry])))

    def test_a_ratio_stands_beside_version_kernel_and_threads(self):
        text = peers_report.block(self.entry(torch=self.result([repetition(100, 100)] * 15)))
        for words in ("2.00 [2.00, 2.00] x attn's time", "15 of 15 kept", "Rival 1 (AVX2), fused, 2 threads",
                      "forward_avx2 (avx2)", "CPUs 0-1"):
            self.assertIn(words, text)
        self.assertNotIn("too few", text)

    def test_without_a_peer_attn_has_its_share(self):
        entry = self.entry(torch={"missing": "none"})
        entry["alone"] = self.result([repetition(100, 100, peer=10)] * 15)
        text = peers_report.block(entry)
        self.assertIn("% of 100 GFLOP/s (avx2)", text)
        self.assertNotIn("x attn's time", text)

    def test_too_few_repetitions_are_said(self):
        some, none = [repetition(100, 100)] * 3, [repetition(100, 50)] * 2
        self.assertIn("3 of 3 kept, too few", peers_report.block(self.entry(torch=self.result(some))))
        self.assertIn("0 of 2 kept, too few", peers_report.block(self.entry(torch=self.result(none))))

    def test_the_table_of_a_machine(self):
        torch = self.result([repetition(100, 100)] * 15)
        blas = self.result([repetition(100, 50, peer=15.0)] * 2)
        entry = self.entry(torch=torch, onnxruntime={"missing": "none"}, blas=blas)
        row = peers_report.case_table([entry])[2]
        rate = peers_report.digits(peers_report.case_of(entry).rate(10.0))
        share = f"{peers_report.case_of(entry).rate(10.0):.0f} % of 100 GFLOP/s (avx2)"
        self.assertEqual([cell.strip() for cell in row.split("|")[1:-1]], [
            "p1k_d64", "1,16,16,1024,1024,64,64", "f32", "2", f"10 ms, {rate} GFLOP/s", share,
            "20 ms; 2.00 [2.00, 2.00], 15/15", "-", "15 ms; 1.50 [1.50, 1.50], 0/2 (all)", "1.50 (blas)"])
        entry["head"]["level"] = "avx512"
        self.assertIn("GFLOP/s (avx512)", peers_report.case_table([entry])[2])

    def test_the_peak_of_each_type_of_a_sweep(self):
        def entry(dtype, level, peak):
            head = {"isa": "amx", "level": level}
            return {"case": "s256_d64", "shape": [1, 8, 8, 256, 256, 64, 64], "causal": False, "dtype": dtype, "threads": 2,
                    "contestants": {"attn": {"gflops": 9.0, "head": head}}, "rounds": [{"before": 1.0, "after": peak}]}
        entries = [entry("f32", "avx512", 100.0), entry("bf16", "amx", 900.0)]
        self.assertEqual(peers_report.levels(entries), ["f32 100 (avx512)", "bf16 900 (amx)"])
        self.assertIn("| 1,8,8,256,256,64,64 | bf16 | none | 9 |", peers_report.sweep_table(entries))

    def test_files_are_joined(self):
        parts = [{"machine": "M", "date": "D", "attn": "A", "command": f"C{n}", "results": [n], "sweep": []} for n in (1, 2)]
        whole = peers.joined(parts)
        self.assertEqual((whole["results"], whole["command"], whole["date"]), ([1, 2], "C1; C2", "D"))
        parts[1]["machine"] = "N"
        self.assertRaises(SystemExit, peers.joined, parts)

    def test_ranges(self):
        self.assertEqual(peers_report.ranges([5, 0, 1, 2]), "0-2,5")


class Processes(unittest.TestCase):
    def worker(self, program):
        return peers_process.Worker("it", [sys.executable, "-c", program], threads=1)

    def test_answers_and_ends_with_its_input(self):
        worker = self.worker("print('chatter'); print('{\"version\": \"1\"}', flush=True)\n"
                             "for line in iter(input, 'end'): print('{\"ms\": 2.5}', flush=True)")
        self.assertEqual(worker.head, {"version": "1"})
        self.assertEqual(worker.ask("run"), {"ms": 2.5})
        worker.close()
        self.assertIsNotNone(worker.process.returncode)

    def test_a_word_for_so_many_calls(self):
        worker = self.worker("print('{}', flush=True)\n"
                             "for line in iter(input, 'end'): print('{\"ms\": %d}' % len(line), flush=True)")
        self.assertEqual((worker.run(), worker.run(250)), (len("run"), len("run 250")))
        worker.close()

    def test_how_attn_is_called(self):
        with mock.patch.object(peers_process, "Worker") as start:
            start.return_value.head = {"verified": True, "isa": "avx2"}
            mla, quantised = peers_case.choose(["mla4k:f16", "dec32k:q8_0"])
            peers_process.start_attn("attn", mla, 2)
            peers_process.start_attn("attn", quantised, 2)
            peer = peers_process.start_peer(peers_process.ATTN_F16, quantised, 2, "attn")
        calls = [" ".join(call.args[1]) for call in start.call_args_list]
        self.assertIn("--dtype f16 --kv-dtype f16 --shape 1,128,1,1,4096,576,512 --threads 2 --v-in-k", calls[0])
        self.assertIn("--dtype f32 --kv-dtype q8_0 --shape 1,32,8,1,32768,128,128 --threads 2", calls[1])
        self.assertIn("--dtype f16 --kv-dtype f16 --shape 1,32,8,1,32768,128,128", calls[2])
        self.assertEqual((peer.head["version"], peer.head["backend"]), ("attn", "avx2"))

    def test_reasons(self):
        for program, reason in (("print('{\"error\": \"no such thing\"}')", "no such thing"),
                                ("import sys; sys.exit('went wrong')", "it ended with status 1: went wrong")):
            with self.assertRaises(peers_process.WorkerError) as caught:
                self.worker(program)
            self.assertEqual(str(caught.exception), reason)
        self.assertRaises(peers_process.WorkerError, peers_process.Worker, "it", ["/no/such/program"], 1)

    def test_environment(self):
        with mock.patch.dict("os.environ", {"OMP_NUM_THREADS": "7", "MKL_DYNAMIC": "FALSE", "HOME": "/"}):
            found = peers_process.environment(2)
        self.assertEqual((found["OMP_NUM_THREADS"], found["HOME"], found["OMP_WAIT_POLICY"]), ("2", "/", "passive"))
        self.assertNotIn("MKL_DYNAMIC", found)


if __name__ == "__main__":
    unittest.main()
