#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the text of every file that git tracks: format of C, syntax of shell scripts, white space and
# characters that nobody sees.
set -euo pipefail

cd "$(dirname "$0")/.."
export LC_ALL=C.UTF-8
failed=0

fail()
{
  echo "FAIL: $1"
  failed=1
}

# forbid WHAT PATTERN [PATH...]: no line of these tracked files may match; binary files do not count.
forbid()
{
  if git grep -nIP -e "$2" -- "${@:3}"; then
    fail "$1"
  fi
}

forbid "trailing white space" '[ \t\r]+$'
forbid "tabs in C" '\t' '*.c' '*.h' '*.cpp' '*.inc'
# Control characters, no-break and zero-width spaces, marks of direction and of byte order.
forbid "invisible characters" \
  '[\x01-\x08\x0B-\x1F\x7F-\x{A0}\x{AD}\x{200B}-\x{200F}\x{2028}-\x{202F}\x{2060}-\x{206F}\x{FEFF}]'

while read -r file; do
  [ -z "$(tail -c 1 "$file")" ] || fail "$file does not end with a newline"
done < <(git grep -lI '')

while read -r script; do
  bash -n "$script" || fail "$script"
done < <(git ls-files '*.sh' .ci)
# Parts that a script sources have no #! and are not looked at; so shellcheck cannot know what they
# define and use (the excluded warnings).
if command -v shellcheck >/dev/null; then
  git grep -lzE '^#!.*\b(ba)?sh$' -- '*.sh' .ci |
    xargs -0 shellcheck -S warning -e SC1090,SC1091,SC2034,SC2154 || fail "shellcheck"
else
  echo "SKIP: shellcheck is not installed"
fi

# Other versions of clang-format differ in small ways.
if command -v clang-format-14 >/dev/null; then
  git ls-files -z '*.c' '*.h' '*.cpp' '*.inc' | xargs -0 clang-format-14 --dry-run -Werror ||
    fail "format; clang-format-14 -i mends it"
else
  echo "SKIP: format: clang-format-14 is not installed"
fi

[ $failed = 0 ] && echo "text: $(git ls-files | wc -l) files are good"
exit $failed
