set -eux
cd /made
test "$(cat shell)" = "hello world"
test "$(cat quoted)" = '$WHO stays'
test "$(cat python)" = "$(printf 'from python\nafter')"
test "$(cat script)" = "from a script"
test "$(cat expanded)" = "who is world"
test "$(cat several/ONE)" = '$WHO'
test "$(cat several/TWO)" = "two of world"
test "$(stat -c %a several/ONE)" = 750
