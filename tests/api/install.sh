#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# install.sh CMAKE BUILD_DIR PROGRAM.c CC: installs the build into a folder of its own, then builds
# and runs the program against it by find_package (shared and static) and by pkg-config.
set -euo pipefail

cmake=$1 build=$2 program=$3 cc=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# quiet COMMAND...: shows the output only if the command fails.
quiet()
{
  "$@" >"$work/log" 2>&1 && return
  cat "$work/log"
  exit 1
}

quiet "$cmake" --install "$build" --prefix "$work/prefix"
lib=$(dirname "$(find "$work/prefix" -name libattn.so)")
"$work/prefix/bin/attn" --version

mkdir "$work/consumer"
cp "$program" "$work/consumer/program.c"
cat >"$work/consumer/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(consumer C)
find_package(attn 0.1 REQUIRED)
add_executable(by_shared program.c)
target_link_libraries(by_shared PRIVATE attn::attn)
find_package(attn 0.1 REQUIRED COMPONENTS static)
add_executable(by_static program.c)
target_link_libraries(by_static PRIVATE attn::static)
END
quiet "$cmake" -S "$work/consumer" -B "$work/out" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_C_COMPILER="$cc"
quiet "$cmake" --build "$work/out"
"$work/out/by_shared"
"$work/out/by_static"
if readelf -d "$work/out/by_static" | grep -q 'NEEDED.*libattn'; then
  echo "attn::static brought libattn.so"
  exit 1
fi

export PKG_CONFIG_PATH=$lib/pkgconfig
# shellcheck disable=SC2046 # the flags are several words
"$cc" -std=c11 "$program" $(pkg-config --cflags --libs attn) -o "$work/by_pkgconfig"
LD_LIBRARY_PATH=$lib "$work/by_pkgconfig"
# shellcheck disable=SC2046
"$cc" -std=c11 "$program" $(pkg-config --cflags attn) "$lib/libattn.a" \
  $(pkg-config --static --libs attn | sed 's/-lattn//') -o "$work/by_pkgconfig_static"
"$work/by_pkgconfig_static"
echo "installed package: shared and static, by find_package and by pkg-config"
