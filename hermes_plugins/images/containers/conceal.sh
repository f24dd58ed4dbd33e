# Hides Python packages and modules from a slot's user: bash -p -c TEXT conceal NAME...
# Prints the places that it has hidden. The standard library stays whole.
set -u
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
for name in "$@"; do
  file=${name//.//}
  find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /opt/assets -o -path /workspace \) -prune \
    -o -type f \( -path "*/$file.py" -o -path "*/$file/__init__.py" \) -print 2>/dev/null |
    while IFS= read -r path; do
      [[ $path =~ /lib/python3\.[0-9]+/ && ! $path =~ /(site|dist)-packages/ ]] && continue
      place=${path%/__init__.py}
      # A module inside another package has the same name by chance.
      [ "$place" = "$path" ] && [ -e "${path%/*}/__init__.py" ] && continue
      chown 0:0 -- "$place" && chmod go-rwx -- "$place" && printf '%s\n' "$place" || exit 1
    done || exit 1
done
