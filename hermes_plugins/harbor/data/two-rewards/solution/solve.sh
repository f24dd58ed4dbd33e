#!/bin/bash
set -eu
cd /app
cat > unique.sh <<'SH'
tr -s '[:space:]' '\n' < /app/words.txt | tr A-Z a-z | grep . | LC_ALL=C sort -u > /app/unique.txt
SH
sh unique.sh
