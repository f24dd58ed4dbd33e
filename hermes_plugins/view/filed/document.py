"""The exported file: its script, its data, and the policy that both are under."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hermes_plugins.view.answers import to_json
from hermes_plugins.view.assets import DIRECTORY
from hermes_plugins.view.filed.bundle import BundleError, bundled
from hermes_queue.errors import InputError

ENTRY = "filed.js"
MARK = "<!doctype html>\n<!-- hermes-queue export -->\n"
"""How each such file begins."""
FILE_BYTES_MAX = 256 << 20
"""More is refused: no browser would open it in a reasonable time."""
_UNSAFE = re.compile("[<>&\u2028\u2029]")


def document(
    answers: Iterable[tuple[str, Any]], title: str, directory: Path = DIRECTORY
) -> Iterator[str]:
    """The file as HTML, piece by piece.

    Args:
        answers: what the page asks for: paths of the API, each with its answer.
        title: for people.
        directory: the files of the page.

    Raises:
        InputError: it would be too much for one file.
    """
    modules = {
        path.relative_to(directory).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(directory.rglob("*.js"))
    }
    script = bundled(modules, ENTRY)
    style = (directory / "style.css").read_text(encoding="utf-8")
    if "</style" in style.lower() or "url(" in style or "@import" in style:
        raise BundleError("style.css cannot stand in a file by itself")
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    yield f"""{MARK}<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="referrer" content="no-referrer">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{html.escape(title)}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<div id="app"><noscript>This file needs JavaScript.</noscript></div>
<div id="said" class="toast" role="status" aria-live="polite"></div>
<script type="application/json" id="filed">"""
    yield from _data(answers)
    yield f"""</script>
<script type="module">{script}</script>
</body>
</html>
"""


def _data(answers: Iterable[tuple[str, Any]]) -> Iterator[str]:
    """The answers as a JSON object."""
    size = 0
    before = "{"
    for path, value in answers:
        piece = f"{before}{as_data(path)}:{as_data(value)}"
        size += len(piece.encode())
        if size > FILE_BYTES_MAX:
            raise InputError(
                f"more than {FILE_BYTES_MAX >> 20} MiB for one file: choose fewer trajectories, "
                "or leave --tokens out"
            )
        yield piece
        before = ","
    yield "{}" if before == "{" else "}"


def as_data(value: Any) -> str:
    """`value` as JSON that nothing in it can take out of its script element."""
    text = to_json(value).decode()
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
