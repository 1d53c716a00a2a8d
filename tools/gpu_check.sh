#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gpu_check.sh [OPTION...] [FOLDER]: all that is worth knowing of attn on a machine with a GPU: tests, times, and if they
# are there NVIDIA's compute-sanitizer and PyTorch beside it. Needs no compiler: FOLDER holds a carried build.
#
#   tools/build.sh release && tools/gpu_check.sh --pack /tmp/attn-gpu     # here
#   /tmp/attn-gpu/gpu_check.sh                                            # there, with the folder copied
#
#   FOLDER        attn and libattn.so.0 (default: where this script lies, else build/release)
#   --device N    the GPU's number (default 0)
#   --out DIR     where the results go (default gpu_check.out)
#   --quick       the quick list of cases, small shapes
#   --filter S    only cases whose name contains S
#   --shapes "S"  B,HQ,HKV,SQ,SK,D:TYPE[:causal] ... instead of the list
#   --seconds S   for the calls of a shape (default 1)
#   --python P    a Python with PyTorch (default python3)
#   --pack DIR    collects what has to be carried, stripped, and ends
#
# What is left out is said in a line "SKIP: ...". The last lines are the block to paste into a report and the exit status:
# 0 all is well, 1 something is wrong, 3 this machine cannot.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
folder='' device=0 out=gpu_check.out list=--full filter='' shapes='' seconds=1 python=python3 pack=''

usage()
{
  echo "gpu_check.sh: $1" >&2
  sed -n '3,/^# 0 all/s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

while [ $# -gt 0 ]; do
  case $1 in
  --quick) list=--quick ;;
  --device | --out | --filter | --shapes | --seconds | --python | --pack)
    [ $# -gt 1 ] || usage "$1 needs a value"
    declare "${1#--}=$2"
    shift
    ;;
  -*) usage "unknown option '$1'" ;;
  *)
    [ -z "$folder" ] || usage "more than one folder"
    folder=$1
    ;;
  esac
  shift
done
case $device in '' | *[!0-9]*) usage "--device: '$device' is no number" ;; esac

if [ -z "$folder" ]; then
  folder=$here
  [ -x "$folder/attn" ] || folder=$here/../build/release
fi
if [ ! -x "$folder/attn" ] || [ ! -e "$folder/libattn.so.0" ]; then
  echo "gpu_check.sh: no attn and libattn.so.0 in $folder; tools/build.sh release makes them in build/release" >&2
  exit 2
fi
folder=$(cd "$folder" && pwd)
attn=$folder/attn

# ---- carrying ----------------------------------------------------------------------------------------------------

# Libraries that another machine may lack lie apart, as its own are better where it has them.
if [ -n "$pack" ]; then
  mkdir -p "$pack/bench" "$pack/fallback"
  cp "$attn" "$pack/attn"
  cp -L "$folder/libattn.so.0" "$pack/libattn.so.0"
  if command -v strip >/dev/null; then strip "$pack/attn" "$pack/libattn.so.0"; else echo "SKIP: strip: not here"; fi
  ldd "$folder/libattn.so.0" | sed -nE 's/^\s*lib(hwloc|gomp)\.so\S* => (\S+) .*/\2/p' | while read -r library; do
    cp -L "$library" "$pack/fallback/"
  done
  cp "$here/gpu_check.sh" "$here/check_choice.sh" "$pack/"
  cp "$here"/../bench/{peers_cuda,peers_case,peers_judge,peers_torch,worker}.py "$pack/bench/"
  LD_LIBRARY_PATH=$pack "$pack/attn" info | sed -n '1,2p'
  du -sh "$pack"
  exit 0
fi

export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
if ldd "$attn" "$folder/libattn.so.0" | grep 'not found' >/dev/null && [ -d "$folder/fallback" ]; then
  LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$folder/fallback
fi
bench=$folder/bench
[ -e "$bench/peers_cuda.py" ] || bench=$here/../bench
mkdir -p "$out"
worst=0

step() { printf '\n==== %s (%d s)\n' "$1" "$SECONDS"; }

# note STATUS WHAT: keeps that something went wrong; a wrong result or a crash outweighs a "cannot".
note()
{
  [ "$1" -eq 0 ] && return
  echo "FAIL: $2: status $1"
  if [ "$1" -ne 3 ]; then worst=1; elif [ "$worst" -eq 0 ]; then worst=3; fi
}

# ---- shapes ------------------------------------------------------------------------------------------------------

if [ -z "$shapes" ]; then
  heads_tokens='1,32,32,4096,4096'
  [ $list = --full ] || heads_tokens='1,8,8,1024,1024'
  for type in f32 f16; do
    for d in 64 128 256; do
      shapes+=" $heads_tokens,$d:$type $heads_tokens,$d:$type:causal"
    done
  done
  for type in f32 f16; do
    shapes+=" 1,32,8,1,4096,128:$type 1,32,8,1,32768,128:$type 16,32,8,1,4096,128:$type"
  done
