# SPDX-License-Identifier: Apache-2.0
# Every option of `attn run`, on problems small enough to know the answer.

ln3=1.0986123
f32 q.npy '1, 1, 1, 1' 1
f32 q0.npy '1, 1, 1, 1' 0
f32 k.npy '1, 1, 2, 1' 0 1
f32 k0.npy '1, 1, 2, 1' 0 0
f32 v.npy '1, 1, 2, 1' 0 4
mean=(q0.npy k0.npy v.npy)   # two keys of equal score, values 0 and 4

# ---- arrays ---------------------------------------------------------------------------------------

result 'equal scores give the mean' 2.0000 "${mean[@]}"
same 'header of the output' "$(header out.npy)" "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1), }"
same 'data begins at a multiple of 64' $(($(data_start out.npy) % 64)) 0
rm out.npy
good '--out=FILE' run "${mean[@]}" --out=out.npy
same '--out=FILE' "$(values out.npy)" 2.0000
rm out.npy
good '-- ends the options' run -o out.npy -- "${mean[@]}"
same '-- ends the options' "$(values out.npy)" 2.0000

f32 k1.npy '1, 1, 1, 1' 1000
f32 v1.npy '1, 1, 1, 3' -2 1.00390625 1e30
good 'one key' run q.npy k1.npy v1.npy -o out.npy
same 'one key gives its value to the bit' "$(hex out.npy 4)" 'c0000000 3f808000 7149f2ca'

f32 ones.npy '1, 2, 2, 2' 1 1 1 1 1 1 1 1
f32 q2.npy '1, 2, 2, 2' 1 2 3 4 -1 -2 0.5 6
result 'V = 1 gives 1' '1.0000 1.0000 1.0000 1.0000 1.0000 1.0000 1.0000 1.0000' q2.npy q2.npy ones.npy

# Four query heads share two of keys and values, in order.
f32 qg.npy '1, 4, 1, 1' 0 0 0 0
f32 kg.npy '1, 2, 1, 1' 0 0
f32 vg.npy '1, 2, 1, 1' 1 2
result 'query heads share key heads' '1.0000 1.0000 2.0000 2.0000' qg.npy kg.npy vg.npy

f32 q3.npy '1, 1, 1' 0
f32 k3.npy '1, 2, 1' 0 0
f32 v3.npy '1, 2, 1' 0 4
result 'three axes are a batch of one' 2.0000 q3.npy k3.npy v3.npy --lse lse.npy
same 'three axes: output' "$(header out.npy)" "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1), }"
same 'three axes: LSE' "$(header lse.npy)" "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1), }"

f32 z22.npy '1, 2, 2, 1' 0 0 0 0
f32 v22.npy '1, 2, 2, 1' 0 2 4 6
result 'heads first' '1.0000 1.0000 5.0000 5.0000' z22.npy z22.npy v22.npy --layout bhsd
result 'tokens first' '2.0000 4.0000 2.0000 4.0000' z22.npy z22.npy v22.npy --layout=bshd
f32 z122.npy '2, 2, 1' 0 0 0 0
f32 v122.npy '2, 2, 1' 0 2 4 6
result 'tokens first, three axes' '2.0000 4.0000 2.0000 4.0000' z122.npy z122.npy v122.npy --layout bshd

f32 bf.npy '1, 1, 1, 1' 1.00390625   # halfway between two bf16 numbers
result 'stored as f32' 1.0039 q.npy q.npy bf.npy --dtype f32
result 'converted to bf16' 1.0000 q.npy q.npy bf.npy --dtype bf16
same 'bf16 is written as f4' "$(header out.npy)" "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1), }"
good 'converted to f16' run q.npy q.npy bf.npy --dtype f16 -o out.npy
same 'f16 is written as f2' "$(header out.npy) $(hex out.npy 2)" \
  "{'descr': '<f2', 'fortran_order': False, 'shape': (1, 1, 1, 1), } 3c04"
f32 large.npy '1, 1, 1, 1' 100000
good 'overflow in f16 is told' run q.npy q.npy large.npy --dtype f16 -o out.npy
holds 'overflow in f16 is told' "$(cat stdout)" '1 input numbers became infinite in f16'
same 'overflow in f16 is infinite' "$(hex out.npy 2)" 7c00

# ---- files as others write them ------------------------------------------------------------------------

