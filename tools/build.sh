#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# build.sh PRESET [cmake option...]: configures and builds a preset of CMakePresets.json in
# build/PRESET, with Ninja if it is there.
set -euo pipefail

cd "$(dirname "$0")/.."
preset=${1:?usage: $0 PRESET [cmake option...]}
shift

# A build tree keeps the generator that it began with.
if [ ! -e "build/$preset/CMakeCache.txt" ] && [ -z "${CMAKE_GENERATOR:-}" ] && command -v ninja >/dev/null; then
  export CMAKE_GENERATOR=Ninja
fi
cmake --preset "$preset" "$@"
cmake --build --preset "$preset" --parallel "$(nproc)"
