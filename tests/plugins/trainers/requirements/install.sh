#!/usr/bin/env bash
# Makes the environment of a trainer's tests: install.sh NAME VENV. It is NAME.txt, this project, editable, and the
# build of torch for CPUs, which no lock can hold, since its version is another one on PyPI.
# Python is $PYTHON, or the version that a line `# Python 3.12` of NAME.in names.
set -euo pipefail
here=$(dirname "$0")
input=$here/$1.in
venv=$2
version=$(sed -n 's/^# Python //p' "$input")
python=${version:+python$version}
"${python:-${PYTHON:-python3}}" -m venv "$venv"
torch=$(grep '^torch==' "$input" || true)
if [ -n "$torch" ]; then
	pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps "$torch+cpu")
	# Where no configured index has the build for CPUs, PyTorch's does.
	"${pip[@]}" || "${pip[@]}" --index-url https://download.pytorch.org/whl/cpu
fi
bash requirements/install.sh "$venv/bin/python" "${input%.in}.txt"
