#!/bin/bash
# The agent's program runs as a user who cannot write the reward.
chmod 755 /logs/verifier  # else it could write a reward.json, which counts more than reward.txt
chmod 700 /tests  # else it could read the right answers
rm -rf /tmp/build && cp -r /app /tmp/build && chown -R nobody: /tmp/build
as_nobody() { timeout 30 setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs "$@"; }
reward=1
as_nobody make -C /tmp/build clean count >/dev/null 2>&1 || reward=0
check() { [ "$(printf "$1" | as_nobody /tmp/build/count)" = "$2" ] || { echo "wrong for: $1"; reward=0; }; }
check '' '0 0 0'
check 'one' '1 1 3'
check 'one\n' '1 1 4'
check 'a b\tc\nd\n\ne' '4 5 10'
check '  \n\t x \r\n' '2 1 9'
echo $reward > /logs/verifier/reward.txt
