"""A server of the Hugging Face hub's API, as far as `huggingface_hub` needs it to fill a dataset.

Creating and listing repositories, deciding how a file is sent, Git LFS in one part or several,
commits that name their parent. It keeps everything in memory, and can be told to fail or to wait.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_" + "tEsT" * 8
PART_BYTES = 1 << 16
"""Larger objects are sent in several parts."""


def blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@dataclass
class HubCommit:
    """One commit, with all files of the repository after it."""

    oid: str
    message: str
    added: list[str]
    files: dict[str, bytes]


@dataclass
class HubDataset:
    """One dataset repository."""

    private: bool
    commits: list[HubCommit] = field(default_factory=list)

    def commit(self, message: str, added: dict[str, bytes]) -> HubCommit:
        before = self.commits[-1].files if self.commits else {}
        name = f"{len(self.commits)}{message}{sorted(added)}".encode()
        oid = hashlib.sha1(name, usedforsecurity=False).hexdigest()
        self.commits.append(HubCommit(oid, message, list(added), {**before, **added}))
        return self.commits[-1]

    @property
    def files(self) -> dict[str, bytes]:
        return self.commits[-1].files

    @property
    def shards(self) -> list[list[str]]:
        """The shards that each commit has added, without commits that have added none."""
        added = ([p for p in each.added if p.startswith("data/")] for each in self.commits)
        return [each for each in added if each]


class HubServer:
    """The server's state. Hooks run in the thread that serves the request."""

    def __init__(self) -> None:
        self.datasets: dict[str, HubDataset] = {}
        self.objects: dict[str, bytes] = {}
        self.parts: dict[tuple[str, int], bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.before_commit: Callable[[], None] = lambda: None
        self.after_commit: Callable[[], None] = lambda: None
        self.fails_with: int | None = None
        """Status of all answers; None = those of a hub that works."""
        self.store_fails_with: int | None = None
        """The same of uploads, which go to another host."""
        self.url = ""
        self.store_url = ""
        self.lock = threading.Lock()

    def create(self, name: str, *, private: bool) -> HubDataset:
        made = self.datasets[name] = HubDataset(private)
        made.commit("initial commit", {".gitattributes": b"*.parquet filter=lfs\n"})
        return made


class _Refused(Exception):
    def __init__(self, status: int, text: str, code: str = "", **more: str) -> None:
        super().__init__(text)
        self.status, self.code, self.more = status, code, more


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Listener

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = self._chunks()
        else:
            body = self.rfile.read(length)
        hub = self.server.hub
        path = self.path.partition("?")[0]
        hub.requests.append((self.command, path))
        try:
            if hub.fails_with:
                raise _Refused(hub.fails_with, "told to fail")
            if hub.store_fails_with and path.startswith("/lfs/"):
                raise _Refused(hub.store_fails_with, "told to fail")
            if not path.startswith("/lfs/") and self.headers["Authorization"] != f"Bearer {TOKEN}":
                # As the hub hides what a client may not see.
                code = "RepoNotFound" if path.startswith("/api/datasets/") else ""
                raise _Refused(401, "Invalid username or password.", code)
            answer, headers = self._route(path, body)
        except _Refused as error:
            text = json.dumps({"error": str(error), **error.more}).encode()
            self._send(error.status, text, {"X-Error-Code": error.code} if error.code else {})
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        else:
            self._send(200, json.dumps(answer).encode(), headers)

    do_GET = do_POST = do_PUT = _serve

    def _chunks(self) -> bytes:
        found = b""
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        try:
            self.send_response(status)
            for name, value in {**headers, "Content-Type": "application/json"}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):  # the client was killed
            self.close_connection = True

    def _route(self, path: str, body: bytes) -> tuple[Any, dict[str, str]]:
        for pattern, serve in _ROUTES:
            if found := re.fullmatch(pattern, path):
                answer = serve(self.server.hub, body, *found.groups())
                return answer if isinstance(answer, tuple) else (answer, {})
        raise _Refused(404, f"no such page: {path}")


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    hub: HubServer


def _dataset(hub: HubServer, name: str) -> HubDataset:
    if name not in hub.datasets:
        raise _Refused(404, "Repository not found", "RepoNotFound")
    return hub.datasets[name]


def _create(hub: HubServer, body: bytes) -> Any:
    asked = json.loads(body)
    name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
    if asked["type"] != "dataset":
        raise _Refused(400, "only datasets here")
    answer = {"url": f"{hub.url}/datasets/{name}", "name": name, "id": "1"}
    if name in hub.datasets:
        raise _Refused(409, "You already created this dataset repo", **answer)
    hub.create(name, private=asked.get("visibility") == "private")
    return answer


def _info(hub: HubServer, body: bytes, name: str) -> Any:
    known = _dataset(hub, name)
    facts = {"id": name, "sha": known.commits[-1].oid, "private": known.private}
    return {**facts, "disabled": False, "gated": False, "downloads": 0, "likes": 0, "tags": []}


