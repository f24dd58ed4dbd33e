"""The types that the page's modules declare in comments, checked by TypeScript's compiler."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

STATIC = Path(__file__).parents[3] / "hermes_plugins/view/static"
TOOLS = Path(os.environ.get("VIEW_TOOLS", ".venv/view-tools/node_modules")).resolve()
OPTIONS = (
    "--allowJs --checkJs --noEmit --skipLibCheck --pretty false --target es2022 --module esnext "
    "--moduleResolution bundler --lib es2024,dom,dom.iterable,esnext"
).split()


def test_the_types_of_the_modules_hold():
    modules = [
        str(path)
        for path in (STATIC / "main.js", STATIC / "filed.js", *sorted(STATIC.glob("pages/*.js")))
    ]
    command = ["node", TOOLS / "typescript/bin/tsc", *OPTIONS, *modules]
    done = subprocess.run(command, cwd=STATIC, capture_output=True, text=True, timeout=300)
    said = [line for line in done.stdout.splitlines() if not line.startswith((" ", "vendor/"))]
    assert "vendor/" in done.stdout, "foreign modules have no types: the compiler did not run"
    assert said == []
