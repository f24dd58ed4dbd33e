#!/bin/bash
set -eu
python3 - <<'PY'
from fractions import Fraction
from pathlib import Path

rows = [[int(word) for word in line.split()] for line in Path("/app/matrix.txt").read_text().splitlines()]
Path("/app/out/transpose.txt").write_text("".join(" ".join(map(str, column)) + "\n" for column in zip(*rows)))
work, result = [[Fraction(value) for value in row] for row in rows], Fraction(1)
for i in range(len(work)):
    pivot = next((k for k in range(i, len(work)) if work[k][i]), None)
    if pivot is None:
        result = Fraction(0)
        break
    if pivot != i:
        work[i], work[pivot], result = work[pivot], work[i], -result
    result *= work[i][i]
    for k in range(i + 1, len(work)):
        factor = work[k][i] / work[i][i]
        work[k] = [a - factor * b for a, b in zip(work[k], work[i])]
Path("/app/out/determinant.txt").write_text(f"{result}\n")
Path("/app/out/notes.tmp").write_text("not looked at\n")
PY
