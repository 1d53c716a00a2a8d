# SPDX-License-Identifier: Apache-2.0
# What must be refused: status 2 (3 where only this machine cannot), one line on stderr, no file.

# ---- usage ----------------------------------------------------------------------------------------

to=("${mean[@]}" -o new.npy)
bad 2 'no command given'
bad 2 "no command 'walk'" walk
bad 2 "no option '--walk'" --walk
bad 2 "no command 'walk'" help walk
bad 2 "got 'info' too" help run info
bad 2 "no command 'a b?c'" $'a\nb\tc'
bad 2 'takes three files' run
bad 2 'got 2' run q.npy k.npy -o new.npy
bad 2 'got 4, the fourth is x.npy' run "${mean[@]}" x.npy -o new.npy
bad 2 'nothing to do with the result' run "${mean[@]}"
bad 2 "unknown option '--casual'" run "${to[@]}" --casual
bad 2 "unknown option '-x'" run "${to[@]}" -x
bad 2 "unknown option '--caus'" run "${to[@]}" --caus
bad 2 '-o needs a value' run "${mean[@]}" -o
bad 2 '--scale needs a value' run "${to[@]}" --scale
bad 2 '--causal takes no value' run "${to[@]}" --causal=yes
for option in bias alibi sinks q-lengths kv-lengths grad-out grad-lse expect lse keep dq force device window align; do
  bad 2 "--$option: the value is empty" run "${to[@]}" --$option=
done

for option in scale softcap dropout tolerance; do
  for value in nan NaN inf -inf infinity 12x x '' ' 1' '1 ' 1e999 1e-999 1e39 0x10 1,5 . - +; do
    bad 2 "--$option: " run "${to[@]}" --expect two.npy --$option "$value"
  done
done
bad 2 '--scale: 1e-50 is too small for a float' run "${to[@]}" --scale 1e-50
bad 2 '--softcap: -1 is outside' run "${to[@]}" --softcap -1
bad 2 '--dropout: -0.1 is outside 0 to 1' run "${to[@]}" --dropout -0.1
bad 2 '--dropout: 1.1 is outside 0 to 1' run "${to[@]}" --dropout 1.1
for option in threads splits repeat; do
  for value in 0 -1 1.5 12x '' ' 1' nan 99999999999999999999 1e3; do
    bad 2 "--$option: " run "${to[@]}" --$option "$value"
  done
done
for option in seed offset; do
  for value in -1 1.5 12x '' nan 18446744073709551616; do
    bad 2 "--$option" run "${to[@]}" --dropout 0.5 --$option "$value"
  done
done
for value in left 1.5 12x nan 99999999999999999999 -; do bad 2 '--align: ' run "${to[@]}" --align "$value"; done
for value in 1 1,2,3 -1,0 0,-1 a,b , 1, ,1 1.5,0 99999999999999999999,0 --,-; do
  bad 2 '--window: ' run "${to[@]}" --window "$value"
done
bad 2 "--layout: 'sbhd' is none of bhsd, bshd" run "${to[@]}" --layout sbhd
bad 2 "--dtype: 'f64' is none of f32, f16, bf16" run "${to[@]}" --dtype f64
bad 2 "--kv-dtype: 'q5_0' is none of " run "${to[@]}" --kv-dtype q5_0
for value in gpu cuda: cuda:x cuda:-1 cuda:1.5 CPU cuda1; do bad 2 '--device: ' run "${to[@]}" --device "$value"; done
bad 2 'turbo' run "${to[@]}" --force turbo=1
bad 2 'mmx' run "${to[@]}" --device cpu --force isa=mmx

bad 2 '--seed needs --dropout' run "${to[@]}" --seed 1
bad 2 '--offset needs --dropout' run "${to[@]}" --offset 1
bad 2 '--keep needs --dropout' run "${to[@]}" --keep new2.npy
bad 2 '--dq needs --grad-out' run "${to[@]}" --dq new2.npy
bad 2 '--grad-out needs one of' run "${to[@]}" --grad-out dout.npy
bad 2 '--grad-lse needs --grad-out' run "${to[@]}" --grad-lse dlse.npy
bad 2 '--dbias needs --bias' run "${to[@]}" --grad-out dout.npy --dbias new2.npy
bad 2 '--dsinks needs --sinks' run "${to[@]}" --grad-out dout.npy --dsinks new2.npy
bad 2 '--tolerance needs --expect' run "${to[@]}" --tolerance 1
bad 2 'dbias' run "${to[@]}" --device reference --grad-out dout.npy --bias bool.npy --dbias new2.npy

# ---- files -----------------------------------------------------------------------------------------