npy v8.npy '<f8' '1, 1, 2, 1' "$(bytes 0000000000000000 4010000000000000)"
result 'float64 is read' 2.0000 q0.npy k0.npy v8.npy
npy vh.npy '<f2' '1, 1, 2, 1' "$(bytes 0000 4400)"
result 'float16 beside float32' 2.0000 q0.npy k0.npy vh.npy
npy ve.npy '=f4' '1, 1, 2, 1' "$(bytes 00000000 40800000)"
result "'=' is native order" 2.0000 q0.npy k0.npy ve.npy
f32 vc.npy '1, 2, 2, 2' 0 1 2 3 4 6 127 448
npy vf.npy '<f4' '1, 2, 2, 2' \
  "$(bytes ${bits[0]} ${bits[4]} ${bits[2]} ${bits[127]} ${bits[1]} ${bits[6]} ${bits[3]} ${bits[448]})" True
f32 q4.npy '1, 2, 2, 2' 0 0 0 0 0 0 0 0
good 'Fortran order' run q4.npy q4.npy vf.npy --causal --align top-left -o out.npy --expect vc.npy --tolerance 1e30
result 'Fortran order' '0.0000 1.0000 1.0000 2.0000 4.0000 6.0000 65.5000 227.0000' q4.npy q4.npy vf.npy --causal
result 'C order' '0.0000 1.0000 1.0000 2.0000 4.0000 6.0000 65.5000 227.0000' q4.npy q4.npy vc.npy --causal
raw order.npy '{"shape":(1,1,2,1),"fortran_order":False,"descr":"<f4"}' "$(bytes 00000000 40800000)"
result 'keys in any order, no spaces, double quotes' 2.0000 q0.npy k0.npy order.npy
for version in 2 3; do
  {
    printf '\x93NUMPY\x0'$version'\x00\x46\x00\x00\x00'
    printf '%-69s\n' "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 2, 1), }"
    printf "$(bytes 00000000 40800000)"
  } > version.npy
  result "NPY version $version.0" 2.0000 q0.npy k0.npy version.npy
done

# ---- masks and scores --------------------------------------------------------------------------------

f32 z3.npy '1, 1, 3, 1' 0 0 0
f32 v036.npy '1, 1, 3, 1' 0 3 6
result 'causal' '0.0000 1.5000 3.0000' z3.npy z3.npy v036.npy --causal
result 'window' '0.0000 1.5000 4.5000' z3.npy z3.npy v036.npy --window 1,0
result 'window' '1.5000 4.5000 6.0000' z3.npy z3.npy v036.npy --window 0,1
result 'window open to the left' '0.0000 1.5000 3.0000' z3.npy z3.npy v036.npy --window -,0
result 'window open to the right' '3.0000 4.5000 6.0000' z3.npy z3.npy v036.npy --window=0,-
result 'window open to both sides' '3.0000 3.0000 3.0000' z3.npy z3.npy v036.npy --window -,-
result 'aligned bottom-right' 2.0000 "${mean[@]}" --causal --align bottom-right
result 'aligned top-left' 0.0000 "${mean[@]}" --causal --align top-left
result 'aligned by a number' 0.0000 "${mean[@]}" --causal --align 0
result 'aligned by a number' 2.0000 "${mean[@]}" --causal --align 1
result 'a row that sees no key' 0.0000 "${mean[@]}" --causal --align -1 --lse lse.npy
same 'a row that sees no key' "$(values lse.npy)" -inf
result 'scale' 3.0000 q.npy k.npy v.npy --scale $ln3
result 'scale 0 is the default' 2.9242 q.npy k.npy v.npy --scale 0
f32 k1000.npy '1, 1, 2, 1' 0 1000
result 'softcap' 3.0000 q.npy k1000.npy v.npy --softcap $ln3
f32 bias.npy '1, 1, 1, 2' 0 ln3
result 'bias' 3.0000 "${mean[@]}" --bias bias.npy
f32 bias1.npy '2,' 0 ln3
result 'bias of one axis' 3.0000 "${mean[@]}" --bias bias1.npy
npy bool.npy '|b1' '1, 1, 1, 2' '\x01\x00'
result 'bool bias' 0.0000 "${mean[@]}" --bias bool.npy
f32 slopes.npy '1,' ln3
result 'ALiBi' 3.0000 "${mean[@]}" --alibi slopes.npy
f32 slopes2.npy '1, 1' ln3
result 'ALiBi by batch' 3.0000 "${mean[@]}" --alibi slopes2.npy
f32 sinks.npy '1,' ln2
result 'sinks' 1.0000 "${mean[@]}" --sinks sinks.npy --lse lse.npy
same 'LSE with a sink' "$(values lse.npy)" 1.3863
result 'LSE' 2.0000 "${mean[@]}" --lse lse.npy
same 'LSE' "$(values lse.npy)" 0.6931

