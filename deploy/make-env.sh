#!/bin/sh
# Write an environment file for docker compose with a random password for everybody, readable by
# its owner alone:
#
#   sh deploy/make-env.sh .env
#
# What the file has already stays: the passwords in it are those of a Redis that may run. After an
# upgrade, run it again for those that are new. Settings of ours that are no secrets move to
# settings.env beside it, which all services read.
set -eu
umask 077
file=${1:?file to write}

random() {
    od -An -N24 -tx1 /dev/urandom | tr -d ' \n'
}

need() {
    grep -q "^$1=" "$file" || echo "$1=$2" >> "$file"
}

[ -e "$file" ] || (set -C && : > "$file")
[ -z "$(tail -c 1 "$file")" ] || echo >> "$file" # a last line without an end
for name in PRODUCER WORKER CONSUMER MONITOR VIEWER FLOWER OPERATOR; do
    need "REDIS_${name}_PASSWORD" "$(random)"
done
need FLOWER_BASIC_AUTH "admin:$(random)"
need GRAFANA_PASSWORD "$(random)"
need HERMES_QUEUE_VIEW_TOKEN "$(random)"

settings=$(dirname "$file")/settings.env
ours='^HERMES_QUEUE_' secret='^HERMES_QUEUE_(VIEW_TOKEN|MODEL_API_KEY)='
if grep "$ours" "$file" | grep -vE "$secret" >> "$settings"; then
    kept=$(grep -v "$ours" "$file"; grep -E "$secret" "$file")
    echo "$kept" > "$file"
fi
[ -s "$settings" ] || rm "$settings"
