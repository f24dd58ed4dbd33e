"""Parse each TOML and JSON file that is named; exits with 1 and names those that do not parse."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

failed = False
for name in sys.argv[1:]:
    text = Path(name).read_text(encoding="utf-8")
    try:
        tomllib.loads(text) if name.endswith(".toml") else json.loads(text)
    except ValueError as error:
        print(f"{name}: {error}", file=sys.stderr)
        failed = True
raise SystemExit(failed)
