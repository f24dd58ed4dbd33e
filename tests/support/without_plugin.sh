#!/usr/bin/env bash
# Takes a plugin out of a copy of this repository, as a maintainer would who deletes it, and runs
# linters, type checks and all remaining tests there: without_plugin.sh [NAME|all]. What is not
# committed is part of the copy.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=$PWD
mapfile -t names < <(cd hermes_plugins && printf '%s\n' */__init__.py | cut -d/ -f1)
case ${1:-} in
  "") wanted=("${names[RANDOM % ${#names[@]}]}") ;;
  all) wanted=("${names[@]}") ;;
  *) wanted=("$1") ;;
esac

for name in "${wanted[@]}"; do
  [[ -d hermes_plugins/$name ]] || { echo "no plugin $name; there are: ${names[*]}" >&2; exit 2; }
  # Plugins that need it go with it.
  gone=$(python3 - "$name" <<'PY'
import re, sys
from pathlib import Path
needs = {
    path.parent.name: set(re.findall(r'"(\w+)"', "".join(re.findall(r"needs=\(([^)]*)\)", path.read_text()))))
    for path in Path("hermes_plugins").glob("*/__init__.py")
}
gone = {sys.argv[1]}
while more := {each for each, wanted in needs.items() if wanted & gone} - gone:
    gone |= more
print(*sorted(gone))
PY
)
  copy=$(mktemp -d)
  trap 'rm -rf "$copy"' EXIT
  echo "without $gone, in $copy"
  git ls-files --cached --others --exclude-standard -z | xargs -0 cp --parents -t "$copy"
  cd "$copy"
  git init -q .
  for each in $gone; do
    # The file that stands for its producer, so that `python -m` finds it.
    { grep -lF "the plugin \`$each\`" producers/*.py || true; } | xargs -r rm
    rm -rf "hermes_plugins/$each" "tests/plugins/$each" "benchmarks/plugins/$each" \
      "docs/plugins/$each.md" "docs/plugins/$each"-*.md
    rm -f "deploy/grafana/dashboards/$each.json"
    sed -i "/^# plugin $each\$/,+1d" deploy/redis/users.acl
    sed -i "/^$each = \"hermes_plugins\.$each:PLUGIN\"\$/d" pyproject.toml
    sed -i "/: plugins\/$each\(-[a-z-]*\)\?\.md\$/d" mkdocs.yml
  done
  make .venv/.dev >/dev/null
  make docs >/dev/null  # generated pages list what is there
  git add -A
  make lint
  # Other pages link to the feature's page and list its commands and metrics, and files of
  # deployments start it with its settings: the tests of these are left out.
  left_out=(--ignore-glob 'tests/unit/test_docs*.py' --ignore tests/unit/test_site.py)
  .venv/bin/python -m pytest -q --collect-only "${left_out[@]}" tests >/dev/null
  # shellcheck disable=SC2086  # TESTS may be several paths
  .venv/bin/python -m pytest -q -n "${JOBS:-2}" ${TESTS:-tests} \
    "${left_out[@]}" --ignore tests/unit/test_metrics_page.py \
    --deselect tests/deploy/test_compose_file.py::test_every_setting_of_ours_exists \
    --deselect tests/deploy/test_kubernetes_files.py::test_commands_of_ours_exist \
    --deselect tests/deploy/test_kubernetes_files.py::test_every_setting_that_they_name_exists
  cd "$here"
  rm -rf "$copy"
done
