# Kills the command ID with its whole tree: bash -p -c TEXT kill ID. Its wrapper is spared and ends by
# itself. Fails if something is left that can be seen.
set -u
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
#: here come the functions of hermes_queue/sandbox/commands

kill_marked "HQ_COMMAND_ID=$1" "HQ_WRAPPER=$1" ""
