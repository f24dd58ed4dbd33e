"""One record, as it is stored, without validation.

containing.py  whether a record holds a text
location.py  where a record is
raw.py       from bytes to a dict, within bounds
rows.py      the columns of a record in the index
texts.py     the words by which a record is found
values.py    fields of any type as values of a column
"""
