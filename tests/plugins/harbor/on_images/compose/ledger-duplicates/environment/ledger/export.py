import json
import sqlite3
import sys

db = sqlite3.connect(sys.argv[1])
print(json.dumps(db.execute("select * from entries order by id").fetchall()))
