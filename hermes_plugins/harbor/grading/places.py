"""Files that decide which programs run, and as what: an agent's versions of them never grade.

Two kinds: places where programs, libraries and their settings are, and names that Python looks for
where the tests start. Where that is, is read from the tests' text as far as it says so: the folders
that they enter, and Python environments.
"""

from __future__ import annotations

import functools
import posixpath
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from hermes_queue.images.spec import ImageConfig
from hermes_queue.sandbox.image_slots import FileChange

STANDARD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_PROGRAMS = tuple(
    "/usr /bin /sbin /lib /lib32 /lib64 /libx32 /libo32 /boot /snap /nix /gnu".split()
)
_OURS = ("/logs", "/tests", "/solution", "/opt/verifier-kit")
_PASSING = ("/dev", "/proc", "/sys", "/run", "/tmp", "/var/run", "/.dockerenv")  # noqa: S108
_SETTINGS = re.compile(
    r"/etc/(?:ld\.so[^/]*|ld-musl-[^/]*|profile|profile\.d|bash[^/]*|zsh|environment|alternatives|"
    r"skel|pip\.conf|python[^/]*|sudo[^/]*|pam\.[^/]*|security|apt|apk|dpkg|nsswitch\.conf|"
    r"wgetrc|curlrc|uv|npmrc|inputrc|shells|systemd|gai\.conf|resolv\.conf|hosts|perl|"
    r"(?:ssl|pki/tls)/(?:openssl[^/]*|engines[^/]*)|crypto-policies|gss|krb5\.conf(?:\.d)?|"
    r"pkcs11|gnutls)(?:/.*)?"
)
_ABOVE_SETTINGS = frozenset("/etc /etc/ssl /etc/pki /etc/pki/tls".split())
_HOMES = ("/root", "/home")
PERSONAL = frozenset(
    ".local .cache .pip .pyenv .cargo .rustup .nvm .bashrc .bash_profile .bash_login .bash_logout "
    ".bash_aliases .bash_env .profile .zshrc .zshenv .zprofile .inputrc .curlrc .wgetrc .netrc "
    ".pydistutils.cfg .pythonrc .pythonstartup".split()
)
"""Names in home directories; left out wherever they are, as an agent can choose homes."""
PERSONAL_SETTINGS = re.compile(
    r"/\.config/(?:uv|pip|fish|systemd|environment\.d|curlrc|wgetrc)(?:/|$)|"
    r"/(?:root|home/[^/]+)/\.(?:npmrc|yarnrc[^/]*|gemrc|condarc|pypirc)$"
)
AT_ROOT = frozenset(
    "conftest.py pytest.ini .pytest.ini pyproject.toml tox.ini setup.cfg setup.py pytest.toml "
    ".pytest.toml uv.toml .python-version".split()
)
"""Where pytest and uv end their search for settings when tests are in /tests."""
_IMPORTED = frozenset(
    "sitecustomize usercustomize pytest _pytest py pluggy iniconfig packaging exceptiongroup tomli "
    "typing_extensions pytest_json_ctrf pytest_jsonreport pip setuptools pkg_resources".split()
)
"""What Python imports before or for the tests, beside its own library, where that cannot be
measured: pytest comes over the network while they run. See `imported`."""
_PLUGIN = re.compile(r"/?[^/]+\.(?:dist|egg)-info/entry_points\.txt")
"""Of what is in a folder of modules: pytest imports what it names."""
_SUFFIX = r"\.(?:[\w-]+\.)?(?:py|pyc|so)"
_MODULE = re.compile(rf"/?(\w+)(?:/__init__)?{_SUFFIX}")
"""A module in a folder of modules; a folder without `__init__` gives way to any other."""
_PORTION = re.compile(rf"/?(\w+)/.*{_SUFFIX}")
"""A module in a folder of such a folder, which needs no `__init__` if there is no other."""

