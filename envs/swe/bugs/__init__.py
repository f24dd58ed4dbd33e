"""Procedural bugs: small, validated defects in a package that its own test suite notices.

bench.py        a package's suite in slots: clean runs and coverage
blocks.py       mutators of statements
expressions.py  mutators of operators, constants, names and calls
mutators.py     all mutators, applied to a file
package.py      a package as the generator needs it
sites.py        which bugs are worth trying, and in what order
source.py       a Python file as bytes and syntax tree
statement.py    problem statements in our own words
symptoms.py     what a failing test shows, in a sentence
validate.py     whether a bug makes a good task
values.py       values of failed assertions, for a sentence
"""
