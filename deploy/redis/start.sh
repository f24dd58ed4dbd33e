#!/bin/sh
# Start redis-server with the users of users.acl. Arguments are redis-server's.
#
# Each user's password comes from REDIS_<NAME>_PASSWORD. Redis is given its SHA-256 only, in a file
# of its own that only this user can read. Among several servers, see docs/redis-high-availability.md:
# REDIS_REPLICA_PASSWORD and REDIS_SENTINEL_PASSWORD, on replicas REDIS_REPLICAOF="HOST PORT"; a master
# with fewer than REDIS_MIN_REPLICAS (1) refuses writes. What the servers have agreed upon since the
# first start is in REDIS_CONFIG, by default ./redis.conf.
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
for name in PRODUCER WORKER CONSUMER MONITOR VIEWER FLOWER OPERATOR REPLICA SENTINEL; do
    password=
    eval "password=\${REDIS_${name}_PASSWORD:-}"
    case "$name$password" in
    REPLICA | SENTINEL) sed -i "/@${name}@/d" "$acl"; continue ;; # one server alone needs neither
    esac
    if [ "${#password}" -lt 16 ]; then
        echo "REDIS_${name}_PASSWORD must have 16 characters or more; see deploy/make-env.sh" >&2
        exit 2
    fi
    digest=$(printf %s "$password" | sha256sum | cut -c1-64)
    sed -i "s/@${name}@/${digest}/" "$acl"
    [ "$name" = REPLICA ] || unset "REDIS_${name}_PASSWORD"
done

# A server among replicas has a configuration file. Sentinel writes into it which server to follow,
# so that a former master comes back as a replica.
conf=
if [ -n "${REDIS_REPLICA_PASSWORD:-}" ]; then
    conf=${REDIS_CONFIG:-redis.conf}
    [ -e "$conf" ] || { [ -z "${REDIS_REPLICAOF:-}" ] || echo "replicaof $REDIS_REPLICAOF"; } > "$conf"
    sed -i -e '/^masteruser/d' -e '/^masterauth/d' "$conf"
    printf 'masteruser replica\nmasterauth "%s"\n' \
        "$(printf %s "$REDIS_REPLICA_PASSWORD" | sed 's/["\\]/\\&/g')" >> "$conf"
    unset REDIS_REPLICA_PASSWORD
    set -- --min-replicas-to-write "${REDIS_MIN_REPLICAS:-1}" --min-replicas-max-lag 10 "$@"
fi

# Redis 7.0 leaves the beginning of a transaction that a crash has torn in the AOF, takes what follows for
# a part of it, and loses that with the next crash. So the AOF is written anew after each start.
socket=$(mktemp -d /tmp/redis.XXXXXX)/redis.sock # its path may have 107 bytes, so it is not below TMPDIR
key=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')
echo "user starter on #$(printf %s "$key" | sha256sum | cut -c1-64) -@all +bgrewriteaof" >> "$acl"
(
    until REDISCLI_AUTH=$key redis-cli -s "$socket" --user starter bgrewriteaof 2>&1 |
        grep -q -e 'rewriting started$' -e 'rewriting scheduled$'; do
        kill -0 $$ 2>/dev/null || exit # redis-server has ended, under the id of this shell
        sleep 0.2
    done
) < /dev/null > /dev/null 2>&1 &

# noeviction: an evicted key is a lost job. What a power loss may repeat with AOF every second is in
# docs/guarantees.md. Compact hashes: jobs and what is kept of finished ones take half; sorted
# sets of more than 16 members are indexed, docs/tuning.md.
exec redis-server ${conf:+"$conf"} --aclfile "$acl" --unixsocket "$socket" --unixsocketperm 700 --appendonly yes --appendfsync everysec --save '' \
    --maxmemory-policy noeviction --hash-max-listpack-value 4096 --zset-max-listpack-entries 16 "$@"
