import sys

expected = (
    "True True False True False True False True False True True False True True False False".split()
)
assert sys.argv[1].split() == expected + ["ValueError"] * 5, sys.argv[1]
