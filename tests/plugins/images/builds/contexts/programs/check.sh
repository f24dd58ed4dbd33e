set -eux
test "$(cat /exec)" = "zero exec"
grep -q on /shell
test "$(cat /mounted)" = cached
