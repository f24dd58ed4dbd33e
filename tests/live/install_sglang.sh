#!/bin/bash
# Install SGLang for the CPU: install_sglang.sh VENV VLLM_VENV
# Shares torch, transformers, fastapi and the rest with the environment of install_vllm.sh and
# adds 260 MB: no sglang-kernel, no flashinfer, only its pure PyTorch paths.
set -euo pipefail
venv=$1 shared=$2
here=$(cd "$(dirname "$0")" && pwd)
[ ! "$venv/.sglang" -nt "$here/sglang.txt" ] || exit 0
${PYTHON:-python3} -m venv "$venv"
packages() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'; }
site=$(packages "$venv")
packages "$shared" > "$site/zz_shared.pth"
"$venv/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps \
	-r "$here/sglang.txt"
# torchvision has no build for this torch, and SGLang imports it also for text models.
cp -r "$here/torchvision_stub" "$site/torchvision"
"$venv/bin/python" -c 'import importlib.metadata as m; print("sglang", m.version("sglang"))'
touch "$venv/.sglang"
