# Builds the asset of a program in the working directory, its mount. Before this text stand HQ_SELF_TEST and the
# functions hq_lock, hq_archives, hq_unpack_py and hq_top_level_py, which print a file each. Under bash -eu.
set -o pipefail
here=$PWD
hq_archives >archives.json
if [ -s archives.json ]; then
	hq_unpack_py >unpack.py
	python3 -I unpack.py <archives.json
	rm unpack.py
fi
rm archives.json
hq_lock >requirements.lock
if [ -s requirements.lock ]; then
	# Below /opt/python every slot has the interpreter of its row, so this one is brought along.
	python=$(readlink -f "$(command -v python3)")
	case $python in /opt/python/*)
		cp -a /opt/python python
		python=$here/python${python#/opt/python}
		;;
	esac
	"$python" -I -m venv --without-pip .
	$HQ_PIP --python ./bin/python install --quiet --disable-pip-version-check --no-deps --no-compile --require-hashes \
		--prefer-binary -r requirements.lock
	# Start-up is most of a program's processor time. Templates that are no valid Python stay as they are.
	./bin/python -I -m compileall -q -j 2 --invalidation-mode unchecked-hash lib >/dev/null 2>&1 || true
fi
hq_top_level_py | python3 -I - >top_level.txt
if [ -n "$HQ_SELF_TEST" ]; then
	mkdir .self-test
	# Without the variables of the index's proxy, as in a slot: what fetches something at its start fails here.
	env -i PATH="$PATH" HOME="$here/.self-test" TMPDIR="${TMPDIR:-/tmp}" LANG=C.UTF-8 \
		timeout 300 bash -c "$HQ_SELF_TEST" </dev/null >.self-test.out 2>&1 || {
		tail -c 3000 .self-test.out
		echo "the program's self-test failed without network: $HQ_SELF_TEST"
		exit 1
	}
	rm -rf .self-test .self-test.out
fi
