#include "words.h"

void add(struct totals *totals, int c, int previous)
{
    totals->bytes++;
    if (c == '\n')
        totals->lines++;
    if (c != ' ' && previous == ' ')
        totals->words++;
}
