#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# mutants_kernels.sh BUILD_DIR [MUTANT...]: does the suite on the emulated GPU notice mistakes in kernels? For each
# deliberate mistake of mutants_kernels.txt, or only for those named, compiles the kernel source with it into the
# checked emulator and demands that `attn check` of BUILD_DIR reports a failure; without any mistake the same cases must
# pass. Works in BUILD_DIR/mutants_kernels.
# Environment: CXX, JOBS (mutants at a time), ATTN_CHECK_SECONDS (how long a run may take), EVERY (3: every third one
# of these only, and says so).
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
build=$(cd "${1:?usage: $0 BUILD_DIR [MUTANT...]}" && pwd)
shift
work=$build/mutants_kernels
list=$here/mutants_kernels.txt
emulator=$build/tests/emulator
checked=$emulator/libcuda_emulator_checked.so
seconds=${ATTN_CHECK_SECONDS:-200}
cxx=${CXX:-c++}
jobs=${JOBS:-$(nproc)}

die()
{
  echo "mutants_kernels.sh: $*" >&2
  exit 2
}

[ -e "$checked" ] || die "there is no $checked"
mapfile -t objects < <(find "$emulator/CMakeFiles/cuda_emulator_checked.dir" \
  "$emulator/CMakeFiles/cuda_emulator_checked_kernels.dir" -name '*.o')

# compile ROOT UNIT OBJECT: UNIT.cu of ROOT as the checked emulator has it (tests/emulator/CMakeLists.txt), but for
# optimisation, which takes longer than it saves
compile()
{
  local flags=()
  if [ "$(uname -m)" = x86_64 ]; then flags=(-mavx2 -mfma -mf16c); fi
  "$cxx" -std=c++17 -D_GNU_SOURCE -DEMULATOR_CHECKED -I"$1/src" -I"$1/src/common" -I"$1/src/cuda/kernels" \
    -I"$source/include" -I"$here/../emulator" -x c++ -O0 -g1 -DNDEBUG -fPIC -w "${flags[@]}" \
    -fsanitize=thread,alignment,bounds -fno-sanitize-recover=alignment,bounds -fvisibility=hidden \
    -ftls-model=initial-exec -ffp-contract=off -o "$3" -c "$1/src/cuda/kernels/$2.cu"
}

# link DIR: the checked emulator in DIR, with the kernels that were compiled there in place of its own
link()
{
  local object all=()
  for object in "${objects[@]}"; do
    if [ -e "$1/${object##*/}" ]; then object=$1/${object##*/}; fi
    all+=("$object")
  done
  "$cxx" -shared -Wl,--version-script="$here/../emulator/exports.map" -o "$1/libcuda_emulator.so" "${all[@]}" \
    -llz4 -ldl -lpthread
}

# run_check LIBRARY DEVICE FILTER TEXT: exit status of the suite; its output in TEXT. DEVICE-1 has one multiprocessor, so that blocks that stay have
# many tasks
run_check()
{
  local status=0 capability=7.0 device=${2%-1} own=()
  case $device in # what they are for; sm90 is what sm80 has there
  sm75) capability=7.5 ;;
  sm80) capability=8.0 ;;
  sm90) capability=9.0 device=sm80 ;;
  esac
  if [ "${2%-1}" != "$2" ]; then own=(EMULATOR_MULTIPROCESSORS=1); fi
  {
    env "${own[@]}" ATTN_CUDA_DRIVER="$1" EMULATOR_CAPABILITY=$capability OMP_WAIT_POLICY=passive timeout "$seconds" "$build/attn" check --quick --fail-fast \
      --device "cuda/$device" --filter "$3" >"$4" 2>&1
  } 2>/dev/null || status=$?
  return $status
}

# describe TEXT STATUS: what a run says, in a line
describe()
{
  case $2 in
  0) echo "the suite passes" ;;
  1) grep -m 1 '^emulator: ' "$1" | sed 's/.*([^)]*): //' || sed -n 's/^FAIL //p' "$1" | head -n 1 ;;
  124) echo "no end after $seconds seconds" ;;
  *) grep -m 1 '^CRASH' "$1" || echo "exit status $2: $(tail -n 1 "$1")" ;;
  esac
}

# try_mutant NAME UNIT DEVICE FILTER: "pass" or "fail" and what happened in NAME/result.txt
try_mutant()
{
  local name=$1 unit=$2 dir=$work/$1 status=0 verdict=fail
  mkdir -p "$dir/src/cuda"
  cp -r "$source/src/common" "$dir/src"
  cp -r "$source/src/cuda/kernels" "$dir/src/cuda"
  awk -v name="$name" -v root="$dir" -f "$here/mutate.awk" "$list" >/dev/null || return 0
  compile "$dir" "$unit" "$dir/$unit.cu.o" || return 0
  link "$dir"
  run_check "$dir/libcuda_emulator.so" "$3" "$4" "$dir/check.txt" || status=$?
  if [ $status = 1 ] || { [ $status -gt 128 ] && grep -q '^CRASH' "$dir/check.txt"; }; then verdict=pass; fi
  printf '%s %s\n' $verdict "$(describe "$dir/check.txt" $status)" >"$dir/result.txt"
  rm -rf "${dir:?}/src" "$dir/libcuda_emulator.so" "$dir/$unit.cu.o"
}

rm -rf "$work"
mkdir -p "$work/base"
ulimit -c 0

# "NAME UNIT DEVICE FILTER" of each.
mapfile -t tries < <(awk '$1 == "mutant" { print $2, $3, $4, $5 }' "$list")
if [ $# -gt 0 ]; then
  chosen=()
  for name in "$@"; do
    for line in "${tries[@]}"; do
      if [ "${line%% *}" = "$name" ]; then chosen+=("$line"); fi
    done
  done
  [ ${#chosen[@]} = $# ] || die "not every one of these is a mutant: $*"
  tries=("${chosen[@]}")
fi
if [ "${EVERY:-1}" != 1 ]; then
  mapfile -t tries < <(printf '%s\n' "${tries[@]}" | awk -v every="$EVERY" 'n++ % every == 0')
  echo "SKIP: to save time one of $EVERY mistakes is tried; without EVERY all are"
fi

# The same cases without a mistake, and kernels compiled as with one.
running=0
while read -r unit; do
  if ((running++ >= jobs)); then wait -n || true; fi
  compile "$source" "$unit" "$work/base/$unit.cu.o" &
done < <(printf '%s\n' "${tries[@]}" | awk '{ print $2 }' | sort -u)
wait
link "$work/base"
while read -r device filter; do
  run_check "$work/base/libcuda_emulator.so" "$device" "$filter" "$work/base/check.txt" ||
    die "$device $filter must pass without a mistake: $(describe "$work/base/check.txt" $?)"
done < <(printf '%s\n' "${tries[@]}" | awk '{ print $3, $4 }' | sort -u)

running=0
for line in "${tries[@]}"; do
  if ((running++ >= jobs)); then wait -n || true; fi
  # shellcheck disable=SC2086 # words
  try_mutant $line &
done
wait

passed=0 failed=0
for line in "${tries[@]}"; do
  name=${line%% *} verdict=fail text="could not be built"
  if [ -e "$work/$name/result.txt" ]; then read -r verdict text <"$work/$name/result.txt"; fi
  printf '%-4s %-34s %s\n' "$verdict" "$name" "$text"
  if [ "$verdict" = pass ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
