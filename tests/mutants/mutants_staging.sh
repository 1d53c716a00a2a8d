#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# mutants_staging.sh BUILD_DIR [MUTANT...]: does test_calls_ring notice mistakes in the copies of host tensors? For each
# deliberate mistake of mutants_staging.txt, or only for those named, links the test with the file that has it, and demands
# that it fails on the emulator; without any mistake it must pass. Works in BUILD_DIR/mutants_staging.
# Environment: CC.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
build=$(cd "${1:?usage: $0 BUILD_DIR [MUTANT...]}" && pwd)
shift
work=$build/mutants_staging
list=$here/mutants_staging.txt
cc=${CC:-cc}
read -ra flags <<<"-std=c11 -D_GNU_SOURCE -DATTN_BUILD -O1 -w -fPIC -fopenmp -ffp-contract=off \
  -I$source/include -I$source/tests/emulator -I$source/tests/unit $(pkg-config --cflags hwloc cmocka)"
read -ra libraries <<<"$(pkg-config --libs hwloc cmocka) -ldl -lm -lpthread"

# compile ROOT SOURCE OBJECT
compile() { "$cc" "${flags[@]}" -I"$1/src" -I"$1/src/common" -c "$1/$2" -o "$3"; }

# link: the test, with $work/staging.o in place of the library's
link()
{
  "$cc" -fopenmp "$work/test_calls_ring.o" "$work/emulator_test.o" "$work/staging.o" "$build/libattn.a" \
    "${libraries[@]}" -o "$work/test"
}

run_test() { timeout 120 "$work/test" "$build/tests/emulator/libcuda_emulator.so" >"$work/output.txt" 2>&1; }

rm -rf "$work"
mkdir -p "$work"
ulimit -c 0
for unit in test_calls_ring emulator_test; do compile "$source" "tests/emulator/$unit.c" "$work/$unit.o"; done
compile "$source" src/cuda/staging.c "$work/staging.o"
link
status=0
run_test || status=$?
if [ $status = 77 ]; then
  cat "$work/output.txt"
  exit 77
elif [ $status != 0 ]; then
  cat "$work/output.txt"
  echo "mutants_staging.sh: the test must pass without a mistake" >&2
  exit 2
fi

if [ $# = 0 ]; then mapfile -t mutants < <(awk '$1 == "mutant" { print $2 }' "$list"); else mutants=("$@"); fi
failed=0
for name in "${mutants[@]}"; do
  mkdir -p "$work/$name/src"
  cp -r "$source/src/common" "$source/src/cuda" "$work/$name/src"
  awk -v name="$name" -v root="$work/$name" -f "$here/mutate.awk" "$list" >/dev/null || exit 2
  compile "$work/$name" src/cuda/staging.c "$work/staging.o"
  link
  verdict=pass text="the test passes"
  if run_test; then
    verdict=fail
    failed=$((failed + 1))
  else
    text=$(grep -m 1 '^ERROR: ' "$work/output.txt" || echo "crash or no end")
  fi
  printf '%-4s %-30s %s\n' $verdict "$name" "$text"
  rm -rf "${work:?}/$name"
done
echo "$((${#mutants[@]} - failed)) passed, $failed failed"
[ $failed = 0 ]