_ASSIGNED = re.compile(r"(?m)^[ \t]*(?:export[ \t]+)?(\w+)=[\"']?([^\s\"';&|$`]+)")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_WORD = r"[\"']?(~?[\w./${}-]+)"
_ENTERED = re.compile(
    rf"(?:\b(?:cd|pushd)[ \t]+(?:--[ \t]+)?|\b(?:chdir|cwd)\s*[=(]\s*|\bPYTHONPATH=|"
    rf"\bsys\.path\.(?:insert\(\s*\d+\s*,|append\()\s*){_WORD}"
)
_ENVIRONMENT = re.compile(
    rf"(?:^|(?<=[\s\"'=(;&|])){_WORD}/bin/(?:activate\b|python|pip|py\.?test\b)", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Decisive:
    """Says which paths decide what runs in boxes of one image."""

    workdir: str
    search: tuple[str, ...] = ()
    """Directories of programs."""
    modules: tuple[str, ...] = ()
    """Directories in which Python looks for modules first."""
    started: frozenset[str] = frozenset()
    """Files that the image starts by itself."""
    project: Set[str] = frozenset()
    """Names of files by which the work directory would steer tools of the tests."""
    imported: Set[str] = _IMPORTED
    """Modules that graders import, beside Python's own library."""
    missing: Set[str] = frozenset()
    """Those of them that are nowhere, so that any folder of the name is imported."""
    entered: tuple[str, ...] = ()
    """Folders into which the tests go before they start programs."""

    @classmethod
    def of(
        cls, config: ImageConfig | None, workdir: str, project: Set[str] = frozenset()
    ) -> Decisive:
        """For the image of a slot."""
        config = config or ImageConfig()
        paths = config.env.get("PATH", STANDARD_PATH).split(":") + STANDARD_PATH.split(":")
        search = tuple(dict.fromkeys(_normal(each) for each in paths if each.startswith("/")))
        own = [_normal(each) for each in config.env.get("PYTHONPATH", "").split(":") if each]
        started = {
            _normal(posixpath.join(config.workdir or "/", word))
            for word in (*config.entrypoint, *config.command)
            if "/" in word
        }
        # A script's own folder is the first one in which it looks for modules.
        beside = {posixpath.dirname(each) for each in started}
        modules = tuple(dict.fromkeys((*own, _normal(workdir), *sorted(beside))))
        return cls(_normal(workdir), search, modules, frozenset(started), project)

    def importing(self, names: Set[str], missing: Set[str] = frozenset()) -> Decisive:
        """The same, where graders were seen to import `names`, too, of which some are `missing`."""
        return replace(self, imported=self.imported | names, missing=missing)

    def for_tests(self, text: str, config: ImageConfig | None, added: Set[str]) -> Decisive:
        """The same for tests with this text.

        They may use a Python environment of the image that is not in its PATH: one of which the
        agent has `added` nothing that makes it an environment.
        """
        variables = config.env if config else {}
        named = _environments(text, self.workdir, variables)
        own = [each for each in named if not {each, f"{each}/bin", f"{each}/pyvenv.cfg"} & added]
        search = tuple(dict.fromkeys((*self.search, *(f"{each}/bin" for each in own))))
        entered = folders_entered(text, self.workdir, variables)
        return replace(self, search=search, entered=entered)

    def starting_in(self, folders: Iterable[str]) -> Decisive:
        """The same, where Python looks for modules in `folders` alone."""
        return replace(self, modules=tuple(folders))

    @property
    def folders(self) -> tuple[str, ...]:
        """Folders of programs and of their libraries."""
        return _folders(self.search)

    def is_program(self, path: str) -> bool:
        """Whether it is where programs and libraries are."""
        return _below(path, self.folders) or path in self.started

    def holds(self, path: str) -> bool:
        """Whether what runs may depend on this path."""
        parts = path.split("/")
        return (
            self.is_program(path)
            or _below(path, _OURS)
            or _below(path, _PASSING)
            or _SETTINGS.fullmatch(path) is not None
            or not PERSONAL.isdisjoint(parts)
            or PERSONAL_SETTINGS.search(path) is not None
            or (len(parts) == 2 and parts[1] in AT_ROOT)
            or self.steers_tests(path)
        )

    def is_above(self, path: str) -> bool:
        """Whether programs or their settings are below it: a link there would replace them all."""
        return path in _ABOVE_SETTINGS or _any_below((*self.folders, *self.started), path)

    def leads_away(self, path: str) -> bool:
        """Whether a link in place of this folder would hide files that are left out by their path.

        They would come from another one then.
        """
        own = (*self.folders, *self.started, *self.modules)
        return path in _with_parents((*own, *_ABOVE_SETTINGS, *_HOMES, *_OURS, *_PASSING))

    def steers_tests(self, path: str) -> bool:
        """Whether it is a module or setting that tests take up from where they start."""
        if path == posixpath.join(self.workdir, "uv.toml") or self.is_imported(path):
            return True
        if self.is_of_project(path):
            return True
        return any(
            _PLUGIN.fullmatch(path[len(folder.rstrip("/")) :])
            for folder in self.modules
            if _below(path, (folder,))
        )

    def may_not_be_given(self, path: str) -> bool:
        """Whether a task's artifacts may not have it: it steers the tests, or is the kit's."""
        return self.steers_tests(path) or _below(path, ("/opt/verifier-kit",))

    def is_of_project(self, path: str) -> bool:
        """Whether it is a file, or in a folder, by which a project steers tools of the tests."""
        return not self.project.isdisjoint(path.split("/"))

    def is_imported(self, path: str) -> bool:
        """Whether Python would import it for the tests in place of its own library or pytest."""
        for folder in self.modules:
            if _below(path, (folder,)):
                inside = path[len(folder.rstrip("/")) :]
                match = _MODULE.fullmatch(inside)
                if match and (match[1] in self.imported or match[1] in sys.stdlib_module_names):
                    return True
                if (part := _PORTION.fullmatch(inside)) and part[1] in self.missing:
                    return True
        return False


@dataclass(frozen=True, slots=True)
class TransplantPlan:
    """The use of each change of the agent's."""

    taken: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


@functools.lru_cache(maxsize=16)
def _folders(search: tuple[str, ...]) -> tuple[str, ...]:
    """See `Decisive.folders`, which is asked for each of an agent's files."""
    found = list(_PROGRAMS)
    for each in search:
        place, _, last = each.rpartition("/")
        if last in ("bin", "sbin") and place:
            found += [f"{place}/{name}" for name in ("bin", "sbin", "lib", "lib64", "libexec")]
            found.append(f"{place}/pyvenv.cfg")
        elif each != "/":
            found.append(each)
    return tuple(dict.fromkeys(found))


@functools.lru_cache(maxsize=16)
def _with_parents(paths: tuple[str, ...]) -> frozenset[str]:
    return frozenset((*paths, *parents(paths)))


def plan(changes: Iterable[FileChange], decisive: Decisive) -> TransplantPlan:
    """Sort changes into those that grade and those that do not. Blocking."""
    found = TransplantPlan()
    for change in changes:
        path = _normal(change.path)
        if path == "/":
            continue
        if decisive.holds(path):
            if not _below(path, (*_OURS, *_PASSING)):
                found.left_out.append(path)
        elif change.kind == "deleted":
            found.deleted.append(path)
        else:
            found.taken.append(path)
    return found


def parents(paths: Sequence[str]) -> list[str]:
    """All folders above the paths, without the root, each once."""
    found: dict[str, None] = {}
    for path in paths:
        while (path := posixpath.dirname(path)) != "/" and path not in found:
            found[path] = None
    return list(found)


def is_passing(path: str) -> bool:
    """Whether it is where nothing stays: files of an agent's there never grade."""
    return _below(path, _PASSING)


def _below(path: str, folders: Iterable[str]) -> bool:
    return any(path == each or path.startswith(each.rstrip("/") + "/") for each in folders)


def _any_below(paths: Iterable[str], folder: str) -> bool:
    return any(_below(each, (folder,)) for each in paths)


def _normal(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/"))


def folders_entered(text: str, workdir: str, variables: Mapping[str, str]) -> tuple[str, ...]:
    """Folders in which tests with this text start programs, or from which they import modules.

    `variables`: those of the image. A folder that is named by the one entered before it is looked
    for there and in the work directory.
    """
    found: dict[str, None] = {}
    before = workdir
    for name in _named(_ENTERED, text, variables):
        for start in (workdir, before):
            found[posixpath.normpath(posixpath.join(start, name))] = None
        before = posixpath.normpath(posixpath.join(before, name))
    return tuple(each for each in found if each not in ("/", workdir))


def _environments(text: str, workdir: str, variables: Mapping[str, str]) -> tuple[str, ...]:
    """Folders of Python environments whose programs the tests name, or which they activate."""
    names = _named(_ENVIRONMENT, text, variables)
    found = (posixpath.normpath(posixpath.join(workdir, name)) for name in names)
    return tuple(dict.fromkeys(each for each in found if each != "/"))


def _named(pattern: re.Pattern[str], text: str, variables: Mapping[str, str]) -> Iterator[str]:
    """The paths that a pattern finds, without those of unknown variables."""
    known = {"HOME": "/root", **variables, **dict(_ASSIGNED.findall(text))}
    for path in pattern.findall(text):
        path = re.sub(r"^~(?=/|$)", known["HOME"], path)
        path = _VARIABLE.sub(lambda match: known.get(match[1] or match[2], match[0]), path)
        if "$" not in path and "{" not in path:
            yield path
