set -eux
test "$(pwd)" = /workspace
python tool.py | grep 1,2
pytest --version
