# SPDX-License-Identifier: Apache-2.0
# attn bench: what it counts, prints and refuses; nothing here depends on how long anything takes.

one=(--seconds 0 --threads 1)

# TEXT ARGUMENT...: leaves the JSON in `rows`, with N for every number that is measured, W for what the library takes.
measured() {
  local text=$1
  shift
  good "$text" bench "${one[@]}" --json "$@"
  rows=$(sed -E 's/"(median_ms|min_ms|waited_ms|tflops|gbps|fraction_of_peak|value)":[0-9][0-9.e+-]*/"\1":N/g;
    s/("workspace_bytes":)[0-9]+/\1W/g' stdout)
  same "$text: one line" "$(wc -l < stdout)" 1
}

times='"repeats":3,"median_ms":N,"min_ms":N,"batch":1,"graph":false,"waited_ms":null,"tflops":N,"gbps":N,"fraction_of_peak":N'
measured 'bench: every key' --shape 1,2,1,3,5,4 --device reference
# Five keys of 4 + 4 floats; 15 pairs of two heads, 2 (4 + 4) operations each.
same 'bench: every key' "$(sed -E 's/"(fma_f32|read)"/K/' <<< "$rows")" '[{"op":"forward","device":"reference",'\
'"kernel":"forward_reference","isa":"float64","dtype":"f32","kv_dtype":"f32","shape":{"batch":1,"heads_q":2,'\
'"heads_kv":1,"seq_q":3,"seq_k":5,"head_dim":4,"head_dim_v":4},"causal":false,"v_in_k":false,"threads":1,'\
'"flops":480,"bytes":160,"workspace_bytes":W,'"$times"',"peak":{"kind":K,"value":N},"verified":true}]'

counts() { # FLOPS,BYTES ARGUMENT...
  local expected=$1
  shift
  measured 'bench counts' --no-verify "$@"
  same "bench counts: $*" "$(grep -o '"flops":[^,]*,"bytes":[^,]*' <<< "$rows" | sed 's/"[a-z]*"://g')" "$expected"
  holds 'bench does not verify' "$rows" '"verified":null}]'
}
counts 384,160 --shape 1,2,1,3,5,4 --causal                     # rows of 3, 4 and 5 keys
counts 96,96 --shape 1,1,1,5,3,4 --causal                       # rows of 0, 0, 1, 2 and 3
counts 360,720 --shape 3,2,2,1,5,2,4                            # pairs * 2 (D + DV); B HKV SK * 4 (D + DV)
counts 400,130 --shape 1,2,1,2,10,3,2 --dtype f16 --kv-dtype i8 # a factor a row of K and of V
counts 400,70 --shape 1,2,1,2,10,3,2 --kv-dtype i8 --v-in-k     # K alone
counts 3456,180 --shape 1,1,1,3,10,32 --kv-dtype q4_0 --v-in-k --causal

# Backward: pairs * 2 (3 D + 2 DV); Q, O, dO, dQ and K, V, dK, dV once.
counts 1200,704 --backward --shape 1,2,1,3,5,4
counts 988,280 --backward --shape 1,2,1,2,10,3,2 --dtype f16 --kv-dtype bf16 --causal
for type in f32 f16 bf16; do
  measured "bench --backward with $type" --backward --kv-dtype $type --dtype $type --causal --device cpu \
    --shape 2,4,2,3,9,32 --shape=1,2,1,140,170,64,32 --shape 1,1,1,20,9,32
  same "bench --backward with $type" "$(grep -o -e '"op":"[^"]*"' -e '"verified":[a-z]*' <<< "$rows" |
    sed 's/.*://' | tr '\n' ' ')" '"backward" true "backward" true "backward" true '
  holds "bench --backward with $type" "$rows" '"kernel":"backward_'
  same "bench --backward with $type: workspace" "$(grep -c '"workspace_bytes":[1-9]' stdout)" 1
done

# Every type, verified: whole and in windows, several cases in the order given.
for type in f32 f16 bf16 f8_e4m3 f8_e5m2 i8 q8_0 q4_0; do
  measured "bench with $type" --kv-dtype $type --dtype bf16 --causal --device cpu \
    --shape 2,4,2,3,9,32 --shape=1,2,1,40,70,64,32 --shape 1,1,1,20,9,32
  same "bench with $type" "$(grep -o -e '"kv_dtype":"[^"]*"' -e '"seq_q":[0-9]*' -e '"verified":[a-z]*' <<< "$rows" |
    sed 's/.*://' | tr '\n' ' ')" "\"$type\" 3 true \"$type\" 40 true \"$type\" 20 true "
done
for type in f32 f16 q8_0; do
  measured "bench: V in K, $type" --kv-dtype $type --v-in-k --shape 2,3,1,2,70,64,32
  holds "bench: V in K, $type" "$rows" '"v_in_k":true,'
  holds "bench: V in K, $type" "$rows" '"verified":true}]'
done
measured 'bench: a row of a suite' --suite decode --v-in-k --kv-dtype q4_0
holds 'bench: a row of a suite' "$rows" '"dtype":"f32","kv_dtype":"q4_0","shape":{"batch":1,"heads_q":128,"heads_kv":1,'\
'"seq_q":1,"seq_k":4096,"head_dim":576,"head_dim_v":512},"causal":false,"v_in_k":true,'
same 'bench: one row of a suite' "$(grep -o '"op"' <<< "$rows" | wc -l)" 1

# ---- the cases of suites -----------------------------------------------------------------------------------

cases() { # COUNT ARGUMENT...: leaves the list in stdout
  local count=$1
  shift
  good "bench --list $*" bench --list "$@"
  same "bench --list $*" "$(wc -l < stdout)" "$count"
}
cases 1
same 'bench --list' "$(cat stdout)" '1,16,16,1024,1024,64 f32'
cases 156 --suite seeds
for type in f32 f16 bf16; do
  cases 52 --suite seeds --dtype $type
  same "bench --suite seeds, $type" "$(grep -c ' backward$' stdout) $(grep -c ' causal' stdout)" '26 26'
  same "bench --suite seeds, $type" "$(sed -n '1p;52p' stdout)" "1,1,1,16,16,16 $type
1,32,32,4096,4096,256 $type causal backward"
done
cases 26 --suite seeds --dtype f16 --backward --unordered
same 'bench --suite seeds --backward' "$(grep -c ' backward$' stdout)" 26
cases 26 --suite seeds --dtype f16 --causal
cases 12 --suite train --dtype f16 --unordered
cases 10 --suite prefill --dtype f16
cases 10 --suite prefill --dtype f16 --backward
good 'bench --list --json' bench --list --json --backward --shape 1,2,1,3,5,4,2 --causal
same 'bench --list --json' "$(cat stdout)" '[{"op":"backward","dtype":"f32","kv_dtype":"f32","shape":{"batch":1,"heads_q":2,'\
'"heads_kv":1,"seq_q":3,"seq_k":5,"head_dim":4,"head_dim_v":2},"causal":true,"v_in_k":false}]'
bad 2 '--list and --steps exclude each other' bench --list --steps
bad 2 '--list and --copies exclude each other' bench --list --copies

good 'bench: so many calls' bench --repeat 5 --json --shape 1,1,1,1,1,1
holds 'bench: so many calls' "$(cat stdout)" '"repeats":5,'
export ATTN_FORCE=isa=scalar,threads=2
good 'bench: ATTN_FORCE' bench --seconds 0 --json --shape 1,1,1,1,1,1
holds 'bench: ATTN_FORCE' "$(cat stdout)" '"kernel":"forward_scalar","isa":"scalar",'
holds 'bench: ATTN_FORCE' "$(cat stdout)" '"threads":2,'
export ATTN_FORCE=isa=mmx
bad 2 'isa=mmx' bench
unset ATTN_FORCE

good 'bench as a table' bench "${one[@]}" --device cpu --shape 1,2,1,3,5,4 --shape 16,128,128,1,4,96,64 --causal
holds 'bench: machine' "$(sed -n 1p stdout)" 'machine   '
holds 'bench: cores' "$(sed -n 1p stdout)" ' cores, '
holds 'bench: build' "$(sed -n 2p stdout)" 'build     attn '
holds 'bench: ceilings' "$(sed -n 3p stdout)" 'ceilings  1 thread: arithmetic scalar '
# Tiles are a ceiling where the processor has them and the system permits them; the line is in order either way.
levels=$(sed -n 3p stdout | grep -oE '(scalar|avx2|avx512|avx512bf16|amx) [0-9]' | cut -d' ' -f1 | tr '\n' ' ')
known="$(grep -m 1 '^flags' /proc/cpuinfo) "
case "$levels" in
  'scalar avx2 avx512 avx512bf16 amx ') holds 'bench: the ceiling of tiles' "$known" ' amx_bf16 ' ;;
  'scalar avx2 avx512 avx512bf16 ') holds 'bench: the ceiling of bf16' "$known" ' avx512_bf16 ' ;;
  'scalar ' | 'scalar avx2 ' | 'scalar avx2 avx512 ') ;;
  *) report no 'bench: the levels of the ceilings' "$levels" ;;
