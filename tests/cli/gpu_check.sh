# SPDX-License-Identifier: Apache-2.0
# tools/gpu_check.sh with a carried build on the emulated GPU.

script=${root:+$root/tools/gpu_check.sh}
if [ -z "$emulator" ] || [ ! -x "$script" ]; then
  skip 'gpu_check.sh: this build has no emulator'
else
  carried() { # TEXT STATUS ARGUMENT...: of the packed script
    local text=$1 expected=$2
    shift 2
    carried/gpu_check.sh --out gpu.out "$@" > stdout 2> stderr
    same "gpu_check.sh: $text" $? "$expected"
  }
  "$script" --pack carried "$(dirname "$attn")" > stdout 2> stderr
  same 'gpu_check.sh: packs' "$? $(cat stderr)" '0 '
  same 'gpu_check.sh: what is carried' "$(cd carried && echo * bench/*)" \
    'attn bench check_choice.sh fallback gpu_check.sh libattn.so.0 bench/peers_case.py bench/peers_cuda.py '\
'bench/peers_judge.py bench/peers_torch.py bench/worker.py'
  export ATTN_CUDA_DRIVER=$emulator
  small=(--quick --seconds 0 --filter merge/f32 --shapes '1,2,1,3,5,4:f16:causal 1,1,1,1,1,577:f32 1,1,1,2,3,4:f32')
  carried 'all is well' 0 "${small[@]}"
  holds 'gpu_check.sh: a case' "$(cat stdout)" '
4 passed, 0 failed, 0 skipped
'
  same 'gpu_check.sh: rows' "$(sed -n '/^1,/p' gpu.out/bench.txt | cut -c1-46)" '1,2,1,3,5,4              f16   f16      causal
1,1,1,2,3,4              f32   f32      full  '
  holds 'gpu_check.sh: a shape that cannot be' "$(cat stdout)" 'SKIP: bench 1,1,1,1,1,577:f32: attn: --shape 1,1,1,1,1,577 f32: uns'
  holds 'gpu_check.sh: left out' "$(cat stdout)" 'SKIP: compute-sanitizer: '
  holds 'gpu_check.sh: left out' "$(cat stdout)" 'SKIP: PyTorch: '
  same 'gpu_check.sh: the end' "$(tail -n 2 stdout)" '----- report of attn check: to this line -----
exit status 0'
  holds 'gpu_check.sh: the block' "$(tail -n 4 stdout)" 'target    cuda:0/mixed: 1 passed, 0 failed, 0 skipped; kernels merge_cuda'
  export EMULATOR_FAIL=cuLaunchKernel:1:719
  carried 'something is wrong' 1 "${small[@]}"
  holds 'gpu_check.sh: something is wrong' "$(cat stdout)" 'FAIL: attn check: status 1'
  holds 'gpu_check.sh: something is wrong' "$(cat stdout)" 'FAIL: attn bench 1,2,1,3,5,4:f16:causal: attn: attn_forward: device'
  same 'gpu_check.sh: something is wrong' "$(tail -n 1 stdout)" 'exit status 1'
  unset EMULATOR_FAIL
  carried 'no such GPU' 3 --device 1
  carried 'no number' 2 --device x
  carried 'no such option' 2 --fast
  carried 'no value' 2 --out
  unset ATTN_CUDA_DRIVER
fi
