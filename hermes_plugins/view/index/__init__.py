"""The index: an SQLite cache with one row per trajectory, which may be deleted at any time.

cursors.py     positions in a list, as texts
database.py    opens the file: schema, rights, connections of readers
fields.py      what can be filtered and sorted by
figures.py     histograms, runs
filters.py     the filter language
groups.py      groups with their mean and deviation
index.py       `Index`: what pages ask
indexer.py     the thread that reads the sources
pages.py       pages by key, neighbours, `grep:`
terms.py       the words of a query, with their places
writing.py     rows, places and marks in one transaction
"""
