"""Run in the build of a program: the import names that its installation brings, one a line.

They are looked for everywhere below the working directory, since an archive may bring Python
packages as well, and packages bring copies of others.
"""

import os
import re
import sys

PLACES = {"site-packages", "dist-packages", "_vendor", "_vendored", "vendored"}
METADATA = (".dist-info", ".egg-info", ".libs", ".data")

names = set()
for root, directories, files in os.walk("."):
    if os.path.basename(root) not in PLACES:
        continue
    modules = [name for name in directories if not name.endswith(METADATA)]
    modules += [name for name in files if name.endswith((".py", ".so", ".pyc"))]
    found = {name.split(".")[0] for name in modules}
    names |= {name for name in found if re.fullmatch(r"[A-Za-z_]\w*", name)}
sys.stdout.write("".join(f"{name}\n" for name in sorted(names - {"__pycache__", "__init__"})))
