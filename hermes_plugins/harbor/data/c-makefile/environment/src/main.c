#include <stdio.h>
#include "words.h"

int main(void)
{
    struct totals totals = {0};
    int c, previous = ' ';

    while ((c = getchar()) != EOF) {
        add(&totals, c, previous);
        previous = c;
    }
    printf("%ld %ld %ld\n", totals.lines, totals.words, totals.bytes);
    return 0;
}
