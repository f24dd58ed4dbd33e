"""The viewer of trajectories: what `hermes-queue view` and `hermes-queue show` are made of.

compare/    the samples of a group side by side
index/      the SQLite cache: pages, filters, histograms, groups
lookup/     one trajectory or group by its id, without an index
present/    from a raw record to what is shown of it
records/    one record without validation, and its row in lists
sources/    where records are: the stream, an archive, files

Records are hostile: a model and the programs that it ran have written them. Nothing here validates
them, and no shape of a record may raise an error where a list is made or a record is shown.
"""
