#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# setup.sh [--build | --ci] [--no-nvcc]: installs what building and testing needs on Debian 12 and 13 and Ubuntu
# 24.04. Where all of it is there it does nothing and needs no network. --build leaves out what only tests need,
# --ci adds what only .ci/run uses. --no-nvcc, or ATTN_SETUP_NVCC=no in the environment, leaves out the CUDA
# compiler (2 GB on disk, 2 to 3 minutes), without which the library holds no GPU code.
set -euo pipefail

tests=yes
ci=no
nvcc=${ATTN_SETUP_NVCC:-yes}
for option in "$@"; do
  case $option in
  --build) tests=no ;;
  --ci) ci=yes ;;
  --no-nvcc) nvcc=no ;;
  *)
    echo "usage: $0 [--build | --ci] [--no-nvcc]" >&2
    exit 2
    ;;
  esac
done

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
  [ $tests = no ] || have_library liblz4 || echo liblz4-dev
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

# Any nvcc that knows sm_70, which CUDA 13 no longer does. CMakeLists.txt looks in the same places.
have_nvcc()
{
  local command
  for command in nvcc /usr/bin/nvcc /usr/local/cuda/bin/nvcc; do
    # No grep -q behind a pipe: nvcc would die of SIGPIPE and fail the pipe.
    case $("$command" --list-gpu-code 2>/dev/null) in
    *sm_70*) return 0 ;;
    esac
  done
  return 1
}

# Debian keeps NVIDIA's compiler in the sections contrib and non-free, which may not be enabled. They get files of
# their own, made from the enabled sources; the distribution's files stay as they are.
enable_non_free()
{
  local sources=/etc/apt/sources.list.d
  if [ -e $sources/debian.sources ]; then
    sed 's/^Components:.*/Components: contrib non-free/' $sources/debian.sources |
      $as_root tee $sources/attn-non-free.sources >/dev/null
  elif [ -e /etc/apt/sources.list ]; then
    sed -nE 's/^(deb (\[[^]]*\] )?[^ ]*debian[^ ]* [^ ]+) .*/\1 contrib non-free/p' /etc/apt/sources.list |
      $as_root tee $sources/attn-non-free.list >/dev/null
  fi
  $as_root apt-get update -q
}

known() { [ -n "$(apt-cache madison "$1" 2>/dev/null)" ]; }

# The CUDA compiler is wanted, not needed: without it everything else is built and tested all the same.
install_nvcc()
{
  local extra=
  # Debian's toolkit brings Debian's driver library, which must not take the place of one that is there already.
  if ldconfig -p 2>/dev/null | grep 'libcuda\.so\.1 ' >/dev/null && ! dpkg -S libcuda.so.1 >/dev/null 2>&1; then
    echo "SKIP: nvcc: this machine has a CUDA driver that apt did not install, and Debian's toolkit would bring another"
    return
  fi
  known nvidia-cuda-toolkit || $as_root apt-get update -q || true
  known nvidia-cuda-toolkit || enable_non_free || true
  if ! known nvidia-cuda-toolkit; then
    echo "SKIP: nvcc: apt has no package nvidia-cuda-toolkit; the library will hold no GPU code"
    return
  fi
  ! known nvidia-cuda-toolkit-gcc || extra=nvidia-cuda-toolkit-gcc
  echo "setup: installing nvidia-cuda-toolkit $extra, which takes some minutes"
  # shellcheck disable=SC2086 # a word each
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
    nvidia-cuda-toolkit $extra >/dev/null || true
  have_nvcc || echo "SKIP: nvcc: nvidia-cuda-toolkit did not install; the library will hold no GPU code"
}

nvcc_missing() { [ "$nvcc" != no ] && ! have_nvcc; }

# A word list for a person, and for apt-get.
packages=$(missing | tr '\n' ' ')
if [ -z "$packages" ] && ! nvcc_missing; then
  echo "setup: all that is needed is installed"
  exit 0
fi

if [ -z "$packages" ] && ! have apt-get; then
  echo "SKIP: nvcc: no apt-get to install it; the library will hold no GPU code"
  exit 0
fi
if ! have apt-get; then
  echo "setup: this script installs by apt-get only. Please install what these Debian packages hold: $packages" >&2
  exit 1
fi
as_root=
if [ "$(id -u)" != 0 ]; then
  if have sudo; then
    as_root=sudo
  elif [ -n "$packages" ]; then
    echo "setup: not root and no sudo. Please install as root: apt-get install $packages" >&2
    exit 1
  else
    echo "SKIP: nvcc: neither root nor sudo to install it; the library will hold no GPU code"
    exit 0
  fi
fi

if [ -n "$packages" ]; then
  $as_root apt-get update -q
  packages=$(missing | tr '\n' ' ') # again, as apt now knows its packages
  echo "setup: installing $packages"
  # shellcheck disable=SC2086 # a word each
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $packages
fi
if nvcc_missing; then
  install_nvcc
fi

packages=$(missing | tr '\n' ' ')
if [ -n "$packages" ]; then
  echo "setup: still missing after the installation: $packages" >&2
  exit 1
fi
