#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""v100_report.py and v100_code.py with fixed text; and one loop through the model, where there is one.

Needs Python's own library only, no compiler."""
import os
import sys
import tempfile
import unittest

import v100_code
import v100_report

SOURCE = """void step()
{
    if (masked) {
        // model: rare
        mask();
        // model: end
    }
}
"""

LINES = """\
.text.kernel:
        /*0000*/                   NOP ;
\t//## File "/a/device.cuh", line 9 inlined at "/a/sample.cuh", line 5
\t//## File "/a/sample.cuh", line 5
        /*0010*/              @!P0 BRA `(.L_1) ;
        /*0020*/                   FADD R1, R1, R2 ;
\t//## File "/a/sample.cuh", line 7
.L_1:
        /*0030*/                   EXIT ;
.text.other:
        /*0000*/                   EXIT ;
"""


def sass(*instructions):
    """What cuobjdump -sass prints; every one with a stall of 2."""
    lines = ["\tcode for sm_70", "\t\tFunction : kernel"]
    for number, text in enumerate(instructions):
        lines.append(f"        /*{16 * number:04x}*/  {text} ;  /* 0x{0:016x} */")
        lines.append(f"        /* 0x{(2 | 7 << 5 | 7 << 8) << 41:016x} */")
    return "\n".join(lines) + "\n"


# A loop of tasks, in it a loop of steps: a rare part with an instruction of its condition, four HMMA in a loop, four after it.
HMMA = [f"HMMA.884.F32.F32.STEP{i} R8, R2.reuse.ROW, R4.reuse.COL, R8" for i in range(4)]
LOOP = sass("NOP",                                      # 00: tasks
            "IADD3 R0, R0, 0x1, RZ",                    # 10: steps
            "@!P0 BRA 0xe0",                            # 20
            "IADD3 R1, R0, 0x1, RZ",                    # 30: of the condition
            *["FADD R3, R3, R3"] * 10,                  # 40 .. d0: rare
            *HMMA,                                      # e0 .. 110
            "@P1 BRA 0xe0",                             # 120
            *HMMA,                                      # 130 .. 160
            "@P2 BRA 0x10",                             # 170
            "@P3 BRA 0x0",                              # 180
            "EXIT")
RARE = ("sample.cuh", 5)
CHAINS = {address: (RARE,) if 0x40 <= address < 0xe0 else (("sample.cuh", 1),) for address in range(0, 0x1a0, 16)}


class Marks(unittest.TestCase):
    def test_lines_between(self):
        self.assertEqual(v100_code.marked_lines("sample.cuh", SOURCE), {("sample.cuh", 5)})

    def test_mistakes(self):
        for text in ("// model: rare\n", "// model: end\n", "// model: rare\n// model: rare\n", "// model: rear\n"):
            with self.assertRaises(v100_code.CodeError):
                v100_code.marked_lines("sample.cuh", text)

    def test_sources_have_some(self):
        self.assertTrue(v100_code.marked_in(v100_report.KERNELS))


class LineInfo(unittest.TestCase):
    def test_chains(self):
        found = v100_code.line_info(LINES)
        inlined = (("device.cuh", 9), ("sample.cuh", 5))
        self.assertEqual(found["kernel"], {0x0: (), 0x10: inlined, 0x20: inlined, 0x30: (("sample.cuh", 7),)})
        self.assertEqual(found["other"], {0x0: ()})


class Banks(unittest.TestCase):
    def test_factors(self):
        text = "k a.cuh:1 load 16 8 40 32 1.25\nk a.cuh:2 load 16 8 32 32 1\nk a.cuh:3 store 4 1 2 1 2\n"
        factors = v100_report.factors_of(text)["k"]
        self.assertEqual(factors, {("load", 16): 1.125, ("store", 4): 2.0})
        self.assertEqual(v100_report.conflicts_of(factors), {("LDS", 16): 1.125, ("STS", 4): 2.0})

    def test_other_text(self):
        with self.assertRaises(v100_code.CodeError):
            v100_report.factors_of("k a.cuh:1 load 16\n")


class Tables(unittest.TestCase):
    def test_update(self):
        begin, end = v100_report.BEGIN, v100_report.END
        self.assertEqual(v100_report.updated(f"a\n{begin}\nold\n{end}\nb\n", "new"), f"a\n{begin}\nnew\n{end}\nb\n")
        with self.assertRaises(v100_code.CodeError):
            v100_report.updated(f"{end}{begin}", "new")

    def test_work_of_a_step(self):
        shape = v100_report.Shape("k", "m", 0, 64, 64, 128, 32, 4, 0)
        self.assertEqual(shape.flops, 4 * 32 * 32 * 64)
        self.assertEqual(shape.products, 512)
        self.assertEqual(shape.loaded, 2 * 32 * 128)
        shape = v100_report.Shape("k", "m", 1, 128, 128, 64, 64, 8, 0)
        self.assertEqual(shape.flops, 10 * 64 * 64 * 128 // 8)
        self.assertEqual(shape.loaded, 2 * 64 * 256)


class Loop(unittest.TestCase):
    """By the model itself."""

    @classmethod
    def setUpClass(cls):
        cls.model = v100_report.load_model(os.environ.get("ATTN_VOLTA_MODEL"))

    def step(self, chains):
        with tempfile.NamedTemporaryFile("w", suffix=".sass") as file:
            file.write(LOOP)
            file.flush()
            return v100_code.Step(self.model, self.model.load_file(file.name)[0], chains, {RARE})

    def test_rare_part_is_skipped(self):
        self.assertEqual(self.step(CHAINS).taken(), {0x20})

    def test_other_work_is_not(self):
        self.assertEqual(self.step({**CHAINS, 0x50: (), 0x60: ()}).taken(), set())

    def test_rounds_of_the_products(self):
        self.assertEqual(self.step(CHAINS).trips(12), {0xe0: 2})
        with self.assertRaises(v100_code.CodeError):
            self.step(CHAINS).trips(9)


if __name__ == "__main__":
    try:
        v100_report.load_model(os.environ.get("ATTN_VOLTA_MODEL"))
    except v100_report.Skip as reason:
        print(f"without what needs the model: {reason}", file=sys.stderr)
        del Loop
    unittest.main()
