#!/bin/bash
set -eu
cd /app
sed -i 's/^    \$(CC)/\t$(CC)/; s/word\.o$/words.o/' Makefile
cat > words.c <<'C'
#include <ctype.h>
#include "words.h"

void add(struct totals *totals, int c, int previous)
{
    totals->bytes++;
    if (c == '\n')
        totals->lines++;
    if (!isspace(c) && isspace(previous))
        totals->words++;
}
C
sed -i 's/    printf("%ld/    if (totals.bytes \&\& previous != 10)\n        totals.lines++;\n    printf("%ld/' main.c
make
