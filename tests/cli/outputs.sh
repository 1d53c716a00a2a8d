# SPDX-License-Identifier: Apache-2.0
# Output files: found to be impossible before anything is computed, replaced whole or not at all.

# ---- refused -----------------------------------------------------------------------------------------

mkdir sealed
chmod 555 sealed
printf old > readonly.npy
chmod 444 readonly.npy
ln -s nowhere.npy dangling
ln -s readonly.npy link-to-readonly
long=$(printf 'x%.0s' {1..300})
for option in -o --lse; do
  bad 2 'missing/o.npy: No such file or directory' run "${mean[@]}" $option missing/o.npy
  bad 2 'q.npy/o.npy: Not a directory' run "${mean[@]}" $option q.npy/o.npy
  bad 2 'readonly.npy: the file is read-only' run "${mean[@]}" $option readonly.npy
  bad 2 'link-to-readonly: the file is read-only' run "${mean[@]}" $option link-to-readonly
  bad 2 'sealed/o.npy: the directory is read-only' run "${mean[@]}" $option sealed/o.npy
  bad 2 'sealed: Is a directory' run "${mean[@]}" $option sealed
  bad 2 'new/: not the name of a file' run "${mean[@]}" $option new/
  bad 2 'dangling: No such file or directory' run "${mean[@]}" $option dangling
  bad 2 'File name too long' run "${mean[@]}" $option "$long"
  if [ -d /proc/self ]; then bad 2 '/proc/o.npy: ' run "${mean[@]}" $option /proc/o.npy; fi
done
same 'a read-only file is not touched' "$(cat readonly.npy)" old
same 'nothing in a read-only directory' "$(ls -A sealed)" ''
bad 2 '--lse ./o.npy: the same file as --out' run "${mean[@]}" -o o.npy --lse ./o.npy
ln -s . here
bad 2 'the same file as --out' run "${mean[@]}" -o o.npy --lse here/o.npy
# A wrong output is found before the inputs are read, and a wrong second one before the first is written.
bad 2 'missing/o.npy' run absent.npy absent.npy absent.npy -o missing/o.npy
bad 2 'missing/l.npy' run "${mean[@]}" -o new.npy --lse missing/l.npy

# ---- replaced -----------------------------------------------------------------------------------------

printf old > o.npy
chmod 640 o.npy
bad 2 'absent.npy: No such file' run q0.npy k0.npy absent.npy -o o.npy
bad 2 'm.npy: ' run q0.npy k0.npy m.npy -o o.npy
bad 3 'unsupported' run wide.npy wide.npy wide.npy -o o.npy
same 'a failure leaves the old file' "$(cat o.npy)" old
good 'an old file is replaced' run "${mean[@]}" -o o.npy
same 'an old file is replaced, its mode is kept' "$(values o.npy) $(stat -c %a o.npy)" '2.0000 640'
(umask 027 && "$attn" run "${mean[@]}" -o fresh.npy > /dev/null)
same 'a new file has the mode that umask says' "$(stat -c %a fresh.npy)" 640
mkdir sub
ln -s sub/target.npy link.npy
printf old > sub/target.npy
good 'through a link' run "${mean[@]}" -o link.npy
same 'through a link: the target is replaced, the link stays' "$(readlink link.npy) $(values sub/target.npy)" \
  'sub/target.npy 2.0000'
same 'nothing else beside the target' "$(ls -A sub)" target.npy
good 'into another directory' run "${mean[@]}" -o sub/a.npy --lse "$PWD/sub/b.npy"
same 'into another directory' "$(values sub/a.npy) $(values sub/b.npy) $(ls -A sub | tr '\n' ' ')" \
  '2.0000 0.6931 a.npy b.npy target.npy '
cp v.npy inout.npy
good 'an input as output' run q0.npy k0.npy inout.npy -o inout.npy
same 'an input as output' "$(values inout.npy)" 2.0000
good 'to /dev/null' run "${mean[@]}" -o /dev/null --lse /dev/null
same '/dev/null is still what it was' "$(stat -c %F /dev/null)" 'character special file'

# ---- no space ------------------------------------------------------------------------------------------

if [ -c /dev/full ]; then
  bad 2 '/dev/full: No space left on device' run "${mean[@]}" -o /dev/full
  run_full() {
    "$attn" "$@" > /dev/full 2> stderr
    status=$?
  }
  for words in 'info' '--version' '--help' 'help run' 'run q0.npy k0.npy v.npy -o o.npy'; do
    run_full $words
    same "no space for stdout: $words" "$status $(cat stderr)" \
      '2 attn: cannot write to standard output: No space left on device'
  done
fi
printf old > limited.npy
big=$(printf ' 0%.0s' {1..2048})
f32 big.npy '1, 1, 2048, 1' $big
(ulimit -f 1 && "$attn" run big.npy k0.npy v.npy -o limited.npy --lse limited2.npy > /dev/null 2> message)
status=$?
same 'a file too large: status, old file, no other' "$status $(cat limited.npy) $(ls limited2.npy 2> /dev/null)" \
  '2 old '
same 'a file too large: message' "$(cat message)" 'attn: --out limited.npy: File too large'

same 'no temporary file anywhere' "$(find . -name '.attn-*')" ''
