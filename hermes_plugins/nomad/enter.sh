# Begins a program in a container: bash -p -c TEXT enter. On standard input come, each ended by a NUL,
#
#   USER                     a name or uid, with a group after a colon; "" = root
#   NVARS [NAME=VALUE...]
#   NWORDS PROGRAM ARGUMENT...
#
# and then the program's own input. Needs what every image of slots has, and setpriv or chroot for
# other users than root.
set -u
take() { IFS= read -r -d '' "$1" || exit 125; }
locale=${LC_ALL-} localized=${LC_ALL+1}
LC_ALL=C # words are bytes
variables=() words=()
take user
take count
for ((i = 0; i < count; i++)); do take word && variables+=("$word"); done
take count
for ((i = 0; i < count; i++)); do take word && words+=("$word"); done
if [ -n "$localized" ]; then LC_ALL=$locale; else unset LC_ALL; fi
for word in "${!NOMAD_@}"; do unset "$word"; done
for word in "${variables[@]}"; do export -- "${word?}"; done
cd /
[ -n "$user" ] && [ "$user" != 0 ] && [ "$user" != root ] || exec -- "${words[@]}"

# Files of the image may be an agent's: no pipe or device is read, and no more than a megabyte.
text() {
  local content=
  [ ! -f "$1" ] || IFS= read -r -N 1048576 content <"$1"
  printf '%s\n' "$content"
} 2>/dev/null
# Print the fields of an entry of $1 whose first or third field is $2.
entry() {
  local name secret number rest
  while IFS=: read -r name secret number rest; do
    [ "$name" = "$2" ] || [ "$number" = "$2" ] && echo "$name:$number:$rest" && return
  done < <(text "$1")
  return 1
}
refuse() {
  echo "unable to find $1 $2: no matching entries in $3 file" >&2
  exit 126
}
who=${user%%:*} group=
[[ $user == *:* ]] && group=${user#*:}
IFS=: read -r name uid gid _ home _ < <(entry /etc/passwd "$who") || {
  [[ $who =~ ^[0-9]+$ ]] || refuse user "$who" passwd
  name= uid=$who gid=0 home=/
}
groups=$gid
if [ -n "$group" ]; then
  if [[ $group =~ ^[0-9]+$ ]]; then
    gid=$group
  else
    IFS=: read -r _ gid _ < <(entry /etc/group "$group") || refuse group "$group" group
  fi
  groups=$gid
elif [ -n "$name" ]; then
  while IFS=: read -r _ _ number members; do
    [[ ,$members, == *",$name,"* ]] && groups+=,$number
  done < <(text /etc/group)
fi
IFS=: read -r _ _ _ _ own _ < <(entry /etc/passwd 0)
[ "${HOME-}" = "${own:-/root}" ] || [ -z "${HOME-}" ] && export HOME=$home
[ "$uid" != 0 ] || exec -- "${words[@]}"
if command -v setpriv >/dev/null; then
  exec setpriv "--reuid=$uid" "--regid=$gid" "--groups=$groups" --inh-caps=-all "${words[@]}"
fi
exec chroot "--userspec=+$uid:+$gid" "--groups=$groups" / "${words[@]}"
