#!/bin/sh
# Start a sentinel that watches one master, see docs/redis-high-availability.md. Arguments are
# redis-server's, for example --port and those of TLS.
#
# SENTINEL_MASTER: the name of the master in URLs. SENTINEL_MONITOR="HOST PORT": where it is at first.
# REDIS_SENTINEL_PASSWORD: the one that start.sh was given. SENTINEL_QUORUM: so many sentinels must find
# it dead (2). SENTINEL_DOWN_AFTER_MS: its silence after which one does (5000). What the sentinels have
# agreed upon since the first start is in SENTINEL_CONFIG, by default ./sentinel.conf.
set -eu
umask 077

conf=${SENTINEL_CONFIG:-sentinel.conf}
name=${SENTINEL_MASTER:-hq}
if [ "${#REDIS_SENTINEL_PASSWORD}" -lt 16 ]; then
    echo "REDIS_SENTINEL_PASSWORD must have 16 characters or more" >&2
    exit 2
fi
if [ ! -e "$conf" ]; then
    cat > "$conf" <<EOF
sentinel resolve-hostnames ${SENTINEL_HOSTNAMES:-no}
sentinel announce-hostnames ${SENTINEL_HOSTNAMES:-no}
sentinel monitor $name $SENTINEL_MONITOR ${SENTINEL_QUORUM:-2}
sentinel down-after-milliseconds $name ${SENTINEL_DOWN_AFTER_MS:-5000}
sentinel failover-timeout $name ${SENTINEL_FAILOVER_TIMEOUT_MS:-30000}
sentinel parallel-syncs $name 1
EOF
fi
sed -i -e "/^sentinel auth-user $name /d" -e "/^sentinel auth-pass $name /d" "$conf"
printf 'sentinel auth-user %s sentinel\nsentinel auth-pass %s "%s"\n' "$name" "$name" \
    "$(printf %s "$REDIS_SENTINEL_PASSWORD" | sed 's/["\\]/\\&/g')" >> "$conf"
unset REDIS_SENTINEL_PASSWORD

exec redis-server "$conf" --sentinel "$@"
