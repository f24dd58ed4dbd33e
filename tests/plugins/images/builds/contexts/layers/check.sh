set -eux
test ! -e /d/one
test ! -e /d/moved/two
test "$(cat /d/moved/three)" = 3
test -L /link
test "$(cat /d/new.txt)" = new
test "$(cat /usr/bin/through-a-link)" = new
test -f /usr/share/common-licenses
test -u /d/new.txt
test "$(stat -c %u /d/second.txt)" = 1
