set -eux
test "$(cat /from-number)" = one
test "$(cat /from-stage/one)" = "$(printf 'one\nmore')"
test "$(cat /from-stage/hard)" = "one"
test "$(stat -c %a /from-stage/two)" = 751
test "$(readlink /from-stage/soft)" = one
test "$(cat /matched/x)" = x
test "$(cat /matched/two)" = two
