# SPDX-License-Identifier: Apache-2.0
"""The cases of peers.py, and what their numbers mean. Letters as in docs/design.md."""
import dataclasses

BYTES = {"f32": 4, "f16": 2, "bf16": 2}
ALL = ("f32", "f16", "bf16")
KV_BYTES = {**BYTES, "q8_0": 34 / 32}  # of a number; a block of q8_0 is 32 codes and a factor
SMALL_GROUP = 16  # rows; with more of them for each key, multiplying takes longer than reading


@dataclasses.dataclass(frozen=True)
class Case:
    """One problem: queries [B, Hq, Sq, D], keys [B, Hkv, Sk, D], values [B, Hkv, Sk, Dv] of the type dtype."""
    name: str
    b: int
    hq: int
    hkv: int
    sq: int
    sk: int
    d: int
    dv: int
    causal: bool
    dtype: str = "f32"
    v_in_k: bool = False  # the values are the first Dv columns of the keys

    @property
    def q_dtype(self):
        """Queries have the type of the keys; those on quantised keys are float32."""
        return self.dtype if self.dtype in BYTES else "f32"

    @property
    def shape(self):
        return self.b, self.hq, self.hkv, self.sq, self.sk, self.d, self.dv

    @property
    def shape_text(self):
        return ",".join(str(n) for n in self.shape)

    @property
    def flops(self):
        """Of the pairs that can be seen: two products, a multiplication and an addition each."""
        pairs = self.sq * self.sk
        if self.causal:  # the last query sees the last key
            pairs = sum(max(0, min(self.sk, i + 1 + self.sk - self.sq)) for i in range(self.sq))
        return 2 * self.b * self.hq * pairs * (self.d + self.dv)

    @property
    def kv_bytes(self):
        columns = self.d if self.v_in_k else self.d + self.dv
        return round(self.b * self.hkv * self.sk * columns * KV_BYTES[self.dtype])

    @property
    def ceiling(self):
        """What bounds it: "fma" (GFLOP/s) or "read" (GB/s), as `attn bench --steps` calls them."""
        return "read" if self.sq == 1 and self.hq // self.hkv <= SMALL_GROUP else "fma"

    @property
    def unit(self):
        return "GB/s" if self.ceiling == "read" else "GFLOP/s"

    def rate(self, ms):
        """In `unit`; GB/s counts one read of the keys and values."""
        return (self.kv_bytes if self.ceiling == "read" else self.flops) / ms * 1e-6


TABLE = [  # name, B, Hq, Hkv, Sq, Sk, D, Dv, causal, the types that a plain run takes
    ("p1k_d64", 1, 16, 16, 1024, 1024, 64, 64, False, ("f32",)),
    ("p1k_d64_c", 1, 16, 16, 1024, 1024, 64, 64, True, ("f32",)),
    ("p2k_d128", 1, 32, 32, 2048, 2048, 128, 128, False, ("f32",)),
    ("p2k_d128_c", 1, 32, 32, 2048, 2048, 128, 128, True, ("f32",)),
    ("p4k_d128", 1, 32, 32, 4096, 4096, 128, 128, False, ("f32",)),
    ("p4k_d128_c", 1, 32, 32, 4096, 4096, 128, 128, True, ("f32",)),
    ("p1k_d256", 1, 16, 16, 1024, 1024, 256, 256, False, ("f32",)),
    ("p1k_d256_c", 1, 16, 16, 1024, 1024, 256, 256, True, ("f32",)),
    ("dec4k", 1, 32, 8, 1, 4096, 128, 128, False, ALL),
    ("dec32k", 1, 32, 8, 1, 32768, 128, 128, False, ALL),
    ("bdec4k", 16, 32, 8, 1, 4096, 128, 128, False, ALL),
    ("mla4k", 1, 128, 1, 1, 4096, 576, 512, False, ("f16",)),  # absorbed: the values lie in the keys
    ("tiny", 1, 1, 1, 16, 16, 16, 16, False, ("f32",)),
]
V_IN_K = ("mla4k",)

SUITES = {  # name: words as `choose` takes them
    # What bounds each kind of work: multiplying, reading, calling.
    "hardware": [f"{name}:{dtype}" for dtype in ALL for name in ("p1k_d64", "p2k_d128", "p2k_d128_c", "dec32k")] +
                ["dec4k:f16", "bdec4k:f16", "dec32k:q8_0", "mla4k:f16", "mla4k:bf16", "tiny:f32"],
}


def choose(names=None, dtypes=None):
    """The cases called `names` (NAME or NAME:DTYPE; None: all), in `dtypes` instead of their own if given."""
    rows = {row[0]: row for row in TABLE}
    cases = []
    for word in names or rows:
        name, _, dtype = word.partition(":")
        if name not in rows:
            raise ValueError(f"no case is called {name}; there are {', '.join(rows)}")
        for one in (dtype,) if dtype else dtypes or rows[name][-1]:
            if one not in KV_BYTES:
                raise ValueError(f"no type is called {one}; there are {', '.join(KV_BYTES)}")
            cases.append(Case(*rows[name][:-1], dtype=one, v_in_k=name in V_IN_K))
    return cases


def choose_of_suite(suite, names=None, dtypes=None):
    """Those of the suite's cases that `names` and `dtypes` leave."""
    if suite not in SUITES:
        raise ValueError(f"no suite is called {suite}; there are {', '.join(SUITES)}")
    wanted = [(case.name, case.dtype) for case in choose(names, list(KV_BYTES))]
    for one in dtypes or []:
        if one not in KV_BYTES:
            raise ValueError(f"no type is called {one}; there are {', '.join(KV_BYTES)}")
    cases = [case for case in choose(SUITES[suite])
             if (case.name, case.dtype) in wanted and case.dtype in (dtypes or KV_BYTES)]
    if not cases:
        raise ValueError(f"the suite {suite} has no such case")
    return cases


def sweep(d, causal, heads, dtype, lengths):
    """Prefill over the length of the sequence."""
    return [Case(f"s{n}_d{d}{'_c' if causal else ''}", 1, heads, heads, n, n, d, d, causal, dtype) for n in lengths]
