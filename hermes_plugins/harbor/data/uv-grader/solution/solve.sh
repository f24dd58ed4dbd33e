#!/bin/bash
set -eu
cat > /app/roman.py <<'PY'
VALUES = ((1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"),
          (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"))


def to_roman(number):
    if type(number) is not int or not 1 <= number <= 3999:
        raise ValueError(number)
    text = ""
    for value, letters in VALUES:
        count, number = divmod(number, value)
        text += letters * count
    return text


def from_roman(text):
    known = {to_roman(number): number for number in range(1, 4000)}
    if type(text) is not str or text not in known:
        raise ValueError(text)
    return known[text]
PY
