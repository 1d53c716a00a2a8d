#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# quickstart.sh: installs what is missing, builds, and computes the attention of three layers of a
# real language model (SmolLM2-135M, tests/data/smollm2), compared with the known results.
set -euo pipefail

cd "$(dirname "$0")/.."
# The CUDA compiler is large: only for machines that have a GPU for its code.
if [ -e /proc/driver/nvidia/version ]; then
  tools/setup.sh --build
else
  tools/setup.sh --build --no-nvcc
fi
tools/build.sh release -DATTN_TESTS=OFF

attn=build/release/attn
data=tests/data/smollm2
out=build/quickstart
mkdir -p $out

echo
$attn info
for layer in 00 15 29; do
  set -- $data/layer${layer}_{q,k,v}.npy -o $out/layer${layer}_out.npy --causal \
    --check --expect $data/layer${layer}_out.npy
  printf '\n$ attn run %s\n' "$*"
  $attn run "$@"
done
printf '\nThe outputs are in %s.\n' $out
