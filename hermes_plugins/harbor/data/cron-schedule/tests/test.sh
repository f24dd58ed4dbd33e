#!/bin/bash
# The agent's code answers in a process that cannot write the reward; what it says is compared here.
chmod 755 /logs/verifier  # else it could write a reward.json, which counts more than reward.txt
chmod 700 /tests  # else it could read the right answers
answers=$(cd /tmp && timeout 60 setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs \
    env -i PATH=/usr/local/bin:/usr/bin:/bin python3 -I -c "$(cat /tests/ask.py)" </tests/cases.txt)
python3 -I /tests/check.py "$answers" && reward=1 || reward=0
echo $reward > /logs/verifier/reward.txt
