"""Writes the RECORD files that Debian's Python packages lack, so that pip can replace them.

A program of its own, which Debian's Python runs inside a base image that is being made.
"""

import subprocess
from pathlib import Path

PLACE = Path("/usr/lib/python3/dist-packages")


def main() -> None:
    """Record the files that Debian's package manager knows of each distribution."""
    for folder in PLACE.glob("*.dist-info"):
        if not (folder / "RECORD").exists():
            package = _lines("dpkg", "-S", str(folder))[0].partition(":")[0]
            files = [Path(line) for line in _lines("dpkg", "-L", package)]
            own = [each for each in files if each.is_relative_to(PLACE) and each.is_file()]
            names = [each.relative_to(PLACE) for each in [*own, folder / "RECORD"]]
            (folder / "RECORD").write_text("".join(f"{name},,\n" for name in names))


def _lines(*argv: str) -> list[str]:
    return subprocess.check_output(argv, text=True).splitlines()  # noqa: S603


if __name__ == "__main__":
    main()
