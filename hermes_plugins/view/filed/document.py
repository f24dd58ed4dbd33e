"""The exported file: its script, its data, and the policy that both are under."""

from __future__ import annotations

import base64
import hashlib
import html
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hermes_plugins.view.answers import to_json
from hermes_plugins.view.assets import DIRECTORY
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


_BEGIN = r"(?m)(?:^|(?<=[;}]))"
_IMPORT = re.compile(
    r"(?m)^import\s*(?:(?P<default>\w+)\s*)?(?:\{(?P<names>[^}]*)\}\s*)?from\s*"
    r'"(?P<path>\.[\w./-]+)";?'
)
_DECLARED = re.compile(r"(?m)^export (?=(?:async )?(?:function|const|class) (\w+))")
_LISTED = re.compile(_BEGIN + r"export\s*\{([^}]*)\};?")
_DEFAULT = re.compile(_BEGIN + r"export default\s")
_LEFT = re.compile(_BEGIN + r"[ \t]*(?:import|export)\b[^\n]{0,60}|\bimport\s*\([^\n]{0,60}")
_SOURCE_MAP = re.compile(r"(?m)^//# sourceMappingURL=.*$")
_ENDS = re.compile(r"<!--|<script|</script", re.IGNORECASE)
"""What would end a script element, or what would keep its end from being seen."""


class BundleError(ValueError):
    """The modules cannot be one script; a mistake in our own files."""


def bundled(files: Mapping[str, str], entry: str) -> str:
    """One script that does what the module `entry` does, for a file that cannot load any.

    Each module becomes a function of its own, in the order in which they need each other, so that
    names do not meet:

        __modules["show.js"] = (() => { const { copy, html } = __modules["core.js"]; ...;
        return { count, bytes, ... }; })();

    Args:
        files: the text of all modules, by path.
        entry: the path of the module to begin with.

    Raises:
        BundleError: a module is missing, needs itself, or has an import or export of another form
            than ours and the vendored ones.
    """
    parts: dict[str, str] = {}
    _add(files, entry, parts, ())
    script = "\n".join(['"use strict";', "const __modules = {};", *parts.values(), ""])
    if found := _ENDS.search(script):
        raise BundleError(f"a module has {found[0]!r}, which a script element cannot hold")
    return script


def _add(
    files: Mapping[str, str], name: str, parts: dict[str, str], above: tuple[str, ...]
) -> None:
    """Put a module behind all that it needs."""
    if name in parts:
        return
    if name in above:
        raise BundleError(f"{' imports '.join((*above, name))}")
    if name not in files:
        raise BundleError(f"{name} is missing, which {above[-1] if above else 'nobody'} imports")

    def imported(found: re.Match[str]) -> str:
        needed = posixpath.normpath(posixpath.join(posixpath.dirname(name), found["path"]))
        _add(files, needed, parts, (*above, name))
        source = f'__modules["{needed}"]'
        whole = f"const {found['default']} = {source}.default;" if found["default"] else ""
        names = ", ".join(f"{a}: {b}" if b != a else a for a, b in _pairs(found["names"] or ""))
        return whole + (f"const {{ {names} }} = {source};" if names else "")

    code = _IMPORT.sub(imported, _SOURCE_MAP.sub("", files[name]))
    exports = [(own, own) for own in _DECLARED.findall(code)]
    code = _DECLARED.sub("", code)
    for listed in _LISTED.findall(code):
        exports += _pairs(listed)
    code = _LISTED.sub("", code)
    if _DEFAULT.search(code):
        code = _DEFAULT.sub("const __default = ", code)
        exports.append(("__default", "default"))
    if left := _LEFT.search(code):
        raise BundleError(f"{name}: {left[0]!r} is of a form that cannot be bundled")
    given = ", ".join(f"{shown}: {own}" for own, shown in exports)
    parts[name] = f'__modules["{name}"] = (() => {{\n{code}\nreturn {{ {given} }};\n}})();'


def _pairs(names: str) -> list[tuple[str, str]]:
    """`a, b as c` as [("a", "a"), ("b", "c")]."""
    found = []
    for each in filter(None, (part.strip() for part in names.split(","))):
        own, _, shown = each.partition(" as ")
        found.append((own.strip(), (shown or own).strip()))
    return found