esac
holds 'bench: how' "$(sed -n 5p stdout)" 'forward on cpu: kernel forward_'
tail -n +6 stdout > table
same 'bench: rows' "$(wc -l < table) $(sed -n 2p table | cut -d' ' -f1) $(sed -n 3p table | cut -d' ' -f1)" \
  '3 1,2,1,3,5,4 16,128,128,1,4,96,64'
report "$([ "$(wc -L < table)" -le 120 ] && echo yes || echo no)" 'bench: the table fits 120 columns' "$(cat table)"
same 'bench: columns' "$(cut -c1-46 table | tail -n 1)" '16,128,128,1,4,96,64     f32   f32      causal'

# ---- steps -------------------------------------------------------------------------------------------------

small=(bench --steps --shape 1,2,1,3,5,4 --threads 1)
steps() { # TEXT STATUS WORDS: the answers with N for numbers must be those in `answers`
  printf "$3" | "$attn" "${small[@]}" > stdout 2> stderr
  status=$?
  same "steps: $1" "$status $(sed -E 's/:[0-9][0-9.e+-]*\}/:N}/' stdout | tail -n +2 | tr '\n' ' ')" "$2 $answers"
}
answers='{"ms":N} {"value":N} {"ms":N} {"value":N} ' steps 'all' 0 'run\nfma\nrun\nread\nquit\nrun\n'
answers='{"ms":N} {"ms":N} ' steps 'so many calls' 0 'run 1\nrun 1000\n'
for count in 0 -1 x 1.5 1000001 ''; do
  answers='{"ms":N} ' steps "no number of calls: '$count'" 2 "run\nrun $count\nrun\n"
  holds 'steps: no number of calls' "$(cat stderr)" 'attn: --steps: run: '
