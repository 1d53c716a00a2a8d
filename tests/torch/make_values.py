#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes values.txt: small attention problems with results and gradients by PyTorch autograd in float64.

    python3 tests/torch/make_values.py > tests/torch/values.txt

Needs PyTorch on the CPU and NumPy, any version (Debian: python3-torch). Tests only read the committed
values.txt; this script says where its numbers come from. It is written from docs/semantics.md alone and works one
pair (query, key) at a time, so that nothing in it resembles the library: a masked pair is one that is never
summed, a sequence of a ragged batch is a loop of its own, and autograd finds the gradients.

Inputs are multiples of 1/32 from a small generator, exact in float32 (and in F16 and BF16). Rows that the library
must not read hold NaN; results that it must leave alone are written as *.

The format: `case NAME OPERATION`, then lines `set KEY NUMBERS` and arrays `in NAME TYPE D0 D1 D2 D3` or
`want NAME TYPE D0 D1 D2 D3`, each followed by its values, then `end`. Types: f32 f64 i32 i64 bool as numbers,
f16 bf16 as the numbers that they stand for, hex as bytes.
"""
import itertools
import math
import sys
import zlib

import numpy as np
import torch

torch.set_num_threads(1)
torch.set_default_dtype(torch.float64) # complex numbers too
F64 = torch.float64


# ---- Numbers -------------------------------------------------------------------------------------

class Generator:
    """A linear congruential generator; its upper bits are the values."""

    def __init__(self, seed):
        self.state = seed & 0xFFFFFFFF

    def bits(self):
        self.state = (self.state * 1664525 + 1013904223) & 0xFFFFFFFF
        return self.state >> 16

    def integers(self, shape, low, high):
        count = int(np.prod(shape))
        return np.array([low + self.bits() % (high - low + 1) for _ in range(count)]).reshape(shape)

    def reals(self, shape, largest=2.0):
        """Multiples of 1/32 up to `largest`."""
        limit = int(largest * 32)
        return self.integers(shape, -limit, limit) / 32.0


def philox(counter, key):
    """Philox-4x32-10 of Salmon et al., SC'11: four words for a counter of four and a key of two."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