# refuse WHAT: m.npy is refused in each place that reads a file.
refuse() {
  bad 2 "m.npy: $1" run m.npy k0.npy v.npy -o new.npy
}
everywhere() {
  refuse "$1"
  bad 2 "m.npy: $1" run q0.npy m.npy v.npy -o new.npy
  bad 2 "m.npy: $1" run q0.npy k0.npy m.npy -o new.npy
  for option in bias alibi sinks q-lengths kv-lengths expect; do
    bad 2 "m.npy: $1" run "${to[@]}" --$option m.npy
  done
  bad 2 "m.npy: $1" run "${to[@]}" --device reference --grad-out m.npy --dq new2.npy
  bad 2 "m.npy: $1" run "${to[@]}" --device reference --grad-out dout.npy --grad-lse m.npy --dq new2.npy
}
four=$(bytes 3f800000)
ok="'descr': '<f4', 'fortran_order': False"

rm -f m.npy
everywhere 'No such file'
mkdir m.npy
refuse 'not a regular file'
rmdir m.npy
mkfifo m.npy
refuse 'not a regular file'
rm m.npy
bad 2 'q.npy/x: Not a directory' run q.npy/x k0.npy v.npy -o new.npy
: > m.npy
everywhere 'not an NPY file'
printf 'PK\x03\x04 some other kind of file' > m.npy
refuse 'not an NPY file'
printf '\x93NUMPX\x01\x00\x04\x00{}  ' > m.npy
refuse 'not an NPY file'
for version in '\x00\x00' '\x04\x00' '\x01\x01' '\xff\xff'; do
  printf '\x93NUMPY'"$version"'\x04\x00\x00\x00{}  ' > m.npy
  refuse 'NPY version'
done
printf '\x93NUMPY\x01\x00' > m.npy
refuse 'not an NPY file'
printf '\x93NUMPY\x02\x00\x01\x00\x00' > m.npy
refuse 'the file ends within its header'
printf '\x93NUMPY\x01\x00\xff\xff{}' > m.npy
refuse 'the header is longer than the file'
printf '\x93NUMPY\x02\x00\xff\xff\xff\xff{}' > m.npy
everywhere 'the header is longer than the file'
{ printf '\x93NUMPY\x02\x00\x00\x00\x02\x00'; head -c 131072 /dev/zero; } > m.npy
refuse 'a header of 131072 bytes is too long'
printf '\x93NUMPY\x01\x00\x00\x00' > m.npy
refuse 'the header is not a dictionary'

header_is() { # WHAT HEADER
  raw m.npy "$2" "$four"
  refuse "$1"
}
header_is 'the header is not a dictionary' 'descr'
header_is 'the header is not a dictionary' "[$ok]"
header_is 'the header is not a dictionary' "{$ok, 'shape': (1,1,1,1)"
header_is 'the header is not a dictionary' "{'descr' '<f4'}"
header_is 'the header is not a dictionary' "{descr: '<f4'}"
header_is 'the header is not a dictionary' "{'descr': '<f4' 'fortran_order': False}"
header_is 'the header is not a dictionary' "{,$ok, 'shape': (1,1,1,1)}"
header_is 'the header has text behind' "{$ok, 'shape': (1,1,1,1)} x"
header_is "the header lacks the key 'descr'" "{'fortran_order': False, 'shape': (1,1,1,1)}"
header_is "the header lacks the key 'fortran_order'" "{'descr': '<f4', 'shape': (1,1,1,1)}"
header_is "the header lacks the key 'shape'" "{$ok}"
header_is "the header lacks the key 'descr'" "{}"
header_is 'the header has a key twice' "{$ok, 'descr': '<f4', 'shape': (1,1,1,1)}"
header_is 'the header has an unknown key' "{$ok, 'order': 1, 'shape': (1,1,1,1)}"
header_is "the value of 'descr' is not a string" "{'descr': f4, 'fortran_order': False, 'shape': (1,1,1,1)}"
header_is "the value of 'descr' is not a string" "{'descr': '<f4"
header_is "the value of 'fortran_order'" "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,1,1,1)}"
header_is "the value of 'fortran_order'" "{'descr': '<f4', 'fortran_order': 'False', 'shape': (1,1,1,1)}"
header_is 'the shape is not a tuple' "{$ok, 'shape': [1,1,1,1]}"
header_is 'the shape is not a tuple' "{$ok, 'shape': 1}"
header_is 'the shape is not a tuple' "{$ok, 'shape': (1)}"
header_is 'the shape is not a tuple' "{$ok, 'shape': (1 1 1 1)}"
header_is 'the shape is not a tuple' "{$ok, 'shape': (1,,1,1)}"
header_is 'the shape is not a tuple' "{$ok, 'shape': (1.0,1,1,1)}"
header_is 'the shape is not a tuple' "{$ok, 'shape': (0x1,1,1,1)}"
header_is 'the shape is not a tuple' "{$ok, 'shape': (1,1,1,1"
header_is 'a size of the shape is negative' "{$ok, 'shape': (1,1,1,-1)}"
header_is 'a size of the shape is too large' "{$ok, 'shape': (1,1,1,9223372036854775808)}"
header_is 'a size of the shape is too large' "{$ok, 'shape': (1,1,1,99999999999999999999999999)}"
header_is 'the product of the shape overflows' "{$ok, 'shape': (1,1,1,9223372036854775807)}"
header_is 'the product of the shape overflows' "{$ok, 'shape': (4294967296,4294967296,1,1)}"
header_is 'the product of the shape overflows' "{$ok, 'shape': (0,4294967296,4294967296,1)}"
header_is 'the shape has more than 8 axes' "{$ok, 'shape': (1,1,1,1,1,1,1,1,1)}"
header_is 'the shape needs 8 bytes of data, the file has only 4' "{$ok, 'shape': (1,1,1,2)}"
header_is 'the shape needs 4398046511104 bytes of data, the file has only 4' "{$ok, 'shape': (1,1,1,1099511627776)}"
header_is 'the shape needs 0 bytes of data, the file has 4 more' "{$ok, 'shape': (1,1,1,0)}"
raw m.npy "{$ok, 'shape': (1,1,1,1)}" "$four$four"
everywhere 'the shape needs 4 bytes of data, the file has 4 more'
raw m.npy "{$ok, 'shape': (1,1,1,1)}" ''
refuse 'the shape needs 4 bytes of data, the file has only 0'

