"""Tests run against the agent's tree, and the verdict.

alternatives.py  what a test may expect instead
controls.py      what a host has learnt about a row by running the known fix
expectations.py  where a test states what it expects
failures.py      the first failure in one line
findings.py      what one run shows, and what all runs come to
flags.py         words in a patch that library code has little use for
grader.py        the order of runs, and who is to blame
places.py        where a test function can be made to fail
plants.py        planted failures, drawn anew for each verdict
suite.py         one run of tests in an emptied slot
slot/            scripts that are uploaded into slots
"""
