"""Run in the build of a program: the import names that its environment brings, one a line."""

import re
import sys
import sysconfig
from pathlib import Path

names = set()
for path in Path(sysconfig.get_path("purelib")).iterdir():
    name = path.name.split(".")[0]
    is_module = path.is_dir() or path.suffix in (".py", ".so", ".pyc")
    is_metadata = path.suffix in (".dist-info", ".egg-info", ".libs", ".data")
    if is_module and not is_metadata and re.fullmatch(r"[A-Za-z_]\w*", name):
        names.add(name)
sys.stdout.write("".join(f"{name}\n" for name in sorted(names - {"__pycache__"})))
