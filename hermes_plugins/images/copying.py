"""The sources of COPY and ADD in a build context, and the archive that brings them into a layer.

The archive's first member is an index of the sources; `inside/tree.py` puts them in their places.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from posixpath import basename, dirname, join, normpath
from typing import IO, Literal

from hermes_plugins.images.context import DOCKERFILE, BuildContext, ContextEntry, tar_member
from hermes_plugins.images.dockerfile.evaluation import CopyStep
from hermes_plugins.images.dockerfile.old_engines import FOLDER, OldEngineBuild
from hermes_plugins.images.inside.tree import INDEX, has_wildcards, matches
from hermes_queue.errors import EnvBug

MAX_LINKS = 40
MAX_PATTERN_CHARS = 1024
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0")


@dataclass(frozen=True, slots=True)
class CopySource:
    """One file or directory that a source of COPY names."""

    name: str
    """Base name, which it keeps in a destination that is a directory."""
    kind: Literal["file", "directory", "archive"]
    entries: tuple[tuple[str, ContextEntry], ...]
    """Paths relative to it ("" is itself), sorted."""


class ContextCopy:
    """What a COPY or ADD line takes from the context. Blocking; safe in any thread."""

    def __init__(self, step: CopyStep, context: BuildContext) -> None:
        """Find the sources.

        Raises:
            EnvBug: one is not in the context, or leads out of it; names the line.
        """
        self._step, self._context = step, context
        included = context.included()
        self.sources = [
            self._source(pattern, path, included)
            for pattern in step.sources
            for path in self._found(pattern, included)
        ]
        self.digest = self._digest()

    def write(self, file: IO[bytes]) -> None:
        """Write the archive. Raises EnvBug: a file has changed since the walk."""
        index = [{"name": each.name, "kind": each.kind} for each in self.sources]
        index += [{"name": name, "kind": "file"} for name, _ in self._step.documents]
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            _add(tar, INDEX, json.dumps(index).encode())
            for number, source in enumerate(self.sources):
                for path, entry in source.entries:
                    name = f"{number}/{path}".rstrip("/")
                    self._context.add_to_tar(tar, entry, name)
            for number, (_, content) in enumerate(self._step.documents, len(self.sources)):
                _add(tar, str(number), content)

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for source in self.sources:
            lines = [(path, e.kind, e.mode, e.content) for path, e in source.entries]
            digest.update(json.dumps([source.name, source.kind, lines]).encode())
        for name, content in self._step.documents:
            digest.update(json.dumps([name, len(content)]).encode() + content)
        return digest.hexdigest()

    def _found(self, pattern: str, included: Mapping[str, ContextEntry]) -> list[str]:
        """The entries that a pattern names; "" is the context itself."""
        path = normpath(pattern.lstrip("/") or ".")
        if path == ".." or path.startswith("../") or len(path) > MAX_PATTERN_CHARS:
            raise self._refuse(f"the source {pattern[:200]} leads out of the build context")
        if path == ".":
            return [""]
        if has_wildcards(path):
            if found := sorted(each for each in included if matches(path, each)):
                return found
        elif (place := self._resolved(path, included)) is not None:
            return [place]
        raise self._refuse(
            f"the source {pattern[:200]} is not in the build context, or in .dockerignore"
        )

    def _source(self, pattern: str, path: str, included: Mapping[str, ContextEntry]) -> CopySource:
        name = basename(path if has_wildcards(pattern) else normpath(pattern))
        place = path if not path else self._resolved(path, included)
        if place is None:
            raise self._refuse(f"the source {path[:200]} is a link that leads nowhere")
        if place and (entry := included[place]).kind == "file":
            is_archive = self._step.unpack and self._is_archive(entry)
            return CopySource(name, "archive" if is_archive else "file", (("", entry),))
        prefix = f"{place}/" if place else ""
        below = [(p[len(prefix) :], e) for p, e in included.items() if p.startswith(prefix)]
        root = included[place] if place else ContextEntry("", "directory", 0o755, 0, "")
        return CopySource(name, "directory", (("", root), *sorted(below)))

    def _resolved(self, path: str, included: Mapping[str, ContextEntry]) -> str | None:
        """The entry behind a path, links on the way followed inside the context."""
        links = 0
        done, rest = "", path.split("/")
        while rest:
            part = rest.pop(0)
            if part in ("", "."):
                continue
            if part == "..":
                done = dirname(done)
                continue
            place = join(done, part)
            entry = included.get(place)
            if entry is None:
                return None
            if entry.kind == "link":
                links += 1
                if links > MAX_LINKS:
                    return None
                rest = entry.content.split("/") + rest
            else:
                done = place
        return done

    def _is_archive(self, entry: ContextEntry) -> bool:
        head = self._context.head(entry)
        return head.startswith(_COMPRESSED) or head[257:262] == b"ustar"

    def _refuse(self, why: str) -> EnvBug:
        word = "ADD" if self._step.unpack else "COPY"
        return EnvBug(f"Dockerfile line {self._step.line}: {word}: {why}")


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = ContextEntry(name, "file", mode, len(content), "", int(time.time()))
    tar.addfile(tar_member(entry, name), io.BytesIO(content))


def write_engine_tar(context: BuildContext, build: OldEngineBuild, file: IO[bytes]) -> None:
    """Write the context as an archive for a container engine, with a rewritten Dockerfile.

    Blocking. Raises EnvBug: a file has changed since the walk, or a source is not there.
    """
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, entry in context.for_engines().items():
            if path != DOCKERFILE and path.partition("/")[0] != FOLDER:
                context.add_to_tar(tar, entry, path)
        _add(tar, DOCKERFILE, build.text.encode())
        modes = {folder: mode for folder, _, mode in build.copies}
        for path, content in build.files.items():
            _add(tar, path, content, modes.get(dirname(path), 0o644))
        for folder, sources, mode in build.copies:
            step = CopyStep(0, sources, (), "/", None, "", mode, unpack=False)
            for source in ContextCopy(step, context).sources:
                name = "" if source.name == "." else source.name
                merged = len(sources) > 1 or has_wildcards("".join(sources))
                inner = "" if merged and source.kind == "directory" else name
                for path, entry in source.entries:
                    target = join(folder, inner, path).rstrip("/")
                    context.add_to_tar(tar, replace(entry, mode=mode), target)
