set -eux
python -c 'import iniconfig'
test ! -e /root/.config/pip
test -z "$(env | grep -i -E 'proxy|_CERT|pip_' || true)"
