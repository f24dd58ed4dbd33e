set -eux
cd /srv/app
test "$LANG" = C.UTF-8
test "$(cat lib/where)" = /srv/app/lib
test "$(python3 main.py)" = main
test "$(cat data/deep/d.txt)" = d
test -L data/link.csv
test "$(cat docs/'name with space.txt')" = s
test "$(cat /tables/b.csv)" = 3,4
test ! -e /tables/deep
test -f existing/main.py
test "$(stat -c %u:%g:%a main.py)" = 0:0:644
test "$(stat -c %Y main.py)" -gt 1000000000
