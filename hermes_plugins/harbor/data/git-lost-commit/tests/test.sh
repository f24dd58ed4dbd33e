#!/bin/bash
chmod 755 /logs/verifier  # else it could write a reward.json, which counts more than reward.txt
cd /app/notes || exit 1
# The repository's own configuration may name programs, so git runs as a user who cannot write the reward.
git() { setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs git -c safe.directory='*' "$@"; }
expected='Grace <grace@example.com> Add the release checklist
Ada <ada@example.com> Note the milk
Ada <ada@example.com> Begin'
reward=1
[ "$(git log --format='%an <%ae> %s' main)" = "$expected" ] || reward=0
[ "$(git show main:release.md)" = "$(printf '1. tag\n2. build\n3. announce')" ] || reward=0
[ "$(git show main:README.md)" = "$(printf '# Notes\n- buy milk')" ] || reward=0
[ -z "$(git status --porcelain)" ] || reward=0
echo $reward > /logs/verifier/reward.txt
