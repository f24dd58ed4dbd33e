"""Modules of the page as one script, for a file that cannot load any.

Each module becomes a function of its own, in the order in which they need each other, so that names
do not meet:

    __modules["show.js"] = (() => { const { copy, html } = __modules["core.js"]; ...;
    return { count, bytes, ... }; })();

It understands the imports and exports that our modules and the vendored ones have, and refuses
everything else.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

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
    """One script that does what the module `entry` does.

    Args:
        files: the text of all modules, by path.
        entry: the path of the module to begin with.

    Raises:
        BundleError: a module is missing, needs itself, or has an import or export of another form.
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