# ---- lengths, dropout ------------------------------------------------------------------------------------

f32 z2.npy '1, 1, 2, 1' 0 0
f32 vnan.npy '1, 1, 2, 1' 1 nan
i32 one.npy '1,' 1
npy one8.npy '<i8' '1,' "$(bytes 0000000000000001)"
result 'query lengths' '2.0000 0.0000' z2.npy k0.npy v.npy --q-lengths one.npy --lse lse.npy
same 'query lengths: LSE of padding' "$(values lse.npy)" '0.6931 -inf'
result 'key lengths hide padding' 1.0000 q0.npy vnan.npy vnan.npy --kv-lengths one.npy
result 'key lengths, int64' 1.0000 q0.npy vnan.npy vnan.npy --kv-lengths one8.npy
result 'key lengths, quantised' 1.0000 q0.npy vnan.npy vnan.npy --kv-lengths one.npy --kv-dtype i8
result 'dropout 0' 2.0000 "${mean[@]}" --dropout 0
result 'dropout 1' 0.0000 "${mean[@]}" --dropout 1 --keep keep.npy
same 'dropout 1 keeps nothing' "$(header keep.npy) $(hex keep.npy 1)" \
  "{'descr': '|b1', 'fortran_order': False, 'shape': (1, 1, 1, 2), } 00 00"

# One key of value 1, dropped with probability 1/2: each of 64 rows is twice its place in the mask.
zeros=$(printf ' 0%.0s' {1..64})
f32 z64.npy '1, 1, 64, 1' $zeros
f32 v11.npy '1, 1, 1, 1' 1
dropped() { # ARGUMENT...: the output, after a comparison with the mask
  rm -f out.npy
  good 'dropout' run z64.npy q0.npy v11.npy --dropout 0.5 --keep keep.npy -o out.npy "$@"
  same "dropout $*: output and mask" "$(values out.npy)" \
    "$(hex keep.npy 1 | sed 's/00/0.0000/g; s/01/2.0000/g')"
}
dropped --seed 1
first=$(hex keep.npy 1)
report "$([[ $first == *00* && $first == *01* ]] && echo yes || echo no)" 'dropout 0.5 keeps and drops' "$first"
dropped --seed 1
same 'the same seed gives the same mask' "$(hex keep.npy 1)" "$first"
dropped --seed 1 --device reference
same 'the reference has the same mask' "$(hex keep.npy 1)" "$first"
dropped --seed 18446744073709551615
report "$([ "$(hex keep.npy 1)" != "$first" ] && echo yes || echo no)" 'another seed gives another mask'
dropped --seed 1 --offset 2
report "$([ "$(hex keep.npy 1)" != "$first" ] && echo yes || echo no)" 'another offset gives another mask'

# ---- storage of keys and values ------------------------------------------------------------------------------

# One key, so the output is the stored value: the largest number of the type, and one that it cannot hold.
stored() { # TYPE LARGEST EXPECTED
  f32 vs.npy '1, 1, 1, 2' "$2" "$3"
  result "values as $1" "$4" q.npy k1.npy vs.npy --kv-dtype "$1"
}
stored f32 127 1.00390625 '127.0000 1.0039'
stored f16 127 1.00390625 '127.0000 1.0039'
stored bf16 127 1.00390625 '127.0000 1.0000'
stored f8_e4m3 448 1.00390625 '448.0000 1.0000'
stored f8_e5m2 57344 1.00390625 '57344.0000 1.0000'
stored i8 127 0.5 '127.0000 1.0000'
f32 k32.npy '1, 1, 1, 32' $(printf ' 0%.0s' {1..32})
f32 v32.npy '1, 1, 1, 32' 127 0.5 $(printf ' 0%.0s' {1..30})
good 'values as q8_0' run k32.npy k32.npy v32.npy --kv-dtype q8_0 -o out.npy
same 'values as q8_0' "$(values out.npy | cut -d' ' -f1-3)" '127.0000 1.0000 0.0000'
f32 v32.npy '1, 1, 1, 32' -8 0.5 $(printf ' 0%.0s' {1..30})
good 'values as q4_0' run k32.npy k32.npy v32.npy --kv-dtype q4_0 -o out.npy
same 'values as q4_0' "$(values out.npy | cut -d' ' -f1-3)" '-8.0000 1.0000 0.0000'

