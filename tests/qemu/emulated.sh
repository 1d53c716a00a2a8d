#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# emulated.sh QEMU ATTN ROOT CC: the attn command on processors that this machine is not. QEMU (qemu-x86_64) poses as
# each; there `attn` must find the best level, compute right results with every level that the processor has, refuse
# the others in one line, and never meet an instruction that the processor lacks.
set -euo pipefail
export LC_ALL=C

qemu=$1 attn=$2 root=$3 cc=$4

# PROCESSOR: the levels that it has, weakest processors first. With "?" it is left to the level whether all that it
# needs is there. The emulator knows no AVX-512.
processors=(
  "Nehalem: scalar"
  "SandyBridge: scalar" # AVX alone
  "Haswell,-avx2: scalar"
  "Haswell,-fma: scalar"
  "Haswell,-xsave: scalar" # an operating system that does not save AVX's registers
  "Haswell,-f16c,-bmi1,-bmi2,-abm,-movbe: scalar avx2?" # what compilers, not levels, take for granted with AVX2
  "Haswell: scalar avx2"
  "EPYC: scalar avx2"
)
# Cases of `attn check`, every storage type and odd sizes among them, which take seconds under emulation. They run
# on the first processor with each best level.
filters=(append/ merge/ dropout/ -s3x799- cases/A0 cases/A20 cases/A34)

skip()
{
  echo "SKIP: $1"
  exit 77
}

[[ $(readelf -h "$attn") == *X86-64* ]] || skip "attn is not built for x86-64"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
ulimit -c 0
export ATTN_FORCE=threads=2 OMP_WAIT_POLICY=passive
# The C library's own AVX2 code takes five times as long under emulation; what attn finds does not depend on this.
export GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2,-AVX_Fast_Unaligned_Load
failed=0 skipped=0 cases=0 checked=

# emulate COMMAND...: sets status, and leaves the files stdout and stderr, without the emulator's own warnings.
emulate()
{
  status=0
  { "$qemu" -cpu "$processor" "$@" >stdout 2>all; } 2>/dev/null || status=$?
  grep -v '^qemu-x86_64: warning: TCG ' all >stderr || true
}

fail()
{
  echo "FAIL: $processor: $1 (exit status $status)"
  tail -n 5 stdout stderr
  failed=1
}

# good TEXT COMMAND...: must succeed, say nothing on stderr and print TEXT
good()
{
  local text=$1
  shift
  emulate "$@"
  [ "$status" = 0 ] && [ ! -s stderr ] && grep -q -e "$text" stdout || fail "$*, expecting '$text'"
}

# A model's first head and tokens, whose results hold for all of it because the mask is causal.
slice()
{
  printf '\x93NUMPY\x01\x00\x76\x00%-117s\n' "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 40, 64), }"
  head -c $((128 + 40 * 64 * 4)) "$root/tests/data/smollm2/layer00_$1.npy" | tail -c +129
}

# refused LEVEL
refused()
{
  emulate "$attn" run q.npy k.npy v.npy -o out.npy --force "isa=$1"
  if [[ $status != [23] ]] || [ -s stdout ] || [ "$(wc -l <stderr)" != 1 ] || ! grep -q "^attn: .*isa=$1" stderr; then
    fail "isa=$1 is not refused in one line"
  fi
}

# try PROCESSOR LEVELS
try()
{
  processor=$1
  local has=" $2 " built level expected=() usable=yes
  emulate ./probe
  if [[ $has != *avx2* ]]; then
    [ $status = 132 ] || fail "AVX2 and FMA are no illegal instructions here, so this test would see nothing"
  elif [ $status = 132 ]; then
    echo "SKIP: $processor: this qemu-x86_64 does not emulate AVX2 and FMA"
    skipped=$((skipped + 1))
    return
  fi

  good '"arch":' "$attn" info --json
  built=$(sed -nE 's/.*cpu levels:([^)]*)\).*/\1/p' stdout)
  best=$(sed -nE 's/.*"arch":"([^"]*)".*/\1/p' stdout)
  for level in $built; do
    [[ $has != *" $level "* ]] || expected=("$level")
    [[ $has != *" $level? "* ]] || expected+=("$level")
  done
  [[ " ${expected[*]} " == *" $best "* ]] || fail "the best level is '$best', not ${expected[*]}, of$built"

  for level in $built; do
    if [ $usable = yes ]; then
      good "forward_$level " "$attn" run q.npy k.npy v.npy --causal -o out.npy --check --expect expected.npy \
        --force "isa=$level"
    else
      refused "$level"
    fi
    [ "$level" != "$best" ] || usable=no
  done
  for level in avx2 avx512; do
    [[ " $built " == *" $level "* ]] || refused $level
  done
  [[ " $checked " == *" $best "* ]] || check
  echo "$processor: $best ($SECONDS s)"
}

# check: the suite's cases with the levels up to $best
check()
{
  local filter
  checked+=" $best"
  for filter in "${filters[@]}"; do
    good " cpu/$best .* 0 " "$attn" check --quick --device cpu --filter "$filter"
    cases=$((cases + $(sed -n 's/^\([0-9]*\) passed, .*/\1/p' stdout) + 0))
  done
}

echo 'int main(void) { __asm__("vpxor %ymm0, %ymm0, %ymm0; vfmadd213ps %ymm0, %ymm0, %ymm0"); return 0; }' |
  "$cc" -x c - -o probe
for name in q k v; do
  slice $name >$name.npy
done
slice out >expected.npy
for line in "${processors[@]}"; do
  try "${line%%: *}" "${line#*: }"
done
echo "$((${#processors[@]} - skipped)) processors, $cases cases passed"
exit $failed
