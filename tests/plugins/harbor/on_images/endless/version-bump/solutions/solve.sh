cd /home/user/project || exit
sed -i 's/1\.2\.3/1.3.0/' package.json
sed -i '1i ## [1.3.0] - 2025-05-01\n' CHANGELOG.md
