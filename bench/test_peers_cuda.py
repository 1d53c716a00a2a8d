#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What peers_cuda.py makes of words and numbers, with a PyTorch that only pretends. Needs Python's own library only."""
import subprocess
import sys
import unittest
from unittest import mock

import peers_cuda


class Words(unittest.TestCase):
    def test_cases(self):
        case = peers_cuda.parse_case("1,32,8,1,4096,128:f16")
        self.assertEqual(case.shape, (1, 32, 8, 1, 4096, 128, 128))
        self.assertEqual((case.dtype, case.causal), ("f16", False))
        self.assertTrue(peers_cuda.parse_case("1,8,8,512,512,64:f32:causal").causal)
        for text in ("", "1,2,3:f16", "1,8,8,512,512,64", "1,8,8,512,512,64:i8", "1,8,8,0,512,64:f16",
                     "1,8,8,512,512,64:f16:full", "1,8,8,256,512,64:f16:causal", "1,8,8,512,512,x:f16"):
            with self.assertRaises(ValueError, msg=text):
                peers_cuda.parse_case(text)

    def test_copies_exceed_the_cache(self):
        # 16 MiB of keys and values, 16 KiB of queries and results: 16 sets are 256 MiB.
        self.assertEqual(peers_cuda.copies_of(peers_cuda.parse_case("1,32,8,1,4096,128:f16")), 16)
        self.assertEqual(peers_cuda.copies_of(peers_cuda.parse_case("1,32,32,4096,4096,128:f32")), 2)
        self.assertEqual(peers_cuda.copies_of(peers_cuda.parse_case("1,1,1,1,1,1:f32")), peers_cuda.COPIES_MAX)

    def test_command(self):
        case = peers_cuda.parse_case("1,8,8,512,512,64:f32:causal")
        self.assertEqual(" ".join(peers_cuda.bench_command("attn", case, 2)),
                         "attn bench --device cuda:2 --graph --json --shape 1,8,8,512,512,64 --dtype f32 --causal")
        self.assertEqual(peers_cuda.bench_command("attn", case, 0, peers_cuda.UNORDERED)[-3:],
                         ["--causal", "--backward", "--unordered"])

    def test_backends(self):
        self.assertEqual(peers_cuda.parse_backends("math,flash"), ("math", "flash"))
        for text in ("", "math,", "naive"):
            with self.assertRaises(peers_cuda.argparse.ArgumentTypeError, msg=text):
                peers_cuda.parse_backends(text)

    def test_backends_that_are_measured(self):
        rival = mock.Mock(**{"alone.return_value": {"ms": 1}})
        rival.torch.cuda.OutOfMemoryError = MemoryError
        for dtype, names in (("f16", ["math", "flash"]), ("f32", ["math"])):
            case = peers_cuda.parse_case(f"1,1,1,1,1,1:{dtype}")
            self.assertEqual(list(peers_cuda.Torch.case(rival, case, ("math", "flash"))), names)
        self.assertEqual(rival.alone.call_args.args[:3], ("MATH", rival.measure, case))

    def test_unordered_is_for_backward(self):
        with mock.patch.object(sys, "argv", ["peers_cuda.py", "--unordered", "1,1,1,1,1,1:f32"]), \
                mock.patch("sys.stderr"), self.assertRaises(SystemExit):
            peers_cuda.main()


class Attn(unittest.TestCase):
    case = peers_cuda.parse_case("1,1,1,1,1,1:f32")

    def run_with(self, *done):
        with mock.patch("subprocess.run", return_value=subprocess.CompletedProcess([], *done)):
            return peers_cuda.run_attn("attn", self.case, 0)

    def test_answers(self):
        row = '[{"kernel":"forward_simt","median_ms":2,"waited_ms":3,"verified":true,"batch":5}]'
        self.assertEqual(self.run_with(0, row, ""),
                         {"ms": 2, "waited_ms": 3, "kernel": "forward_simt", "verified": True})
        self.assertEqual(self.run_with(3, "", "attn: no device\n"), {"error": "attn: no device"})
        self.assertIn("error", self.run_with(0, "no JSON", ""))
        self.assertIn("error", peers_cuda.run_attn("/no/such/program", self.case, 0))


class Table(unittest.TestCase):
    rows = [{"shape": "1,8,8,512,512,64", "dtype": "f16", "causal": True, "attn": {"ms": 2.0},
             "torch": {"flash": {"ms": 1.5, "same_ms": 1.0}, "cudnn": {"error": "no"}, "math": {"ms": 9.0, "same_ms": 8.0}}},
            {"shape": "1,8,8,512,512,64", "dtype": "f32", "causal": False, "attn": {"error": "gone"}, "torch": {}},
            {"shape": "1,8,8,512,512,64", "dtype": "f16", "causal": False, "attn": None,
             "torch": {"cudnn": {"error": "no"}}}]

    def test_best_of_the_others_against_attn(self):
        lines = peers_cuda.table(self.rows)
        self.assertEqual(lines[1].split(), ["1,8,8,512,512,64", "f16", "causal", "2", "1.5/1", "-", "-", "9/8", "0.50"])
        self.assertEqual(lines[2].split(), ["1,8,8,512,512,64", "f32", "full", "-", "-", "-", "-", "-", "-"])
        self.assertEqual({len(line) for line in lines}, {len(lines[0])})

    def test_reasons(self):
        self.assertEqual(peers_cuda.reasons(self.rows), ["cudnn, f16: no", "attn, f32: gone"])

    def test_says_that_it_cannot(self):
        with mock.patch.object(sys, "argv", ["peers_cuda.py", "1,1,1,1,1,1:f32"]), mock.patch("builtins.print") as said, \
                mock.patch.object(peers_cuda, "Torch", side_effect=ImportError("No module named 'torch'")):
            self.assertEqual(peers_cuda.main(), 77)
        said.assert_called_once_with("SKIP: PyTorch: No module named 'torch'")


if __name__ == "__main__":
    unittest.main()
