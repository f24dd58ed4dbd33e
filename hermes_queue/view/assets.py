"""Files of the page, each at an address that changes with the content of any of them.

The address has one digest of all files, so that modules import each other by relative names as they
are, browsers keep them for good, and a page never mixes two versions.
"""

from __future__ import annotations

import gzip
import hashlib
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.responses import Response

from hermes_queue.errors import ConfigurationError

DIRECTORY = Path(__file__).parent / "static"
PAGE = "index.html"
_TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".html": "text/html; charset=utf-8",
}
"""Files with other endings (licences, notes) are not served."""
_SCRIPT = re.compile(r'<script type="module" src="/static/([\w./-]+)"')
_IMPORT = re.compile(r'(?:^|;)\s*import\b(?:[^"\'();]*\bfrom)?\s*"(\.{1,2}/[^"]+)"', re.MULTILINE)
_REFERENCE = re.compile(r'(?<=")/static/(?=[\w./-]+")')


@dataclass(frozen=True, slots=True)
class Asset:
    """One file, in memory."""

    content: bytes
    packed: bytes
    media_type: str

    def response(self, *, compress: bool, cache: str, status: int = 200) -> Response:
        """The file as a response; `cache` is its Cache-Control."""
        headers = {"Vary": "Accept-Encoding", "Cache-Control": cache}
        if compress:
            headers["Content-Encoding"] = "gzip"
        content = self.packed if compress else self.content
        return Response(content, status, headers=headers, media_type=self.media_type)


class Assets:
    """All files of the page, read once.

    Raises:
        ConfigurationError: the page is missing.
    """

    def __init__(self, directory: Path = DIRECTORY) -> None:
        found = {
            path.relative_to(directory).as_posix(): path.read_bytes()
            for path in sorted(directory.rglob("*"))
            if path.suffix in _TYPES and path.is_file() and not path.is_symlink()
        }
        if PAGE not in found:
            raise ConfigurationError(f"{directory / PAGE} is missing; install hermes-queue again")
        digest = hashlib.sha256()
        for name, content in found.items():
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
        self.digest = digest.hexdigest()[:20]
        page = self._page(found.pop(PAGE).decode(), found)
        self.page = _asset(page.encode(), ".html")
        self._files = {name: _asset(content, Path(name).suffix) for name, content in found.items()}

    @property
    def names(self) -> list[str]:
        """All files but the page."""
        return sorted(self._files)

    def get(self, digest: str, name: str) -> Asset | None:
        """The file under this address, if there is one."""
        return self._files.get(name) if digest == self.digest else None

    def address(self, name: str) -> str:
        """The path under which a file is served."""
        return f"/static/{self.digest}/{name}"

    def _page(self, text: str, found: dict[str, bytes]) -> str:
        """The page with the digest in its references, and the modules of its script named ahead.

        Modules that are imported later, `import("./x.js")`, are not: most visits need few of them.
        """
        scripts = [name for name in _SCRIPT.findall(text) if name in found]
        text = _REFERENCE.sub(f"/static/{self.digest}/", text)
        missing = [
            f'<link rel="modulepreload" href="{self.address(name)}">'
            for name in imported(found, scripts)
            if f'"{self.address(name)}"' not in text
        ]
        return text.replace("</head>", "\n".join([*missing, "</head>"]), 1)


def imported(found: Mapping[str, bytes], scripts: Iterable[str]) -> list[str]:
    """The modules that `scripts` and their imports name in `import ... from`, sorted."""
    known, waiting = set(scripts), list(scripts)
    while waiting:
        name = waiting.pop()
        for reference in _IMPORT.findall(found[name].decode()):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), reference))
            if target in found and target not in known:
                known.add(target)
                waiting.append(target)
    return sorted(known - set(scripts))


def _asset(content: bytes, suffix: str) -> Asset:
    return Asset(content, gzip.compress(content, 6, mtime=0), _TYPES[suffix])