done
answers='{"ms":N} ' steps 'the end of the input, also within a line' 0 'run\r\nquit'
answers='' steps 'nothing' 0 ''
answers='{"ms":N} ' steps 'another word' 2 'run\nwalk\nrun\n'
same 'steps: another word' "$(cat stderr)" "attn: --steps: 'walk' is none of run, fma, read, quit"
same 'steps: the case' "$(head -n 1 stdout | sed -E 's/"(kernel|isa)":"[a-z0-9_]*"/"\1":K/g; s/"device":"[a-z]*"/D/
  s/(_bytes":)[0-9]+/\1W/; s/"level":"[a-z0-9]*"/L/')" \
  '{"op":"forward",D,"kernel":K,"isa":K,"dtype":"f32","kv_dtype":"f32","shape":{"batch":1,"heads_q":2,'\
'"heads_kv":1,"seq_q":3,"seq_k":5,"head_dim":4,"head_dim_v":4},"causal":false,"v_in_k":false,"threads":1,'\
'"flops":480,"bytes":160,"workspace_bytes":W,"verified":true,L}'
# The level of the ceiling is the plan's, but levels with products of bf16 do all else as avx512 does.
for how in '--dtype f32' '--dtype bf16' '--dtype bf16 --kv-dtype f16' '--dtype bf16 --backward'; do
  good "steps: level, $how" bench --steps --shape 1,2,1,64,64,64 --threads 1 --device cpu $how < /dev/null
  isa=$(grep -oP '"isa":"\K[a-z0-9]+' stdout)
  case $how in
    '--dtype f32' | *' f16') [ "$isa" = amx ] || [ "$isa" = avx512bf16 ] && isa=avx512 ;;
  esac
  holds "steps: level, $how" "$(cat stdout)" "\"level\":\"$isa\"}"
done
# Each answer comes before the next word.
coproc ATTN_STEPS { exec "$attn" "${small[@]}"; }
pid=$ATTN_STEPS_PID line=
read -r -t 60 line <&"${ATTN_STEPS[0]}"
holds 'steps: the case comes first' "$line" '"verified":true,"level":"'
for word in run run; do
  line=
  echo $word >&"${ATTN_STEPS[1]}"
  read -r -t 60 line <&"${ATTN_STEPS[0]}"
  holds 'steps: an answer for each word' "$line" '{"ms":'
