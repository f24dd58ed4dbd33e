"""List the places of an image that hold copies of given files.

Runs in a fresh slot, never imported. Reads one JSON object from stdin: {"workdir": path, "copies":
{file name: [blob id, ...]}, "package": name, "edited": {path in the repository: blob id before the
fix, or zeros}}. Blob ids are git's. Writes a JSON list of absolute paths to stdout:

- files with such a name and content, and compiled modules beside them;
- compiled modules of such names anywhere in the working directory;
- git directories that have such a blob, except the working directory's own;
- archives of the package;
- installed copies of the package, outside the working directory, that are of another release: a
  file that the fix edits differs in them.

Must run on every Python from 3.5, which images of old packages have.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
from typing import Any, Dict, Iterator, List, Set

MAX_FILE_BYTES = 16 << 20
VIRTUAL = ("/proc", "/sys", "/dev")
ARCHIVES = (".whl", ".egg", ".zip", ".tar.gz", ".tgz", ".tar.bz2", ".conda")
GIT = ("HEAD", "objects", "refs")
METADATA = re.compile(r"(.+?)-[0-9][^-]*(?:-.*)?\.(?:dist-info|egg-info)")
EGG = re.compile(r"(.+?)-[0-9].*\.egg")


def blob_id(path: str) -> str:
    """The id that git gives to this file; "" if it cannot be read."""
    try:
        if os.path.getsize(path) > MAX_FILE_BYTES:
            return ""
        with open(path, "rb") as stream:
            data = stream.read()
    except OSError:
        return ""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()  # noqa: S324 - as git does


def normalize(name: str) -> str:
    """A distribution's name as file names begin with it."""
    return re.sub(r"[-_.]+", "-", name).lower()


class Search:
    """What is looked for, in every directory."""

    def __init__(self, job: Dict[str, Any]) -> None:
        self.workdir = str(job["workdir"])
        self._copies = job["copies"]  # type: Dict[str, List[str]]
        self._name = normalize(job["package"])
        self._package = self._name + "-"
        self._edited = job["edited"]  # type: Dict[str, str]
        self._stems = {name[:-3] for name in self._copies if name.endswith(".py")}
        self._blobs = sorted({blob for each in self._copies.values() for blob in each})

    def folder(self, folder: str, names: List[str]) -> Iterator[str]:
        """The places among the files `names` of a directory."""
        copies = [name for name in self._copies.keys() & set(names) if self._is_copy(folder, name)]
        inside = (folder + "/").startswith(self.workdir + "/")
        stems = self._stems if inside else {name[:-3] for name in copies if name.endswith(".py")}
        cache = os.path.join(folder, "__pycache__")
        for name in copies:
            yield os.path.join(folder, name)
        for place, listed in ((folder, names), (cache, listing(cache) if stems else [])):
            for name in listed:
                if name.endswith(".pyc") and name.partition(".")[0] in stems:
                    yield os.path.join(place, name)
        for name in names:
            archive = name.endswith(ARCHIVES) and len(self._package) > 1
            if archive and normalize(name).startswith(self._package):
                yield os.path.join(folder, name)

    def installed(self, folder: str, entries: List[str]) -> Iterator[str]:
        """What belongs to another release of the package, if the directory holds one."""
        if (folder + "/").startswith(self.workdir + "/") or not self._name:
            return
        if self._is_named(EGG, os.path.basename(folder)):
            if self._other_release(folder):
                yield folder
            return
        metadata = [name for name in entries if self._is_named(METADATA, name)]
        tops = self._other_release(folder) if metadata else set()
        if tops:
            for name in [*metadata, *sorted(tops)]:
                yield os.path.join(folder, name)

    def _is_named(self, pattern: "re.Pattern[str]", name: str) -> bool:
        match = pattern.fullmatch(name)
        return match is not None and normalize(match.group(1)) == self._name

    def _other_release(self, folder: str) -> Set[str]:
        """The modules and packages in a directory of which the fix edits a file that differs."""
        found = set()
        for path, before in self._edited.items():
            parts = path.split("/")
            for start in range(len(parts)):
                place = os.path.join(folder, *parts[start:])
                if os.path.isfile(place):
                    own = os.path.realpath(place).startswith(self.workdir + "/")
                    if not own and blob_id(place) != before:
                        found.add(parts[start])
                    break
        return found

    def _is_copy(self, folder: str, name: str) -> bool:
        return blob_id(os.path.join(folder, name)) in self._copies[name]

    def holds_copies(self, directory: str) -> bool:
        """Whether a git directory has one of the blobs."""
        command = ["git", "--git-dir", directory, "cat-file", "--batch-check"]
        try:
            done = subprocess.run(  # noqa: S603 - a program of the fresh image
                command,
                input="".join(blob + "\n" for blob in self._blobs).encode(),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=60,
                check=False,
            )
        except (OSError, subprocess.SubprocessError):
            return True  # it cannot be looked at, so it goes
        return done.returncode != 0 or b" blob " in done.stdout


def listing(folder: str) -> List[str]:
    """The names in a directory; none if there is no such directory."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def find(search: Search) -> Set[str]:
    """All places."""
    found = set()  # type: Set[str]
    skipped = {*VIRTUAL, os.path.join(search.workdir, ".git")}
    for folder, folders, names in os.walk("/"):
        folders[:] = [name for name in folders if os.path.join(folder, name) not in skipped]
        if {*names, *folders}.issuperset(GIT):
            folders[:] = []
            if search.holds_copies(folder):
                found.add(folder)
        else:
            found.update(search.folder(folder, names))
            found.update(search.installed(folder, [*folders, *names]))
    return found


def main() -> None:
    """Find the places and print them."""
    json.dump(sorted(find(Search(json.load(sys.stdin)))), sys.stdout)


if __name__ == "__main__":
    main()
