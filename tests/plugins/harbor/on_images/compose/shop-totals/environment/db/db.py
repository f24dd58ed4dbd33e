"""A database that answers two queries over HTTP."""

import json
import sqlite3
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

PATH = sys.argv[1]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        url = urlsplit(self.path)
        db = sqlite3.connect(f"file:{PATH}?mode=ro&immutable=1", uri=True)
        if url.path == "/count":
            found = db.execute("select count(*) from orders").fetchone()[0]
        else:
            query = parse_qs(url.query)
            window = int(query["limit"][0]), int(query["offset"][0])
            rows = db.execute("select * from orders order by id limit ? offset ?", window)
            found = [dict(zip(("id", "customer", "cents", "state"), row)) for row in rows]
        body = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("0.0.0.0", 5000), Handler).serve_forever()
