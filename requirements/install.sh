#!/usr/bin/env bash
# Installs a complete lock and this project, editable, into a virtual environment; with `alone`, the lock alone. Hashes
# are checked and nothing is resolved. uv needs a tenth of pip's time; where it cannot do it (no wheel of it for this
# machine, an index that only pip knows), pip does. Usage: requirements/install.sh PYTHON LOCK [alone]
set -euo pipefail
python=$1
lock=$2
here=$(dirname "$0")
project=(--editable "$here/..")
[ "${3:-}" != alone ] || project=()
uv=$(dirname "$python")/uv
pip=("$python" -m pip --disable-pip-version-check --quiet install --no-compile --no-deps)

with_uv() {
	"${pip[@]}" --require-hashes -r "$here/uv.txt" &&
		"$uv" pip install --quiet --python "$python" --no-deps --require-hashes -r "$lock" &&
		{ [ ${#project[@]} = 0 ] ||
			"$uv" pip install --quiet --python "$python" --no-deps --no-build-isolation "${project[@]}"; }
}

with_pip() {
	"${pip[@]}" --require-hashes -r "$lock" &&
		{ [ ${#project[@]} = 0 ] || "${pip[@]}" --no-build-isolation "${project[@]}"; }
}

with_uv || { echo "uv did not install $lock; pip tries, which takes longer" >&2 && with_pip; }
