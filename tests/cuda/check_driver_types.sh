#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check_driver_types.sh CC WORK_DIR: compares src/cuda/driver_*.h with every cuda.h of this machine, and makes sure that
# a wrong prototype or constant would be noticed.
set -euo pipefail
cc=$1 work=$2
here=$(cd "$(dirname "$0")" && pwd)
src=$here/../../src

headers=()
for header in /usr/include/cuda.h /usr/local/cuda*/include/cuda.h; do
  [ -e "$header" ] || continue
  real=$(readlink -f "$header")
  [[ " ${headers[*]-} " == *" $real "* ]] || headers+=("$real")
done
if [ ${#headers[@]} = 0 ]; then
  echo "SKIP: check_driver_types: no cuda.h in /usr/include or /usr/local/cuda*/include"
  exit 77
fi

mkdir -p "$work/cuda"
trap 'rm -rf "$work"' EXIT
failed=0
for header in "${headers[@]}"; do
  compile=("$cc" -std=c11 -Wall -Wextra -Werror -Wno-deprecated-declarations "-DCUDA_HEADER=\"$header\"")
  if ! "${compile[@]}" -I "$src" "$here/check_driver_types.c" -o "$work/check" || ! "$work/check"; then
    echo "FAIL: $header"
    failed=1
  fi
  for mistake in 's/(CUdeviceptr address))/(void *address))/' 's/cuMemAlloc_v2, (CUdeviceptr \*address, size_t bytes)/cuMemAlloc_v2, (CUdeviceptr *address, unsigned bytes)/' \
    's/ILLEGAL_ADDRESS, 700/ILLEGAL_ADDRESS, 701/'; do
    for file in driver_table.h driver_values.h; do sed "$mistake" "$src/cuda/$file" >"$work/cuda/$file"; done
    if cmp -s "$src/cuda/driver_table.h" "$work/cuda/driver_table.h" &&
      cmp -s "$src/cuda/driver_values.h" "$work/cuda/driver_values.h"; then
      echo "FAIL: the mistake $mistake does not apply any more"
      failed=1
    elif "${compile[@]}" -I "$work" "$here/check_driver_types.c" -o "$work/check" 2>/dev/null; then
      echo "FAIL: $header: not noticed: $mistake"
      failed=1
    fi
  done
done
exit $failed