def _tree(hub: HubServer, body: bytes, name: str, revision: str) -> Any:
    known = _dataset(hub, name)
    [commit] = [each for each in known.commits if each.oid == revision]
    entries: list[dict[str, Any]] = []
    for folder in sorted({path.rpartition("/")[0] for path in commit.files} - {""}):
        entries.append({"type": "directory", "oid": "0" * 40, "size": 0, "path": folder})
    for path, data in commit.files.items():
        entry = {"type": "file", "oid": blob_id(data), "size": len(data), "path": path}
        if path.endswith(".parquet"):
            sha256 = hashlib.sha256(data).hexdigest()
            entry["lfs"] = {"oid": sha256, "size": len(data), "pointerSize": 134}
        entries.append(entry)
    return entries


def _preupload(hub: HubServer, body: bytes, name: str, revision: str) -> Any:
    known = _dataset(hub, name).files
    return {
        "files": [
            {
                "path": each["path"],
                "uploadMode": "lfs" if each["path"].endswith(".parquet") else "regular",
                "shouldIgnore": False,
                "oid": blob_id(known[each["path"]]) if each["path"] in known else None,
            }
            for each in json.loads(body)["files"]
        ]
    }


def _batch(hub: HubServer, body: bytes, name: str) -> Any:
    _dataset(hub, name)
    objects = []
    for each in json.loads(body)["objects"]:
        oid, size = each["oid"], each["size"]
        answer: dict[str, Any] = {"oid": oid, "size": size}
        if oid not in hub.objects:
            upload: dict[str, Any] = {"href": f"{hub.store_url}/lfs/one/{oid}?signature=SIGNED"}
            if size > PART_BYTES:
                count = -(-size // PART_BYTES)
                urls = {str(n): f"{hub.store_url}/lfs/part/{oid}/{n}" for n in range(1, count + 1)}
                upload = {
                    "href": f"{hub.store_url}/lfs/complete/{oid}",
                    "header": {"chunk_size": str(PART_BYTES), **urls},
                }
            verify = {"href": f"{hub.url}/verify/{oid}"}
            answer["actions"] = {"upload": upload, "verify": verify}
        objects.append(answer)
    return {"transfer": "basic", "objects": objects}


def _one(hub: HubServer, body: bytes, oid: str) -> Any:
    _keep(hub, oid, body)
    return {}


def _part(hub: HubServer, body: bytes, oid: str, number: str) -> Any:
    hub.parts[oid, int(number)] = body
    return {}, {"ETag": f'"{number}"'}


def _complete(hub: HubServer, body: bytes, oid: str) -> Any:
    numbers = [each["partNumber"] for each in json.loads(body)["parts"]]
    _keep(hub, oid, b"".join(hub.parts[oid, number] for number in numbers))
    return {}


def _keep(hub: HubServer, oid: str, data: bytes) -> None:
    if hashlib.sha256(data).hexdigest() != oid:
        raise _Refused(400, "not what was announced")
    hub.objects[oid] = data


def _verify(hub: HubServer, body: bytes, oid: str) -> Any:
    if len(hub.objects.get(oid, b"")) != json.loads(body)["size"]:
        raise _Refused(404, "no such object")
    return {}


def _commit(hub: HubServer, body: bytes, name: str, revision: str) -> Any:
    lines = [json.loads(line) for line in body.splitlines() if line]
    [header] = [line["value"] for line in lines if line["key"] == "header"]
    added: dict[str, bytes] = {}
    for line in lines:
        value = line["value"]
        if line["key"] == "file":
            added[value["path"]] = base64.b64decode(value["content"])
        elif line["key"] == "lfsFile":
            if value["oid"] not in hub.objects:
                raise _Refused(400, "an LFS pointer without its object")
            added[value["path"]] = hub.objects[value["oid"]]
    hub.before_commit()
    with hub.lock:
        known = _dataset(hub, name)
        if header.get("parentCommit", known.commits[-1].oid) != known.commits[-1].oid:
            raise _Refused(412, "A commit has happened since. Please refresh and try again.")
        made = known.commit(header["summary"], added)
    hub.after_commit()
    url = f"{hub.url}/datasets/{name}/commit/{made.oid}"
    return {"success": True, "commitOid": made.oid, "commitUrl": url, "hookOutput": ""}


def _valid(hub: HubServer, body: bytes) -> Any:
    return {"errors": [], "warnings": []}


_NAME = r"([\w.-]+/[\w.-]+)"
_ROUTES: list[tuple[str, Callable[..., Any]]] = [
    (r"/api/validate-yaml", _valid),
    (r"/api/repos/create", _create),
    (rf"/api/datasets/{_NAME}", _info),
    (rf"/api/datasets/{_NAME}/tree/(\w+)", _tree),
    (rf"/api/datasets/{_NAME}/preupload/(\w+)", _preupload),
    (rf"/api/datasets/{_NAME}/commit/(\w+)", _commit),
    (rf"/datasets/{_NAME}\.git/info/lfs/objects/batch", _batch),
    (r"/lfs/one/(\w+)", _one),
    (r"/lfs/part/(\w+)/(\d+)", _part),
    (r"/lfs/complete/(\w+)", _complete),
    (r"/verify/(\w+)", _verify),
]


@contextmanager
def serving_hub() -> Iterator[HubServer]:
    """A hub on 127.0.0.1, for as long as the block runs."""
    hub, listener = HubServer(), _Listener(("127.0.0.1", 0), _Handler)
    listener.hub = hub
    hub.url = f"http://127.0.0.1:{listener.server_address[1]}"
    hub.store_url = f"http://localhost:{listener.server_address[1]}"
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()