fi

# ---- the device --------------------------------------------------------------------------------------------------

step "info"
if ! "$attn" info | tee "$out/info.txt"; then
  echo "gpu_check.sh: attn does not run here" >&2
  exit 3
fi
"$attn" info --json > "$out/info.json"
if ! grep "  cuda:$device  " "$out/info.txt" >/dev/null; then
  echo "exit status 3: no GPU $device here"
  exit 3
fi
if command -v nvidia-smi >/dev/null; then
  nvidia-smi --id="$device" --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,power.limit,ecc.mode.current \
    --format=csv | tee "$out/nvidia-smi.txt" || true
else
  echo "SKIP: nvidia-smi: not here"
fi

# ---- is it right? ------------------------------------------------------------------------------------------------

step "check $list"
status=0
"$attn" check $list --device "cuda:$device" ${filter:+--filter "$filter"} | tee "$out/check.txt" |
  sed -u '/^----- report of attn check: please/,$d' || status=$?
note $status "attn check"

# ---- how fast is it? ---------------------------------------------------------------------------------------------

step "bench"
: > "$out/bench.txt"
last=
for shape in $shapes; do
  IFS=: read -r sizes type causal <<< "$shape"
  status=0
  "$attn" bench --device "cuda:$device" --seconds "$seconds" --shape "$sizes" --dtype "$type" \
    ${causal:+--causal} > "$out/row.txt" 2> "$out/row.err" || status=$?
  # A row; before it the machine, if it is the first one, and the kernel and the columns where another kernel served.
  way=$(grep '^forward on' "$out/row.txt" || true)
  if [ "$way" = "$last" ]; then tail -n 1 "$out/row.txt"
  elif [ -z "$last" ]; then cat "$out/row.txt"
  else sed -n '/^forward on/,$p' "$out/row.txt"
  fi | tee -a "$out/bench.txt"
  last=${way:-$last}
  if [ $status -eq 3 ]; then echo "SKIP: bench $shape: $(cat "$out/row.err")" | tee -a "$out/bench.txt"
  elif [ $status -ne 0 ]; then
    note $status "attn bench $shape: $(cat "$out/row.err")"
  fi
done
rm -f "$out/row.txt" "$out/row.err"

# ---- does it touch what it should not? ---------------------------------------------------------------------------

step "compute-sanitizer"
# What it says where it cannot work at all.
cannot='Unable to find injection library|Device not supported|No attachable process|not found on the system'
# sanitize TOOL FILTER: a sample of the cases. They provoke errors of the API, which are no finding.
sanitize()
{
  local status=0
  timeout 900 compute-sanitizer --tool "$1" --report-api-errors no --error-exitcode 99 \
    "$attn" check --quick --device "cuda:$device" --filter "$2" > "$out/$1.txt" 2>&1 || status=$?
  grep -E 'ERROR SUMMARY|RACECHECK SUMMARY| passed, ' "$out/$1.txt" | sed "s/^/$1: /" || true
  if grep -E "$cannot" "$out/$1.txt" >/dev/null; then
    echo "SKIP: $1: $(grep -m 1 -E "$cannot" "$out/$1.txt")"
  else
    note $status "compute-sanitizer $1"
  fi
}
if ! command -v compute-sanitizer >/dev/null; then
  echo "SKIP: compute-sanitizer: not here"
elif [ -n "${ATTN_CUDA_DRIVER:-}" ]; then
  echo "SKIP: compute-sanitizer: ATTN_CUDA_DRIVER names a stand-in for the driver"
else
  sanitize memcheck "${filter:-random}"
  sanitize racecheck "${filter:-merge}"
fi

# ---- and the others? ---------------------------------------------------------------------------------------------

step "PyTorch"
if ! command -v "$python" >/dev/null; then
  echo "SKIP: PyTorch: no $python"
elif [ -n "${ATTN_CUDA_DRIVER:-}" ]; then
  echo "SKIP: PyTorch: ATTN_CUDA_DRIVER names a stand-in for the driver"
else
  status=0
  # shellcheck disable=SC2086 # a word each
  "$python" -B "$bench/peers_cuda.py" --attn "$attn" --device "$device" --json "$out/peers.json" $shapes > \
    "$out/peers.txt" 2>&1 || status=$?
  cat "$out/peers.txt"
  [ $status -eq 77 ] || note $status "peers_cuda.py"
fi

# ---- the end -----------------------------------------------------------------------------------------------------

step "report; everything is in $out"
sed -n '/^----- report of attn check: please/,/^----- report of attn check: to/p' "$out/check.txt"
grep '^----- report of attn check: to' "$out/check.txt" >/dev/null || echo "attn check did not come to its end"
echo "exit status $worst"
exit "$worst"
