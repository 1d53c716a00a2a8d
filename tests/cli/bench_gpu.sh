# SPDX-License-Identifier: Apache-2.0
# attn bench on a GPU, the emulated one: what it counts, verifies and refuses; nothing here depends on how long anything
# takes.

bad 2 '--device: ' bench --device cuda:x
if [ -z "$emulator" ]; then
  skip 'bench on a GPU: this build has no emulator'
else
  export ATTN_CUDA_DRIVER=$emulator
  gpu=(--device cuda)

  measured 'bench on a GPU: every key' "${gpu[@]}" --shape 1,2,1,3,5,4
  same 'bench on a GPU: every key' "$(sed -E 's/"batch":[0-9]+,"graph/"batch":N,"graph/' <<< "$rows")" '[{"op":"forward",'\
'"device":"cuda","kernel":"forward_simt","isa":"simt","dtype":"f32","kv_dtype":"f32","shape":{"batch":1,"heads_q":2,'\
'"heads_kv":1,"seq_q":3,"seq_k":5,"head_dim":4,"head_dim_v":4},"causal":false,"v_in_k":false,"threads":0,'\
'"flops":480,"bytes":160,"workspace_bytes":W,"repeats":3,"median_ms":N,"min_ms":N,"batch":N,"graph":false,"waited_ms":N,"tflops":N,"gbps":N,'\
'"fraction_of_peak":N,"peak":{"kind":"copy","value":N},"verified":true}]'

  # Whole and in windows, several heads and sequences, more keys than are filled at once.
  for type in f32 f16 bf16 f8_e4m3 f8_e5m2 i8 q8_0 q4_0; do
    measured "bench on a GPU with $type" "${gpu[@]}" --kv-dtype $type --dtype f16 --causal \
      --shape 2,4,2,3,9,32 --shape 1,2,1,40,300,64,32
    same "bench on a GPU with $type" "$(grep -o -e '"kv_dtype":"[^"]*"' -e '"seq_q":[0-9]*' -e '"verified":[a-z]*' <<< "$rows" |
      sed 's/.*://' | tr '\n' ' ')" "\"$type\" 3 true \"$type\" 40 true "
  done
  for type in f16 i8 q8_0; do
    measured "bench on a GPU: V in K, $type" "${gpu[@]}" --kv-dtype $type --v-in-k --shape 2,3,1,2,70,64,32
    holds "bench on a GPU: V in K, $type" "$rows" '"v_in_k":true,'
    holds "bench on a GPU: V in K, $type" "$rows" '"verified":true}]'
  done
  good 'bench on a GPU: not verified' bench "${gpu[@]}" --seconds 0 --json --no-verify --shape 1,1,1,1,1,1
  holds 'bench on a GPU: not verified' "$(cat stdout)" '"verified":null}]'
  good 'bench on a GPU: so many batches' bench "${gpu[@]}" --repeat 4 --json --shape 1,1,1,1,1,1
  holds 'bench on a GPU: so many batches' "$(cat stdout)" '"repeats":4,'

  good 'bench on a GPU as a table' bench "${gpu[@]}" --seconds 0 --shape 1,2,1,3,5,4 --shape 16,8,8,1,4,96,64 --causal
  same 'bench on a GPU: machine' "$(sed -n 1p stdout)" \
    'machine   emulated sm_70, 80 SMs, 1.0 GiB, driver for CUDA 12.8'
  holds 'bench on a GPU: build' "$(sed -n 2p stdout)" 'build     attn '
  holds 'bench on a GPU: ceilings' "$(sed -n 3p stdout)" 'ceilings  copying within its memory '
  same 'bench on a GPU: how' "$(sed -n 5p stdout)" 'forward on cuda: kernel forward_simt (simt)'
  holds 'bench on a GPU: columns' "$(sed -n 6p stdout)" ' GB/s of copy  batch waited ms '
  same 'bench on a GPU: rows' "$(tail -n 2 stdout | cut -c1-46)" '1,2,1,3,5,4              f32   f32      causal
