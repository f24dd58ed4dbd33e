# Needs processes.sh. With a uid, the caller also has `unclaimed`, which prints the uid's processes
# that belong to no other command.

# Kill all processes with the mark, or with a uid all unclaimed ones, and their descendants. Spares
# the wrapper, a process of root that waits for the command: it ends by itself.
kill_marked() {
  local mark=$1 wrapper=$2 uid=$3 round pid parent holds fresh=0
  local -A tree spared stopped=() parent_of held_by
  for round in {1..50}; do
    tree=() spared=() parent_of=() held_by=()
    if [ -n "$wrapper" ]; then
      for pid in $(marked "$wrapper"); do
        [ -O "/proc/$pid" ] && spared[$pid]=1 tree[$pid]=1
      done
    fi
    while read -r pid parent holds; do
      [ -n "$holds" ] && held_by[$pid]=$parent || parent_of[$pid]=$parent
    done < <(parents)
    for pid in "${!held_by[@]}"; do
      [ -n "${spared[${held_by[$pid]}]:-}" ] && tree[$pid]=1
    done
    for pid in $([ -n "$uid" ] && unclaimed "$uid" "$wrapper" || marked "$mark"); do
      tree[$pid]=1
    done
    add_descendants tree stopped
    fresh=0
    for pid in "${!tree[@]}"; do
      [ -n "${spared[$pid]:-}${stopped[$pid]:-}" ] && continue
      [ -n "${parent_of[$pid]:-}" ] || continue
      kill -STOP "$pid" 2>/dev/null
      stopped[$pid]=1 fresh=1
    done
    [ $fresh = 0 ] && break
  done
  for pid in "${!stopped[@]}"; do kill -KILL "$pid" 2>/dev/null; done
  # Wait until they are gone: a process exists for a moment after its kill, and must not be seen.
  for round in {1..500}; do
    for pid in "${!stopped[@]}"; do
      has_ended "/proc/$pid/status" && continue
      [ $round = 50 ] && kill_tracers "$pid"
      sleep 0.02
      continue 2
    done
    [ $fresh = 0 ] && return 0
    break
  done
  echo "processes of a command are left" >&2
  return 1
}
