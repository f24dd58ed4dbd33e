set -eux
test "$(stat -c %U:%G:%a /home/sailor/file.txt)" = sailor:crew:640
test "$(stat -c %u:%g /owned/by-number)" = 1234:1234
test "$(stat -c %u:%G /owned/by-group)" = 0:crew
grep -q "uid=1500(sailor) gid=2000(crew)" /tmp/id
test "$(cat /tmp/home)" = /home/sailor
test "$(cat /tmp/group)" = 0
test "$(stat -c %U /home/sailor/work)" = sailor
test "$(id -u)" = 1500
