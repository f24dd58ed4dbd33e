struct totals {
    long lines, words, bytes;
};

void add(struct totals *totals, int c, int previous);
