#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# mutants.sh BUILD_DIR [MUTANT...]: does the suite notice mistakes? For each deliberate mistake of mutants.txt,
# mutants_vector.txt, mutants_backward.txt and mutants_bf16.txt, or only for those named, builds the library with it and demands that `attn check` of
# BUILD_DIR reports a failure (exit status 1), or names the case in which it crashed, against that library;
# without any mistake it must pass. Works in BUILD_DIR/mutants.
#
# A mistake reaches the objects of src/cpu alone: a header with a mistake is compiled into no other, so that
# validation and the reference stay right. A mistake that reaches nothing but instruction set levels is tried on
# each of these by itself, as NAME@LEVEL, and must be noticed there; levels that this processor lacks are skipped.
# Environment:
#   EVERY               16: of the whole list every sixteenth one only, and says so
#   ATTN_CHECK          another command; it must print attn_build_info(), and gets all levels in one library
#   ATTN_CHECK_SECONDS  how long it may take
#   CC, JOBS            compiler; mutants at a time
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
build=$(cd "${1:?usage: $0 BUILD_DIR [MUTANT...]}" && pwd)
shift
work=$build/mutants
base=$work/base
lists=("$here/mutants.txt" "$here/mutants_vector.txt" "$here/mutants_backward.txt" "$here/mutants_bf16.txt")
check=${ATTN_CHECK:-$build/attn check --quick --fail-fast --device}
seconds=${ATTN_CHECK_SECONDS:-300}
cc=${CC:-cc}
jobs=${JOBS:-$(nproc)}
mark="built for mutants"
# The name under which programs of this build ask for the library.
soname=$(readelf -d "$build/attn" | sed -n 's/.*(NEEDED).*\[\(libattn\.[^]]*\)\].*/\1/p')

die()
{
  echo "mutants.sh: $*" >&2
  exit 2
}

# object SOURCE: name of its object file
object() { echo "${1//\//_}.o"; }