# ---- gradients -------------------------------------------------------------------------------------------------

# P = 1/2 each, O = 2, dS = P (dO v - dO O) = (-1, 1).
f32 dout.npy '1, 1, 1, 1' 1
f32 bias0.npy '1, 1, 1, 2' 0 0
good 'gradients' run q0.npy k.npy v.npy --device reference --grad-out dout.npy --bias bias0.npy \
  --dq dq.npy --dk dk.npy --dv dv.npy --dbias dbias.npy -o out.npy
same 'dQ = sum of dS K' "$(values dq.npy)" 1.0000
same 'dK = dS Q' "$(values dk.npy)" '0.0000 0.0000'
same 'dV = P dO' "$(values dv.npy)" '0.5000 0.5000'
same 'dbias = dS' "$(values dbias.npy) $(header dbias.npy)" \
  "-1.0000 1.0000 {'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 2), }"
same 'the output beside gradients' "$(values out.npy)" 2.0000
# With the sink P = 1/4 each and for the sink 1/2, O = 1: dsink = -1/2 dO O.
good 'gradient of a sink' run "${mean[@]}" --device reference --grad-out dout.npy --sinks sinks.npy --dsinks ds.npy
same 'dsinks' "$(values ds.npy) $(header ds.npy)" "-0.5000 {'descr': '<f4', 'fortran_order': False, 'shape': (1,), }"
f32 dlse.npy '1, 1, 1' 1
good 'gradient of the LSE' run q0.npy k.npy v.npy --device reference --grad-out q0.npy --grad-lse dlse.npy --dq dq.npy
same 'dQ from dLSE = P K' "$(values dq.npy)" 0.5000
good 'one key has no gradient of Q and K' run q.npy k1.npy v11.npy --device reference --grad-out dout.npy \
  --dq dq.npy --dk dk.npy --dv dv.npy --check
same 'one key: dQ, dK, dV' "$(values dq.npy) $(values dk.npy) $(values dv.npy)" '0.0000 0.0000 1.0000'
run run q0.npy k.npy v.npy --grad-out dout.npy --dq dq2.npy
if [ $status -eq 3 ]; then
  holds 'gradients where a device has none: who can' "$(cat stderr)" '--device reference can do it'
  same 'gradients where a device has none: nothing is written' "$(ls dq2.npy 2> /dev/null)" ''
else
  same 'gradients on the automatic device' "$status $(values dq2.npy)" '0 1.0000'
fi

# ---- execution ---------------------------------------------------------------------------------------------------

json() { # TEXT WHAT ARGUMENT...
  local text=$1 what=$2
  shift 2
  good "$text" run "$@" --json
  holds "$text" "$(cat stdout)" "$what"
  holds "$text: one object" "$(head -c 1 stdout)$(tail -c 2 stdout)" '{}'
  same "$text: one line" "$(wc -l < stdout)" 1
}
json 'the CPU' '"device":"cpu"' "${mean[@]}" -o out.npy --device cpu
json 'the reference' '"device":"reference"' "${mean[@]}" -o out.npy --device reference
json 'automatic' '"op":"forward"' "${mean[@]}" -o out.npy --device auto
json 'threads' '"threads":1,' "${mean[@]}" -o out.npy --device cpu --threads 1
json 'force' '"isa":"scalar"' "${mean[@]}" -o out.npy --force backend=cpu,isa=scalar
json 'sizes' '"shape":{"batch":1,"heads_q":1,"heads_kv":1,"seq_q":1,"seq_k":2,"head_dim":1,"head_dim_v":1}' \
  "${mean[@]}" -o out.npy
