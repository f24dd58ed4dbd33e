"""Takes large files, which the SDK sends by HTTP and not by gRPC."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

from localmodal.rooted.uploads import Uploads

if TYPE_CHECKING:
    from aiohttp import web

MAX_BLOB_BYTES = 1 << 30
CHUNK_BYTES = 1 << 20


class BlobReceiver:
    """An HTTP server on a port of its own, from the first large file on."""

    def __init__(self, uploads: Uploads) -> None:
        self._uploads = uploads
        self._expected: set[str] = set()
        self._runner: web.AppRunner | None = None
        self._port = 0
        self._opening = asyncio.Lock()

    async def address(self, blob_id: str) -> str:
        """The address for one upload, which nobody can guess."""
        async with self._opening:
            if self._runner is None:
                await self._open()
        self._expected.add(blob_id)
        return f"http://127.0.0.1:{self._port}/{blob_id}"

    async def _open(self) -> None:
        from aiohttp import web

        app = web.Application(client_max_size=MAX_BLOB_BYTES)
        app.router.add_put("/{blob}", self._put)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self._port = int(runner.addresses[0][1])
        self._runner = runner

    async def _put(self, request: web.Request) -> web.Response:
        from aiohttp import web

        blob_id = request.match_info["blob"]
        if blob_id not in self._expected:
            raise web.HTTPNotFound
        size, digest = 0, hashlib.md5(usedforsecurity=False)  # what the SDK checks
        with self._uploads.new_file() as file:
            async for chunk in request.content.iter_chunked(CHUNK_BYTES):
                size += len(chunk)
                if size > MAX_BLOB_BYTES:
                    raise web.HTTPRequestEntityTooLarge(MAX_BLOB_BYTES, size)
                digest.update(chunk)
                await asyncio.to_thread(file.write, chunk)
            await asyncio.to_thread(self._uploads.keep_blob, file, blob_id)
        self._expected.discard(blob_id)
        return web.Response(headers={"ETag": f'"{digest.hexdigest()}"'})

    async def close(self) -> None:
        """Idempotent."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
