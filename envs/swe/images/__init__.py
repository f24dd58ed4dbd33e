"""Rows whose repository and environment are an image.

commands.py    runner and settings in a dataset's test command
definitions.py what test modules define
facts.py       an image's repository, read once per host from a fresh slot of it
hidden.py      tests that are a directory of the image (R2E-Gym)
names.py       image names of datasets whose rows have none
node_ids.py    names of unittest's, Django's and SymPy's tests as node ids
notes.py       what was found out about an image, kept beside its repository
pinning.py     the trees of a row; what its slots must not hold: copies of the fix and hidden tests
r2e.py         columns that only R2E-Gym has
rows.py        rows of public datasets with images as rows of ours
runners.py     the program that runs a row's tests
source.py      the row's `source` of type image
workplace.py   a slot of the image with one of the row's trees
slot/          scripts that are uploaded into slots
"""
