# Packs the repository of an image, in a fresh slot of it.
#
# Environment: WORKDIR; SCRATCH, an empty directory; TESTS, a directory of hidden tests or ""; ATTRIBUTES
# for git; PYTHONS, a colon-separated list of interpreters; NEEDED, a module that one must have.
# Leaves in SCRATCH: `pack` (a commit of the tracked files as they are, one more with the hidden tests),
# `files` and `gits` (NUL-separated: all files and links; all .git), `command` (run_tests.sh).
# Prints lines NAME=VALUE: commit, tests, tag, python. An image that does not fit: exit code 3 and the reason.
set -eu
refuse() {
  printf 'refused=%s\n' "$1"
  exit 3
}
command -v git >/dev/null || refuse "the image has no git"
cd -- "$WORKDIR" 2>/dev/null || refuse "source.workdir: the image has no directory $WORKDIR"
printf '[safe]\n\tdirectory = *\n[user]\n\tname = x\n\temail = x\n' >"$SCRATCH/.gitconfig"
export HOME="$SCRATCH" GIT_CONFIG_GLOBAL="$SCRATCH/.gitconfig"
top=$(git rev-parse --show-toplevel 2>/dev/null) || top=
[ "$top" = "$(pwd -P)" ] || refuse "source.workdir: $WORKDIR is not the root of a git repository"
git rev-parse --quiet --verify HEAD >/dev/null || refuse "source.workdir: $WORKDIR has no commit"
dir=$(git rev-parse --git-dir) && dir=$(cd "$dir" && pwd -P)
mkdir -p "$dir/info" && printf '%s\n' "$ATTRIBUTES" >"$dir/info/attributes"
find . -name .git -prune -print0 >"$SCRATCH/gits"
find . -name .git -prune -o \( -type f -o -type l \) -print0 >"$SCRATCH/files"

export GIT_INDEX_FILE="$SCRATCH/index"
git read-tree HEAD
git -c core.autocrlf=false -c core.fileMode=true -c core.fsmonitor=false add -u -- .
commit=$(git commit-tree -m x "$(git write-tree)")
printf 'commit=%s\n' "$commit"
if [ -n "$TESTS" ]; then
  [ -d "$TESTS" ] || TESTS=$WORKDIR/${TESTS##*/}
  [ -d "$TESTS" ] || refuse "source.tests: the image has no directory $TESTS"
  find "$TESTS" -name __pycache__ -prune -exec rm -rf -- {} +
  tree=$(cd "$TESTS" && export GIT_INDEX_FILE="$SCRATCH/tests" && git --git-dir="$dir" --work-tree=. \
    -c core.autocrlf=false -c core.excludesFile=/dev/null add -A -f -- . && git --git-dir="$dir" write-tree)
  git read-tree --prefix=r2e_tests/ "$tree" 2>/dev/null || refuse "source.tests: r2e_tests is tracked by git"
  tests=$(git commit-tree -m x "$(git write-tree)")
  printf 'tests=%s\n' "$tests"
  cp -- run_tests.sh "$SCRATCH/command" 2>/dev/null || refuse "the image has no $WORKDIR/run_tests.sh"
fi
printf '%s\n%s\n' "$commit" "${tests-}" | git -c pack.threads=1 pack-objects --revs --stdout -q >"$SCRATCH/pack"
printf 'tag=%s\n' "$(git describe --tags --abbrev=0 2>/dev/null || true)"

cd /
IFS=:
for python in $PYTHONS; do
  path=$(command -v "$python" 2>/dev/null) || continue
  "$path" -I -B -c "import $NEEDED" >/dev/null 2>&1 || continue
  printf 'python=%s\n' "$path"
  exit 0
done
refuse "source.python: no interpreter of the image has $NEEDED, among $PYTHONS"
