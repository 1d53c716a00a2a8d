# SPDX-License-Identifier: Apache-2.0
"""The programs that peers.py compares, each a process that sleeps on its standard input until it is asked.

A worker prints one line of JSON about itself when it is ready ({"error": why} if it cannot do the case), then answers
"run" by doing the case once, "run N" by doing it N times, and {"ms": time of one}. It ends with its input. README.md has the keys.
"""
import dataclasses
import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile

from peers_case import BYTES

HERE = pathlib.Path(__file__).resolve().parent
PATIENCE_S = 600  # for any one answer; making the data and probing the variants of a slow rival is the longest
PEERS = {"torch": "worker_torch.py", "onnxruntime": "worker_onnxruntime.py", "blas": "worker_blas.py"}
ATTN_F16 = "attn, f16"


class WorkerError(Exception):
    """The text says why there is no such contestant, or why no longer."""


def environment(threads):
    """The same for all contestants: nothing set by chance, no thread that spins while another one is timed."""
    prefixes = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "DNNL_", "ONEDNN_", "MALLOC_")
    chosen = {key: value for key, value in os.environ.items() if not key.startswith(prefixes)}
    chosen.update(
        OMP_NUM_THREADS=str(threads), OMP_WAIT_POLICY="passive", GOMP_SPINCOUNT="0", KMP_BLOCKTIME="0",
        # Freed memory stays with the process: those that allocate their result anew each time (PyTorch)
        # do not pay for fresh pages.
        MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_=str(1 << 40))
    return chosen


class Worker:
    def __init__(self, name, argv, threads, extra=None):
        self.name = name
        self.stderr = tempfile.TemporaryFile()
        self.pending = b""
        try:
            self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.stderr,
                                            bufsize=0, env={**environment(threads), **(extra or {})})
        except OSError as error:
            self.stderr.close()
            raise WorkerError(f"{argv[0]}: {error.strerror}") from error
        try:
            self.head = self.answer()
            if "error" in self.head:
                raise WorkerError(self.head["error"])
        except WorkerError:
            self.close()
            raise

    def run(self, calls=1):
        """ms of one call, timed as so many."""
        return self.ask("run" if calls == 1 else f"run {calls}")["ms"]

    def ask(self, word):
        try:
            self.process.stdin.write(word.encode() + b"\n")
        except BrokenPipeError as error:
            raise WorkerError(self.last_words()) from error
        return self.answer()

    def answer(self):
        """The next line; those that are no JSON object are a library's chatter."""
        while True:
            line = self.line()
            if line.startswith(b"{"):
                return json.loads(line)

    def line(self):
        while b"\n" not in self.pending:
            if not select.select([self.process.stdout], [], [], PATIENCE_S)[0]:
                raise WorkerError(f"{self.name} gave no answer in {PATIENCE_S} s")
            data = os.read(self.process.stdout.fileno(), 65536)
            if not data:
                raise WorkerError(self.last_words())
            self.pending += data
        line, self.pending = self.pending.split(b"\n", 1)
        return line

    def last_words(self):
        status = self.process.wait()
        self.stderr.seek(0)
        lines = self.stderr.read().decode(errors="replace").strip().splitlines()
        return f"{self.name} ended with status {status}" + (f": {lines[-1]}" if lines else "")

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.stderr.close()


def case_arguments(case, threads):
    return (["--shape", case.shape_text, "--threads", str(threads)] + (["--causal"] if case.causal else []) +
            (["--v-in-k"] if case.v_in_k else []))


def start_attn(path, case, threads):
    argv = [path, "bench", "--steps", "--device", "cpu", "--dtype", case.q_dtype, "--kv-dtype", case.dtype]
    worker = Worker("attn", argv + case_arguments(case, threads), threads)
    if not worker.head.get("verified"):
        worker.close()
        raise WorkerError("attn's result is wrong")
    return worker


def start_attn_f16(path, case, threads):
    """attn once more, as the peer of its own quantised caches."""
    worker = start_attn(path, dataclasses.replace(case, dtype="f16"), threads)
    worker.head.update(version="attn", backend=worker.head["isa"])
    return worker


def peers_of(case, names):
    """Those of `names` that may know the case: no other program here takes a cache of q8_0."""
    return names if case.dtype in BYTES else [ATTN_F16]


def start_peer(name, case, threads, attn):
    if name == ATTN_F16:
        return start_attn_f16(attn, case, threads)
    argv = [sys.executable, str(HERE / PEERS[name]), "--dtype", case.dtype]
    return Worker(name, argv + case_arguments(case, threads), threads)