16,8,8,1,4,96,64         f32   f32      causal'

  # A graph: forward, with splits and so a workspace, backward.
  for words in '--shape 1,2,2,64,64,64' '--shape 1,2,1,1,2100,64' '--backward --shape 1,2,1,20,70,16' \
    '--backward --unordered --shape 1,2,1,20,70,16'; do
    measured "bench --graph: $words" "${gpu[@]}" --graph --dtype f16 $words
    holds "bench --graph: $words" "$rows" ',"graph":true,"waited_ms":N,'
    holds "bench --graph: $words" "$rows" '"repeats":3,"median_ms":N,'
    holds "bench --graph: $words" "$rows" '"verified":true}]'
  done
  good 'bench --graph: so many replays' bench "${gpu[@]}" --graph --repeat 4 --json --shape 1,1,1,1,1,1 --shape 1,1,1,2,2,2
  same 'bench --graph: so many replays' "$(grep -o '"repeats":4,' stdout | wc -l)" 2
  good 'bench --graph as a table' bench "${gpu[@]}" --graph --seconds 0 --shape 1,2,1,3,5,4
  same 'bench --graph as a table' "$(sed -n 5p stdout)" 'forward on cuda: kernel forward_simt (simt), replayed from a CUDA graph'

  small=(bench "${gpu[@]}" --steps --shape 1,2,1,3,5,4)
  answers='{"ms":N} {"value":null} {"value":null} {"ms":N} ' steps 'on a GPU' 0 'run\nfma\nread\nrun\n'
  holds 'steps on a GPU: the case' "$(head -n 1 stdout)" '"device":"cuda","kernel":"forward_simt"'

  bad 3 'config.device: 1, but there is 1 GPU' bench --device cuda:1
  bad 3 '--shape 1,8,8,1048576,1048576,64 f32: out of memory: it takes 2.15 GB, there are 1.07' bench "${gpu[@]}" \
    --shape 1,8,8,1048576,1048576,64
  good 'bench --backward on a GPU' bench --backward --unordered "${gpu[@]}" --seconds 0 --json --dtype f16 --shape 1,2,1,20,70,16
  holds 'bench --backward on a GPU' "$(cat stdout)" '"kernel":"backward_sm70_d64_64x128"'
  holds 'bench --backward on a GPU' "$(cat stdout)" '"verified":true'
  good 'bench --copies' bench --device cuda --copies
  holds 'bench --copies' "$(cat stdout)" '268435456 bytes '
  good 'bench --copies as JSON' bench --device cuda --copies --json
  holds 'bench --copies as JSON' "$(cat stdout)" '{"copies":[{"bytes":65536,"to_gpu_gbps":'
  bad 2 '--copies measures no case' bench --device cuda --copies --shape 1,1,1,1,1,1
  export ATTN_FORCE=backend=cuda
  good 'bench with host arrays on a GPU' bench --seconds 0 --json --shape 1,2,2,1,2100,16
  holds 'bench with host arrays on a GPU' "$(cat stdout)" '"device":"cuda",'
  holds 'bench with host arrays on a GPU' "$(cat stdout)" '"verified":true}]'
  unset ATTN_FORCE

  if [ -x "${root:+$root/tools/check_choice.sh}" ]; then
    "$root/tools/check_choice.sh" --attn "$attn" --seconds 0 --shapes '1,1,1,16,16,16:f32 1,1,1,1,1,577:f32' > stdout 2> stderr
    same 'check_choice.sh' $? 0
    holds 'check_choice.sh: a row' "$(cat stdout)" '1,1,1,16,16,16:f32 '
    holds 'check_choice.sh: left out' "$(cat stdout)" 'SKIP: 1,1,1,1,1,577:f32'
  fi
  export EMULATOR_FAIL=cuMemAlloc_v2:2
  bad 3 'out of memory: it takes 4.1e-06 GB: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY' bench "${gpu[@]}" --shape 1,1,1,8,8,64
  export EMULATOR_FAIL=cuMemcpyHtoDAsync_v2:1:719
  bad 4 'filling the tensors: device error' bench "${gpu[@]}" --shape 1,1,1,8,8,64
  export EMULATOR_FAIL=cuLaunchKernel:1:719
  bad 4 'attn_forward: device error: cuLaunchKernel: ' bench "${gpu[@]}" --shape 1,1,1,8,8,64 --json

  graph=(bench "${gpu[@]}" --graph --seconds 0 --json --shape 1,1,1,8,8,64)
  fails() { # STATUS SYMBOL CODE NAME [NTH]
    export EMULATOR_FAIL=$2:${5-1}:$3
    bad $1 "--graph: $2: CUDA_ERROR_$4 ($3)" "${graph[@]}"
  }
  export EMULATOR_FAIL=cuStreamCreate:1:2
  bad 3 'the ceiling of copying: cuStreamCreate: CUDA_ERROR_OUT_OF_MEMORY (2)' "${graph[@]}"
  export EMULATOR_FAIL=cuMemcpyDtoDAsync_v2:3:719
  bad 4 'the ceiling of copying: cuMemcpyDtoDAsync_v2: CUDA_ERROR_LAUNCH_FAILED (719)' "${graph[@]}"
  export EMULATOR_FAIL=cuMemAlloc_v2:6
  good 'bench on a GPU: no room for the ceiling' "${graph[@]}"
  holds 'bench on a GPU: no room for the ceiling' "$(cat stdout)" '"fraction_of_peak":null,"peak":null,'
  export EMULATOR_FAIL=cuMemAlloc_v2:6:719
  bad 4 'the ceiling of copying: device error: cuMemAlloc_v2: CUDA_ERROR_LAUNCH_FAILED' "${graph[@]}"
  fails 3 cuStreamCreate 2 OUT_OF_MEMORY 2
  fails 4 cuStreamBeginCapture_v2 900 STREAM_CAPTURE_UNSUPPORTED
  fails 4 cuStreamEndCapture 901 STREAM_CAPTURE_INVALIDATED
  fails 3 cuGraphInstantiateWithFlags 2 OUT_OF_MEMORY
  fails 4 cuGraphLaunch 719 LAUNCH_FAILED
  fails 4 cuGraphLaunch 719 LAUNCH_FAILED 2
  export EMULATOR_FAIL=cuLaunchKernel:7:719 # the first one of the capture
  bad 4 'attn_forward: device error: cuLaunchKernel: ' "${graph[@]}"
  unset EMULATOR_FAIL ATTN_CUDA_DRIVER
fi
