#!/bin/bash
# pip-audit over a lock file: fails on known vulnerabilities, not on a database out of reach, which
# it says in its last line.
#
# usage: audit.sh PIP_AUDIT LOCK [more flags of pip-audit]
#
# AUDIT_ACCEPTED (default: audit-accepted.txt beside this script) lists vulnerabilities that we live
# with, one per line: the id, then why.
set -uo pipefail

audit=$1 lock=$2
shift 2
accepted=${AUDIT_ACCEPTED:-$(dirname "$0")/audit-accepted.txt}
flags=()
while read -r id reason; do
    case $id in "" | "#"*) continue ;; esac
    if [ -z "$reason" ]; then
        echo "audit: $accepted gives no reason for $id" >&2
        exit 2
    fi
    flags+=(--ignore-vuln "$id")
done <"$accepted"

output=$("$audit" --require-hashes --disable-pip --progress-spinner off --timeout 10 -r "$lock" \
    "${flags[@]}" "$@" 2>&1)
code=$?
unknown=$(grep -c 'could not be audited' <<<"$output")
# Of a failure to connect pip-audit gives a traceback, of vulnerabilities a table.
if [ "$code" -ne 0 ] && grep -qE '^[a-z0-9_.]*(ConnectionError|ServiceError|ProxyError|Timeout|HTTPError)' <<<"$output"; then
    echo "audit: NOT DONE: the vulnerability database cannot be reached from here" >&2
    exit 0
fi
hidden='could not be audited|^Name +Skip Reason|^-+ -+$|^$'
# A mirror without the database answers that it knows none of them, and pip-audit calls that clean.
if [ "$unknown" -gt 0 ]; then
    hidden+='|^No known vulnerabilities found'
    echo "audit: NOT DONE for $unknown packages of $lock: this index has no vulnerability database" >&2
fi
grep -vE "$hidden" <<<"$output"
exit "$code"
