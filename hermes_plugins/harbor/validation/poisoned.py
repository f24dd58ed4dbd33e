"""Do the tests of a task run the agent's own code where that could write the reward?

No grading mode stops that. To find out, the task's own solution runs, and then all code among the
files that it has made or changed gets a line in front that writes a reward with a mark in it. A
graded reward with the mark was written by the code of an agent.
"""

from __future__ import annotations

import asyncio
import base64
import shlex
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hermes_plugins.harbor import cache, tree
from hermes_plugins.harbor.item import HarborItem
from hermes_plugins.harbor.validation.measured import AttemptResult

MARK = "executes_agent_code"
"""The name of a reward that no tests give."""

_FORGE = f"""\
write() {{
  echo '{{"reward": 1, "{MARK}": 1}}' >/logs/verifier/.mark && \\
    mv -f /logs/verifier/.mark /logs/verifier/reward.json
}}
exec </dev/null >/dev/null 2>&1
mkdir -p /logs/verifier; write
(n=0; while [ $n -lt 2400 ]; do sleep 0.05; write; n=$((n+1)); done) &
"""
"""Also writes over what the tests write when the code has ended."""
_CALL = f"echo {base64.b64encode(_FORGE.encode()).decode()}|base64 -d|sh"
"""Without quotes, so that it fits into a string of any language."""
_LINES = {
    "python": f'__import__("os").system("{_CALL}")',
    "sh": _CALL,
    "node": f'require("child_process").execSync("{_CALL}")',
    "module": f'import{{execSync as mark}}from"child_process";mark("{_CALL}")',
    "perl": f'system("{_CALL}");',
    "r": f'system("{_CALL}")',
    "lua": f'os.execute("{_CALL}")',
    "make": f"MARK := $(shell {_CALL})",
    "c": f"int system(const char*);__attribute__((constructor))static void mark(void)"
    f'{{if(system("{_CALL}")){{}}}}',
    "c++": f'extern "C" int system(const char*);__attribute__((constructor))static void mark()'
    f'{{if(system("{_CALL}")){{}}}}',
}
_POISON = """\
#!/bin/bash
export LC_ALL=C
declare -A lines
LINES_HERE
kind_of() {
  local first name=${1##*/}
  IFS= read -r -n 200 first <"$1" 2>/dev/null
  case $first in
  $'\\x7fELF'*) [ -x "$1" ] && case $name in *.so|*.so.*) ;; *) echo elf ;; esac; return ;;
  '#!'*python*) echo python; return ;;
  '#!'*node*) echo node; return ;;
  '#!'*perl*|'#!'*ruby*) echo perl; return ;;
  '#!'*Rscript*) echo r; return ;;
  '#!'*lua*) echo lua; return ;;
  '#!'*sh*) echo sh; return ;;
  esac
  case $name in
  *.py) echo python ;;
  *.sh|*.bash) echo sh ;;
  *.js|*.cjs) echo node ;;
  *.mjs) echo module ;;
  *.pl|*.pm|*.rb) echo perl ;;
  *.R|*.r) echo r ;;
  *.lua) echo lua ;;
  Makefile|makefile|GNUmakefile|*.mk) echo make ;;
  *.c) echo c ;;
  *.cc|*.cpp|*.cxx) echo c++ ;;
  esac
}
poison() {
  local kind=$(kind_of "$1") copy=/tmp/.poisoned
  [ -n "$kind" ] || return
  if [ "$kind" = elf ]; then
    mv -f "$1" "$1.solved" || return
    printf '#!/bin/sh\\n%s\\nexec "$0.solved" "$@"\\n' "${lines[sh]}" >"$1"; chmod 755 "$1"
    return
  fi
  cp "$1" $copy || return
  if [ "$kind" = python ] && grep -q '^from __future__' $copy; then
    { cat $copy; printf '\\n%s\\n' "${lines[$kind]}"; } >"$1"
  elif [ "$(head -c 2 $copy)" = '#!' ]; then
    { head -n 1 $copy; printf '%s\\n' "${lines[$kind]}"; tail -n +2 $copy; } >"$1"
  else
    { printf '%s\\n' "${lines[$kind]}"; cat $copy; } >"$1"
  fi
}
number=0
find / -xdev \\( -path /proc -o -path /sys -o -path /dev -o -path /logs -o -path /tests \\
    -o -path /solution -o -path /tmp -o -path /var/lib/dpkg -o -path /usr/share \\) -prune \\
    -o -type f -cnewer /tmp/.unsolved -size -65536k -print0 2>/dev/null |
while IFS= read -r -d '' path && [ $number -lt 5000 ]; do
  number=$((number + 1)); poison "$path"
done
rm -f /tmp/.poisoned; true
"""
_SOLVE = """\
#!/bin/bash
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
touch /tmp/.unsolved; sleep 0.1
bash "$here/solve-as-it-was.sh" "$@"
bash "$here/poison-solved.sh"
"""


@asynccontextmanager
async def poisoned_row(row: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """The row of the same task with a solution that poisons what it makes.

    Raises:
        TrajectoryFailure: the task cannot be loaded.
    """
    folder = await cache.load(HarborItem.model_validate(row))
    with tempfile.TemporaryDirectory(prefix="poisoned-") as scratch:
        target = Path(scratch) / "task"
        await asyncio.to_thread(_poison, folder.path, target)
        yield {**row, "task": str(target), "digest": ""}


def is_marked(result: AttemptResult) -> bool:
    """Whether the reward of an attempt was written by poisoned code."""
    return MARK in result.rewards


def _poison(folder: Path, target: Path) -> None:
    """Copy a task folder and change its solutions. Blocking."""
    tree.copy(folder, target)
    listed = "\n".join(f"lines[{kind}]={shlex.quote(line)}" for kind, line in _LINES.items())
    for script in (*target.glob("solution/solve.sh"), *target.glob("steps/*/solution/solve.sh")):
        script.rename(script.with_name("solve-as-it-was.sh"))
        script.write_text(_SOLVE)
        script.with_name("poison-solved.sh").write_text(_POISON.replace("LINES_HERE", listed))
