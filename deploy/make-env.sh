#!/bin/sh
# Write an environment file for docker compose with a new random password for everybody, readable by
# its owner alone:
#
#   sh deploy/make-env.sh .env
#
# Never over an existing one: the passwords in it are those of a Redis that may run.
set -euC
umask 077

random() {
    od -An -N24 -tx1 /dev/urandom | tr -d ' \n'
}

{
    for name in PRODUCER WORKER CONSUMER MONITOR VIEWER FLOWER OPERATOR; do
        echo "REDIS_${name}_PASSWORD=$(random)"
    done
    echo "FLOWER_BASIC_AUTH=admin:$(random)"
    echo "GRAFANA_PASSWORD=$(random)"
    echo "HERMES_QUEUE_VIEW_TOKEN=$(random)"
} > "${1:?file to write}"
