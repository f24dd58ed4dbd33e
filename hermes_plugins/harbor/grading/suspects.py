"""Programs of the image that the agent has changed, or put others in front of.

Only the mode `restart` grades with an agent's programs, for tasks whose work is to install some.
Adding programs is fine there; replacing those that the tests may run is not.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from hermes_plugins.harbor.grading.links import printed
from hermes_plugins.harbor.grading.places import Decisive, parents
from hermes_plugins.harbor.grading.users import changed_users, read_lists
from hermes_queue.errors import SandboxError
from hermes_queue.sandbox.archives import FilesRefused
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.sandbox.image_slots import FileChange

_WITHOUT_EFFECT = re.compile(
    r"/usr/(?:local/)?share/(?:doc|man|info|locale|icons|applications|mime|bash-completion|"
    r"lintian|bug|menu|pixmaps|fonts|dbconfig-common)(?:/.*)?|.*/__pycache__(?:/.*)?|"
    r".*/python[\d.]*/(?:site|dist)-packages/[^/]+\.dist-info/(?!entry_points\.txt$).*"
)
_LOADER = re.compile(
    r"/etc/ld\.so\.(?:preload|conf(?:\.d)?)(?:/.*)?|/etc/ld-musl-[^/]*|/etc/nsswitch\.conf|/etc/pam\.(?:d|conf)/.*|"
    r"/etc/(?:ssl|pki/tls)/openssl[^/]*|/etc/crypto-policies(?:/.*)?|/etc/perl/.*\.p[ml]c?|"
    r"/etc/python[^/]*/(?:site|user)customize(?:[./].*)?"
)
_LINKED = """\
if find / -maxdepth 0 -printf '' >/dev/null 2>&1; then
  find -H {folders} -maxdepth 1 -type l -printf '%p\\0%l\\0' 2>/dev/null; true
else
  for folder in {folders}; do
    for file in "$folder"/*; do
      [ ! -L "$file" ] || printf '%s\\0%s\\0' "$file" "$(readlink "$file")"
    done
  done
fi
"""
"""Links among programs, each with what it holds."""
_STARTS_PYTHON = re.compile(
    r".*/(?:(?:site|user)customize(?:[./].*)?|[^/]+\.pth|pyvenv\.cfg|python3\d+\.zip)"
)
_OF_A_USER = re.compile(r".*/\.local/lib/python3[\d.]*/site-packages/[^/]+(?:/.*)?")
"""What Python imports for one user alone, before what all have. Tests may run as that user."""
_COMPILED = re.compile(r".*/__pycache__(?:/[^/]*)?")
_STANDARD = re.compile(
    r"(.*/python3\.\d+)/(?:lib-dynload/)?((?!(?:site|dist)-packages/)[^.]+)(\..*)?"
)
"""A module of Python's own library: its place, its name, and its suffix if it is a file."""
_LIBRARY = re.compile(r".*/([^/]+?\.so)(?:\.[^/]*)?")
_PACKAGE = re.compile(r".*/(?:site|dist)-packages/([^/]+?)(?:\.(?:py|so|[\w-]+\.so|pyc))?(?:/.*)?")


def changed_programs(changes: Iterable[FileChange], decisive: Decisive) -> list[str]:
    """Files of the image that the agent has changed, and what it put where all programs look."""
    changes = list(changes)
    # Folders of the image in which something changed are no change of their own.
    above = set(parents([change.path for change in changes]))
    found = []
    for change in changes:
        path = change.path
        if change.kind == "changed" and path in above:
            continue
        if _WITHOUT_EFFECT.fullmatch(path):
            continue
        planted = _LOADER.fullmatch(path) or (
            _is_searched(path, decisive) and _STARTS_PYTHON.fullmatch(path)
        )
        replaced = change.kind != "added" and decisive.is_program(path)
        replaced |= change.kind == "changed" and decisive.is_above(path)
        if planted or replaced or decisive.is_imported(path):
            found.append(path)
    return sorted(found)


def compiled(changes: Iterable[FileChange]) -> list[str]:
    """Compiled Python modules of the agent's, which would run in place of their source."""
    changes = list(changes)
    above = set(parents([change.path for change in changes]))
    return [
        change.path
        for change in changes
        if _COMPILED.fullmatch(change.path)
        and (change.kind == "added" or (change.kind == "changed" and change.path not in above))
    ]


def keys(paths: Iterable[str], decisive: Decisive) -> dict[str, str]:
    """The names under which programs, libraries and modules are looked for, each with a path."""
    found: dict[str, str] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        if folder in decisive.search:
            found[f"program {name}"] = path
        elif _is_searched(path, decisive):
            if library := _LIBRARY.fullmatch(path):
                found[f"library {library[1]}"] = path
            if package := _PACKAGE.fullmatch(path):
                found[f"package {package[1]}"] = path
            elif (module := _STANDARD.fullmatch(path)) and "__pycache__" not in path:
                # A folder or an extension of the same name would be imported in its place.
                found[f"module {module[1]} {module[2]}"] = path
                if "/" not in module[2]:
                    found[f"package {module[2]}"] = path
    return found


async def shadowing(
    context: SlotContext,
    changes: Sequence[FileChange],
    decisive: Decisive,
    users: Mapping[str, str],
) -> list[str]:
    """What stands in place of something of the image's. Renews the slot to see the image.

    That is: added files that would be found before the image's, changed files to which links among
    its programs lead, and lists of `users` in which one of its users is another one.

    Raises:
        SandboxError: the sandbox failed.
    """
    added = keys((each.path for each in changes if each.kind == "added"), decisive)
    others = {each.path for each in changes if each.kind != "added"}
    if not added and not others:
        return []
    await context.renew()
    folders = _words((*decisive.folders, *decisive.search))
    try:  # A fresh box has nothing of the agent's: what it does not answer is no agent's doing.
        listed = await printed(context, f"find {folders} -xdev -print0 2>/dev/null; true")
        links = await printed(context, _LINKED.format(folders=_words(decisive.search)))
        lists = await read_lists(context) if users else {}
    except FilesRefused as error:
        raise SandboxError(f"a fresh box cannot list programs of its image: {error}") from error
    known = keys(listed, decisive)
    found = {path for key, path in added.items() if key in known}
    for link, target in zip(links[::2], links[1::2], strict=True):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(link), target))
        found |= {path} & others
    return sorted(found.union(changed_users(lists, users) if users else ()))


def _words(paths: Iterable[str]) -> str:
    return shlex.join(dict.fromkeys(paths))


def _is_searched(path: str, decisive: Decisive) -> bool:
    """Whether it is where programs are, or modules of a user."""
    return decisive.is_program(path) or _OF_A_USER.fullmatch(path) is not None
