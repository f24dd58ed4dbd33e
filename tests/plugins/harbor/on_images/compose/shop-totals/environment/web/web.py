"""A web application: pages of twenty orders."""

import json
import os
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

PAGE = 20


def ask(path):
    with urllib.request.urlopen(os.environ["DATABASE"] + path, timeout=10) as answer:
        return json.load(answer)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        url = urlsplit(self.path)
        if url.path == "/health":
            found = {"orders": ask("/count")}
        else:
            page = int(parse_qs(url.query).get("page", ["1"])[0])
            found = {
                "page": page,
                "orders": ask(f"/orders?limit={PAGE}&offset={(page - 1) * PAGE}"),
            }
        body = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("0.0.0.0", 8080), Handler).serve_forever()
