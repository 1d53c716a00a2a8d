#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# subproject.sh [BUILD_DIR]: builds and runs the consumer's programs with attn as a part of their own project, by
# add_subdirectory (FetchContent does the same). BUILD_DIR is not looked at: the library is compiled anew, by the
# consumer's settings, and nothing else of attn with it.
set -euo pipefail

. "$(dirname "$0")/common.sh"

# try OUT OPTION...
try()
{
  local out=$1 others
  quiet configure "$@" -DATTN_SOURCE="$source" -DATTN_NVCC=OFF # GPU code takes minutes and is not what this is about
  quiet "$cmake" --build "$work/$out" --parallel "$(nproc)"
  check_programs "$work/$out"
  check_commands "$out"
  others=$(find "$work/$out/attn" -type f \( -perm -u+x -o -name '*.a' \) ! -name 'libattn.*')
  [ -z "$others" ] || die "built without being asked for: $others"
}
try both
[ -z "$cxx" ] || try cxx_alone -DCONSUMER_LANGUAGES=CXX
