#!/bin/bash
# The agent's package is built and run as a user who cannot write the reward.
chmod 755 /logs/verifier  # else it could write a reward.json, which counts more than reward.txt
chmod 700 /tests  # else it could read the right answers
work=/tmp/check
rm -rf $work && mkdir $work && cp -r /app/slugs $work/slugs && chown -R nobody: $work
as_nobody() { timeout 100 setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs env -i HOME=$work PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin "$@"; }
reward=1
as_nobody python3 -m pip install --quiet --no-build-isolation --no-index --target $work/site $work/slugs || reward=0
for pair in 'Hello,  World!=hello-world' '--a--b--=a-b' 'C3PO & R2=c3po-r2' 'plain=plain'; do
  found=$(cd $work && PYTHONPATH= as_nobody env PYTHONPATH=$work/site $work/site/bin/slug "${pair%%=*}")
  [ "$found" = "${pair#*=}" ] || { echo "slug of ${pair%%=*}: $found"; reward=0; }
done
found=$(cd $work && as_nobody env PYTHONPATH=$work/site python3 -c 'import slugs; print(slugs.slug(" A  b "))')
[ "$found" = a-b ] || reward=0
echo $reward > /logs/verifier/reward.txt
