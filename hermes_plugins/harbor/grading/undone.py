"""Settings of the agent's, undone before the tests run in its own box (mode `restart`).

A tool that a test starts reads the home folder of its user: an index in pip's settings, a proxy in
curl's, a cache of uv's. No list of such files is complete, so all that is new or changed among the
hidden files of home folders goes, except what the task names: its tests, or its artifacts. A
changed file is removed, not brought back: the image's is not at hand in the agent's box.
"""

from __future__ import annotations

import asyncio
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from hermes_plugins.harbor.grading import links
from hermes_plugins.harbor.grading.needs import needs_of
from hermes_plugins.harbor.grading.places import AT_ROOT, PERSONAL, PERSONAL_SETTINGS, Decisive
from hermes_plugins.harbor.grading.users import read_list
from hermes_plugins.harbor.task import TaskFolder
from hermes_queue.images.spec import ImageConfig
from hermes_queue.sandbox.context import SlotContext
from hermes_queue.sandbox.image_slots import FileChange

_HOME = re.compile(r"/root|/home/[^/]+")
_FOLDERS = frozenset(
    ".config .cache .local .local/bin .local/share .local/share/uv .local/lib .cargo".split()
)
"""Of many programs: the tests name what is in them, not the folder."""
_OF_PYTHON = re.compile(r"\.local/lib/python3[\d.]*(?:/.*)?")
"""Packages of a user, which `suspects` looks at."""
_USER_SITE = re.compile(r"\.local/lib/python3[\d.]*(?:/site-packages)?")
_OF_A_PROJECT = frozenset(
    ".git .gitignore .gitattributes .gitmodules .github .gitlab-ci.yml .hg .svn .venv .env "
    ".dockerignore .editorconfig .htaccess .htpasswd .well-known".split()
)
"""What belongs to a project that is kept in a home folder, and is looked at by its own tools."""
_INSTALLED = frozenset(
    ".rustup .nvm .volta .deno .bun .npm-global .pyenv .rbenv .asdf .sdkman .opam .ghcup .cabal "
    ".stack .dotnet .julia .local/pipx .local/share/pipx .local/share/uv/tools".split()
)
"""Programs that installers put into homes. Where no test names them, nothing but an agent's own
programs leads there, and those may run."""
_NEVER = re.compile(
    r"\.local/(?:bin/(?:env(?:\.fish)?|uvx?)|share/uv/python)|\.cache/(?:uv|pip)|"
    r"\.cargo/config(?:\.toml)?"
)
"""What tests make, or fill, themselves, and mean when they name it."""
_OF_ALL = re.compile(
    r"/etc/(?:pip\.conf|wgetrc|curlrc|npmrc|gitconfig|uv|xdg/(?:uv|pip)|"
    r"apt/(?:apt\.conf|apt\.conf\.d|auth\.conf|auth\.conf\.d))(?:/.*)?"
)
_ENTRY_POINTS = re.compile(r".*\.(?:dist|egg)-info/entry_points\.txt")
_IN_PACKAGES = re.compile(
    r"(?:.*/)(?:site|dist)-packages/([^/]+?)(?:-[^/]*\.(?:dist|egg)-info|\.py)?(?:/.*)?"
)
_PYTEST = frozenset("pytest _pytest py pluggy iniconfig".split())
_PROGRAMS = {"pytest": ("pytest", "py.test")}

_DELETE_ADDED = "exec xargs -0 -r rm -rf --"
_NO_FOLDERS = links.each_path('[ -d "$path" ] && [ ! -L "$path" ] || printf "%s\\0" "$path"')
_DELETE_CHANGED = f"{_NO_FOLDERS} | xargs -0 -r rm -f --"
"""Spares folders: what the agent has put into them is listed, too."""
_PLUGINS = "xargs -0 -r grep -lZ pytest11 -- 2>/dev/null; true"
"""A package with such an entry point is loaded by each pytest beside it."""


async def undo(
    context: SlotContext, task: TaskFolder, changes: Sequence[FileChange], decisive: Decisive
) -> list[str]:
    """Remove the agent's settings, plugins of pytest, and its versions of what tests install.

    Returns their paths, without what was in a folder that is gone.

    Raises:
        FilesRefused: the agent's files leave no list of users, or cannot be removed.
        SandboxError: the sandbox failed.
    """
    text, fetched = await asyncio.gather(
        asyncio.to_thread(task.tests_text), asyncio.to_thread(_fetched, task)
    )
    added = {each.path for each in changes if each.kind == "added"}
    changed = {each.path for each in changes if each.kind == "changed"}
    homes = await _homes(context, added | changed)
    gone = await asyncio.to_thread(steering, added | changed, homes, text, decisive)
    gone |= {path for path in added if _is_fetched(path, fetched)}
    gone -= {path for path in gone if posixpath.dirname(path) in gone & added}
    await links.listed(context, _DELETE_ADDED, sorted(gone & added))
    await links.listed(context, _DELETE_CHANGED, sorted(gone & changed))
    leading = await links.links_among(context, may_lead_away(added | changed, homes))
    entries = [path for path in sorted(added) if _ENTRY_POINTS.fullmatch(path)]
    plugins = await links.listed(context, _PLUGINS, entries)
    await links.delete(context, [*leading, *plugins])
    return sorted({*gone, *leading, *plugins})


