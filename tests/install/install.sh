#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# install.sh BUILD_DIR: installs the build, moves the result elsewhere, and there builds and runs the consumer's
# programs against it, by find_package and by pkg-config, each shared and static.
set -euo pipefail

build=$(cd "${1:?usage: $0 BUILD_DIR}" && pwd)
. "$(dirname "$0")/common.sh"
if ! command -v pkg-config >/dev/null; then
  echo "SKIP: pkg-config is not installed"
  exit 77
fi

# ---- the tree -------------------------------------------------------------------------------------------------

# Staged as a package builder does it, and plainly: the same files. Then nothing is left where it was installed.
quiet env DESTDIR="$work/stage" "$cmake" --install "$build" --prefix /opt/attn
quiet "$cmake" --install "$build" --prefix "$work/plain"
diff -r "$work/plain" "$work/stage/opt/attn" || die "with DESTDIR other files are installed"
[ "$(ls "$work/stage") $(ls "$work/stage/opt")" = "opt attn" ] || die "installed outside DESTDIR's prefix"
rm -r "$work/plain"
prefix=$work/moved
mv "$work/stage/opt/attn" "$prefix"

lib=$(dirname "$(find "$prefix" -name libattn.so)")
version=$("$prefix/bin/attn" --version | sed 's/^attn //')
mapfile -t texts < <(find "$prefix" -name '*.cmake' -o -name '*.pc')
[ ${#texts[@]} -ge 5 ] || die "no package files in $prefix"
! grep -nF -e "$build" -e "$source" -e "$work" -e /opt/attn "${texts[@]}" || die "paths of the build are installed"
for file in "$prefix/bin/attn" "$lib/libattn.so"; do
  ! readelf -d "$file" | grep -E '\((RPATH|RUNPATH)\)' | grep -vF "[\$ORIGIN/" || die "$file holds a path of the build"
done

header=("-I$prefix/include" -pedantic -Wall -Wextra -Werror -fsyntax-only)
echo '#include <attn/attn.h>' >"$work/header.c"
quiet "$cc" -std=c11 "${header[@]}" "$work/header.c"
[ -z "$cxx" ] || quiet "$cxx" -std=c++17 "${header[@]}" -x c++ "$work/header.c"

# ---- find_package -----------------------------------------------------------------------------------------------

echo "find_package:"
quiet configure package -DCMAKE_PREFIX_PATH="$prefix" -DCONSUMER_VERSION="${version%.*}"
quiet "$cmake" --build "$work/package"
check_programs "$work/package"
check_commands package

# refused TEXT OPTION...: find_package must say no, and why.
refused()
{
  local text=$1
  shift
  rm -rf "$work/refused"
  if configure refused -DCMAKE_PREFIX_PATH="$prefix" -DCONSUMER_LANGUAGES=C "$@" >"$work/log" 2>&1; then
    die "find_package accepts $*"
  fi
  [[ $(tr -s ' \n' ' ' <"$work/log") == *"$text"* ]] || die "find_package does not say '$text': $(cat "$work/log")"
}
# Before 1.0 the interface may change from one minor version to the next.
IFS=. read -r major minor _ <<<"$version"
for other in 99 "$major.$((minor - 1))" "$major.$((minor + 1))"; do
  [[ $other == *-* ]] || refused "compatible with requested version \"$other\"" -DCONSUMER_VERSION="$other"
done
refused 'attn has no component "nonsense", only "static"' -DCONSUMER_COMPONENTS=nonsense
PKG_CONFIG_PATH='' PKG_CONFIG_LIBDIR=$work/nothing refused 'attn::static needs hwloc, and pkg-config finds none'

# A project in C++ alone. Its OpenMP is that of its compiler; GNU's cannot run what clang compiled.
if [ -n "$cxx" ]; then
  if [[ $("$cxx" --version) == *clang* || $(needed "$lib/libattn.so") == *libgomp* ]]; then
    quiet configure cxx -DCMAKE_PREFIX_PATH="$prefix" -DCONSUMER_LANGUAGES=CXX
    quiet "$cmake" --build "$work/cxx"
    check_programs "$work/cxx"
  else
    echo "SKIP: attn::static in a project in C++ alone: $cxx cannot link the OpenMP of $cc"
  fi
fi

# ---- pkg-config ---------------------------------------------------------------------------------------------------

echo "pkg-config:"
export PKG_CONFIG_PATH=$lib/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
[ "$(pkg-config --modversion attn)" = "$version" ] || die "attn.pc has another version than $version"
! pkg-config --exists 'attn >= 99' || die "pkg-config accepts version 99"

# by_pkgconfig NAME COMPILER...: both programs. `--libs --static` alone would take the shared library where it is.
by_pkgconfig()
{
  local name=$1 flags
  shift
  flags=$(pkg-config --cflags --libs attn)
  # shellcheck disable=SC2086 # words
  quiet "$@" $flags -lm -Wl,-rpath,"$(pkg-config --variable=libdir attn)" -o "$work/${name}_attn"
  flags=$(pkg-config --static --cflags --libs attn)
  # shellcheck disable=SC2086
  quiet "$@" ${flags/-lattn/"$lib/libattn.a"} -o "$work/${name}_static"
  check_programs "$work" "${name}_"
}
by_pkgconfig c "$cc" -std=c11 "$here/consumer/consumer.c"
[ -z "$cxx" ] || by_pkgconfig cxx "$cxx" -std=c++17 "$here/consumer/consumer.cpp"
