"""An Apptainer definition file as a Dockerfile: the same text always gives the same image.

Source: https://apptainer.org/docs/user/latest/definition_files.html. Read is what such tasks use:
one stage from a registry's image, `%post` and `%environment`. Sections that only matter when an
image is run by Apptainer are left out; everything else is refused with its line.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from hermes_queue.errors import EnvBug

NAME = "container.def"
POST = "hermes-post.sh"
"""The file beside the Dockerfile with the commands of `%post`."""
_LEFT_OUT = frozenset({"runscript", "startscript", "test", "labels", "help"})
_SECTION = re.compile(r"%([a-z]\w*)\s*(.*)", re.IGNORECASE)
_HEADER = re.compile(r"(\w+)\s*:\s*(.*)")
_REFERENCE = re.compile(r"[\w./:@-]+")
_SIF = re.compile(r"(?:.*/)?([a-z0-9.-]+)_([\w.-]+)\.sif")
_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_OPERATOR = re.compile(r"[;|&<>`]|\$\(")
_ONCE = ("chmod", "mkdir", "touch")
"""Commands of `%environment`, run there at every start, that need to run only once."""
_OWN = frozenset({"HOME", "USER", "LOGNAME"})
"""Variables that belong to whoever runs a command: root, who grades, must not get the agent's."""


@dataclass(slots=True)
class _Definition:
    """What was found in a file."""

    headers: dict[str, str] = field(default_factory=dict)
    post: list[str] = field(default_factory=list)
    shell: str = "/bin/sh -ex"
    environment: list[tuple[int, str]] = field(default_factory=list)
    """With numbers of lines."""


def dockerfile(text: str) -> tuple[str, str]:
    """The Dockerfile for a definition, and the file `POST` that it copies.

    Raises:
        EnvBug: it uses something else; the message names the line.
    """
    found = _read(text)
    variables, once = _environment(found.environment)
    lines = [
        f"FROM {_base(found.headers)}",
        f"COPY {POST} /{POST}",
        f"RUN PIP_BREAK_SYSTEM_PACKAGES=1 {found.shell} /{POST} && rm /{POST}",
        *(f'ENV {name}="{value}"' for name, value in variables),
    ]
    return "\n".join(lines) + "\n", "\n".join([*found.post, *once]) + "\n"


def _read(text: str) -> _Definition:
    found, section = _Definition(), ""
    for number, line in enumerate(text.splitlines(), start=1):
        if opened := _SECTION.match(line):
            section = opened[1].lower()
            _open(found, section, opened[2].strip(), number, line)
        elif section == "post":
            if "{{" in line and "}}" in line:
                raise _refused(number, line, "build arguments are not supported")
            found.post.append(line)
        elif section == "environment":
            found.environment.append((number, line.strip()))
        elif not section and line.strip() and not line.lstrip().startswith("#"):
            _header(found, number, line)
    return found


def _open(found: _Definition, section: str, rest: str, number: int, line: str) -> None:
    if section in _LEFT_OUT or (section == "environment" and not rest):
        return
    if section != "post":
        raise _refused(number, line, "of the sections, %post and %environment are supported")
    words = rest.split()
    if words[:1] == ["-c"] and len(words) == 2 and re.fullmatch(r"/[\w/.-]+", words[1]):
        found.shell = f"{words[1]} -ex"
    elif words:
        raise _refused(number, line, "of its options, %post may have -c /path/of/a/shell")


def _header(found: _Definition, number: int, line: str) -> None:
    header = _HEADER.fullmatch(line.strip())
    name = header[1].lower() if header else ""
    if header is None or name not in ("bootstrap", "from") or name in found.headers:
        raise _refused(number, line, "before its sections, it says Bootstrap and From, once each")
    value = header[2].strip()
    if name == "bootstrap" and value not in ("docker", "localimage"):
        raise _refused(number, line, "Bootstrap may be docker or localimage")
    if name == "from" and not _REFERENCE.fullmatch(value):
        raise _refused(number, line, "From must name an image")
    found.headers[name] = value


def _base(headers: dict[str, str]) -> str:
    """The image behind From; `./ubuntu_22.04.sif` is a registry's image that was saved."""
    if len(headers) < 2:
        raise EnvBug(f"{NAME}: must begin with Bootstrap and From")
    if headers["bootstrap"] == "docker":
        return headers["from"].removeprefix("docker://")
    if saved := _SIF.fullmatch(headers["from"]):
        return f"{saved[1]}:{saved[2]}"
    raise EnvBug(
        f"{NAME}: From: {headers['from']}: is a file of another host; name it NAME_TAG.sif after "
        "the image that it was made from, or write Bootstrap: docker"
    )


def _environment(lines: list[tuple[int, str]]) -> tuple[list[tuple[str, str]], list[str]]:
    """Variables with values in the syntax of ENV, and commands to be run once."""
    variables, once = [], []
    for number, line in lines:
        if not line or line.startswith("#"):
            continue
        if _OPERATOR.search(line):
            raise _refused(number, line, "in %environment, only plain assignments are supported")
        command = line.split()[0]
        if command in _ONCE and "$" not in line:
            once.append(f"{line} || true")
        elif (command, line.split()[1:]) not in (("cd", ["/home/user"]), ("umask", ["022"])):
            variables += [each for each in _assigned(number, line) if each[0] not in _OWN]
    return variables, once


def _assigned(number: int, line: str) -> Iterator[tuple[str, str]]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        raise _refused(number, line, str(error)) from error
    exported = words[:1] == ["export"]
    for word in words[exported:]:
        variable = _VARIABLE.fullmatch(word)
        if variable is None and exported and word.isidentifier():
            continue  # it exports what an earlier line has set
        if variable is None or ("$" in line and ("'" in line or "\\" in line)):
            raise _refused(number, line, "in %environment, only plain assignments are supported")
        yield variable[1], variable[2].replace("\\", "\\\\").replace('"', '\\"')


def _refused(number: int, line: str, why: str) -> EnvBug:
    return EnvBug(f"{NAME}:{number}: {line.strip()[:100]!r}: {why}")
