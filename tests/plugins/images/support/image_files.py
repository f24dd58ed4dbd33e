"""Archives of images, and a registry that serves them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from hermes_plugins.images.dockerfile.evaluation import ARCHITECTURES

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


def archive(*members: tuple[str, Any]) -> bytes:
    """A tar archive of (name, content): bytes are a file, a TarInfo is itself."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in members:
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.name = name
            data = content if isinstance(content, bytes) else b""
            if info.size > len(data):  # a lie
                buffer.write(info.tobuf())
                continue
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def member(kind: bytes, **fields: Any) -> tarfile.TarInfo:
    """A member that is no file."""
    info = tarfile.TarInfo()
    info.type = kind
    for name, value in fields.items():
        setattr(info, name, value)
    return info


def sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class ServedImage:
    """An image as a registry has it: blobs by digest, and the manifest of its tag."""

    def __init__(self, layers: Sequence[bytes], programs: dict[str, Any]) -> None:
        self.blobs: dict[str, bytes] = {}
        packed = [gzip.compress(each) for each in layers]
        config = {"config": programs, "rootfs": {"diff_ids": [sha256(each) for each in layers]}}
        manifest = {
            "config": self._add(json.dumps(config).encode()),
            "layers": [self._add(each) for each in packed],
        }
        self.manifest = json.dumps(manifest).encode()
        self.digest = sha256(self.manifest)
        architecture = {"architecture": list(ARCHITECTURES.values()), "os": "linux"}
        self.index = json.dumps(
            {
                "manifests": [
                    {
                        "mediaType": MANIFEST,
                        "digest": self.digest,
                        "size": len(self.manifest),
                        "platform": {**architecture, "architecture": name},
                    }
                    for name in ARCHITECTURES.values()
                ]
            }
        ).encode()

    def _add(self, data: bytes) -> dict[str, Any]:
        self.blobs[sha256(data)] = data
        return {"mediaType": "", "digest": sha256(data), "size": len(data)}


class RegistryServer:
    """A registry with one image under every tag, which asks for a token; counts what it serves."""

    def __init__(self, image: ServedImage) -> None:
        self.image = image
        self.requests: list[str] = []
        self.busy = 0
        """Number of next requests that are answered with 503."""
        self.url = ""

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/token", self._token)
        app.router.add_get("/v2/{path:.+}/manifests/{reference}", self._manifest)
        app.router.add_get("/v2/{path:.+}/blobs/{digest}", self._blob)
        app.router.add_get("/elsewhere/{digest}", self._content)
        return app

    async def _token(self, request: web.Request) -> web.Response:
        assert request.query["scope"].endswith(":pull")
        return web.json_response({"token": "secret"})

    def _refusal(self, request: web.Request) -> web.Response | None:
        self.requests.append(request.path)
        if self.busy:
            self.busy -= 1
            return web.Response(status=503, headers={"Retry-After": "0"})
        if request.headers.get("Authorization") != "Bearer secret":
            challenge = f'Bearer realm="{self.url}/token",service="tests"'
            return web.Response(status=401, headers={"WWW-Authenticate": challenge})
        return None

    async def _manifest(self, request: web.Request) -> web.Response:
        if refusal := self._refusal(request):
            return refusal
        reference = request.match_info["reference"]
        if "missing" in request.path:
            return web.Response(status=404)
        return web.Response(
            body=self.image.manifest if reference.startswith("sha256:") else self.image.index
        )

    async def _blob(self, request: web.Request) -> web.Response:
        if refusal := self._refusal(request):
            return refusal
        raise web.HTTPTemporaryRedirect(f"/elsewhere/{request.match_info['digest']}")

    async def _content(self, request: web.Request) -> web.Response:
        return web.Response(body=self.image.blobs[request.match_info["digest"]])
