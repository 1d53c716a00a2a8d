#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# resources.sh [--update] TABLE NVCC FATBIN...: compares what each kernel takes (registers, stack with spills, local and
# static shared memory, by cuobjdump) with a committed table. More registers or a stack mean fewer blocks at a time or
# spills, and nothing else would tell. The numbers belong to one compiler version, which the table's first line names;
# architectures that this build leaves out are not looked at. A stack is permitted only where the table's line goes on
# with the reason, which an update keeps.
set -euo pipefail
export LC_ALL=C

update=no
if [ "$1" = --update ]; then
  update=yes
  shift
fi
table=$1 nvcc=$2
shift 2
if [ $# = 0 ]; then
  echo "SKIP: resources: no nvcc, so no GPU code (Debian: nvidia-cuda-toolkit)"
  exit 77
fi
tools=$(dirname "$nvcc")
export PATH=$tools:$PATH
version=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/nvcc \1/p')
if ! [ -x "$tools/cuobjdump" ]; then
  echo "SKIP: resources: no cuobjdump beside $nvcc"
  exit 77
fi
if [ $update = no ] && [ "$(sed -n '1s/^# //p' "$table")" != "$version" ]; then
  echo "SKIP: resources: $table is of $(sed -n '1s/^# //p' "$table"), this is $version"
  exit 77
fi

usage()
{
  echo "# $version"
  echo "# kernel architecture registers stack shared local"
  for image in "$@"; do
    "$tools/cuobjdump" --dump-resource-usage "$image" | awk '
      /^arch = /{ architecture = $3 }
      $1 == "Function" { kernel = $2; sub(/:.*/, "", kernel) }
      /REG:/ {
        for (n = 1; n <= NF; n++) if (split($n, pair, ":") == 2) value[pair[1]] = pair[2]
        print kernel, architecture, value["REG"], value["STACK"], value["SHARED"], value["LOCAL"]
      }'
  done | sort
}

# Lines of the second file, with the reasons that the first gives for the same kernel and architecture.
with_reasons()
{
  awk 'NR == FNR { key = $1 " " $2; $1 = $2 = $3 = $4 = $5 = $6 = ""; sub(/^ +/, ""); reason[key] = $0; next }
    /^#/ { print; next }
    { print $0 (reason[$1 " " $2] == "" ? "" : " " reason[$1 " " $2]) }' "$1" "$2"
}

found=$(usage "$@" | with_reasons <(grep -v '^#' "$table") -)
unexplained=$(awk '!/^#/ && ($4 || $6) && NF == 6' <<<"$found")
if [ $update = yes ]; then
  echo "$found" >"$table"
elif ! diff -u <(awk 'NR == FNR { built[$2]; next } /^#/ || $2 in built' <(echo "$found") "$table") <(echo "$found"); then
  echo "FAIL: kernels take other resources than $table says; if that is meant:"
  echo "  $0 --update $table $nvcc $*"
  exit 1
else
  echo "$(grep -vc '^#' <<<"$found") kernels take what $table says"
fi
if [ -n "$unexplained" ]; then
  echo "FAIL: a stack without a reason in $table:"
  echo "$unexplained"
  exit 1
fi
