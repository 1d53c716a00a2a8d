# SPDX-License-Identifier: Apache-2.0
# Helpers of test_cli.sh: making and reading NPY files with printf and od, and the assertions.

passed=0 failed=0 skipped=0

# Float32 bit patterns of the numbers that the tests use.
declare -A bits=(
  [0]=00000000 [1]=3f800000 [2]=40000000 [3]=40400000 [4]=40800000 [6]=40c00000 [127]=42fe0000 [448]=43e00000
  [57344]=47600000 [1000]=447a0000 [100000]=47c35000 [1e30]=7149f2ca [-1]=bf800000 [-2]=c0000000 [-8]=c1000000
  [0.5]=3f000000 [1.00390625]=3f808000 [1.5]=3fc00000 [ln2]=3f317218 [ln3]=3f8c9f54
  [nan]=7fc00000 [inf]=7f800000 [-inf]=ff800000)

# bytes HEX...: little-endian numbers, as printf escapes.
bytes() {
  local hex text
  for hex; do
    text=
    while [ -n "$hex" ]; do
      text="\\x${hex:0:2}$text"
      hex=${hex:2}
    done
    printf '%s' "$text"
  done
}

# raw FILE HEADER DATA: an NPY file of version 1.0 with any header; DATA in printf escapes.
raw() {
  local length=${#2}
  {
    printf '\x93NUMPY\x01\x00'
    printf "$(bytes "$(printf %04x "$length")")"
    printf '%s' "$2"
    printf "$3"
  } > "$1"
}

# npy FILE DESCR SHAPE DATA [ORDER]: a well-formed header.
npy() {
  raw "$1" "{'descr': '$2', 'fortran_order': ${5:-False}, 'shape': ($3), }" "$4"
}

# f32 FILE SHAPE NUMBER...
f32() {
  local file=$1 shape=$2 data= number
  shift 2
  for number; do data+=$(bytes "${bits[$number]}"); done
  npy "$file" '<f4' "$shape" "$data"
}

# i32 FILE SHAPE NUMBER...
i32() {
  local file=$1 shape=$2 data= number
  shift 2
  for number; do data+=$(bytes "$(printf %08x $((number & 0xffffffff)))"); done
  npy "$file" '<i4' "$shape" "$data"
}

data_start() {
  echo $((10 + $(od -An -tu2 -j8 -N2 "$1")))
}

# The header's dictionary, without the padding.
header() {
  head -c "$(data_start "$1")" "$1" | tail -c +11 | tr -d '\n' | sed 's/ *$//'
}

# The float32 numbers of a file with four digits, on one line.
values() {
  local number text=
  for number in $(od -An -v -tf4 -j"$(data_start "$1")" "$1"); do text+=$(printf ' %.4f' "$number"); done
  text=${text//-0.0000/0.0000}
  echo "${text# }"
}

# Anything else, in hexadecimal words of WIDTH bytes: hex FILE WIDTH
hex() {
  echo $(od -An -v -tx"$2" -j"$(data_start "$1")" "$1")
}

report() { # OK TEXT DETAIL...
  if [ "$1" = yes ]; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAIL: $2"
    shift 2
    printf '      %s\n' "$@"
  fi
}

same() { # TEXT GOT EXPECTED
  local ok=no
  [ "$2" = "$3" ] && ok=yes
  report $ok "$1" "got      '$2'" "expected '$3'"
}

holds() { # TEXT WHERE WHAT: the text in WHERE holds WHAT
  local ok=no
  [[ $2 == *"$3"* ]] && ok=yes
  report $ok "$1" "not in it: '$3'" "text: '$2'"
}

skip() {
  skipped=$((skipped + 1))
  echo "SKIP: $1"
}

# run ARGUMENT...: sets status, and leaves the files stdout and stderr.
run() {
  "$attn" "$@" > stdout 2> stderr
  status=$?
}

# good TEXT ARGUMENT...: must succeed and say nothing on stderr.
good() {
  local text=$1 ok=no
  shift
  run "$@"
  [ $status -eq 0 ] && [ ! -s stderr ] && ok=yes
  report $ok "$text" "attn $*" "status $status, stderr: $(cat stderr)"
}

# bad STATUS WHAT ARGUMENT...: must fail so, print nothing, say WHAT in exactly one line on stderr and
# create no file.
bad() {
  local expected=$1 what=$2 ok=no before after
  shift 2
  : > stdout > stderr # so that both lists of files hold them
  before=$(ls -A)
  run "$@"
  after=$(ls -A)
  [ $status -eq "$expected" ] && [ "$(wc -l < stderr)" -eq 1 ] && [[ $(cat stderr) == "attn: "*"$what"* ]] &&
    [ "$before" = "$after" ] && [ ! -s stdout ] && ok=yes
  report $ok "status $expected for: attn $*" "status $status" "stderr: $(cat stderr)" "expected in it: $what" \
    "new files: $(comm -13 <(echo "$before") <(echo "$after") | tr '\n' ' ')"
}

# result TEXT NUMBERS ARGUMENT...: `attn run ARGUMENTS -o out.npy` must give these numbers.
result() {
  local text=$1 numbers=$2
  shift 2
  rm -f out.npy
  good "$text" run "$@" -o out.npy
  same "$text: $*" "$(values out.npy)" "$numbers"
}
