"""A registry of images in memory, on 127.0.0.1: what engines push to it, nodes can pull."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.test_utils import TestServer

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


class TinyRegistry:
    """See https://github.com/opencontainers/distribution-spec."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, tuple[str, bytes]] = {}
        """Media type and content, by `NAME:TAG` and `NAME:DIGEST`."""
        self._uploads: dict[str, bytes] = {}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Any request below /v2/."""
        name, _, rest = request.match_info["path"].partition("/blobs/")
        if rest.startswith("uploads"):
            return await self._upload(request, name)
        if rest:
            return self._found(request, "application/octet-stream", self.blobs.get(rest))
        name, _, reference = request.match_info["path"].partition("/manifests/")
        if not reference:
            return web.Response()
        if request.method == "PUT":
            content = (request.headers["Content-Type"], await request.read())
            digest = f"sha256:{hashlib.sha256(content[1]).hexdigest()}"
            self.manifests |= {f"{name}:{reference}": content, f"{name}:{digest}": content}
            return web.Response(status=201, headers={"Docker-Content-Digest": digest})
        kind, data = self.manifests.get(f"{name}:{reference}", (MANIFEST, None))
        return self._found(request, kind, data)

    async def _upload(self, request: web.Request, name: str) -> web.StreamResponse:
        key = request.path.rpartition("/")[2] or str(uuid.uuid4())
        if request.method == "POST":
            key = str(uuid.uuid4())
        self._uploads[key] = self._uploads.get(key, b"") + await request.read()
        headers = {
            "Location": f"/v2/{name}/blobs/uploads/{key}",
            "Docker-Upload-UUID": key,
            "Range": f"0-{max(len(self._uploads[key]) - 1, 0)}",
        }
        if request.method != "PUT":
            return web.Response(status=202, headers=headers)
        digest = request.query["digest"]
        data = self._uploads.pop(key)
        if digest != f"sha256:{hashlib.sha256(data).hexdigest()}":
            return web.Response(status=400)
        self.blobs[digest] = data
        return web.Response(status=201, headers={"Docker-Content-Digest": digest})

    @staticmethod
    def _found(request: web.Request, kind: str, data: bytes | None) -> web.Response:
        if data is None:
            return web.Response(status=404)
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        headers = {"Content-Type": kind, "Docker-Content-Digest": digest}
        return web.Response(body=data, headers=headers)


@asynccontextmanager
async def tiny_registry() -> AsyncIterator[tuple[TinyRegistry, str]]:
    """The registry and its `HOST:PORT`."""
    registry = TinyRegistry()
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/v2/{path:.*}", registry.answer)
    async with TestServer(app) as server:
        yield registry, f"127.0.0.1:{server.port}"
