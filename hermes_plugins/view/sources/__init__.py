"""Where records are. Each source tells what is new since a mark, and reads one record.

archive.py     groups that were deleted from Redis
base.py        what a source is
entries.py     the entry of a group: its members
frames.py      the frames of a file, past damaged ones
jsonl.py       files of JSON lines
opening.py     the sources of a command line
parquet.py     directories of Parquet shards
places.py      files of a command line, places in them
resuming.py    marks of files that others append to
stream.py      the results stream in Redis
"""
