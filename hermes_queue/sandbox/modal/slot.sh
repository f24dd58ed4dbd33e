# Slots inside one sandbox. Installed there and run as root by the worker, one action per call:
#
#   install                            make directories and mount points
#   probe [UID...]                     print abilities of this image and kernel, as name=value lines
#   configure SEAL DROPPED [NAME=VALUE...]  write /.hq/settings (see below), and /.hq/seal for root
#                                      only; DROPPED: patterns a|b of variables to hide from slots
#   open SLOT UID WORKSPACE [ASSET=MOUNT...]  make empty directories, owned by UID
#   conceal UIDS NAME...               hide Python packages from all slots, by import name;
#                                      print those that could not be hidden
#   close SLOT UID WORKSPACE           kill all processes of UID, delete all files of UID
#   spill SLOT UID ID                  store standard input as the command line of command ID
#   run SLOT UID LIMIT_S ID CWD STDIN NVARS [NAME=VALUE...] ARGUMENT...
#                                      after the command's end, both streams get a mark, NUL SEAL ID
#                                      NUL: the command's own output comes before it
#   pack SLOT UID WORKSPACE NAME MARK LIMIT LIMIT_S
#                                      store the files of SLOT, at most LIMIT bytes, as the archive NAME,
#                                      with the slot's rights; print done=BYTES, or none=REASON
#   unpack NAME UID MARK LIMIT_S       the other way round, into an empty slot of the same MARK
#   forget NAME                        delete an archive
#   kill ID [UID]                      kill the command that `run` calls ID, with its whole tree;
#                                      fails if that cannot be confirmed
#   fate SLOT ID                       print why a command had exit code 137: `own`, `memory` (the
#                                      kernel killed it for lack of memory), or nothing: its wrapper
#                                      was killed, too
#
# UID 0: the slot runs as root. In /.hq/settings:
#   mounts=1        every command gets a mount namespace in which the slot's directories have their
#                   usual paths; propagation: value of `unshare --propagation`
#   environ=0       root cannot read other uids' environments: a command's processes are found by
#                   their uid
#   leaks=1         uids can read each other's environments, and what else lies in /proc
#   memory_kib, pids  the slot's limits, 0 = none
#
# A slot's own directory belongs to root: its uid can pass through it, but change nothing that
# a later mount relies on.
set -u
umask 022
export HQ_IMAGE_PATH="${HQ_IMAGE_PATH-$PATH}"
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
root=/.hq
self=$root/slot.sh
mounts=0 propagation=private environ=1 leaks=0 memory_kib=0 pids=0 dropped=
[ -e $root/settings ] && . $root/settings

# What a command needs comes first: bash reads a script as far as it runs it, and the rest would cost
# every command two milliseconds.
if [ "$1" = run ]; then
  export HQ_WRAPPER=$5
  [ $mounts = 0 ] || exec unshare --mount --propagation $propagation /bin/bash $self inside "${@:2}"
fi

