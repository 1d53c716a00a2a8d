#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of the attn command: every option of `attn run` with values that are known beforehand, every
# kind of malformed file, and what a failure must not do; attn check and attn bench. Needs bash and coreutils only.
# Usage: test_cli.sh ATTN [ROOT [EMULATOR]]; EMULATOR: libcuda_emulator.so, without which nothing runs on a GPU
set -u
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
attn=$(realpath "${1:?usage: test_cli.sh ATTN [ROOT]}")
root=${2:+$(realpath "$2")} emulator=${3:+$(realpath "$3")}
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
cd "$work" || exit 1
unset ATTN_FORCE ATTN_CUDA_DRIVER
. "$here/lib.sh"

for part in values errors outputs check bench bench_gpu gpu_check pages; do
  . "$here/$part.sh"
done

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
