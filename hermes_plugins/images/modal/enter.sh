# Becomes a user of the image: bash -p -c TEXT enter ARGUMENT... with the arguments
#
#   USER       name or uid, with an optional group after a colon
#   KEEP       names of variables, each between spaces; all others are Modal's own
#   KIB        most memory that a process may write to; 0 = unlimited
#   SEAL ID    of the command, see run.sh of the containers; empty = there is no wrapper
#   PROGRAM ARGUMENT...
#
# Says what container engines say where the image has no such user. The seal is an argument, because
# the SDK would make a secret at Modal of a variable, for each command.
set -u
user=$1 keep=$2 kib=$3 seal=$4 id=$5 && shift 5
for name in $(compgen -e); do
  [[ $keep == *" $name "* ]] || unset "$name"
done
refuse() {
  echo "unable to find user $user: no matching entries in passwd file" >&2
  exit 126
}
# Files of the image may be an agent's: no pipe or device is read, and no more than a megabyte.
text() {
  local content=
  [ ! -f "$1" ] || IFS= read -r -N 1048576 content <"$1"
  printf '%s\n' "$content"
} 2>/dev/null
# Prints the group's id.
group_id() {
  local name rest gid members
  while IFS=: read -r name rest gid members; do
    [ "$name" = "$1" ] && echo "$gid" && return
  done < <(text /etc/group)
  [[ $1 =~ ^[0-9]{1,5}$ ]] && echo "$1"
} 2>/dev/null
wanted=${user%%:*} uid='' gid='' home='' login=''
while IFS=: read -r name rest number group full place shell; do
  if [ "$name" = "$wanted" ] || { [ -z "$uid" ] && [ "$number" = "$wanted" ]; }; then
    uid=$number gid=$group home=$place login=$name
    [ "$name" != "$wanted" ] || break
  fi
done < <(text /etc/passwd)
if [ -z "$uid" ]; then
  [[ $wanted =~ ^[0-9]{1,5}$ ]] || refuse
  uid=$wanted gid=0 home=/
  [ "$uid" != 0 ] || home=/root
fi
groups=
if [[ $user == *:* ]]; then
  gid=$(group_id "${user#*:}") || refuse
elif [ -n "$login" ]; then
  while IFS=: read -r name rest number members; do
    [[ ",$members," == *",$login,"* && $number != "$gid" ]] && groups=${groups:+$groups,}$number
  done < <(text /etc/group)
fi
[[ $keep == *" HOME "* ]] || export HOME=${home:-/}
[ -z "$seal" ] || export HQ_SEAL=$seal HQ_WRAPPER=$id
[ "$kib" = 0 ] || ulimit -d "$kib"
[ "$uid:$gid:$groups" != 0:0: ] || exec "$@"
for place in /usr/bin /bin /usr/sbin; do
  [ ! -x $place/setpriv ] || exec $place/setpriv "--reuid=$uid" "--regid=$gid" \
    "${groups:+--groups=}${groups:---clear-groups}" "$@"
done
for place in /usr/sbin /sbin /usr/bin; do
  [ ! -x $place/chroot ] || exec $place/chroot "--userspec=$uid:$gid" "--groups=$groups" / "$@"
done
echo "the image has neither setpriv nor chroot to become user $user" >&2
exit 126