async def undo_packages(
    context: SlotContext, changes: Sequence[FileChange], names: Collection[str]
) -> list[str]:
    """Remove the agent's versions of packages that tests install, by their names; their paths.

    Raises:
        FilesRefused: they cannot be removed.
        SandboxError: the sandbox failed.
    """
    modules = frozenset(map(_module_name, names))
    gone = {
        each.path for each in changes if each.kind == "added" and _is_fetched(each.path, modules)
    }
    gone -= {path for path in gone if posixpath.dirname(path) in gone}
    await links.listed(context, _DELETE_ADDED, sorted(gone))
    return sorted(gone)


async def settings_among(
    context: SlotContext, task: TaskFolder, paths: Collection[str], decisive: Decisive
) -> set[str]:
    """Which of these paths of an agent's would steer tools of the tests in a fresh box.

    Raises:
        SandboxError: the sandbox failed.
    """
    text = await asyncio.to_thread(task.tests_text)
    homes = await _homes(context, paths)
    return await asyncio.to_thread(steering, paths, homes, text, decisive)


def steering(paths: Iterable[str], homes: Iterable[str], text: str, decisive: Decisive) -> set[str]:
    """Which of these paths hold settings that the task does not name in `text`."""
    known = frozenset(homes)
    words = frozenset(word.rstrip(".") for word in re.findall(r"[\w.-]+", text))

    def in_a_home(path: str) -> bool:
        homes = (each for each in _above(path) if each in known)
        return any(_is_setting(path, home, words, decisive) for home in homes)

    found = set()
    for path in paths:
        if path.count("/") == 1 and path[1:] in AT_ROOT:
            found.add(path)
        elif (_OF_ALL.fullmatch(path) and path not in text) or in_a_home(path):
            found.add(path)
        elif decisive.is_of_project(path):
            found.add(path)
    return found


def may_lead_away(paths: Iterable[str], homes: Iterable[str]) -> list[str]:
    """Which of these paths are folders of many programs in a home, unless they are links."""
    known = frozenset(homes)
    found = set()
    for path in paths:
        for home in _above(path):
            inside = path[len(home.rstrip("/")) + 1 :]
            if home in known and (not _key(inside) or _USER_SITE.fullmatch(inside)):
                found.add(path)
    return sorted(found)


def _above(path: str) -> Iterator[str]:
    """The folders in which a path is hidden."""
    at = path.find("/.")
    while at >= 0:
        yield path[:at] or "/"
        at = path.find("/.", at + 1)


def _is_setting(path: str, home: str, words: frozenset[str], decisive: Decisive) -> bool:
    inside = path[len(home.rstrip("/")) + 1 :]
    if not (key := _key(inside)):
        return False
    if _NEVER.fullmatch(key):
        return True
    if decisive.is_program(path) or _OF_PYTHON.fullmatch(inside):
        return False  # changed programs are looked at
    if home == decisive.workdir:
        personal = not PERSONAL.isdisjoint(inside.split("/"))
        return personal or PERSONAL_SETTINGS.search(path) is not None
    stays = key in _OF_A_PROJECT or key in _INSTALLED or key.startswith(".cargo/")
    return not stays and not words.issuperset(key.split("/"))


def _key(inside: str) -> str:
    """What the tests name of a hidden path in a home folder; "" if it is a folder of many."""
    parts = inside.split("/")
    key = parts[0]
    for part in parts[1:]:
        if key not in _FOLDERS:
            break
        key = f"{key}/{part}"
    return "" if key in _FOLDERS else key


def _fetched(task: TaskFolder) -> frozenset[str]:
    """Names of modules and programs that tests install into an environment that is there."""
    needs = needs_of(task.scripts, task.test_folders)
    names = {re.split(r"[\[<>=~!]", each)[0] for each in needs.installed}
    names = {_module_name(name) for name in names}
    if any(name.startswith("pytest") for name in names):
        names |= _PYTEST
    return frozenset(names)


def _module_name(package: str) -> str:
    """As the folder of a package is named."""
    return re.sub(r"[-_.]+", "_", package).lower()


def _is_fetched(path: str, names: frozenset[str]) -> bool:
    """Whether it is an agent's version of a package that tests install, or its program."""
    if not names:
        return False
    if match := _IN_PACKAGES.fullmatch(path):
        return _module_name(match[1]) in names
    folder, _, name = path.rpartition("/")
    programs = {each for known in names for each in _PROGRAMS.get(known, (known,))}
    return posixpath.basename(folder) == "bin" and name in programs


async def _homes(context: SlotContext, changed: Iterable[str]) -> list[str]:
    """Home folders of all users of the box, also where links lead to them."""
    text = await read_list(context, "/etc/passwd")
    fields = [line.split(":") for line in text.splitlines()]
    listed = {posixpath.normpath(each[5]) for each in fields if len(each) > 5}
    listed |= {match[0] for path in changed if (match := _HOME.match(path))}
    listed |= {"/root", (context.slot.image_config or ImageConfig()).env.get("HOME", "")}
    listed = {each for each in listed if each.startswith("/")}
    places = await links.resolved(context, sorted(listed))
    return sorted(listed.union(filter(None, places)))
