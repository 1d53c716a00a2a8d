# SPDX-License-Identifier: Apache-2.0
# What install.sh and subproject.sh share. The environment names the tools: CMAKE (and CMAKE_GENERATOR), CC, and
# CXX, which may be empty.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source=$(cd "$here/../.." && pwd)
cmake=${CMAKE:-cmake}
cc=${CC:-cc}
cxx=${CXX-c++}
unset ATTN_FORCE CFLAGS CXXFLAGS LDFLAGS DESTDIR CMAKE_BUILD_TYPE
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

languages="C;CXX"
if [ -z "$cxx" ]; then
  languages=C
  echo "SKIP: no C++ compiler: attn is used from C alone"
fi

die()
{
  echo "FAIL: $*"
  exit 1
}

# quiet COMMAND...: shows the output, which stays in $work/log, only if the command fails.
quiet()
{
  "$@" >"$work/log" 2>&1 && return
  cat "$work/log"
  die "$*"
}

# configure OUT OPTION...: the project in consumer/
configure()
{
  local out=$1
  shift
  "$cmake" -S "$here/consumer" -B "$work/$out" -DCMAKE_C_COMPILER="$cc" ${cxx:+-DCMAKE_CXX_COMPILER="$cxx"} \
    -DCONSUMER_LANGUAGES="$languages" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON "$@"
}

needed() { readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'; }

# check_programs DIR [PREFIX]: the programs PREFIXattn (shared) and PREFIXstatic in DIR give right results and need
# what they should: a user of libattn.so must not come to depend on what it is made of.
check_programs()
{
  local program
  for program in "$1"/"${2:-}"*attn "$1"/"${2:-}"*static; do
    [ -f "$program" ] || continue
    printf '%-10s ' "${program##*/}"
    "$program" || die "$program"
    case $program in
    *attn)
      needed "$program" | grep '^libattn\.so\.0$' >/dev/null || die "$program is not linked with libattn.so.0"
      ! needed "$program" | grep -E '^lib(hwloc|gomp|omp|iomp5)' || die "$program needs what only libattn.so uses"
      ;;
    *) ! needed "$program" | grep libattn || die "$program is not linked statically" ;;
    esac
  done
}

# check_commands OUT: attn gave the sources of the consumer nothing but a folder of headers.
check_commands()
{
  local commands words
  commands=$(sed -n 's/^ *"command": "[^ ]* \(.*consumer\.c.*\)",*$/\1/p' "$work/$1/compile_commands.json")
  [ -n "$commands" ] || die "no commands in $work/$1/compile_commands.json"
  words=$(sed -E 's/(^| )-(isystem|o|c) [^ ]+//g; s/(^| )-I[^ ]+//g; s/-std=c(11|\+\+17)//g' <<<"$commands" | tr -d ' \n')
  [ -z "$words" ] || die "options that reach the user's sources: $words"
}
