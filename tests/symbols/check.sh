#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check.sh libattn.so libattn.a: the shared library exports exactly exported.txt and needs only what
# the README promises; the static library defines no name outside attn_.
set -euo pipefail

shared=$1 static=$2
expected=$(dirname "$0")/exported.txt
failed=0

fail()
{
  echo "FAIL: $1"
  failed=1
}

# The version's own name (ATTN_0) is an absolute symbol, not a function.
exported=$(nm -D --defined-only "$shared" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | LC_ALL=C sort)
if ! diff -u "$expected" - <<<"$exported"; then
  fail "$shared does not export what $expected lists"
fi

foreign=$(nm -g --defined-only "$static" | awk 'NF == 3 && $3 !~ /^attn_/ { print $3 }')
[ -z "$foreign" ] || fail "$static defines names outside attn_: $foreign"

# libm may be absent (unused) and ld-linux present (thread-local variables); both belong to libc.
for library in $(readelf -d "$shared" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
  case $library in
  libc.so.* | libm.so.* | libpthread.so.* | ld-linux*.so.*) ;;
  libgomp.so.* | libomp.so* | libiomp5.so*) ;;
  libhwloc.so.*) ;;
  *) fail "$shared needs $library" ;;
  esac
done

# An executable stack makes dlopen fail on hardened systems.
if readelf -lW "$shared" | awk '$1 == "GNU_STACK"' | grep -q 'RWE'; then
  fail "$shared asks for an executable stack"
fi

[ "$failed" = 0 ] && echo "$(wc -l <"$expected") exported symbols, as listed"
exit "$failed"
