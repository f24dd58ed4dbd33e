"""Gives out tickets and stamps; then runs its arguments, as entry points do."""

import hashlib
import http.server
import json
import subprocess
import sys
import threading

given: set[int] = set()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/health":
            self.answer(200, {"ok": True})
        elif self.path == "/ticket":
            number = 4711 + len(given)
            given.add(number)
            self.answer(200, {"number": number})
        else:
            self.answer(404, {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        number = json.loads(body).get("number")
        if self.path != "/stamp" or number not in given:
            self.answer(409, {"error": "no such ticket"})
            return
        given.remove(number)
        self.answer(200, {"stamp": hashlib.sha256(f"stamp {number}".encode()).hexdigest()[:20]})

    def answer(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 8765), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.exit(subprocess.run(sys.argv[1:] or ["sleep", "infinity"]).returncode)
