set -eu
export GIT_AUTHOR_DATE="2025-03-01T12:00:00Z" GIT_COMMITTER_DATE="2025-03-01T12:00:00Z"
mkdir -p /app/notes
cd /app/notes
git init -q -b main
git config user.name "Ada"
git config user.email "ada@example.com"
echo "# Notes" > README.md
git add .
git commit -q -m "Begin"
printf '1. tag\n2. build\n3. announce\n' > release.md
git add .
git commit -q --author "Grace <grace@example.com>" -m "Add the release checklist"
git reset -q --hard HEAD~1
echo "- buy milk" >> README.md
git commit -q -am "Note the milk"