json 'names are escaped' '"outputs":["a\"\\\u0001\ufffdé.npy"]' "${mean[@]}" -o $'a"\\\001\xff\xc3\xa9.npy'
result 'splits' 2.0000 "${mean[@]}" --splits 2
good 'repeat' run "${mean[@]}" --repeat 3 -o out.npy
holds 'repeat' "$(cat stdout)" '(median of 3)'
holds 'GFLOP/s' "$(cat stdout)" ' GFLOP/s'
run run "${mean[@]}" --device cuda -o out.npy
if [ $status -eq 0 ]; then
  same 'on a GPU' "$(values out.npy)" 2.0000
  result 'on GPU 0' 2.0000 "${mean[@]}" --device cuda:0
elif grep -q unsupported stderr; then
  skip "on a GPU: $(cat stderr)"
else
  bad 3 'no device' run "${mean[@]}" --device cuda -o new.npy
  bad 3 'no device' run "${mean[@]}" --device cuda:7 -o new.npy
  skip "on a GPU: $(cat stderr)"
fi

# ---- checks ---------------------------------------------------------------------------------------------------------

good 'check' run q2.npy q2.npy ones.npy --check
holds 'check' "$(cat stdout)" 'check     out: max error '
holds 'check' "$(cat stdout)" ': good'
json 'check as JSON' '"good":true}],"verified":true' q2.npy q2.npy ones.npy --check
json 'no check is not verified' '"verified":false' q2.npy q2.npy ones.npy -o out.npy
f32 two.npy '1, 1, 1, 1' 2
f32 three.npy '1, 1, 1, 1' 3
good 'expect' run "${mean[@]}" --expect two.npy
holds 'expect' "$(cat stdout)" 'check     two.npy: max error 0, '
rm -f out.npy
run run "${mean[@]}" --expect three.npy -o out.npy
same 'expect: a wrong result' "$status $(wc -l < stderr) $(cut -c1-22 stderr)" '1 1 attn: wrong result: th'
same 'expect: the result is written all the same' "$(values out.npy)" 2.0000
holds 'expect: a wrong result' "$(cat stdout)" ': WRONG'
run run "${mean[@]}" --expect three.npy --json
same 'expect: a wrong result' $status 1
holds 'expect: a wrong result as JSON' "$(cat stdout)" '"max_error":1,"relative_error":0.3333333333333333,'
good 'tolerance' run "${mean[@]}" --expect three.npy --tolerance 0.4
f32 nan1.npy '1, 1, 1, 1' nan
run run "${mean[@]}" --expect nan1.npy
same 'expect: NaN is not a number' $status 1
good 'expect: NaN where NaN is expected' run q0.npy q0.npy nan1.npy --expect nan1.npy

# Every feature at once against the reference, on a problem with some structure.
for n in {1..96}; do
  bits[r$n]=$(printf %08x $((0x3e000000 + (n * 7919 % 1024 << 14) + (n % 3 == 0 ? 1 << 31 : 0))))
done
f32 qr.npy '2, 4, 3, 4' $(printf ' r%d' {1..96})
f32 kr.npy '2, 2, 5, 4' $(printf ' r%d' {9..88})
f32 vr.npy '2, 2, 5, 3' $(printf ' r%d' {20..79})
f32 br.npy '4, 3, 5' $(printf ' r%d' {30..89})
f32 sr.npy '4,' r1 r2 r3 r4
f32 dr.npy '2, 4, 3, 3' $(printf ' r%d' {11..82})
i32 lq.npy '2,' 2 3
i32 lk.npy '2,' 5 4
every=(qr.npy kr.npy vr.npy --check --lse lse.npy --causal --window 3,0 --bias br.npy --alibi sr.npy --sinks sr.npy
  --softcap 2 --scale 0.7 --dropout 0.2 --seed 5 --q-lengths lq.npy --kv-lengths lk.npy)
good 'everything at once' run "${every[@]}"
for type in f32 f16 bf16; do good "everything at once, $type" run "${every[@]}" --dtype $type; done
for type in f8_e4m3 f8_e5m2 i8 bf16; do
  good "everything at once, keys as $type" run "${every[@]}" --kv-dtype $type
done
for type in f32 f16 bf16; do
  good "everything at once with gradients, $type" run "${every[@]}" --dtype $type --device reference --grad-out dr.npy \
    --dq dq.npy --dk dk.npy --dv dv.npy --dbias dbias.npy --dsinks ds.npy
done
f32 vq.npy '1, 1, 1, 32' $(printf ' r%d' {1..32})
for type in q8_0 q4_0; do good "check with values as $type" run vq.npy vq.npy vq.npy --kv-dtype $type --check; done
