import sqlite3
from pathlib import Path

db = sqlite3.connect(":memory:")
db.executescript(Path("/logs/artifacts/stock.sql").read_text())
items = dict(db.execute("select name, pieces from items"))
assert items == {"bolt": 0, "nut": 0, "gear": 3, "cog": 12}, items
assert list(db.execute("select item, pieces from moves order by rowid")) == [
    ("nut", -9),
    ("bolt", -70),
    ("rod", -1),
]
