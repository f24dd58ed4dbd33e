"""One trajectory or group by its id, without an index: for a command that answers once.

archive.py     groups that were deleted from Redis
base.py        what a place is; `find` looks into several
deployment.py  Redis: bodies and the results stream
files.py       files of JSON lines
unfinished.py  what the ledger knows of a trajectory without a record, and dead letters
"""

from hermes_plugins.view.lookup.base import LookedUp, LookupPlace, NotFound, find, open_places

__all__ = ["LookedUp", "LookupPlace", "NotFound", "find", "open_places"]
