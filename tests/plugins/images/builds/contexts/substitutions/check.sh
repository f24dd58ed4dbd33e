set -eux
test "$(cat /values)" = "two |rds|three words|"
