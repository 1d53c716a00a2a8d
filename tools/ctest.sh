#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ctest.sh PRESET: runs the tests of a built preset, then prints what was skipped and why. The last
# lines are ctest's summary.
set -euo pipefail

cd "$(dirname "$0")/.."
preset=${1:?usage: $0 PRESET}
build=build/$preset

status=0
ctest --preset "$preset" | tee "$build/ctest.txt" | sed -u '/% tests passed/,$d' || status=$?

# A test says what it skips in a line "SKIP: reason", the suite in "skipped N: reason"; ctest keeps the
# output of every test in its log.
skips=$(sed -nE 's/^ *((SKIP|skipped [0-9]+): )/\1/p' "$build/Testing/Temporary/LastTest.log" | sort -u)
printf '\nSkipped (%s):\n%s\n' "$preset" "${skips:-nothing}"
echo
sed -n '/% tests passed/,$p' "$build/ctest.txt"
exit $status
