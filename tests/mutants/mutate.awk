# SPDX-License-Identifier: Apache-2.0
# awk -v name=MUTANT -v root=DIR -f mutate.awk LIST...: carries out one mutant of the lists on the files
# below DIR and prints the names of these files. Old texts are text, not patterns. Fails unless each is there
# exactly as often as its list says.

function fail(text) {
  print "mutants: " name ": " text "\n" >"/dev/stderr"
  failed = 1
  exit 1
}

function read_file(path,   line, text, status) {
  while ((status = (getline line <path)) > 0) text = text line "\n"
  if (status < 0) fail("cannot read " path)
  close(path)
  return text
}

# Ends a hunk: replaces old by fresh in the file that is open.
function replace(   done, at, count) {
  if (side == "") return
  while ((at = index(content, old)) > 0) {
    done = done substr(content, 1, at - 1) fresh
    content = substr(content, at + length(old))
    count++
  }
  if (count != times) fail(file ": expected " times ", found " count + 0 " of this text:\n" old)
  content = done content
  side = old = fresh = ""
  times = 1
  hunks++
}

# Ends a file.
function write_file() {
  replace()
  if (file == "") return
  print content >(root "/" file)
  close(root "/" file)
  print file "\n"
  file = ""
}

BEGIN {
  ORS = ""
  times = 1
}

$1 == "mutant" {
  write_file()
  here = $2 == name
  found = found || here
  next
}

!here || /^#/ { next }

/^$/ { replace(); next }

$1 == "file" {
  write_file()
  file = $2
  content = read_file(root "/" file)
  next
}

$1 == "times" {
  replace()
  times = $2
  next
}

/^-/ {
  if (side == "+") replace()
  old = side == "-" ? old "\n" substr($0, 2) : substr($0, 2)
  side = "-"
  next
}

/^\+/ {
  fresh = side == "+" ? fresh "\n" substr($0, 2) : substr($0, 2)
  side = "+"
  next
}

{ fail("this line means nothing: " $0) }

END {
  if (failed) exit 1
  write_file()
  if (!found) fail("there is no such mutant")
  if (!hunks) fail("it changes nothing")
}