# compile ROOT SOURCE DIR: compiles ROOT/SOURCE into DIR. The reference and the scalar level are where the suite
# spends its time; in the other levels the vectors are written out, and -O3 costs more to compile than it saves.
# A level has the flags that CMakeLists.txt gives it.
compile()
{
  local root=$1 file=$2 object flags=-Og level
  object=$3/$(object "$file")
  case $file in
  src/cpu/level_*)
    level=${file#src/cpu/level_}
    if [ "$level" = scalar.c ]; then flags=-O3; fi
    flags+=" $(sed -n "s/^set(ATTN_CPU_FLAGS_${level%.c} \"\(.*\)\").*/\1/p" "$source/CMakeLists.txt" | tr ';' ' ')"
    ;;
  src/ref/*) flags=-O3 ;;
  esac
  # shellcheck disable=SC2046,SC2086 # words
  "$cc" -std=c11 -D_GNU_SOURCE -DATTN_BUILD -DATTN_BUILD_TEXT="\"$mark\"" -w $flags -ffp-contract=off -fno-math-errno \
    -fopenmp -fPIC -fvisibility=hidden -I"$source/include" -I"$root/src" -I"$root/src/common" \
    $(pkg-config --cflags hwloc) -MMD -c "$root/$file" -o "$object"
}

# link DIR: the library of the objects in DIR, and of those in base that DIR lacks
link()
{
  local dir=$1 file objects=()
  for file in "${sources[@]}"; do
    file=$(object "$file")
    [ -e "$dir/$file" ] && objects+=("$dir/$file") || objects+=("$base/$file")
  done
  # shellcheck disable=SC2046 # words
  "$cc" -shared -fopenmp -Wl,-soname,"$soname" -Wl,--version-script="$source/src/attn.map" "${objects[@]}" \
    $(pkg-config --libs hwloc) -lpthread -lm -o "$dir/$soname"
}

# run_check DIR DEVICE: exit status of the command against the library in DIR; its output in DIR/check.txt
run_check()
{
  local status=0 device=$2
  if [ -n "${ATTN_CHECK:-}" ]; then device=; fi
  # Teams of several runs share the cores, so waiting threads must sleep. Of crashes bash says nothing.
  # shellcheck disable=SC2086 # words
  {
    LD_LIBRARY_PATH=$1${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} OMP_WAIT_POLICY=passive \
      timeout "$seconds" $check $device >"$1/check.txt" 2>&1
  } 2>/dev/null || status=$?
  [ $status = 124 ] || grep -q "$mark" "$1/check.txt" || return 99
  return $status
}

# describe DIR STATUS: what the run in DIR says, in a line
describe()
{
  case $2 in
  0) echo "the suite passes" ;;
  1) sed -n 's/^FAIL //p' "$1/check.txt" | head -n 1 ;;
  99) echo "not run against $1/$soname: $(tail -n 1 "$1/check.txt")" ;;
  124) echo "no end after $seconds seconds" ;;
  *) grep -m 1 '^CRASH' "$1/check.txt" || echo "exit status $2: $(tail -n 1 "$1/check.txt")" ;;
  esac
}

# mutate NAME: src/common and src/cpu with the mistake, in NAME/src; prints the sources whose objects it changes
mutate()
{
  local name=$1 dir=$work/$1 files file header
  mkdir -p "$dir/src"
  cp -r "$source/src/common" "$source/src/cpu" "$dir/src"
  files=$(awk -v name="$name" -v root="$dir" -f "$here/mutate.awk" "${lists[@]}")
  for file in "${sources[@]}"; do
    [[ $file == src/cpu/* ]] || continue
    for header in $files; do
      if grep -qF "$source/$header" "$base/$(object "$file" | sed 's/o$/d/')"; then
        echo "$file"
        break
      fi
    done
  done
}

# lacks NAME: it is of a level that this processor does not have
lacks() { [[ $1 == *@* ]] && ! grep -qE " cpu/${1#*@}(,|\$)" "$base/check.txt"; }

# try_mutant NAME SOURCE...: builds NAME or NAME@LEVEL with the mistake in these and runs it; "pass" or "fail" and what
# happened in NAME/result.txt
try_mutant()
{
  local root=$work/${1%@*} dir=$work/$1 device=cpu file status=0 verdict=fail
  if [[ $1 == *@* ]]; then device=cpu/${1#*@}; fi
  shift
  mkdir -p "$dir"
  for file in "$@"; do compile "$root" "$file" "$dir" || exit 1; done
  link "$dir"
  run_check "$dir" "$device" || status=$?
  if [ $status = 1 ] || { [ $status -gt 128 ] && grep -q '^CRASH' "$dir/check.txt"; }; then verdict=pass; fi
  printf '%s %s\n' $verdict "$(describe "$dir" $status)" >"$dir/result.txt"
}

# ---- the unmutated library -------------------------------------------------------------------------------

[ -n "$soname" ] || die "$build/attn needs no libattn"
rm -rf "$work"
mkdir -p "$base"
ulimit -c 0
cd "$source"
sources=(src/common/*.c src/cpu/*.c src/cuda/absent.c src/ref/*.c) # no mutant concerns GPUs

running=0
for file in "${sources[@]}"; do
  if ((running++ >= jobs)); then wait -n || true; fi
  compile "$source" "$file" "$base" &
done
wait
link "$base" # fails without one of the objects
status=0
run_check "$base" cpu || status=$?
[ $status = 0 ] || die "the suite must pass without a mistake: $(describe "$base" $status)"

# ---- the mutants -----------------------------------------------------------------------------------------

if [ $# -gt 0 ]; then
  names=("$@")
else
  every=${EVERY:-1}
  mapfile -t names < <(awk -v every="$every" '$1 == "mutant" && n++ % every == 0 { print $2 }' "${lists[@]}")
  if [ "$every" != 1 ]; then
    echo "SKIP: to save time one of $every mutants of the list is tried; without EVERY all are"
    # Those that are left out must still be possible.
    for name in $(awk '$1 == "mutant" { print $2 }' "${lists[@]}"); do
      reached=$(mutate "$name") || reached=
      [ -n "$reached" ] || die "$name changes no object of src/cpu"
      rm -rf "${work:?}/$name"
    done
  fi
fi

# What there is to try: "NAME SOURCE..." or "NAME@LEVEL SOURCE" each.
tries=()
for name in "${names[@]}"; do
  reached=$(mutate "${name%@*}") || reached=
  if [ -n "${ATTN_CHECK:-}" ] || grep -qv '^src/cpu/level_' <<<"$reached"; then
    tries+=("$name ${reached//$'\n'/ }")
    continue
  fi
  for file in $reached; do
    level=${file#src/cpu/level_}
    # These two have avx512's text for all but what is theirs alone.
    if [[ $level =~ ^(avx512bf16|amx)\.c$ && $reached == *level_avx512.c* ]]; then continue; fi
    try=${name%@*}@${level%.c}
    if [[ $name != *@* || $name = "$try" ]]; then tries+=("$try $file"); fi
  done
done

running=0
for line in "${tries[@]}"; do
  read -r name reached <<<"$line"
  if [ -z "$reached" ] || lacks "$name"; then continue; fi
  if ((running++ >= jobs)); then wait -n || true; fi
  # shellcheck disable=SC2086 # words
  try_mutant "$name" $reached &
done
wait

passed=0 failed=0 skipped=()
for line in "${tries[@]}"; do
  read -r name reached <<<"$line"
  if lacks "$name"; then
    skipped+=("$name")
    continue
  fi
  verdict=fail text="could not be built"
  if [ -z "$reached" ]; then text="changes no object of src/cpu"; fi
  if [ -e "$work/$name/result.txt" ]; then read -r verdict text <"$work/$name/result.txt"; fi
  printf '%-4s %-42s %s\n' "$verdict" "$name" "$text"
  if [ "$verdict" = pass ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
done
if [ ${#skipped[@]} -gt 0 ]; then echo "SKIP: this processor lacks the levels of the mutants ${skipped[*]}"; fi
echo "$passed passed, $failed failed"
[ $failed = 0 ]