# The generator's published answers.
assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
assert philox([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
assert philox([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0]) == \
    [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


def kept(case, b, h, i, j):
    """Section 4."""
    ob, oh, orow, ocol = case["origin"]
    key = (case["seed"] + case["offset"] * 0x9E3779B97F4A7C15) % 2**64
    column = ocol + j
    group = 2 * (column // 8) + (column // 2) % 2
    word = (column % 2) + 2 * ((column // 4) % 2)
    words = philox([group, orow + i, oh + h, ob + b], [key % 2**32, key >> 32])
    return words[word] >= math.floor(float(np.float32(case["dropout"])) * 2**32)


# ---- Storage types, brute force ------------------------------------------------------------------

def f8_value(code, exponent_bits, fraction_bits):
    """The number of an OCP 8-bit float, None for NaN and infinity."""
    bias = 2**(exponent_bits - 1) - 1
    e, f = code >> fraction_bits & (2**exponent_bits - 1), code & (2**fraction_bits - 1)
    if exponent_bits == 4 and code & 127 == 127:
        return None
    if exponent_bits == 5 and e == 31:
        return None
    scale = 2.0**-fraction_bits
    x = (1 + f * scale) * 2.0**(e - bias) if e else f * scale * 2.0**(1 - bias)
    return -x if code & 128 else x


F8 = {"f8_e4m3": [f8_value(c, 4, 3) for c in range(256)], "f8_e5m2": [f8_value(c, 5, 2) for c in range(256)]}


def f8_code(x, name):
    """The nearest finite code, of two equally near ones the even; what is too large is the largest."""
    sign = 128 if math.copysign(1, x) < 0 else 0
    codes = [c for c in range(128) if F8[name][c] is not None]
    if abs(x) >= F8[name][codes[-1]]:
        return sign | codes[-1]
    near = min(abs(F8[name][c] - abs(x)) for c in codes)
    best = [c for c in codes if abs(F8[name][c] - abs(x)) == near]
    return sign | (best[0] if len(best) == 1 else [c for c in best if c % 2 == 0][0])


f32 = np.float32


def round_away(x):
    return math.copysign(math.floor(abs(float(x)) + 0.5), x)


def quantise_i8(row, scale):
    if scale == 0:
        return [0] * len(row)
    inverse = f32(1) / f32(scale)
    return [int(np.clip(round_away(f32(x) * inverse), -127, 127)) & 255 for x in row]


def quantise_q8_0(row):
    out = []
    for start in range(0, len(row), 32):
        block = [f32(x) for x in row[start:start + 32]]
        d = max(abs(x) for x in block) / f32(127)
        inverse = f32(1) / d if d else f32(0)
        out += list(np.float16(d).tobytes()) + [int(round_away(x * inverse)) & 255 for x in block]
    return out


def quantise_q4_0(row):
    out = []
    for start in range(0, len(row), 32):
        block = [f32(x) for x in row[start:start + 32]]
        largest = block[int(np.argmax([abs(x) for x in block]))]
        d = largest / f32(-8)
        inverse = f32(1) / d if d else f32(0)
        nibble = [min(15, int(x * inverse + f32(8.5))) for x in block]
        out += list(np.float16(d).tobytes()) + [nibble[n] | nibble[n + 16] << 4 for n in range(16)]
    return out


def stored_value(data, kind, scale):
    """The numbers that the bytes of one row stand for, exactly."""
    if kind == "i8":
        return [(c - 256 if c > 127 else c) * scale for c in data]
    if kind in F8:
        return [F8[kind][c] * scale for c in data]
    size, values = (34 if kind == "q8_0" else 18), []
    for start in range(0, len(data), size):
        d = float(np.frombuffer(bytes(data[start:start + 2]), np.float16)[0])
        codes = data[start + 2:start + size]
        if kind == "q8_0":
            values += [d * (c - 256 if c > 127 else c) for c in codes]
        else:
            values += [d * ((c & 15) - 8) for c in codes] + [d * ((c >> 4) - 8) for c in codes]
    return values


# ---- The file ------------------------------------------------------------------------------------

def text(x):
    if x is None:
        return "*"
    if x == 0 and math.copysign(1, x) < 0:
        return "-0"
    return "%d" % x if x == x and abs(x) < 1e6 and x == int(x) else "%.15g" % x


def emit(role, name, kind, array, shape=None):
    """One array. `array` may hold None (left alone). Bytes are in `hex`, `shape` being that of the elements."""
    array = np.asarray(array, dtype=object)
    shape = list(shape if shape is not None else array.shape)
    shape = [1] * (4 - len(shape)) + shape
    print(role, name, kind, *shape)
    flat = array.reshape(-1)
    if kind == "hex":
        line = "".join("**" if x is None else "%02x" % x for x in flat)
        for start in range(0, len(line), 118):
            print(line[start:start + 118])
        return
    line = ""
    for x in flat:
        word = text(x)
        if len(line) + 1 + len(word) > 118:
            print(line)
            line = ""
        line += (" " if line else "") + word
    if line:
        print(line)


# ---- Attention, one pair at a time ---------------------------------------------------------------

class Rows:
    """Section 3: the rows of each sequence."""

    def __init__(self, length, batch, used=None, offsets=None, start=None):
        self.length = offsets[-1] if offsets and length is None else length
        self.packed = offsets is not None
        self.axis = 1 if self.packed else batch
        self.base = [offsets[b] if offsets else 0 for b in range(batch)]
        self.room = [offsets[b + 1] - offsets[b] if offsets else length for b in range(batch)]
        self.start = [start[b] if start else 0 for b in range(batch)]
        self.used = [used[b] if used else self.room[b] - self.start[b] for b in range(batch)]

    def place(self, b, i):
        """Index on the batch axis, and row, of token i."""
        return (0 if self.packed else b), self.base[b] + self.start[b] + i

    def fill_rooms(self, array, value):
        for b, (base, room) in enumerate(zip(self.base, self.room)):
            array[0 if self.packed else b, :, base:base + room] = value

    def poison(self, array):
        """NaN in every row that belongs to no sequence or is not in use."""
        live = {self.place(b, i) for b, n in enumerate(self.used) for i in range(n)}
        for b in range(array.shape[0]):
            for row in range(array.shape[2]):
                if (b, row) not in live:
                    array[b, :, row] = math.nan


def visible(c, i, j, diagonal):
    """Section 2."""
    aligned = i + diagonal
    if "causal" in c["flags"] and j > aligned:
        return False
    if "window_right" in c["flags"] and j > aligned + c["window_right"]:
        return False
    return not ("window_left" in c["flags"] and j < aligned - c["window_left"])


def factor_of(c, b, h, i, j):
    """What dropout makes of one probability."""
    if not c["dropout"]:
        return 1.0
    if c["dropout"] == 1 or not kept(c, b, h, i, j):
        return 0.0
    return float(f32(1) / (f32(1) - f32(c["dropout"])))


def score(c, t, b, h, i, j, diagonal, query, key):
    """One score, None if a bias masks it, and its largest magnitude on the way."""
    s = c["true_scale"] * torch.dot(query, key)
    magnitude = abs(s.item())
    if c["softcap"]:
        s = c["softcap"] * torch.tanh(s / c["softcap"])
    if "bias" in t:
        at = tuple(n if size > 1 else 0 for n, size in zip((b, h, i, j), c["bias_shape"]))
        if c["bias_kind"] == "bool":
            if not c["bias"][at]:
                return None, magnitude
        elif c["bias"][at] == -math.inf:
            return None, magnitude
        else:
            s = s + t["bias"][at]
    if "alibi" in c:
        s = s - float(c["alibi"][b if c["alibi"].shape[0] > 1 else 0][h]) * abs(i + diagonal - j)
    return s, max(magnitude, abs(s.item()))


def attend(c, t, q_rows, k_rows, key_place):
    """A list of (b, h, i, out, lse), out and lse None for an empty row; and the largest score."""
    results, largest = [], 0.0
    for b, h in itertools.product(range(c["batch"]), range(c["heads_q"])):
        diagonal = 0 if "top_left" in c["flags"] else c["diagonal"] if "diagonal" in c["flags"] \
            else k_rows.used[b] - q_rows.used[b]
        kv_head = h // (c["heads_q"] // c["heads_kv"])
        for i in range(q_rows.used[b]):
            batch, row = q_rows.place(b, i)
            query, seen = t["q"][batch, h, row], []
            for j in range(k_rows.used[b]):
                if visible(c, i, j, diagonal):
                    batch, row = key_place(b, j)
                    s, magnitude = score(c, t, b, h, i, j, diagonal, query, t["k"][batch, kv_head, row])
                    largest = max(largest, magnitude)
                    if s is not None:
                        seen.append((s, factor_of(c, b, h, i, j), t["v"][batch, kv_head, row]))
            terms = [s for s, _, _ in seen]
            if "sink" in t and c["sink"][h] != -math.inf:
                terms.append(t["sink"][h])
            if not terms:
                results.append((b, h, i, None, None))
                continue
            lse = torch.logsumexp(torch.stack(terms), 0)
            out = torch.zeros(c["dv"], dtype=F64)
            for s, factor, v in seen:
                out = out + factor * torch.exp(s - lse) * v
            results.append((b, h, i, out, lse))
    return results, largest


def full(shape, value):
    array = np.empty(shape, dtype=object)
    array[...] = value
    return array


def scatter_pages(c, data, k_rows, rng):
    """Moves the keys and values into a pool of shuffled pages; returns the page table."""
    size, batch = c["page_size"], c["batch"]
    columns = k_rows.length // size
    order = list(range(batch * columns + c["spare_pages"]))
    for n in range(len(order) - 1, 0, -1):
        m = rng.bits() % (n + 1)
        order[n], order[m] = order[m], order[n]
    table = np.array(order[:batch * columns]).reshape(batch, columns)
    for x in "kv":
        pool = np.full((len(order), c["heads_kv"], size, data[x].shape[3]), math.nan)
        for b, token in itertools.product(range(batch), range(k_rows.length)):
            pool[table[b, token // size], :, token % size] = data[x][b, :, token]
        data[x] = pool
    for b, n in itertools.product(range(batch), range(columns)): # pages that no token in use needs
        if n * size >= k_rows.place(b, k_rows.used[b])[1] or (n + 1) * size <= k_rows.place(b, 0)[1]:
            table[b, n] = -1
    return table


def quantise(kind, rows, rng):
    """The rows in that type: their bytes and factors. `rows` becomes what the bytes stand for."""
    factors = np.array([2.0**-(3 + rng.bits() % 4) if kind == "i8" else 1.0 for _ in rows])
    coded = []
    for row, factor in zip(rows, factors):
        coded.append(quantise_i8(row, factor) if kind == "i8" else quantise_q8_0(row) if kind == "q8_0"
                     else quantise_q4_0(row) if kind == "q4_0" else [f8_code(float(x), kind) for x in row])
        row[...] = stored_value(coded[-1], kind, factor)
    return coded, factors


def write_inputs(c, data, raw, table):
    print("set size", c["batch"], c["heads_q"], c["heads_kv"], c["d"], c["dv"])
    if c["flags"]:
        bits = dict(causal=1, top_left=2, window_left=4, window_right=8, diagonal=16)
        print("set mask", sum(bits[x] for x in c["flags"]))
    for key in ("window_left", "window_right", "diagonal", "scale", "softcap", "dropout", "seed", "offset"):
        if c[key]:
            print("set", key, c[key])
    if any(c["origin"]):
        print("set origin", *c["origin"])
    for x in "qkv":
        if x not in raw:
            emit("in", x, c["storage"], data[x])
            continue
        coded, factors = raw[x]
        emit("in", x + "_" + c[x + "_kind"], "hex", coded, data[x].shape)
        if c[x + "_kind"] == "i8":
            emit("in", x + "_scale", "f32", factors.reshape(data[x].shape[:3] + (1,)))
    if c["bias_shape"]:
        emit("in", "bias", c["bias_kind"], c["bias"].astype(float))
    for key in ("alibi", "sink"):
        if key in c:
            emit("in", key, "f32", c[key])
    for key in ("q_used", "q_offsets", "q_start", "kv_used", "kv_offsets", "kv_start"):
        if c[key]:
            emit("in", key, "i32", c[key])
    if table is not None:
        emit("in", "page_table", "i32", table)


def write_gradients(c, t, data, q_rows, k_rows):
    def gradient(x):
        return t[x].grad.numpy() if t[x].grad is not None else np.zeros(t[x].shape)

    emit("in", "dout", c["storage"], data["dout"])
    emit("in", "dlse", "f32", data["dlse"])
    for x, rows in (("q", q_rows), ("k", k_rows), ("v", k_rows)):
        found, wanted = gradient(x), full(data[x].shape, None)
        rows.fill_rooms(wanted, 0.0)
        for b in range(c["batch"]):
            for batch, row in (rows.place(b, i) for i in range(rows.used[b])):
                wanted[batch, :, row] = found[batch, :, row]
        emit("want", "d" + x, "f64", wanted)
    if "bias" in t and c["bias_kind"] != "bool":
        emit("want", "dbias", "f64", gradient("bias"))
    if "sink" in t:
        emit("want", "dsink", "f64", gradient("sink"))


DEFAULTS = dict(batch=1, heads_q=2, heads_kv=None, sq=3, sk=5, d=4, dv=None, flags=(), window_left=0, window_right=0,
                diagonal=0, scale=0.0, softcap=0.0, dropout=0.0, seed=0, offset=0, origin=(0, 0, 0, 0), size=2.0,
                v_value=None, bias_shape=None, bias_kind="f32", bias_edit=None, minus_infinity=0, q_used=None,
                q_offsets=None, q_start=None, kv_used=None, kv_offsets=None, kv_start=None, page_size=0, spare_pages=2,
                storage="f32", k_kind=None, v_kind=None)


def problem(name, alibi=None, sink=None, **given):
    """Computes and writes one case. Packed tensors have sq and sk rows in all."""
    assert not set(given) - set(DEFAULTS)
    c = dict(DEFAULTS, **given)
    rng = Generator(zlib.crc32(name.encode()))
    c["heads_kv"] = c["heads_kv"] or c["heads_q"]
    c["dv"] = c["dv"] or c["d"]
    c["true_scale"] = c["scale"] or float(f32(1 / math.sqrt(c["d"])))
    q_rows = Rows(c["sq"], c["batch"], c["q_used"], c["q_offsets"], c["q_start"])
    k_rows = Rows(c["sk"], c["batch"], c["kv_used"], c["kv_offsets"], c["kv_start"])
    q_shape, k_shape = (q_rows.axis, c["heads_q"], c["sq"]), (k_rows.axis, c["heads_kv"], c["sk"])

    data = {"q": rng.reals(q_shape + (c["d"],), c["size"]), "k": rng.reals(k_shape + (c["d"],), c["size"]),
            "v": rng.reals(k_shape + (c["dv"],), c["size"]), "dout": rng.reals(q_shape + (c["dv"],), 1),
            "dlse": rng.reals(q_shape + (1,), 1)}
    if c["v_value"] is not None:
        data["v"][...] = c["v_value"]
    for x in data:
        (k_rows if x in "kv" else q_rows).poison(data[x])
    table, key_place = None, k_rows.place
    if c["page_size"]:
        table = scatter_pages(c, data, k_rows, rng)

        def key_place(b, j):
            token = k_rows.place(b, j)[1]
            return int(table[b, token // c["page_size"]]), token % c["page_size"]

    raw = {x: quantise(c[x + "_kind"], data[x].reshape(-1, data[x].shape[3]), rng) for x in "kv" if c[x + "_kind"]}
    if c["bias_shape"]:
        if c["bias_kind"] == "bool":
            c["bias"] = rng.integers(c["bias_shape"], 0, 2) > 0
        else:
            c["bias"] = rng.reals(c["bias_shape"], 2)
            c["bias"][rng.integers(c["bias_shape"], 0, 99) < c["minus_infinity"]] = -math.inf
        if c["bias_edit"]:
            c["bias_edit"](c["bias"])
    if alibi is not None:
        c["alibi"] = np.array(alibi, ndmin=2)
    if sink is not None:
        c["sink"] = np.array(sink)

    t = {x: torch.tensor(data[x], dtype=F64, requires_grad=True) for x in "qkv"}
    if c["bias_shape"]:
        t["bias"] = torch.tensor(c["bias"].astype(float), dtype=F64, requires_grad=True)
    if sink is not None:
        t["sink"] = torch.tensor(c["sink"], dtype=F64, requires_grad=True)
    results, largest = attend(c, t, q_rows, k_rows, key_place)
    out, lse = full(q_shape + (c["dv"],), None), full(q_shape + (1,), None)
    q_rows.fill_rooms(out, 0.0)
    q_rows.fill_rooms(lse, -math.inf)
    loss = torch.zeros((), dtype=F64)
    for b, h, i, o, l in results:
        if l is not None:
            at = (q_rows.place(b, i)[0], h, q_rows.place(b, i)[1])
            out[at] = o.detach().numpy()
            lse[at] = l.item()
            loss = loss + torch.dot(torch.tensor(data["dout"][at], dtype=F64), o) + data["dlse"][at][0] * l

    print("case", name, "attend")
    write_inputs(c, data, raw, table)
    print("set largest_score %.3g" % largest)
    emit("want", "out", "f64", out)
    emit("want", "lse", "f64", lse)
    if c["dropout"]:
        emit("want", "keep", "bool", [[[[kept(c, b, h, i, j) for j in range(max(k_rows.room))]
                                        for i in range(max(q_rows.room))] for h in range(c["heads_q"])]
                                      for b in range(c["batch"])])
    if not c["page_size"]:
        if loss.requires_grad:
            loss.backward()
        write_gradients(c, t, data, q_rows, k_rows)
    print("end")


# ---- Merging, appending --------------------------------------------------------------------------

def merge(name, parts, empty, d):
    """n results over disjoint keys; `empty` marks (part, row) that saw no key, by -inf or +inf."""
    rng = Generator(zlib.crc32(name.encode()))
    out = rng.reals((parts, 2, 3, d))
    lse = rng.reals((parts, 2, 3, 1), 8)
    for (part, row), value in empty.items():
        lse[part, :, row] = value
        out[part, :, row] = math.nan # not read
    want, want_lse = np.zeros((2, 3, d)), np.full((2, 3, 1), -math.inf)
    for h in range(2):
        for i in range(3):
            live = [p for p in range(parts) if abs(lse[p, h, i, 0]) != math.inf]
            if live:
                l = torch.tensor([lse[p, h, i, 0] for p in live], dtype=F64)
                w = torch.softmax(l, 0)
                want[h, i] = sum(w[n].item() * out[p, h, i] for n, p in enumerate(live))
                want_lse[h, i, 0] = torch.logsumexp(l, 0).item()
    print("case", name, "merge")
    emit("in", "out_parts", "f32", out)
    emit("in", "lse_parts", "f32", lse)
    emit("want", "out", "f64", want)
    emit("want", "lse", "f64", want_lse)
    print("end")


def rope(name, d, rotary, first, interleaved, positions, used, heads_q=2, heads_kv=1, tokens=3, max_pos=8):
    """Section 6: new keys go behind `used` cached ones, rotated; queries are rotated in place."""
    rng = Generator(zlib.crc32(name.encode()))
    batch, room = len(used), max(used) + tokens + 1
    k, q = rng.reals((batch, heads_kv, tokens, d)), rng.reals((batch, heads_q, tokens, d))
    angle = [[m * 100.0**(-2.0 * n / rotary) for n in range(rotary // 2)] for m in range(max_pos)]
    table = {x: np.array([[float(f32(getattr(math, x)(a))) for a in row] for row in angle]) for x in ("cos", "sin")}

    def turned(row, m):
        row = row.copy()
        for n in range(rotary // 2):
            a, b = (first + 2 * n, first + 2 * n + 1) if interleaved else (first + n, first + n + rotary // 2)
            z = torch.tensor(complex(row[a], row[b])) * complex(table["cos"][m, n], table["sin"][m, n])
            row[a], row[b] = z.real.item(), z.imag.item()
        return row

    cache = full((batch, heads_kv, room, d), None)
    rotated = np.zeros(q.shape)
    for b in range(batch):
        for i in range(tokens):
            m = positions[b][i] if positions else used[b] + i
            for h in range(heads_kv):
                cache[b, h, used[b] + i] = turned(k[b, h, i], m)
            for h in range(heads_q):
                rotated[b, h, i] = turned(q[b, h, i], m)
    print("case", name, "append")
    print("set rotary", rotary, first, int(interleaved))
    emit("in", "k_new", "f32", k)
    emit("in", "q", "f32", q)
    emit("in", "cos", "f32", table["cos"])
    emit("in", "sin", "f32", table["sin"])
    if positions:
        emit("in", "positions", "i32", positions)
    emit("in", "cache_used", "i32", used)
    emit("want", "k_f32", "f64", cache)
    emit("want", "q", "f64", rotated)
    print("end")


def converted(name, kind, rows, set_scale=False, scale=None, slots=None, room=None):
    """Section 5: rows of numbers as they lie in a cache of that type. One head, one sequence, one token a row."""
    d = len(rows[0])
    room = room or len(rows) + 1
    size = {"f16": 2 * d, "bf16": 2 * d, "q8_0": d // 32 * 34, "q4_0": d // 32 * 18}.get(kind, d)
    cache, factors = full((room, size), None), full(room, None)
    slots_of = slots if slots else list(range(len(rows)))
    largest_code = {"i8": 127, "f8_e4m3": 448, "f8_e5m2": 57344}.get(kind)
    for row, slot in zip(rows, slots_of):
        if slot < 0:
            continue
        factor = scale
        if set_scale:
            factor = f32(max(abs(f32(x)) for x in row)) / f32(largest_code)
            factors[slot] = float(factor)
        if kind in ("f16", "bf16"):
            x = torch.tensor(row, dtype=torch.float32).to(torch.float16 if kind == "f16" else torch.bfloat16)
            cache[slot] = list(x.view(torch.int16).numpy().tobytes())
        elif kind == "i8":
            cache[slot] = quantise_i8(row, factor)
        elif kind in F8:
            if factor is not None and factor == 0:
                cache[slot] = [0] * d
            else: # the quotient is one float32 division, then the nearest code
                cache[slot] = [f8_code(float(f32(x) / f32(1 if factor is None else factor)), kind) for x in row]
        else:
            cache[slot] = quantise_q8_0(row) if kind == "q8_0" else quantise_q4_0(row)
    print("case", name, "append")
    if set_scale:
        print("set set_scale 1")
    emit("in", "k_new", "f32", rows, (1, 1, len(rows), d))
    if scale is not None:
        emit("in", "scale", "f32", [scale])
    if slots:
        emit("in", "slots", "i64", slots)
    else:
        emit("in", "cache_used", "i32", [0])
    emit("want", "k_" + kind, "hex", cache, (1, 1, room, d))
    if set_scale:
        emit("want", "scale", "f64", factors)
    print("end")


# ---- The cases -----------------------------------------------------------------------------------

def main():
    print("# SPDX-License-Identifier: Apache-2.0")
    print("# Attention by PyTorch autograd in float64; make_values.py describes the format.")
    print("# Made by: python3 tests/torch/make_values.py > tests/torch/values.txt")
    print("# with PyTorch %s, NumPy %s." % (torch.__version__, np.__version__))

    # Section 1: scores
    problem("plain", batch=2)
    problem("scale_of_d8", d=8)
    problem("scale_given", scale=0.375)
    problem("one_key", sk=1, sq=2)
    problem("no_keys", sk=0)
    problem("large_logits", scale=16.0, size=4.0)
    problem("constant_v", v_value=1.5)
    problem("softcap", softcap=1.5, scale=1.0)
    problem("softcap_saturated", softcap=0.5, scale=8.0, flags=("causal",))
    problem("alibi", alibi=[0.5, 0.0625], flags=("causal",), sq=4)
    problem("alibi_by_batch", batch=2, alibi=[[0.5, 0.25], [1.0, -0.125]], flags=("top_left",))
    problem("alibi_diagonal", alibi=[0.25, 0.75], flags=("diagonal",), diagonal=-2)
    problem("bias_full", batch=2, bias_shape=(2, 2, 3, 5))
    problem("bias_shared", batch=2, bias_shape=(1, 1, 3, 5))
    problem("bias_keys", batch=2, bias_shape=(2, 1, 1, 5))
    problem("bias_queries", batch=2, bias_shape=(1, 2, 3, 1))
    problem("bias_scalar", batch=2, bias_shape=(1, 1, 1, 1))
    problem("bias_by_head", batch=2, bias_shape=(1, 2, 1, 5), softcap=2.0, flags=("causal",))

    def empty_row(bias):
        bias[0, 0, 1] = -math.inf if bias.dtype == float else False

    problem("bias_minus_infinity", bias_shape=(1, 2, 3, 5), minus_infinity=30, bias_edit=empty_row)
    problem("bias_bool", bias_shape=(1, 2, 3, 5), bias_kind="bool", bias_edit=empty_row)
    problem("bias_bool_keys", batch=2, bias_shape=(2, 1, 1, 5), bias_kind="bool", flags=("causal",), sq=5)
    problem("sink", sink=[0.5, -1.0])
    problem("sink_empty_rows", sink=[1.5, -0.25], sq=5, sk=3, flags=("causal",))
    problem("sink_large", sink=[30.0, 90.0])
    problem("sink_none", sink=[-math.inf, 0.0], sq=4, sk=2, flags=("causal",))
    problem("gqa", heads_q=4, heads_kv=2)
    problem("mqa", heads_q=3, heads_kv=1, flags=("causal",))
    problem("dv_larger", d=4, dv=7)
    problem("dv_smaller", d=16, dv=3)

    # Section 2: bands
    problem("causal_square", sq=4, sk=4, flags=("causal",))
    problem("causal_more_keys", sq=3, sk=6, flags=("causal",))
    problem("causal_more_queries", sq=6, sk=3, flags=("causal",))
    problem("top_left_more_keys", sq=3, sk=6, flags=("causal", "top_left"))
    problem("top_left_more_queries", sq=6, sk=3, flags=("causal", "top_left"))
    problem("diagonal_positive", sq=3, sk=6, flags=("causal", "diagonal"), diagonal=2)
    problem("diagonal_negative", sq=4, sk=4, flags=("causal", "diagonal"), diagonal=-2)
    problem("diagonal_beyond", sq=3, sk=4, flags=("causal", "diagonal"), diagonal=100)
    problem("window", sq=5, sk=6, flags=("window_left", "window_right"), window_left=2, window_right=1)
    problem("window_zero", sq=4, sk=4, flags=("window_left", "window_right"))
    problem("window_causal", sq=5, sk=7, flags=("causal", "window_left"), window_left=2)
    problem("window_causal_right", sq=4, sk=4, flags=("causal", "window_right"), window_right=2)
    problem("window_left_open", sq=4, sk=5, flags=("window_right", "top_left"), window_right=1)
    problem("window_off_the_keys", sq=4, sk=3, flags=("window_left", "diagonal"), window_left=1, diagonal=2)

    # Section 3: lengths
    problem("padded", batch=3, sq=4, sk=6, q_used=[4, 2, 3], kv_used=[6, 3, 0], flags=("causal",))
    problem("padded_left", batch=2, sq=4, sk=6, q_used=[2, 3], q_start=[2, 0], kv_used=[3, 2], kv_start=[1, 4])
    problem("packed", batch=3, q_offsets=[0, 3, 3, 5], sq=5, kv_offsets=[0, 4, 6, 9], sk=9, flags=("causal",))
    problem("packed_gaps", batch=2, q_offsets=[1, 4, 6], sq=7, q_used=[2, 2], kv_offsets=[2, 6, 9], sk=10,
            kv_used=[3, 2], kv_start=[1, 0], flags=("window_left",), window_left=2)
    problem("packed_queries_padded_keys", batch=2, q_offsets=[0, 1, 4], sq=4, sk=5, kv_used=[5, 3],
            heads_q=4, heads_kv=2, flags=("causal",))
    problem("padded_bias", batch=2, sq=3, sk=5, q_used=[3, 1], kv_used=[4, 5], bias_shape=(2, 2, 3, 5))
    problem("packed_bias", batch=2, q_offsets=[0, 3, 5], sq=5, kv_offsets=[0, 2, 6], sk=6,
            bias_shape=(1, 2, 3, 4), sink=[0.0, 1.0])
    problem("paged", batch=2, sq=3, sk=8, page_size=4, kv_used=[7, 3], flags=("causal",))
    problem("paged_size_3", batch=3, heads_q=4, heads_kv=2, sq=2, sk=12, page_size=3, kv_used=[12, 1, 5],
            q_used=[2, 1, 2], flags=("causal", "window_left"), window_left=4)
    problem("paged_start", batch=2, sq=2, sk=9, page_size=3, kv_used=[4, 2], kv_start=[4, 0], flags=("causal",))
    problem("paged_batch_index", batch=2, sq=2, sk=6, page_size=6, kv_used=[6, 4], spare_pages=3)

    # Section 4: dropout
    problem("dropout", batch=2, sk=10, dropout=0.25, seed=42)
    problem("dropout_causal_gqa", heads_q=4, heads_kv=2, sq=6, sk=9, dropout=0.5, seed=2**63 + 12345, offset=7,
            flags=("causal",))
    problem("dropout_origins", sq=4, sk=7, dropout=0.30000001192092896, seed=99, offset=2**40 + 3,
            origin=(3, 17, 1000, 4099))
    problem("dropout_all", dropout=1.0, seed=1)
    problem("dropout_packed", batch=2, q_offsets=[0, 3, 5], sq=5, kv_offsets=[0, 4, 9], sk=9,
            kv_start=[1, 0], dropout=0.5, seed=5, sink=[0.5, 0.25])

    # Section 5: storage types. K and V are those numbers exactly.
    problem("f16", storage="f16", flags=("causal",), d=8, sk=6)
    problem("bf16", storage="bf16", heads_q=4, heads_kv=2, sk=6, d=8)
    problem("k_q8_0_v_q8_0", heads_q=4, heads_kv=2, sq=2, sk=4, d=32, k_kind="q8_0", v_kind="q8_0")
    problem("k_q4_0_v_f32", heads_q=2, heads_kv=1, sq=2, sk=3, d=64, dv=5, k_kind="q4_0")
    problem("k_i8_v_i8", sq=2, sk=4, d=6, k_kind="i8", v_kind="i8", flags=("causal",))
    problem("k_f8_e4m3_v_f8_e5m2", sq=2, sk=4, d=6, k_kind="f8_e4m3", v_kind="f8_e5m2")

    # All of it together
    problem("everything", batch=2, heads_q=4, heads_kv=2, sq=4, sk=7, d=6, dv=5, flags=("causal", "window_left"),
            window_left=3, softcap=3.0, scale=0.5, alibi=[[0.5, 0.25, 0.125, 0.0], [1.0, 0.0, 0.5, 0.25]],
            sink=[0.5, -0.5, 1.0, 0.0], bias_shape=(2, 1, 4, 7), minus_infinity=15, q_used=[4, 3], kv_used=[5, 7],
            dropout=0.25, seed=11, offset=4)

    # Merging
    merge("merge_two", 2, {}, 4)
    merge("merge_five_empty", 5, {(0, 0): -math.inf, (3, 0): -math.inf, (1, 1): math.inf}, 3)
    merge("merge_all_empty", 3, {(p, 1): -math.inf for p in range(3)}, 4)
    merge("merge_one", 1, {(0, 2): -math.inf}, 4)

    # Section 6: rotary embedding
    rope("rope_half", 8, 8, 0, False, None, [0, 3])
    rope("rope_interleaved", 8, 8, 0, True, None, [2, 0])
    rope("rope_part_half", 10, 6, 0, False, [[5, 0, 7], [1, 1, 2]], [1, 2])
    rope("rope_first_dim", 9, 4, 5, True, [[7, 6, 5]], [0])

    # Section 5: what append writes
    halves = [[0.0, -0.0, 1.0, 1.00048828125, 1.00146484375, 65504.0, 65519.0, 65520.0],
              [-1e30, 6.1e-5, 5.9604644775390625e-8, 2.98023223876953125e-8, 2.9802326e-8, 8.94e-8, 1e-10, -3.3e-6],
              [1.00390625, 1.01171875, 3.3895314e38, 3.3961775e38, 1.1754944e-38, 1e-40, -1.5e-41, 0.1]]
    halves = [[float(f32(x)) for x in row] for row in halves]
    converted("append_f16", "f16", halves)
    converted("append_bf16", "bf16", halves)
    eighths = [[0.0, -0.0, 1.0, 1.0625, 1.1875, 448.0, 464.0, 480.0], [1e6, -449.0, 0.001953125, 0.0009765625,
               0.00097656256, 0.0029296875, -0.013671875, 0.015625], [57344.0, 61440.0, -65536.0, 1.125, 1.375,
               1.52587890625e-05, 7.62939453125e-06, 2.2888184e-05], [0.1, -0.2, 0.3, -0.7, 1.1, 12.3, 200.0, 0.017]]
    eighths = [[float(f32(x)) for x in row] for row in eighths]
    converted("append_f8_e4m3", "f8_e4m3", eighths)
    converted("append_f8_e5m2", "f8_e5m2", eighths)
    converted("append_f8_e4m3_scale", "f8_e4m3", eighths, scale=0.375)
    rng = Generator(77)
    signal = [[float(f32(x * 1.7 / 3)) for x in rng.reals(64, 4)] for _ in range(3)]
    converted("append_f8_e4m3_set_scale", "f8_e4m3", signal[:2] + [[0.0] * 64], set_scale=True)
    converted("append_f8_e5m2_set_scale", "f8_e5m2", signal[:2], set_scale=True)
    converted("append_i8_scale", "i8", [[0.25, 0.75, -0.25, -0.75, 63.25, 63.5, -64.0, 1e9]], scale=0.5)
    converted("append_i8_set_scale", "i8", signal + [[0.0] * 64], set_scale=True)
    ties = [float(x) for x in range(-16, 15)] + [127.0]
    converted("append_q8_0", "q8_0", signal + [[0.0] * 32 + [x + 0.5 for x in ties[:31]] + [127.0]])
    converted("append_q4_0", "q4_0", signal + [[0.0] * 32 + [(x % 9 - 4.5) for x in ties[:31]] + [-8.0]])
    converted("append_slots", "q8_0", [row[:32] for row in signal], slots=[4, -1, 1], room=6)


if __name__ == "__main__":
    sys.exit(main())
