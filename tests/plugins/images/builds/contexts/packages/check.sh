set -eux
test "$(sqlite3 /db 'select x from t')" = 42
test -z "$(env | grep -i -E 'proxy|_CERT|pip_' || true)"
test ! -s /etc/apt/apt.conf.d/proxy