done
eval "exec ${ATTN_STEPS[1]}>&-"
wait "$pid"
same 'steps: ends with the input' $? 0

# ---- refused -------------------------------------------------------------------------------------------------

for shape in 1 1,2,3,4,5 1,1,1,1,1,1,1,1 a,1,1,1,1,1 1,1,1,1,1,-1 1,1,1,1,1,1.5 1,,1,1,1,1 1,1,1,1,1,99999999999 '' \
  0,1,1,1,1,1 1,0,1,1,1,1 1,1,0,1,1,1 1,1,1,0,1,1 1,1,1,1,0,1 1,1,1,1,1,0 1,1,1,1,1,1,0 1,3,2,1,1,1 1,1,2,1,1,1; do
  bad 2 '--shape: ' bench --shape 1,1,1,1,1,1 --shape "$shape"
done
bad 3 '--shape 1,1,1,1,1,577 f32: unsupported: ' bench --shape 1,1,1,1,1,577
for shape in 2147483647,2147483647,1,2147483647,1,1 1,1,1,1,2147483647,576 65536,64,64,65536,1,128; do
  bad 3 "--shape $shape f32: out of memory: " bench --shape $shape
done
bad 2 '--kv-dtype q8_0 needs head sizes that are multiples of 32' bench --shape 1,1,1,1,1,32,33 --kv-dtype q8_0
bad 2 '--v-in-k: ' bench --shape 1,1,1,1,1,32,64 --v-in-k
bad 2 "--suite: 'training' is none of prefill, decode, seeds, train" bench --suite training
bad 2 '--suite decode has no such case' bench --suite decode --dtype f16 --kv-dtype q8_0
bad 2 '--suite prefill has no such case' bench --suite prefill --v-in-k
bad 2 '--suite and --shape exclude each other' bench --suite decode --shape 1,1,1,1,1,1
bad 2 '--repeat and --seconds exclude each other' bench --repeat 1 --seconds 1
bad 2 "--dtype: 'i8' is none of" bench --dtype i8
bad 2 "--kv-dtype: 'q5_0' is none of" bench --kv-dtype q5_0
bad 2 '--device: ' bench --device gpu
for option in threads repeat; do
  for value in 0 -1 1.5 12x '' 99999999999999999999; do bad 2 "--$option: " bench --$option "$value"; done
done
for value in -1 3601 nan x ''; do bad 2 '--seconds: ' bench --seconds "$value"; done
bad 2 '--threads: 1025 is outside 1 to 1024' bench --threads 1025
bad 2 '--steps and --suite exclude each other' bench --steps --suite decode
bad 2 '--steps and --repeat exclude each other' bench --steps --repeat 1
bad 2 '--steps and --seconds exclude each other' bench --steps --seconds 1
bad 2 '--steps takes one --shape' bench --steps --shape 1,1,1,1,1,1 --shape 1,1,1,1,1,1
bad 2 '--shape is given more than 64 times' bench $(printf -- '--shape 1,1,1,1,1,1 %.0s' {1..65})
bad 2 "got 'x'" bench x
bad 2 '--unordered is for backward' bench --unordered
bad 2 '--unordered is for backward' bench --unordered --suite prefill
bad 2 '--suite seeds has no such case' bench --suite seeds --kv-dtype q8_0
bad 2 '--backward and --v-in-k exclude each other' bench --backward --v-in-k
bad 2 '--backward and --copies exclude each other' bench --backward --copies
bad 2 '--backward takes keys and values of f32, f16 or bf16, not q8_0' bench --backward --kv-dtype q8_0 --shape 1,1,1,1,1,32
bad 2 '--suite prefill has no such case' bench --backward --suite prefill --kv-dtype q8_0
for device in auto cpu reference; do
  bad 2 '--graph captures calls on arrays of a GPU: it needs --device cuda' bench --graph --device $device
done
bad 2 '--graph and --steps exclude each other' bench --graph --device cuda --steps
bad 2 '--graph and --copies exclude each other' bench --graph --device cuda --copies
bad 2 "unknown option '--backwards'" bench --backwards

# What was measured before an error is whole.
run bench "${one[@]}" --json --shape 1,1,1,1,1,1 --shape 1,1,1,1,1,577
same 'bench: an error in the second case' "$status $(wc -l < stderr) $(wc -l < stdout)" '3 1 1'
holds 'bench: an error in the second case' "$(head -c 1 stdout)$(tail -c 3 stdout)" '[}]'
