"""Procedural bugs: small, validated defects in a package that its own test suite detects.

bench.py        a package's suite in slots: clean runs and coverage
command.py      the command line
blocks.py       mutators of statements
expressions.py  mutators of operators, constants, names and calls
mutators.py     all mutators, applied to a file
package.py      a package: pinned sdist, dependencies, licence, tests
sites.py        selection of the bugs to try, and their order
source.py       a Python file as bytes and syntax tree
statement.py    problem statements in our own words
symptoms.py     the symptom of a failing test, in a sentence
validate.py     decides whether a bug makes a good task
values.py       values of failed assertions, in a sentence
"""
