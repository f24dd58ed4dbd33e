# Lists all files of the root file system: bash -p -c TEXT files. Each ends with a NUL and is preceded
# by the time of its last change, which nobody in a container can set.
set -u
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
find / -xdev -printf '%C@ %p\0'
