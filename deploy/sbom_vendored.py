"""Adds the JavaScript libraries of plugins' pages to the bill of materials of `make sbom`.

Which they are, and the digests of their packages, says the README beside them.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

READMES = Path(__file__).parents[1].glob("hermes_plugins/*/static/vendor/README.md")


def vendored(readme: str) -> list[dict[str, Any]]:
    """The components that the README lists, each package once."""
    rows = re.findall(r"(?m)^\| `(\S+)` \| (\S+) (\S+) \| .* \| (\S+), `LICENSE\.\S+` \|$", readme)
    digests = {name: digest for digest, name in re.findall(r"([0-9a-f]{128})  (\S+\.tgz)", readme)}
    found = {}
    for _, name, version, licence in rows:
        found[name] = {
            "type": "library",
            "bom-ref": f"vendored-{name}",
            "name": name,
            "version": version,
            "purl": f"pkg:npm/{name}@{version}",
            "licenses": [{"license": {"id": licence}}],
            "hashes": [{"alg": "SHA-512", "content": digests[f"{name}-{version}.tgz"]}],
        }
    return list(found.values())


if __name__ == "__main__":
    path = Path(sys.argv[1])
    bill = json.loads(path.read_text(encoding="utf-8"))
    for each in READMES:
        bill["components"] += vendored(each.read_text(encoding="utf-8"))
    path.write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")
