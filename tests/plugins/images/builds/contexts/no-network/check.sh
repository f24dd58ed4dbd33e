set -eux
test "$(cat /devices)" = lo
