#!/bin/sh
# Start redis-server with the users of users.acl. Arguments are redis-server's.
#
# Each user's password comes from REDIS_<NAME>_PASSWORD. Redis is given its SHA-256 only, in a file
# of its own that only this user can read.
set -eu
umask 077

here=$(dirname "$0")
case $(redis-server --version) in
*" v=6."* | *" v=5."*) echo "users.acl needs Redis 7.0 or newer" >&2; exit 2 ;;
esac

acl=$(mktemp "${TMPDIR:-/tmp}/users.XXXXXX")
# Comments away, continuation lines joined.
sed -e '/^#/d' -e '/^$/d' "$here/users.acl" |
    awk '/^ / { printf "%s", $0; next } { if (NR > 1) print ""; printf "%s", $0 } END { print "" }' \
        > "$acl"
for name in PRODUCER WORKER CONSUMER MONITOR VIEWER FLOWER OPERATOR; do
    eval "password=\${REDIS_${name}_PASSWORD:-}"
    if [ "${#password}" -lt 16 ]; then
        echo "REDIS_${name}_PASSWORD must have 16 characters or more; see deploy/make-env.sh" >&2
        exit 2
    fi
    digest=$(printf %s "$password" | sha256sum | cut -c1-64)
    sed -i "s/@${name}@/${digest}/" "$acl"
    unset "REDIS_${name}_PASSWORD"
done

# noeviction: an evicted key is a lost job. What a power loss may repeat with AOF every second is in
# docs/guarantees.md. Compact hashes: jobs and what is kept of finished ones take half, docs/tuning.md.
exec redis-server --aclfile "$acl" --appendonly yes --appendfsync everysec --save '' \
    --maxmemory-policy noeviction --hash-max-listpack-value 4096 "$@"
