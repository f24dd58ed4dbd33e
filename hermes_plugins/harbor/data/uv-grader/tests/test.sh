#!/bin/bash
# What runs the agent's module must not be able to write a reward, nor to read the right answers.
chmod 755 /logs/verifier
chmod 700 /tests
command -v curl >/dev/null || { apt-get update && apt-get install -y curl; }
curl -LsSf https://astral.sh/uv/0.9.7/install.sh | sh
source $HOME/.local/bin/env

uvx -p 3.11 -w pytest==8.4.1 pytest -p no:cacheprovider /tests/roman_test.py

if [ $? -eq 0 ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
