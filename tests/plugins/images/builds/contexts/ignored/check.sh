set -eux
cd /all
test -f keep.log && test ! -e drop.log
test -f sub/kept.txt && test ! -e sub/cache
test -f secret/public.txt && test ! -e secret/key
test -f Dockerfile
