#!/bin/sh
# In place of the installer of uv: the kit's uv in the same folder, with the same `env`.
set -e
kit=/opt/verifier-kit
folder=${UV_INSTALL_DIR:-${XDG_BIN_HOME:-$HOME/.local/bin}}
mkdir -p "$folder"
cp "$kit/shims/uv" "$folder/uv"
cp "$kit/shims/uv" "$folder/uvx"
printf 'export PATH="%s:$PATH"\n' "$folder" >"$folder/env"
echo "everything's installed!"
