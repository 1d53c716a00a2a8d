# SPDX-License-Identifier: Apache-2.0
# attn check: the block to paste, and the same facts as JSON. Nothing here depends on how long anything takes.

# block DEVICE ARGUMENT...: runs it and leaves the block, N for times, in the variable `block`.
block() {
  local device=$1
  shift
  good "check $device $*" check --device "$device" "$@"
  block=$(sed -n '/^----- report of attn check: please paste from this line -----$/,$p' stdout |
    sed -E 's/, [0-9.]+ s$/, N s/')
}

block cpu/scalar --filter merge/parts
same 'check: the block ends the output' "$(tail -n 1 <<< "$block")" '----- report of attn check: to this line -----'
same 'check: version' "$(grep '^version ' <<< "$block")" "version   $("$attn" --version)"
same 'check: build' "$(grep '^build ' <<< "$block")" "build     $("$attn" info | sed -n 's/^build: //p')"
holds 'check: device' "$(grep '^device ' <<< "$block")" 'device    cpu: '
holds 'check: device' "$(grep '^device ' <<< "$block")" ' cores, '
same 'check: cases' "$(grep '^cases ' <<< "$block")" "cases     quick list, filter 'merge/parts', 0 of 7 wrong, N s"
same 'check: target' "$(grep '^target ' <<< "$block")" \
  'target    cpu/scalar: 7 passed, 0 failed, 0 skipped; kernels merge_cpu'
same 'check: no times with a filter' "$(grep '^timing ' <<< "$block")" \
  'timing    none with --filter unless --timings is given, and none after --fail-fast has stopped'
same 'check: nothing failed' "$(grep -c '^failed ' <<< "$block")" 0
export ATTN_FORCE=threads=1
block reference --filter dropout/mask-plain
unset ATTN_FORCE
same 'check: what is forced' "$(grep '^set ' <<< "$block" | grep ATTN_)" 'set       ATTN_FORCE=threads=1'
same 'check: the reference' "$(grep '^target ' <<< "$block")" \
  'target    reference: 1 passed, 0 failed, 0 skipped; kernels dropout_mask_reference'

# times DEVICE KERNEL: of each shape a time, or why there is none; what the time is depends on the machine.
times() {
  block "$1" --filter merge/f32 --timings
  same "check: shapes that are timed on $1" "$(sed -nE 's/^timing    [a-z0-9:]+(\/[a-z0-9]+)?: ([^:]*): .*/\2/p' <<< "$block")" \
    'prefill f16 (1,8,8,1024,1024,64)
prefill f16 (1,8,8,1024,1024,128)
prefill f32 (1,8,8,1024,1024,64)
prefill f32 (1,8,8,1024,1024,128)
decode f16 (1,32,8,1,4096,128)'
  same "check: times on $1" "$(grep '^timing ' <<< "$block" | grep -cE \
    "\\): ($2, [0-9.e+-]+ ms, [0-9.e+-]+ GFLOP/s, [0-9.e+-]+ GB/s|not timed: too slow: \\([0-9,]+\\) takes [0-9.e+-]+ ms)\$")" 5
}
times cpu/scalar forward_scalar
times reference forward_reference
good 'check: times as JSON' check --device cpu/scalar --json --filter merge/f32 --timings
same 'check: times as JSON' "$(grep -oE '"dtype":"f[0-9]+","shape":\[[0-9,]+\],"kernel":"forward_scalar",("ms":[0-9.e+-]+,"not_timed":null|"ms":null,"not_timed":"too slow: )' \
  stdout | wc -l)" 5

good 'check as JSON' check --device cpu/scalar --json --filter merge/f32
same 'check as JSON: one line' "$(wc -l < stdout)" 1
holds 'check as JSON: version' "$(cat stdout)" "{\"version\":\"$("$attn" --version | cut -d' ' -f2)\",\"build\":\"attn "
holds 'check as JSON: filter' "$(cat stdout)" '"full":false,"filter":"merge/f32","devices":[{"device":"cpu","name":"'
holds 'check as JSON: driver' "$(cat stdout)" '"driver":null,"kernel_module":null}],"targets":['
holds 'check as JSON: kernels' "$(cat stdout)" \
  '"targets":[{"target":"cpu/scalar","passed":1,"failed":0,"skipped":0,"kernels":["merge_cpu"]}],"sections":[{'
holds 'check as JSON: nothing failed' "$(cat stdout)" '"failures":[],"timings":[],"seconds":'
holds 'check as JSON: sums' "$(cat stdout)" ',"passed":1,"failed":0,"skipped":0}'

if [ -z "$emulator" ]; then
  skip 'check on a GPU: this build has no emulator'
else
  export ATTN_CUDA_DRIVER=$emulator
  good 'info on a GPU' info
  holds 'info on a GPU' "$(cat stdout)" '  1  cuda:0  emulated sm_70, sm_70, 80 SMs, 1.0 GiB, driver for CUDA 12.8
'
  holds 'info on a GPU: both sides' "$(cat stdout)" ' with copies'
  good 'info on a GPU: a small problem' info --json --shape 1,1,1,16,16,16
  holds 'info on a GPU: a small problem' "$(cat stdout)" '"device":"cpu",'
  holds 'info on a GPU: a small problem' "$(cat stdout)" '"estimated_ms":0,"cpu_ms":null,"gpu_ms":null,'
  good 'info on a GPU as JSON' info --json
  holds 'info on a GPU as JSON: chosen' "$(cat stdout)" '"device_index":1,"device":"cuda",'
  holds 'info on a GPU as JSON' "$(cat stdout)" '"memory_bytes":1073741824,"driver":"CUDA 12.8"}]'
  times cuda/simt forward_simt
  block cuda/simt --filter random/1
  same 'check on a GPU: device' "$(grep '^device ' <<< "$block" | cut -d, -f 1-5)" \
    'device    cuda:0: emulated sm_70, sm_70, 80 SMs, 1.0 GiB, driver for CUDA 12.8'
  same 'check on a GPU: the driver' "$(grep '^set ' <<< "$block" | grep ATTN_)" \
    "set       ATTN_CUDA_DRIVER=$emulator"
  same 'check on a GPU: kernels' "$(grep '^target ' <<< "$block")" \
    'target    cuda:0/simt: 1 passed, 0 failed, 0 skipped; kernels forward_simt'
  good 'check on a GPU as JSON' check --device cuda:0 --json --filter append/f16
  holds 'check on a GPU as JSON: driver' "$(cat stdout)" \
    '"arch":"sm_70","units":80,"memory_bytes":1073741824,"driver":"CUDA 12.8","kernel_module":'
  holds 'check on a GPU as JSON: kernels' "$(cat stdout)" '"skipped":0,"kernels":["append_cuda"]}]'
  # A launch that fails: its text comes again in the block, and in JSON.
  export EMULATOR_FAIL=cuLaunchKernel:1:719
  run check --device cuda/simt --filter merge/f32
  same 'check: a failure' "$status $(grep -c '^failed    cuda:0/simt merge/f32: attn_merge: "device error"' stdout)" '1 1'
  holds 'check: a failure' "$(grep '^cases ' stdout)" ', 1 of 1 wrong, '
  run check --device cuda/simt --json --filter merge/f32
  holds 'check: a failure as JSON' "$(cat stdout)" \
    '"failures":[{"target":"cuda:0/simt","name":"merge/f32","text":"attn_merge: \"device error\" (cuLaunchKernel: '
  unset EMULATOR_FAIL ATTN_CUDA_DRIVER
fi
