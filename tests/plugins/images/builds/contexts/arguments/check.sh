set -eux
cat /values
test "$(cat /values)" = "24.04|very-plain|2|two words|three words|1|form of it|default|unset"
case $PATH in /opt/bin:/*) ;; *) exit 1 ;; esac
test -z "${RELEASE-}"