run() {
  local slot=$1 uid=$2 limit=$3 id=$4 cwd=$5 stdin=$6 count=$7 pair
  local home=/home/agent temporary=/tmp seal code file streams=()
  read -r seal <$root/seal
  shift 7
  local environment=()
  while IFS= read -r -d '' pair; do
    case $pair in
      HQ_* | PATH=* | HOME=* | TMPDIR=* | USER=* | LOGNAME=* | PWD=* | OLDPWD=* | \
        SHLVL=* | _=*) ;;
      *=*) [[ ${pair%%=*} == @($dropped) ]] || environment+=("$pair") ;;
    esac
  done </proc/$$/environ
  if [ $mounts = 1 ]; then
    mount_slot "$slot" || { echo "the slot's directories cannot be mounted" >&2; exit 70; }
  else
    home=$root/slots/$slot/home temporary=$root/slots/$slot/tmp
    # All slots share /tmp here; keep the files in it private.
    umask 027
  fi
  environment+=("PATH=$HQ_IMAGE_PATH:$root/bin" "HOME=$home" "TMPDIR=$temporary"
    "PWD=$cwd" "${@:1:count}" "HQ_COMMAND_ID=$id")
  # Marks the processes of a slot that runs as root; others are found by their uid.
  [ "$uid" != 0 ] || environment+=("HQ_SLOT=$slot")
  shift "$count"
  [ "$stdin" = 1 ] || exec </dev/null
  # Lets the command open /dev/stdout and /dev/stderr by name for writing, but not for reading.
  for file in /proc/$$/fd/{1,2}; do
    [ -p "$file" ] && streams+=("$file")
  done
  # For everybody, because elsewhere only the command's own uid gets as far as that: one program less.
  local mode=602
  if [ ${#streams[@]} != 0 ]; then
    [ $leaks = 0 ] || { mode=620 && chown "0:$uid" "${streams[@]}" 2>/dev/null; }
    chmod $mode "${streams[@]}" 2>/dev/null
  fi
  local become=()
  if [ "$uid" != 0 ]; then
    become=(setpriv "--reuid=$uid" "--regid=$uid" --clear-groups --no-new-privs --inh-caps=-all)
  fi
  ulimit -c 0
  [ $memory_kib = 0 ] || ulimit -v $memory_kib
  [ $pids = 0 ] || [ "$uid" = 0 ] || ulimit -u $pids
  # The shell's message about a killed command is not output of the command.
  exec 3>&2 2>/dev/null
  memory_kills
  local killed=$memory_kills
  timeout -k 5 "$limit" "${become[@]}" env -i -C "$cwd" "${environment[@]}" "$@" 2>&3 3>&-
  code=$?
  if [ $code = 137 ]; then
    memory_kills
    [ "$memory_kills" = "$killed" ] && killed=own || killed=memory
    (umask 077 && echo $killed >"$root/slots/$slot/fate-$id")
  fi
  printf '\0%s\0' "$seal$id"
  printf '\0%s\0' "$seal$id" >&3
  exit $code
}

# Number of processes that the kernel has killed for lack of memory, in the sandbox if that is known.
memory_kills() {
  local file key value lines line
  memory_kills=0
  for file in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control /proc/vmstat; do
    [ -r $file ] && mapfile -t lines <$file || continue
    for line in "${lines[@]}"; do
      [[ $line == "oom_kill "* ]] && memory_kills=${line#* } && return
    done
  done
}

# One program for all of them, where that can be: each costs a command some milliseconds.
mount_slot() {
  local slot=$root/slots/$1
  mount -a -T "$slot/fstab" 2>/dev/null && is_mounted "$slot" || mount_each "$slot" || return 1
  # Hides the other slots' processes, if the kernel can.
  mount -t proc -o hidepid=2,nosuid,nodev,noexec proc /proc 2>/dev/null
  return 0
}

# The slot's directories and where commands see them, as `source=target`.
places_of() {
  local slot=$1
  printf '%s\0' "$slot/workspace=/workspace" "$slot/home=/home/agent" "$slot/tmp=/tmp" \
    "$slot/var-tmp=/var/tmp" "$slot/assets=/opt/assets"
  [ ! -d /dev/shm ] || printf '%s\0' "$slot/shm=/dev/shm"
}

# `mount -a` leaves out what it takes for mounted.
is_mounted() {
  local slot=$1 pair
  [ /workspace -ef "$slot/workspace" ] && [ /home/agent -ef "$slot/home" ] &&
    [ /tmp -ef "$slot/tmp" ] && [ /var/tmp -ef "$slot/var-tmp" ] &&
    [ /opt/assets -ef "$slot/assets" ] || return 1
  [ ! -d /dev/shm ] || [ /dev/shm -ef "$slot/shm" ] || return 1
  [ -e "$slot/mounts" ] || return 0
  while IFS= read -r -d '' pair; do
    [ "${pair%%=*}" -ef "${pair#*=}" ] || return 1
  done <"$slot/mounts"
}

mount_each() {
  local slot=$1 pair
  while IFS= read -r -d '' pair; do
    mount --bind "${pair%%=*}" "${pair#*=}" || return 1
  done < <(places_of "$slot")
  if [ -e "$slot/mounts" ]; then
    while IFS= read -r -d '' pair; do
      # If the kernel refuses the flag, the files' owner and modes protect them.
      mount -o bind,ro "${pair%%=*}" "${pair#*=}" 2>/dev/null ||
        mount --bind "${pair%%=*}" "${pair#*=}" || return 1
    done <"$slot/mounts"
  fi
}

case $1 in
  run | inside) shift && run "$@" ;;
esac

install_root() {
  PATH=$HQ_IMAGE_PATH
  mkdir -p $root/slots $root/assets $root/kept $root/bin /workspace /home/agent /opt/assets
  chmod 711 $root $root/slots /workspace
  chmod 700 $root/assets $root/kept
  chmod a+x /opt /opt/assets
  command -v python >/dev/null || ln -sf "$(command -v python3)" $root/bin/python
}

as_uid() {
  local uid=$1
  shift
  setpriv --reuid="$uid" --regid="$uid" --clear-groups --no-new-privs --inh-caps=-all "$@"
}

probe() {
  local plain
  for plain in setpriv timeout env find grep; do
    command -v $plain >/dev/null || echo "lacks=$plain"
  done
  env -C / true 2>/dev/null || echo "lacks=env-C"
  echo "python=$(PATH=$HQ_IMAGE_PATH python3 -c \
    'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)"
  probe_mounts
  probe_uids "$@"
}

# The second way is for kernels without propagation; elsewhere its mounts could be seen outside.
probe_mounts() {
  local way
  touch $root/slots/probe
  for way in private unchanged; do
    unshare --mount --propagation $way \
      sh -c "mount --bind $root/slots /workspace && mount --bind /workspace /tmp" 2>/dev/null ||
      continue
    [ ! -e /workspace/probe ] && mounts=1 propagation=$way && break
    umount /tmp /workspace
  done
  rm -f $root/slots/probe
  echo "mounts=$mounts propagation=$propagation"
}

# Start a process under a slot's uid, and find out who can see it and its environment.
probe_uids() {
  local first=$1 last=$2 uids=0 leaks=0 hidden=0 sleeper pid up="" look
  environ=0
  exec {sleeper}< <(as_uid "$first" env -i HQ_PROBE=seen /bin/bash -c \
    'echo up $$; exec sleep 60' 2>/dev/null)
  read -r -t 20 up pid <&"$sleeper"
  if [ "$up" = up ] && as_uid "$last" true; then
    processes_of "$first" | grep -qx "/proc/$pid/status" && uids=1
    marked HQ_PROBE=seen | grep -qx "$pid" && environ=1
    as_uid "$last" grep -qzxF HQ_PROBE=seen "/proc/$pid/environ" && leaks=1
    look="mount -t proc -o hidepid=2,nosuid,nodev,noexec proc /proc && exec setpriv \
      --reuid=$last --regid=$last --clear-groups sh -c '[ ! -e /proc/$pid ]'"
    [ $mounts = 1 ] && unshare --mount --propagation $propagation sh -c "$look" && hidden=1
    kill_uid "$first" || uids=0
  fi 2>/dev/null
  # Else slots run as root, and root can read their environments.
  [ $uids = 1 ] || environ=1
  echo "uids=$uids environ=$environ leaks=$leaks hidden=$hidden"
}

configure() {
  (umask 077 && echo "$1" >$root/seal)
  printf 'dropped=%q\n' "$2" >$root/settings
  shift 2
  printf '%s\n' "$@" >>$root/settings
}

open_slot() {
  local slot=$root/slots/$1 uid=$2 workspace=$3 pair
  shift 3
  local places=("$workspace" "$slot"/{home,tmp,var-tmp,shm})
  mkdir -m 710 "$slot" && chown "0:$uid" "$slot" || return 1
  mkdir "$slot/assets"
  # A sandbox's only workspace exists from the start.
  rm -rf -- "$workspace"
  mkdir -m 700 "${places[@]}" && chown "$uid:$uid" "${places[@]}" || return 1
  for pair in "$@"; do
    mkdir -p "$slot/assets/${pair#*=/opt/assets/}"
    printf '%s\0' "$pair" >>"$slot/mounts"
  done
  [ $mounts = 0 ] || write_fstab "$slot"
}

# Every Python file of the image, except in slots and assets; one walk per sandbox.
index_python() {
  local index=$root/python-index
  [ -e $index ] && return
  (
    umask 077
    find / \( -path /proc -o -path /sys -o -path /dev -o -path $root -o -path /workspace \
      -o -path /home/agent -o -path /opt/assets -o -path /tmp -o -path /var/tmp \) -prune \
      -o -type f -name '*.py' -print0 >$index.$$ 2>/dev/null
    mv $index.$$ $index
  )
}

conceal() {
  local uids=$1 name path place
  shift
  index_python
  for name in "$@"; do
    while IFS= read -r -d '' path; do
      # The standard library stays whole.
      [[ $path =~ /lib/python3\.[0-9]+/ && ! $path =~ /(site|dist)-packages/ ]] && continue
      place=${path%/__init__.py}
      # A module inside another package has the same name by chance.
      [ "$place" = "$path" ] && [ -e "${path%/*}/__init__.py" ] && continue
      # Nothing can be hidden from slots that run as root.
      [ "$uids" = 1 ] && chown 0:0 -- "$place" && chmod go-rwx -- "$place" && continue
      echo "$place"
    done < <(grep -zE "/${name//.//}(/__init__)?\.py\$" $root/python-index)
  done
  return 0
}

processes_of() {
  local file
  for file in $(grep -lE "^Uid:[[:space:]]$1[[:space:]]" /proc/[0-9]*/status 2>/dev/null); do
    has_ended "$file" || echo "$file"
  done
}

# Kill all processes of a uid. Signals are sent as that uid, so that a reused pid of another slot is
# never hit; one by one, and to all at once for processes that fork faster than we look.
kill_uid() {
  local uid=$1 round found
  for round in {1..50}; do
    found=$(processes_of "$uid")
    # shellcheck disable=SC2046 # each number is a word
    setpriv --reuid="$uid" --regid="$uid" --clear-groups bash -c \
      'kill -STOP "$@"; kill -9 "$@"; kill -9 -1' kill $(grep -oE '[0-9]+' <<<"$found") 2>/dev/null
    # Twice: one look may miss a process that forks and ends meanwhile.
    [ -z "$(processes_of "$uid")" ] && [ -z "$(processes_of "$uid")" ] && return 0
    sleep 0.02
  done
  return 1
}

close_slot() {
  local slot=$root/slots/$1 uid=$2 workspace=$3
  if [ "$uid" = 0 ]; then
    kill_marked "HQ_SLOT=$1" "" ""
    rm -rf -- "$slot" "$workspace"
    return
  fi
  kill_uid "$uid" || { echo "processes of $uid are left" >&2; return 1; }
  rm -rf -- "$slot" "$workspace"
  find /tmp /var/tmp /dev/shm -xdev -depth -uid "$uid" -delete
  [ ! -e "$slot" ] && [ ! -e "$workspace" ] || { echo "files of $uid are left" >&2; return 1; }
}

# Why the files of a slot would not be all that it consists of, or the topmost of its files that lie in
# the sandbox's own /tmp and /var/tmp, in the file $3.
loose_files() {
  local slot=$1 uid=$2 list=$3 seconds=$4 kind column words name code
  [ -z "$(processes_of "$uid")" ] || { echo "processes run in the background"; return; }
  [ -z "$(timeout "$seconds" find /dev/shm "$slot/shm" -mindepth 1 -uid "$uid" -print -quit \
    2>/dev/null)" ] || { echo "/dev/shm is not empty"; return; }
  for kind in shm/7 msg/7 sem/4; do
    column=${kind#*/} kind=/proc/sysvipc/${kind%/*}
    [ -r "$kind" ] || continue
    while read -r -a words; do
      [ "${words[column]:-}" != "$uid" ] ||
        { echo "there are System V shared memory, semaphores or messages"; return; }
    done <"$kind"
  done
  timeout "$seconds" find tmp var/tmp -xdev -mindepth 1 -uid "$uid" -prune -printf '%d/%p\0' \
    2>/dev/null | head -c 1000001 >"$list.new"
  code=${PIPESTATUS[0]}
  # What is left over may fit into the pipe, and then `find` does not miss its reader.
  [ "$(stat -c %s "$list.new")" -le 1000000 ] || code=141
  # 1: a file of another slot has vanished meanwhile.
  [[ $code == [01] ]] || { echo "too many files lie in /tmp"; return; }
  while IFS= read -r -d '' name; do
    [[ $name == 1/* ]] || { echo "files lie in directories of other slots"; return; }
    printf '%s\0' "${name#1/}" >&3
  done <"$list.new" 3>"$list"
  rm "$list.new"
}

# Run a program with the rights of a slot, and nothing of our environment.
confined() {
  local uid=$1 seconds=$2
  shift 2
  ulimit -c 0
  [ $memory_kib = 0 ] || ulimit -v $memory_kib
  as_uid "$uid" env -i "PATH=$PATH" LC_ALL=C timeout -k 5 "$seconds" "$@"
}

# `tar` packs paths that no system call takes, and then cannot unpack them.
has_long_path() {
  local uid=$1 seconds=$2 long
  shift 2
  printf -v long '%4000s' ''
  [ -n "$(confined "$uid" "$seconds" find "$@" tmp var/tmp -xdev -uid "$uid" \
    -path "${long// /?}*" -printf x -quit 2>/dev/null)" ]
}

# Only files can be brought back: of a slot with processes or shared memory there is no archive.
# Compressed, because not every kernel tells where a file has holes.
pack() {
  local slot=$root/slots/$1 uid=$2 workspace=$3 kept=$root/kept/$4 mark=$5 limit=$6 seconds=$7
  local reason code size
  [ "$uid" != 0 ] || { echo "none=the slot runs as root"; return; }
  cd / && mkdir -m 700 "$kept" && echo "$mark" >"$kept/mark" || return 1
  reason=$(loose_files "$slot" "$uid" "$kept/loose" "$seconds")
  [ -z "$reason" ] || { echo "none=$reason"; return; }
  ! has_long_path "$uid" "$seconds" "${workspace#/}" "${slot#/}"/{home,tmp,var-tmp} ||
    { echo "none=a path has 4000 bytes or more"; return; }
  reason=$({
    confined "$uid" "$seconds" tar --create --file=- --format=posix -I 'gzip -1' \
      --pax-option=delete=atime,delete=ctime --xattrs --xattrs-include='user.*' --sparse \
      --one-file-system "${workspace#/}" "${slot#/}"/{home,tmp,var-tmp} --null --files-from=- \
      <"$kept/loose" 2>&3 3>&- | head -c $((limit + 1)) >"$kept/files"
    exit "${PIPESTATUS[0]}"
  } 3>&1 | head -c 200; exit "${PIPESTATUS[0]}")
  code=$?
  size=$(wc -c <"$kept/files") || return 1
  if [ "$size" -gt "$limit" ]; then
    echo "none=they are larger than a snapshot may be"
  elif [ $code = 124 ] || [ $code = 137 ]; then
    echo "none=it takes too long"
  elif [ $code != 0 ]; then
    echo "none=exit code $code: $reason"
  else
    echo "done=$size"
  fi
}

unpack() {
  local kept=$root/kept/$1 uid=$2 mark=$3 seconds=$4 name problem code
  [ "$(head -c 1000 "$kept/mark" 2>/dev/null)" = "$mark" ] ||
    { echo "none=it is of another trajectory, or of a slot with other paths"; return; }
  cd / || return 1
  while IFS= read -r -d '' name; do
    [ ! -e "$name" ] && [ ! -L "$name" ] ||
      { echo "none=another slot has files of the same names in /tmp"; return; }
  done <"$kept/loose"
  problem=$(confined "$uid" "$seconds" tar --extract --file=- -z --preserve-permissions \
    --delay-directory-restore --xattrs --xattrs-include='user.*' 2>&1 <"$kept/files" | head -c 200
    exit "${PIPESTATUS[0]}")
  code=$?
  [ $code = 0 ] && echo "done=0" || echo "none=exit code $code: $problem"
}

forget() {
  rm -rf -- "$root/kept/${1:?}"
}

spill() {
  local file=$root/slots/$1/spill-$3
  cat >"$file" && chown "0:$2" "$file" && chmod 440 "$file"
}

# Only for names without blanks and the like, which fstab(5) cannot hold as they are.
write_fstab() {
  local slot=$1 pair
  {
    while IFS= read -r -d '' pair; do
      [[ $pair != *[[:space:]\\#]* ]] || return 0
      echo "${pair%%=*} ${pair#*=} none bind"
    done < <(places_of "$slot")
    while IFS= read -r -d '' pair; do
      [[ $pair != *[[:space:]\\#]* ]] || return 0
      echo "${pair%%=*} ${pair#*=} none bind,ro"
    done 2>/dev/null <"$slot/mounts"
  } >"$slot/fstab.new"
  mv "$slot/fstab.new" "$slot/fstab"
}

fate() {
  local note=$root/slots/$1/fate-$2
  [ ! -e "$note" ] || cat "$note"
}

# Print all processes of the uid that do not belong to another running command of the slot.
unclaimed() {
  local uid=$1 wrapper=$2 file pid
  local -A claimed=() nobody=()
  for pid in $(grep -lzE '^HQ_WRAPPER=' /proc/[0-9]*/environ 2>/dev/null | grep -oE '[0-9]+'); do
    [ -O "/proc/$pid" ] && ! grep -qzxF -e "$wrapper" "/proc/$pid/environ" 2>/dev/null &&
      claimed[$pid]=1
  done
  add_descendants claimed nobody
  for file in $(processes_of "$uid"); do
    pid=${file#/proc/} pid=${pid%/status}
    [ -n "${claimed[$pid]:-}" ] || echo "$pid"
  done
}

#: here come the functions of hermes_queue/sandbox/commands

kill_command() {
  local uid=${2:-0}
  # Root can always read the environments of its own processes.
  [ $environ = 1 ] || [ "$uid" = 0 ] || { kill_marked "" "HQ_WRAPPER=$1" "$uid"; return; }
  kill_marked "HQ_COMMAND_ID=$1" "HQ_WRAPPER=$1" ""
}

action=$1
shift
case $action in
  install) install_root ;;
  probe) probe "$@" ;;
  configure) configure "$@" ;;
  open) open_slot "$@" ;;
  conceal) conceal "$@" 2>/dev/null ;;
  close) close_slot "$@" ;;
  spill) spill "$@" ;;
  pack) pack "$@" ;;
  unpack) unpack "$@" ;;
  forget) forget "$@" ;;
  kill) kill_command "$@" ;;
  fate) fate "$@" ;;
  *) echo "unknown action $action" >&2 && exit 64 ;;
esac
