"""Runs tests on the agent's tree and reaches the verdict.

controls.py      a host's findings about a row from running the known fix
expectations.py  the constants that a test expects
findings.py      the results of one run, and of all runs of a verdict
flags.py         suspicious words in a patch of library code
grader.py        the order of runs, and who is to blame
places.py        places where a test function can be made to fail, and what it may expect instead
plants.py        planted failures, drawn anew for each verdict
repeated.py      the known fix several times, to find flaky tests
suite.py         one run of tests in an emptied slot
slot/            scripts that are uploaded into slots
"""
