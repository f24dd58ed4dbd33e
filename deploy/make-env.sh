#!/bin/sh
# Print an environment file for docker compose with a new random password for everybody:
#
#   (umask 077; sh deploy/make-env.sh > .env)
set -eu

random() {
    od -An -N24 -tx1 /dev/urandom | tr -d ' \n'
}

for name in PRODUCER WORKER CONSUMER MONITOR FLOWER OPERATOR; do
    echo "REDIS_${name}_PASSWORD=$(random)"
done
echo "FLOWER_BASIC_AUTH=admin:$(random)"
echo "GRAFANA_PASSWORD=$(random)"