type_is() { # WHAT DESCR
  raw m.npy "{'descr': $2, 'fortran_order': False, 'shape': (1,1,1,1)}" "$four"
  refuse "$1"
}
type_is "big-endian data ('>f4')" "'>f4'"
type_is "data type '|O'" "'|O'"
type_is "data type '<c8'" "'<c8'"
type_is "data type '<u4'" "'<u4'"
type_is "data type '|u1'" "'|u1'"
type_is "data type '<i2'" "'<i2'"
type_is "data type '<f16'" "'<f16'"
type_is "data type '<U1'" "'<U1'"
type_is "data type '|f4'" "'|f4'"
type_is "data type 'f4'" "'f4'"
type_is "data type ''" "''"
type_is "data type '<'" "'<'"
type_is "data type '<f4 " "'<f4 and a very long name that goes on and on'"
type_is 'structured data types' "[('a', '<f4')]"
type_is 'structured data types' "('<f4', (2,))"
for type in '<i4' '|b1' '<i8'; do
  raw m.npy "{'descr': '$type', 'fortran_order': False, 'shape': (1,1,1,1)}" "$four"
  [ "$type" = '<i8' ] && raw m.npy "{'descr': '$type', 'fortran_order': False, 'shape': (1,1,1,1)}" "$four$four"
  [ "$type" = '|b1' ] && raw m.npy "{'descr': '$type', 'fortran_order': False, 'shape': (1,1,1,1)}" '\x01'
  refuse "floating-point numbers are needed, the data type is '$type'"
  bad 2 "m.npy: " run "${to[@]}" --alibi m.npy
  bad 2 "m.npy: floating-point numbers are needed" run "${to[@]}" --expect m.npy
done

# ---- shapes --------------------------------------------------------------------------------------------

