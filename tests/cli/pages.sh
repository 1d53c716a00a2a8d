# SPDX-License-Identifier: Apache-2.0
# Help, version, info, and the options of check.

good 'version' --version
report "$([[ $(cat stdout) =~ ^attn\ [0-9]+\.[0-9]+\.[0-9]+$ ]] && echo yes || echo no)" 'version' "$(cat stdout)"
version=$(cut -d' ' -f2 stdout)
good 'help' --help
overview=$(cat stdout)
good 'help as a command' help
same 'attn help is attn --help' "$(cat stdout)" "$overview"
for command in info run check bench; do
  holds "the overview names $command" "$overview" "  $command "
  good "help $command" help $command
  page=$(cat stdout)
  holds "help $command: usage" "$page" "Usage: attn $command "
  holds "help $command: an example" "${page#*Example}" "  attn $command "
  report "$([ "$(wc -L < stdout)" -le 80 ] && echo yes || echo no)" "help $command fits 80 columns"
  for words in --help -h '--nonsense --help'; do
    good "attn $command $words" $command $words
    same "attn $command $words is attn help $command" "$(cat stdout)" "$page"
  done
done

# Every option on the pages of run and bench is used above.
for command in run bench; do
  good "help $command" help $command
  for option in $(grep -o -e '--[a-z-]*' stdout | sort -u); do
    report "$(cat "$here"/*.sh | grep -q -e "$option\b" && echo yes || echo no)" "$option of attn $command has a test"
  done
done

good 'info' info
holds 'info' "$(cat stdout)" "attn $version"
holds 'info' "$(cat stdout)" '  0  cpu  '
holds 'info' "$(cat stdout)" '  because '
[[ $(cat stdout) == *'  1  cuda:0  '* ]] || holds 'info: why no GPU' "$(cat stdout)" '  -  no GPU: backend cuda: '
good 'info as JSON' info --json --shape 2,8,4,16,32,64,48 --dtype bf16 --causal
holds 'info as JSON' "$(cat stdout)" "{\"version\":\"$version\",\"build\":\""
holds 'info as JSON' "$(cat stdout)" '"devices":[{"index":0,"backend":"cpu",'
holds 'info as JSON' "$(cat stdout)" '"no_gpu":'
holds 'info as JSON' "$(cat stdout)" '"automatic":{"shape":{"batch":2,"heads_q":8,"heads_kv":4,"seq_q":16,'
holds 'info as JSON' "$(cat stdout)" '"seq_k":32,"head_dim":64,"head_dim_v":48},"dtype":"bf16","causal":true,'
holds 'info as JSON' "$(cat stdout)" '"error":null,"device_index":'
same 'info as JSON: one line' "$(wc -l < stdout)" 1
good 'info without DV' info --json --shape 1,1,1,1,1,7
holds 'info without DV' "$(cat stdout)" '"head_dim":7,"head_dim_v":7}'
good 'info for more than any memory' info --shape 4096,128,128,4096,4096,128
for shape in 1 1,2,3,4,5 1,1,1,1,1,1,1,1 a,1,1,1,1,1 1,1,1,1,1,-1 1,1,1,1,1,1.5 1,,1,1,1,1 1,1,1,1,1,99999999999; do
  bad 2 '--shape: ' info --shape $shape
done
bad 2 '--threads: ' info --threads 0
good 'info without a GPU' info --json --threads 1
holds 'info: the CPU was estimated' "$(cat stdout)" '"cpu_ms":'
bad 3 '--shape: no address space' info --shape 2147483647,2147483647,1,2147483647,1,1
bad 2 "--dtype: 'i8' is none of" info --dtype i8
bad 2 "got 'x'" info x
bad 2 "unknown option '--verbose'" info --verbose
run info --shape 1,3,2,1,1,1
same 'info: a wrong shape' "$status $(wc -l < stderr)" '2 1'
holds 'info: a wrong shape' "$(cat stderr)" 'attn: invalid argument: '
run info --shape 1,1,1,1,1,577 --json
same 'info: an unsupported shape' "$status $(wc -l < stderr)" '3 1'
holds 'info: an unsupported shape' "$(cat stdout)" '"error":"unsupported: '
export ATTN_FORCE=isa=mmx
bad 2 'isa=mmx' run "${to[@]}"
export ATTN_FORCE=backend=cpu,isa=scalar,threads=1
json 'ATTN_FORCE' '"threads":1,' "${mean[@]}" -o out.npy
good 'ATTN_FORCE is not for the judge' run "${mean[@]}" --check
unset ATTN_FORCE

bad 2 "got 'x'" check x
bad 2 '--device: ' check --device gpu
bad 2 '--device: ' check --device gpu/scalar
bad 2 '--device: ' check --device cpu/
good 'one level' check --device cpu/scalar --filter arguments/names-and-sizes
run check --device cuda/tensor
same 'no such family of kernels' "$status $(grep -c 'no device "cuda/tensor" here' stderr)" '3 1'
bad 2 '--quick and --full exclude each other' check --quick --full
bad 2 "unknown option '--fast'" check --fast
bad 2 '--filter: the value is empty' check --filter ''
