#!/bin/bash
set -eu
python3 - <<'PY'
import sqlite3

db = sqlite3.connect("/var/lib/stock/stock.db")
for row, item, pieces in db.execute("select rowid, item, pieces from moves order by rowid").fetchall():
    found = db.execute("select pieces from items where name = ?", (item,)).fetchone()
    left = (found[0] if found else 0) + pieces
    if left < 0:
        continue
    db.execute("insert into items values (?, ?) on conflict (name) do update set pieces = excluded.pieces", (item, left))
    db.execute("delete from moves where rowid = ?", (row,))
db.commit()
PY
