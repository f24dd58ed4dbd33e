#!/bin/bash
set -eu
[ "$(id -un)" = drop ]
cd /home/drop
mkdir -p inbox "done"
chgrp team inbox "done"
chmod 1730 inbox
chmod 2750 "done"
umask 077
python3 -c 'import secrets; print(secrets.token_hex(16))' > secret.txt
