#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# setup.sh [--build | --ci]: installs what building and testing needs on Debian 12 and 13 and Ubuntu 24.04.
# Where all of it is there it does nothing and needs no network. --build leaves out what only tests need,
# --ci adds what only .ci/run uses.
set -euo pipefail

tests=yes
ci=no
case ${1:-} in
"") ;;
--build) tests=no ;;
--ci) ci=yes ;;
*)
  echo "usage: $0 [--build | --ci]" >&2
  exit 2
  ;;
esac

have() { command -v "$1" >/dev/null 2>&1; }
have_library() { have pkg-config && pkg-config --exists "$1"; }

# A compiler may be there without the libraries of OpenMP or of a sanitizer.
links() { echo 'int main(void) { return 0; }' | "$@" -x c - -o /dev/null 2>/dev/null; }

have_compiler() { links cc -fopenmp && { have make || have ninja; } && have readelf; }

have_cmake()
{
  have cmake || return
  local version
  version=$(cmake --version | sed -n '1s/[^0-9]*//p')
  printf '3.25\n%s\n' "$version" | sort -V -C
}

# clang's sanitizers are a package of the version that the package clang stands for.
clang_runtime()
{
  local version
  version=$(apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p' | head -n 1)
  echo "libclang-rt-${version:-14}-dev"
}

# Prints the packages that are missing, a line each.
missing()
{
  have_compiler || echo build-essential
  have_cmake || echo cmake
  have pkg-config || echo pkg-config
  have_library hwloc || echo libhwloc-dev
  [ $tests = no ] || have_library cmocka || echo libcmocka-dev
  [ $tests = no ] || have python3 || echo python3
  [ $ci = yes ] || return 0
  have git || echo git
  have g++ || echo g++
  have ninja || echo ninja-build
  have clang || echo clang
  links clang -fopenmp || echo libomp-dev
  links clang -fsanitize=thread || clang_runtime
  have shellcheck || echo shellcheck
  have qemu-x86_64 || echo qemu-user
  # Only where there is one: .ci/run says that it skips the format check elsewhere.
  have clang-format-14 || ! apt-cache show clang-format-14 >/dev/null 2>&1 || echo clang-format-14
}

# A word list for a person, and for apt-get.
packages=$(missing | tr '\n' ' ')
if [ -z "$packages" ]; then
  echo "setup: all that is needed is installed"
  exit 0
fi

if ! have apt-get; then
  echo "setup: this script installs by apt-get only. Please install what these Debian packages hold: $packages" >&2
  exit 1
fi
as_root=
if [ "$(id -u)" != 0 ]; then
  if ! have sudo; then
    echo "setup: not root and no sudo. Please install as root: apt-get install $packages" >&2
    exit 1
  fi
  as_root=sudo
fi

$as_root apt-get update -q
packages=$(missing | tr '\n' ' ') # again, as apt now knows its packages
echo "setup: installing $packages"
# shellcheck disable=SC2086 # a word each
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $packages

packages=$(missing | tr '\n' ' ')
if [ -n "$packages" ]; then
  echo "setup: still missing after the installation: $packages" >&2
  exit 1
fi
