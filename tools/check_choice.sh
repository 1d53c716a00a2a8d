#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check_choice.sh [OPTION...]: is the automatic choice between CPU and GPU right on this machine? For a list of shapes with
# host tensors it times both sides, the GPU with copies, and prints who is chosen, who is faster, and how the estimates
# compare. Run it on a machine with a GPU and nothing else running.
#
#   --attn FILE    the attn command (default: beside this script, else build/release/attn)
#   --threads N    CPU threads (default: one a physical core)
#   --seconds S    for the calls of a side (default 0.5)
#   --shapes "S"   B,HQ,HKV,SQ,SK,D:TYPE[:causal] ... instead of the list
#   --slack X      the chosen side may take that much longer than the other (default 1.2)
#
# Exit status: 0 each choice is the faster side or within the slack, 1 one is not, 2 bad usage, 3 this machine cannot.
# Shapes that are too small for the model to look at a GPU count like all others: the CPU is chosen for them.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
attn='' threads='' seconds=0.5 slack=1.2
shapes='1,1,1,16,16,16:f32 1,8,8,64,64,64:f32 1,8,8,128,128,64:f32:causal 1,16,16,256,256,64:f32 1,8,8,512,512,64:f32
  1,16,16,512,512,128:f32:causal 1,16,16,1024,1024,64:f32 1,16,16,1024,1024,64:f16:causal 1,32,8,1024,1024,128:f16
  1,32,32,2048,2048,128:f32 1,32,32,2048,2048,128:f32:causal 1,32,8,2048,2048,128:bf16 1,8,8,4096,4096,64:f32
  1,32,8,4096,4096,128:f16:causal 4,16,16,1024,1024,64:f32 1,32,8,1,4096,128:f16 1,32,8,1,32768,128:f16
  16,32,8,1,4096,128:f32 1,32,8,8,8192,128:f16 1,128,1,16,4096,576:f16'

usage()
{
  echo "check_choice.sh: $1" >&2
  sed -n '3,/^# Shapes/s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

while [ $# -gt 0 ]; do
  case $1 in
  --attn | --threads | --seconds | --shapes | --slack)
    [ $# -gt 1 ] || usage "$1 needs a value"
    declare "${1#--}=$2"
    shift
    ;;
  *) usage "unknown option '$1'" ;;
  esac
  shift
done
if [ -z "$attn" ]; then
  attn=$here/attn
  [ -x "$attn" ] || attn=$here/../build/release/attn
fi
[ -x "$attn" ] || usage "no attn command at $attn"
unset ATTN_FORCE

# number KEY TEXT: of the first such key; nothing for null.
number() { sed -nE "s/.*\"$1\":(-?[0-9.eE+-]+)[,}].*/\1/p" <<< "$2"; }

if ! "$attn" info --json | grep '"backend":"cuda"' >/dev/null; then
  echo "check_choice.sh: no GPU here" >&2
  exit 3
fi
if [ -n "$threads" ]; then threads="--threads $threads"; fi

# time_of FORCE WORD...: milliseconds of a call with host tensors.
time_of()
{
  number median_ms "$(ATTN_FORCE=$1 "$attn" bench --json --no-verify --seconds "$seconds" $threads "${@:2}")"
}

"$attn" bench --copies --device cuda
printf '\n%-32s %10s %10s %10s %10s %7s %7s %6s\n' 'shape' 'CPU ms' 'estimate' 'GPU ms' 'estimate' 'chosen' 'faster' 'ratio'
worst=0 timed=0
for shape in $shapes; do
  IFS=: read -r sizes type causal <<< "$shape"
  words=(--shape "$sizes" --dtype "$type" ${causal:+--causal})
  # info has started the driver, as a program that uses a GPU has; others leave all below 50 ms to the CPU.
  if ! plan=$("$attn" info --json $threads "${words[@]}") || ! cpu=$(time_of backend=cpu "${words[@]}") || ! gpu=$(time_of backend=cuda "${words[@]}"); then
    echo "SKIP: $shape: cannot be timed"
    continue
  fi
  timed=$((timed + 1))
  chosen=$(sed -nE 's/.*"device":"([a-z]+)".*/\1/p' <<< "$plan")
  row=$(awk -v shape="$shape" -v cpu="$cpu" -v gpu="$gpu" -v cpu_guess="$(number cpu_ms "$plan")" \
    -v gpu_guess="$(number gpu_ms "$plan")" -v chosen="$chosen" -v slack="$slack" 'BEGIN {
      taken = chosen == "cuda" ? gpu : cpu
      best = cpu < gpu ? cpu : gpu
      ratio = taken / best
      faster = cpu < gpu ? "cpu" : "cuda"
      verdict = ratio > slack ? "  WRONG" : ""
      if (cpu_guess != "") cpu_guess = sprintf("%.4g", cpu_guess)
      if (gpu_guess != "") gpu_guess = sprintf("%.4g", gpu_guess)
      printf "%-32s %10.4g %10s %10.4g %10s %7s %7s %6.2f%s\n", shape, cpu, cpu_guess, gpu, gpu_guess, chosen, faster,
        ratio, verdict
    }')
  echo "$row"
  case $row in *WRONG) worst=1 ;; esac
done
[ $timed -gt 0 ] || worst=3
echo "exit status $worst"
exit $worst
