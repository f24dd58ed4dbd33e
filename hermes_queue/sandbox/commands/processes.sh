# Functions about the processes of a sandbox, for root in it.

# Whether nothing, or only the exit code, is left of the process with this status. Its state is that
# of its first thread, which may end before the others.
has_ended() {
  local key value rest
  while read -r key value rest; do
    case $key in
      State:) [[ $value == [ZX] ]] || return 1 ;;
      Threads:) [ "$value" -le 1 ]; return ;;
    esac
  done 2>/dev/null <"$1"
  return 0
}

# Print every process with its parent, and who traces a dead one with the parent of that, which
# cannot see its death, and the word `holds`.
parents() {
  local file key value rest pid parent state tracer
  for file in /proc/[0-9]*/status; do
    pid=${file#/proc/} pid=${pid%/status}
    while read -r key value rest; do
      case $key in
        State:) state=$value ;;
        PPid:) parent=$value && [[ $state != [ZX] ]] && echo "$pid $parent" && break ;;
        TracerPid:) tracer=$(process_of "$value") && echo "$tracer $parent holds" ;;
        Threads:) [ "$value" -le 1 ] || echo "$pid $parent"; break ;;
      esac
    done 2>/dev/null <"$file"
  done
}

# Print the process of a thread.
process_of() {
  local key value rest
  while read -r key value rest; do
    [ "$key" = Tgid: ] && echo "$value" && return
  done 2>/dev/null <"/proc/$1/status"
  return 1
}

# Kill who traces threads of a killed process and keeps them just before, or after, their end.
kill_tracers() {
  local file key value rest
  for file in /proc/"$1"/task/[0-9]*/status; do
    while read -r key value rest; do
      [ "$key" = TracerPid: ] || continue
      value=$(process_of "$value") && kill -KILL "$value" 2>/dev/null
      break
    done 2>/dev/null <"$file"
  done
}

marked() {
  grep -lzxF -e "$1" /proc/[0-9]*/environ 2>/dev/null | grep -oE '[0-9]+'
}

# Add to the pids, keys of the array $1, all descendants of them and of the keys of $2.
add_descendants() {
  local -n members=$1 ancestors=$2
  local pid grown=1
  while [ $grown = 1 ]; do
    grown=0
    for pid in "${!parent_of[@]}"; do
      [ -n "${members[$pid]:-}" ] && continue
      [ -n "${members[${parent_of[$pid]}]:-}${ancestors[${parent_of[$pid]}]:-}" ] || continue
      members[$pid]=1 grown=1
    done
  done
}
