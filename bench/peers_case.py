# SPDX-License-Identifier: Apache-2.0
"""The cases of peers.py, and what their numbers mean. Letters as in docs/design.md."""
import dataclasses

BYTES = {"f32": 4, "f16": 2, "bf16": 2}
ALL = ("f32", "f16", "bf16")


@dataclasses.dataclass(frozen=True)
class Case:
    """One problem: queries [B, Hq, Sq, D], keys [B, Hkv, Sk, D], values [B, Hkv, Sk, Dv]."""
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
        return self.b * self.hkv * self.sk * (self.d + self.dv) * BYTES[self.dtype]

    @property
    def ceiling(self):
        """What bounds it: "fma" (GFLOP/s) or "read" (GB/s), as `attn bench --steps` calls them."""
        return "read" if self.sq == 1 else "fma"

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
]


def choose(names=None, dtypes=None):
    """The cases called `names` (NAME or NAME:DTYPE; None: all), in `dtypes` instead of their own if given."""
    rows = {row[0]: row for row in TABLE}
    cases = []
    for word in names or rows:
        name, _, dtype = word.partition(":")
        if name not in rows:
            raise ValueError(f"no case is called {name}; there are {', '.join(rows)}")
        for one in (dtype,) if dtype else dtypes or rows[name][-1]:
            if one not in BYTES:
                raise ValueError(f"no type is called {one}; there are {', '.join(BYTES)}")
            cases.append(Case(*rows[name][:-1], dtype=one))
    return cases


def sweep(d, causal, heads, lengths=(256, 512, 1024, 2048, 4096, 8192)):
    """Prefill over the length of the sequence."""
    return [Case(f"s{n}_d{d}{'_c' if causal else ''}", 1, heads, heads, n, n, d, d, causal) for n in lengths]