f32 s2.npy '1, 1' 0
f32 s5.npy '1, 1, 1, 1, 1' 0
f32 b2.npy '2, 1, 1, 1' 0 0
f32 h2.npy '1, 2, 1, 1' 0 0
f32 h3.npy '1, 3, 1, 1' 0 0 0
f32 d2.npy '1, 1, 1, 2' 0 0
f32 h0.npy '1, 0, 1, 1'
f32 two1.npy '2,' 0 0
bad 2 's2.npy: an array of 4 axes (or 3, without the batch) is needed, it has 2' run s2.npy k0.npy v.npy -o new.npy
bad 2 's5.npy: an array of 4 axes' run q0.npy k0.npy s5.npy -o new.npy
bad 2 'k3.npy: has 3 axes, but q0.npy has 4' run q0.npy k3.npy v3.npy -o new.npy
bad 2 'k0.npy: the batch is 1, but in b2.npy it is 2' run b2.npy k0.npy v.npy -o new.npy
bad 2 'k0.npy: the head size is 1, but in d2.npy it is 2' run d2.npy k0.npy v.npy -o new.npy
bad 2 'h3.npy: 3 query heads are not a multiple of 2 in h2.npy' run h3.npy h2.npy h2.npy -o new.npy
bad 2 '1 query heads are not a multiple of 0' run q0.npy h0.npy h0.npy -o new.npy
bad 2 'q0.npy: the number of tokens is 1, but in k0.npy it is 2' run q0.npy k0.npy q0.npy -o new.npy
bad 2 'h2.npy: the number of heads is 2, but in q0.npy it is 1' run h2.npy q0.npy h2.npy -o new.npy
bad 2 'bias1.npy: the shape is [2], but slopes need [1]' run "${to[@]}" --alibi bias1.npy
bad 2 'bias1.npy: the shape is [2], but sinks need [1]' run "${to[@]}" --sinks bias1.npy
bad 2 'z3.npy: the shape is [1, 1, 3, 1], but biases' run "${to[@]}" --bias z3.npy
bad 2 's5.npy: the shape is [1, 1, 1, 1, 1], but biases' run "${to[@]}" --bias s5.npy
i32 bi.npy '1, 1, 1, 2' 0 1
bad 2 "bi.npy: a bias is floating-point or bool, the data type is '<i4'" run "${to[@]}" --bias bi.npy
bad 2 'z3.npy: the shape is [1, 1, 3, 1], but gradients' \
  run "${to[@]}" --device reference --grad-out z3.npy --dq new2.npy
bad 2 'dout.npy: the shape is [1, 1, 1, 1], but gradients of the LSE need [1, 1, 1]' \
  run "${to[@]}" --device reference --grad-out dout.npy --grad-lse dout.npy --dq new2.npy
bad 2 'v.npy: the shape is [1, 1, 2, 1], but outputs of these arrays need [1, 1, 1, 1]' run "${to[@]}" --expect v.npy
bad 2 'k0.npy: --kv-dtype q8_0 needs a head size that is a multiple of 32, it is 1' run "${to[@]}" --kv-dtype q8_0
bad 2 'k0.npy: --kv-dtype q4_0' run "${to[@]}" --kv-dtype q4_0
wide=$(printf ' 0%.0s' {1..577})
f32 wide.npy '1, 1, 1, 577' $wide
bad 3 'unsupported' run wide.npy wide.npy wide.npy -o new.npy

# Empty axes are no error.
f32 e.npy '0, 1, 2, 1'
result 'no sequence' '' e.npy e.npy e.npy --lse lse.npy --check
same 'no sequence: shape' "$(header out.npy)" "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 1, 2, 1), }"
f32 ek.npy '1, 1, 0, 1'
result 'no key' 0.0000 q0.npy ek.npy ek.npy --lse lse.npy --check
same 'no key: LSE' "$(values lse.npy)" -inf
f32 many.npy '1048576, 1, 0, 1'
good 'very many empty sequences' run many.npy many.npy many.npy -o out.npy
# Empty arrays can ask for a result of any size.
f32 hugeq.npy '1, 1, 1099511627776, 0'
f32 hugev.npy '1, 1, 0, 1099511627776'
f32 hugek.npy '1, 1, 0, 0'
bad 3 'out of memory: a result is too large' run hugeq.npy hugek.npy hugev.npy -o new.npy

# ---- lengths ---------------------------------------------------------------------------------------------

f32 lf.npy '1,' 1
f32 ln.npy '1,' nan
npy lb.npy '|b1' '1,' '\x01'
i32 l2.npy '2,' 1 1
i32 lneg.npy '1,' -1
i32 l3.npy '1,' 3
npy lbig.npy '<i8' '1,' "$(bytes 0000000100000001)"
npy lmin.npy '<i8' '1,' "$(bytes 8000000000000000)"
for option in q-lengths kv-lengths; do
  bad 2 "lf.npy: lengths are integers, the data type is '<f4'" run "${to[@]}" --$option lf.npy
  bad 2 "ln.npy: lengths are integers, the data type is '<f4'" run "${to[@]}" --$option ln.npy
  bad 2 "lb.npy: lengths are integers, the data type is '|b1'" run "${to[@]}" --$option lb.npy
  bad 2 'l2.npy: the shape is [2], but lengths need [1]' run "${to[@]}" --$option l2.npy
  bad 2 'lneg.npy: length -1 of sequence 0 is outside 0 to' run "${to[@]}" --$option lneg.npy
  bad 2 'l3.npy: length 3 of sequence 0 is outside 0 to' run "${to[@]}" --$option l3.npy
  bad 2 'lbig.npy: length 4294967297 of sequence 0' run "${to[@]}" --$option lbig.npy
  bad 2 'lmin.npy: length -9223372036854775808 of sequence 0' run "${to[@]}" --$option lmin.npy
done
