# Prints the program in the comment at the top of attn.h: from its first #include to the brace that
# closes main, without the comment's indent.
/^ \*     #include/ { inside = 1 }
inside { sub(/^ \*     |^ \*/, ""); print }
inside && /^}/ { exit }
