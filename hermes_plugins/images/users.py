"""Users of an image: what USER names, looked up in the image's own files."""

from __future__ import annotations

from dataclasses import dataclass

MAX_ID = 65535
"""Ids inside a slot's user namespace are 0 to this."""
MAX_GROUPS = 64
MAX_FILE_CHARS = 1 << 20


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a program runs as, in the ids of the image."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    """Supplementary groups, without `gid`."""
    home: str
    name: str
    """Empty for a uid without an entry."""


def identity(passwd: str, group: str, user: str) -> Identity:
    """Look up `user` ("", "app", "1000", "app:staff", "1000:100") as container engines do.

    `passwd` and `group` are the contents of /etc/passwd and /etc/group, of which the first MiB is
    read; they may be anything.

    Raises:
        ValueError: the user or group is not in the image, or is no id of a slot; says which.
    """
    wanted, _, wanted_group = user.partition(":")
    wanted = wanted or "0"
    entries = [fields for fields in _fields(passwd) if len(fields) >= 6 and _id(fields[2]) >= 0]
    found = next((e for e in entries if e[0] == wanted), None)
    if found is None and wanted.isdecimal():
        found = next((e for e in entries if _id(e[2]) == _id(wanted)), None)
    if found is not None:
        uid, gid, home, name = _id(found[2]), max(0, _id(found[3])), found[5] or "/", found[0]
    elif (uid := _id(wanted)) >= 0:
        gid, home, name = 0, "/root" if uid == 0 else "/", ""
    else:
        raise ValueError(f"the image has no user {wanted!r}, or its id is above {MAX_ID}")
    groups = [e for e in _fields(group) if len(e) >= 3 and _id(e[2]) >= 0]
    if wanted_group:
        return Identity(uid, _group_id(groups, wanted_group), (), home, name)
    member_of = [_id(e[2]) for e in groups if name and len(e) > 3 and name in e[3].split(",")]
    others = tuple(dict.fromkeys(each for each in member_of if each != gid))
    return Identity(uid, gid, others[:MAX_GROUPS], home, name)


def _fields(text: str) -> list[list[str]]:
    lines = text[:MAX_FILE_CHARS].splitlines()
    return [line.strip().split(":") for line in lines if not line.startswith("#")]


def _group_id(groups: list[list[str]], wanted: str) -> int:
    for entry in groups:
        if entry[0] == wanted:
            return _id(entry[2])
    if (number := _id(wanted)) >= 0:
        return number
    raise ValueError(f"the image has no group {wanted!r}, or its id is above {MAX_ID}")


def _id(text: str) -> int:
    """The id, or -1."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 5):
        return -1
    number = int(text)
    return number if number <= MAX_ID else -1
