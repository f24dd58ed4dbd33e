from pathlib import Path

rows = [[(i * 7 + j * j * 3 + i * j * 11) % 23 - 9 for j in range(9)] for i in range(9)]


def determinant(matrix):
    """Bareiss: exact, in whole numbers."""
    matrix, sign, previous = [row[:] for row in matrix], 1, 1
    for i in range(len(matrix) - 1):
        if not matrix[i][i]:
            swap = next((k for k in range(i + 1, len(matrix)) if matrix[k][i]), None)
            if swap is None:
                return 0
            matrix[i], matrix[swap], sign = matrix[swap], matrix[i], -sign
        for j in range(i + 1, len(matrix)):
            for k in range(i + 1, len(matrix)):
                matrix[j][k] = (
                    matrix[j][k] * matrix[i][i] - matrix[j][i] * matrix[i][k]
                ) // previous
        previous = matrix[i][i]
    return sign * matrix[-1][-1]


out = Path("/app/out")
assert not (out / "notes.tmp").exists(), "excluded artifacts must not arrive"
assert not Path("/app/matrix.txt").exists(), "this is not the agent's box"
assert int((out / "determinant.txt").read_text()) == determinant(rows)
lines = (out / "transpose.txt").read_text().splitlines()
assert [[int(word) for word in line.split()] for line in lines] == [
    list(column) for column in zip(*rows)
]
