set -eux
test "$(cat /unpacked/inner/l)" = in
test "$(stat -c %u:%g /unpacked/inner/a)" = 55:56
test "$(stat -c %u:%g /owned/inner/a)" = 7:8
test "$(cat /plain.txt)" = plain
test -f /copied/files.tar.gz
