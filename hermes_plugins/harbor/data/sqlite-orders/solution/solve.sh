#!/bin/bash
set -eu
python3 - <<'PY'
import sqlite3

db = sqlite3.connect("/app/shop.db")
first = {}
for id_, email in db.execute("select id, email from customers order by id").fetchall():
    clean = email.strip().lower()
    if clean in first:
        db.execute("update orders set customer_id = ? where customer_id = ?", (first[clean], id_))
        db.execute("delete from customers where id = ?", (id_,))
    else:
        first[clean] = id_
        db.execute("update customers set email = ? where id = ?", (clean, id_))
db.execute("create unique index one_email on customers(email)")
db.commit()
PY
