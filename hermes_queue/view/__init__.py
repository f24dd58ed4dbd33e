"""The viewer of trajectories: what `hermes-queue view` and `hermes-queue show` are made of.

records/    one record without validation, and its row in lists
sources/    where records are: the stream, an archive, files
index/      the SQLite cache: pages, filters, histograms, groups

Records are hostile: a model and the programs that it ran have written them. Nothing here validates
them, and no shape of a record may raise an error where a list is made.
"""
