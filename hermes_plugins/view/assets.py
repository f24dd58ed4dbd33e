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
_ENTRY = re.compile(r'<script type="module" src="/static/\w+/([\w./-]+)"')
_IMPORT = re.compile(r"""(?m)^(?:import|export|\}) ?[^'"()]*['"](\.[\w./-]+)['"]""")
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
        """The page with the digest in its references, and naming all modules that it begins with.

        Those that are imported later, by `import()`, are left to the page.
        """
        text = _REFERENCE.sub(f"/static/{self.digest}/", text)
        missing = [
            f'<link rel="modulepreload" href="{self.address(name)}">'
            for name in _needed(found, _ENTRY.findall(text))
            if f'"{self.address(name)}"' not in text
        ]
        return text.replace("</head>", "\n".join([*missing, "</head>"]), 1)


def _needed(found: Mapping[str, bytes], entries: Iterable[str]) -> list[str]:
    """Modules that these ones import, directly or not, themselves left out."""
    names: list[str] = []
    waiting = list(entries)
    while waiting:
        name = waiting.pop(0)
        for match in _IMPORT.findall(found.get(name, b"").decode()):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), match))
            if target in found and target not in names:
                names.append(target)
                waiting.append(target)
    return names


def _asset(content: bytes, suffix: str) -> Asset:
    return Asset(content, gzip.compress(content, 6, mtime=0), _TYPES[suffix])
