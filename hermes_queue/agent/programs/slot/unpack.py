"""Run in the build of a program: fetch its archives, check them, unpack them here."""

import hashlib
import json
import os
import platform
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import PurePosixPath
from typing import IO

MAX_BYTES = 1 << 30
"""Of one archive, packed."""


def fetch(url: str, sha512: str, into: IO[bytes]) -> None:
    """Write the file at `url`. Ends the program if it is another one."""
    digest, size = hashlib.sha512(), 0
    with urllib.request.urlopen(url, timeout=120) as answer:  # noqa: S310 - https, validated
        while block := answer.read(1 << 20):
            size += len(block)
            if size > MAX_BYTES:
                sys.exit(f"{url} has more than {MAX_BYTES} bytes")
            digest.update(block)
            into.write(block)
    if digest.hexdigest() != sha512:
        sys.exit(f"{url} has the SHA-512 {digest.hexdigest()}, not {sha512}")


def unpack(archive: IO[bytes], strip: int) -> None:
    """Unpack below the working directory, without links that lead out of it."""
    with tarfile.open(fileobj=archive, mode="r:*") as tar:
        for member in tar:
            parts = PurePosixPath(member.name).parts[strip:]
            if parts and (member.isfile() or member.isdir()):
                member.name = os.path.join(*parts)
                tar.extract(member, filter="data")


for each in json.load(sys.stdin):
    if each["machine"] in (None, platform.machine()):
        with tempfile.TemporaryFile() as file:
            fetch(each["url"], each["sha512"], file)
            file.seek(0)
            unpack(file, each["strip"])
