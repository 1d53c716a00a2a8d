#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check.sh libattn.so libattn.a CC CFLAGS: the shared library exports exactly exported.txt and needs only what
# the README promises; the static library defines no name outside attn_; what only some processors run stays in
# the objects of the instruction set levels.
set -euo pipefail
export LC_ALL=C

shared=$1 static=$2 cc=$3 flags=$4
expected=$(dirname "$0")/exported.txt
failed=0

fail()
{
  echo "FAIL: $1"
  failed=1
}

# The version's own name (ATTN_0) is an absolute symbol, not a function.
exported=$(nm -D --defined-only "$shared" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort)
if ! diff -u "$expected" - <<<"$exported"; then
  fail "$shared does not export what $expected lists"
fi

foreign=$(nm -g --defined-only "$static" | awk 'NF == 3 && $3 !~ /^attn_/ { print $3 }')
[ -z "$foreign" ] || fail "$static defines names outside attn_: $foreign"

# libm may be absent (unused), libdl is libc since glibc 2.34, and ld-linux present (thread-local variables); both belong to libc.
for library in $(readelf -d "$shared" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
  case $library in
  libc.so.* | libm.so.* | libdl.so.* | libpthread.so.* | ld-linux*.so.*) ;;
  libgomp.so.* | libomp.so* | libiomp5.so*) ;;
  libhwloc.so.*) ;;
  *) fail "$shared needs $library" ;;
  esac
done

# An executable stack makes dlopen fail on hardened systems.
if readelf -lW "$shared" | awk '$1 == "GNU_STACK"' | grep -q 'RWE'; then
  fail "$shared asks for an executable stack"
fi

# A level is one table, so that nobody else can come to call what is compiled for its processors.
levels=$(nm -g --defined-only "$static" | awk '
  /^level_.*:$/ { object = $1; sub(/^level_/, "", object); sub(/\..*/, "", object); count++ }
  !NF { object = "" }
  NF == 3 && object { names[object] = names[object] " " $3 }
  END {
    if (!count) print "no object of a level in the library"
    for (object in names)
      if (names[object] != " attn_cpu_level_" object) print "level " object " exports" names[object]
  }')
[ -z "$levels" ] || fail "$levels"

# AVX outside the levels above scalar would be an illegal instruction on processors that lack it. In 64-bit code an
# instruction whose first byte behind prefixes of segment or size is c4, c5 or 62 is VEX or EVEX, and those are all.
# shellcheck disable=SC2086 # words
macros=$("$cc" $flags -dM -E -x c /dev/null)
if [[ $macros != *__x86_64__* ]]; then
  echo "SKIP: instructions outside the levels: not a library for x86-64"
elif [[ $macros == *__AVX__* ]]; then
  echo "SKIP: instructions outside the levels: the whole library is compiled for AVX ($flags)"
else
  leaks=$(objdump -d "$static" | awk -F '\t' '
    / file format / { object = $1; sub(/:.*/, "", object); level = object ~ /^level_/ && object !~ /^level_scalar\./ }
    /^[0-9a-f]+ <.*>:$/ { name = $1; sub(/^[^<]*/, "", name) }
    NF < 3 || level { next }
    { count++ }
    $2 ~ /^((26|2e|36|3e|64|65|67) )*(c4|c5|62) / && !told[object name]++ { print object, name, $3 }
    END { if (!count) print "no instructions found" }')
  [ -z "$leaks" ] || fail "AVX outside the levels: $leaks"
fi

[ "$failed" = 0 ] && echo "$(wc -l <"$expected") exported symbols, as listed"
exit "$failed"
