"""A ledger over HTTP."""

import json
import random
import sqlite3
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

db = sqlite3.connect(sys.argv[1], isolation_level=None)
if not db.execute("select 1 from sqlite_master").fetchone():
    numbers = random.Random(11)
    db.execute("create table entries (id integer primary key, account, cents, reference)")
    rows = [(f"A{numbers.randrange(9)}", numbers.randrange(10, 99_000), f"R{n}") for n in range(60)]
    rows += [rows[n] for n in (3, 8, 8, 21, 40, 59)]
    rows += [(rows[5][0], rows[5][1] + 1, rows[5][2]), (rows[6][0], rows[6][1], "R999")]
    db.executemany("insert into entries (account, cents, reference) values (?, ?, ?)", rows)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        found = db.execute("select * from entries order by id")
        names = ("id", "account", "cents", "reference")
        self.answer([dict(zip(names, row)) for row in found])

    def do_DELETE(self):
        number = int(self.path.rpartition("/")[2])
        self.answer({"deleted": db.execute("delete from entries where id = ?", (number,)).rowcount})

    def answer(self, found):
        body = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


HTTPServer(("0.0.0.0", 7000), Handler).serve_forever()
