#!/bin/bash
set -eu
cd /app/slugs
cat > pyproject.toml <<'TOML'
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "slugs"
version = "1.0"

[project.scripts]
slug = "slugs:main"
TOML
cat > src/slugs/__init__.py <<'PY'
"""Slugs of titles."""

import re
import sys


def slug(title: str) -> str:
    """Lower case, with one hyphen in place of all that is neither a letter nor a digit."""
    return re.sub(r"[\W_]+", "-", title.lower()).strip("-")


def main() -> None:
    print(slug(sys.argv[1]))
PY
