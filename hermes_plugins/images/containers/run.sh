# The wrapper of one command in a container: bash -p -c TEXT run ARGUMENT... with the arguments
#
#   UID        become this user without rights, in a clean environment; "" = stay who we are
#   LIMIT_S    the command is killed after this time, should the worker have gone
#   ID CWD     id of the command, its working directory
#   STDIN      1 = the command gets what follows on standard input; 0 = an empty one
#   BYTES      length of the command line that comes first on standard input; 0 = it is an argument
#   DRAIN      1 = the engine closes the streams at the command's end, see below
#   NVARS [NAME=VALUE...] PROGRAM ARGUMENT...
#
# In the environment: HQ_SEAL, a secret of this command, and HQ_WRAPPER, which marks this process for
# kill.sh. At the end standard error gets NUL SEAL NUL, and standard output the same with the note
# `exit code, 1 if the kernel killed for lack of memory, microseconds of CPU` and a NUL.
set -u
uid=$1 limit=$2 id=$3 cwd=$4 stdin=$5 bytes=$6 drain=$7 count=$8 && shift 8
seal=$HQ_SEAL own_path=$PATH
unset HQ_SEAL HQ_WRAPPER
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# Number of processes that the kernel has killed in the container for lack of memory.
memory_kills() {
  local file line
  kills=0
  for file in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
    [ -r $file ] || continue
    while read -r line; do
      [[ $line == "oom_kill "* ]] && kills=${line#* } && return
    done <$file
  done
}

# Microseconds of CPU time that the container has used.
cpu_us() {
  local key
  cpu=
  if [ -r /sys/fs/cgroup/cpu.stat ]; then
    read -r key cpu </sys/fs/cgroup/cpu.stat
  elif [ -r /sys/fs/cgroup/cpuacct/cpuacct.usage ]; then
    read -r cpu </sys/fs/cgroup/cpuacct/cpuacct.usage && cpu=$((cpu / 1000))
  fi
}

# The first process makes the slot's directories. It needs milliseconds, or has failed.
for _ in {1..1000}; do
  [ "$uid" = "" ] || [ -e /.hq ] && break
  sleep 0.01
done
streams=() script=
if [ "$bytes" != 0 ]; then
  # Without the added character the shell would drop newlines at the end.
  script=$(head -c "$bytes" && echo .)
  exec 9< <(printf %s "${script%.}" 2>/dev/null)
  set -- "$@" /dev/fd/9
fi
[ "$stdin" = 1 ] || exec </dev/null
environment=("PATH=$own_path" "PWD=$cwd" "${@:1:count}" "HQ_COMMAND_ID=$id")
shift "$count"
if [ "$uid" = "" ]; then
  become=(env "${environment[@]}")  # not every image has `env -C`
  cd -- "$cwd" || become=(false)
else
  # Lets the command open its streams by name: they belong to root.
  for file in /proc/$$/fd/{1,2}; do
    [ -p "$file" ] && streams+=("$file")
  done
  [ ${#streams[@]} = 0 ] || chmod 602 "${streams[@]}"
  [ "$bytes" = 0 ] || chmod 604 /proc/$$/fd/9
  become=(setpriv "--reuid=$uid" "--regid=$uid" --clear-groups --no-new-privs --inh-caps=-all
    env -i -C "$cwd" "HOME=/home/agent" TMPDIR=/tmp "${environment[@]}")
fi
ulimit -c 0
memory_kills && before=$kills
cpu_us && began=$cpu
# The shell's message about a killed command is not output of the command.
exec 3>&2 2>/dev/null
timeout -k 5 "$limit" "${become[@]}" "$@" 2>&3 3>&-
code=$?
cpu_us
memory_kills
[ "$kills" = "$before" ] && kills=0 || kills=1
[ -n "$cpu" ] && cpu=$((cpu - began))
if [ "$drain" = 1 ]; then
  # Else SIGPIPE would end what the command left in the background. The engine reads first. It is a
  # program of its own: the arguments of this one look like the command's.
  exec 4</proc/$$/fd/1 5</proc/$$/fd/3
  env -i "PATH=$PATH" /bin/bash -c 'sleep 3; cat <&5 & exec cat <&4' 0</dev/null >/dev/null 3>&- &
fi
printf '\0%s\0' "$seal" >&3
printf '\0%s\0%s\0' "$seal" "$code $kills ${cpu:--}"
exit $code
