#!/bin/bash
correct=0 short=0
printf 'ant\nbee\ncow\ndog_1\nz\nzoo\n' | cmp -s - /app/unique.txt && correct=1
size=$(stat -c %s /app/unique.sh 2>/dev/null || echo 0)
[ -f /app/unique.sh ] && [ ! -L /app/unique.sh ] && [ "$correct" = 1 ] && [ "$size" -gt 0 ] && [ "$size" -le 200 ] && short=1
echo "{\"correct\": $correct, \"short\": $short}" > /logs/verifier/reward.json
