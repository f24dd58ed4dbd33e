"""Numbers of pieces over HTTP, kept in a file."""

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

FILE = Path("/var/lib/stock/stock.json")
if not FILE.exists():
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text('{"bolt": 100, "nut": 80, "gear": 5, "cog": 2}')


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(json.loads(FILE.read_text()))

    def do_PUT(self):
        stock = json.loads(FILE.read_text())
        stock[self.path[1:]] = int(self.rfile.read(int(self.headers["Content-Length"])))
        FILE.write_text(json.dumps(stock))
        self.answer(stock)

    def answer(self, found):
        body = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


HTTPServer(("0.0.0.0", 6000), Handler).serve_forever()
